"""Every folder that the project reads or writes, in one place."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

ROOT = Path(os.environ.get("FAITHLIB_ROOT") or Path(__file__).resolve().parent.parent)
NOTEBOOKS = ROOT / "notebooks"
PARAMS = ROOT / "params"


def cache_root() -> Path:
    """The user's cache folder; ``FAITHLIB_CACHE`` moves it, so a second clone is warm and an empty folder makes a cold run."""
    return Path(os.environ.get("FAITHLIB_CACHE") or platformdirs.user_cache_dir("faithlib"))


def report_root(profile: str) -> Path:
    """Where a profile's figures and tables go: ``report/<profile>``, or ``FAITHLIB_REPORT`` (so that a check does not overwrite a report)."""
    override = os.environ.get("FAITHLIB_REPORT")
    return Path(override).expanduser().absolute() if override else ROOT / "report" / profile
