"""``python -m faithlib``: what the Makefile calls."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from faithlib import cache, report

app = typer.Typer(help="Which highlight can you trust? Make the report, or a part of it.", no_args_is_help=True, add_completion=False)
Profile = Annotated[str, typer.Option(help="quick, or a folder of params/")]


@app.command("report")
def report_command(
    profile: Profile = report.QUICK, only: Annotated[list[str] | None, typer.Option(help="start of a notebook's name; may be repeated")] = None
) -> None:
    """Execute the notebooks that changed and write report/<profile>/index.html."""
    report.run(profile, only or ())


@app.command()
def warm(profile: Profile = report.QUICK) -> None:
    """Train and explain all that a profile needs, with progress; resumes where it was stopped."""
    report.warm(profile)


@app.command()
def store() -> None:
    """Put the outputs of the executed quick report into notebooks/."""
    report.store()


@app.command()
def clean(profile: Profile = report.QUICK) -> None:
    """Remove a profile's report (not the cache)."""
    report.clean(profile)


def main() -> None:
    """The command line; what a user can mend is one line on standard error and exit code 1."""
    try:
        app()
    except (report.ReportError, cache.CacheError, FileNotFoundError, ValueError) as error:
        print(f"faithlib: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("faithlib: stopped; finished parts are kept, run the same command to go on", file=sys.stderr)
        sys.exit(130)
