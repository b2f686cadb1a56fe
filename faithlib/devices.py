"""Where models live."""

from __future__ import annotations

import os

import torch


def chosen() -> torch.device:
    """``FAITHLIB_DEVICE``, such as ``cpu`` or ``cuda:1``, or a GPU where there is one. Raises ValueError for what this machine lacks."""
    wanted = os.environ.get("FAITHLIB_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=wanted).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises all three
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count())), *(["mps"] if torch.backends.mps.is_available() else [])]
        raise ValueError(f"device {wanted!r} cannot be used here ({str(error).splitlines()[0]}); choose from: {', '.join(here)}") from error
    return torch.device(wanted)
