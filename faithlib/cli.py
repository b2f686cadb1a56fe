"""``python -m faithlib``: what the Makefile calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from faithlib import report
from faithlib.registry import UnknownNameError

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


@app.command("audit")
def audit_command(
    model: Annotated[str, typer.Option(help="folder or hub repository of a sequence classifier (safetensors)")],
    data: Annotated[str, typer.Option(help="CSV, TSV, JSONL or Parquet file")],
    out: Annotated[str, typer.Option(help="folder for audit.html and results.parquet")],
    text: Annotated[str, typer.Option(help="column of the texts")] = "text",
    label: Annotated[str, typer.Option(help="column of the labels")] = "label",
    budget: Annotated[str, typer.Option(help="time for ranking the methods on copies of the model, such as 30m; 0 leaves the ranking out")] = "30m",
    shortcuts: Annotated[str, typer.Option(help="what is planted for the ranking")] = "single_token ordered_pair",
    methods: Annotated[str, typer.Option(help="what is ranked, the dearest last; by default gradients, IG and LIME")] = "",
    learning_rate: Annotated[float | None, typer.Option(help="of the copies; by default 5e-5, and 1e-3 for a word model of this package")] = None,
    method: Annotated[str, typer.Option(help="one configuration for the suspects; by default what the ranking finds best")] = "",
    n_texts: Annotated[int, typer.Option(min=50, help="texts that are read")] = 1000,
    n_explained: Annotated[int, typer.Option(min=20, help="of these, explained")] = 300,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps; by default FAITHLIB_DEVICE, or a GPU where there is one")] = "",
    seed: int = 0,
) -> None:
    """Which method can be trusted on your classifier, and which words does it lean on? audit.html. Model and data are not changed."""
    if device:
        os.environ["FAITHLIB_DEVICE"] = device
    Path(out).expanduser().mkdir(parents=True, exist_ok=True)  # a place that cannot be written to is known before the work, not after it
    from faithlib import audit, ranking  # they import every library there is, which the other commands need not wait for

    settings = audit.AuditSettings(
        *(model, data, text, label, "" if budget == "0" else budget, tuple(shortcuts.split())),
        *(tuple(methods.split()) or ranking.METHODS, learning_rate, method),
        n_texts=n_texts,
        n_explained=n_explained,
        seed=seed,
    )
    found = audit.audit(settings)
    for sentence in (*audit.in_words(found), *found.notes):
        print(sentence)
    if found.ranking:
        print(found.ranking.took())
    print(f"read {audit.write(found, out)}, made in {found.seconds:.0f} s{f' of {budget}' if settings.budget else ''}")


def main() -> None:
    """The command line; what a user can mend is one line on standard error and exit code 1."""
    try:
        app()
    except (report.ReportError, OSError, ValueError, UnknownNameError) as error:  # a cache.CacheError is an OSError
        print(f"faithlib: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("faithlib: stopped; finished parts are kept, run the same command to go on", file=sys.stderr)
        sys.exit(130)
