"""Progress with an estimate on anything over a few seconds; silent where nobody watches. And other libraries' progress, silenced."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm


def in_notebook() -> bool:
    """True inside a Jupyter kernel (not in plain IPython)."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return bool(shell) and shell.__class__.__name__ == "ZMQInteractiveShell"


class Meter:
    """Counts ``total`` units of work under a label.

    A terminal gets tqdm; a notebook gets one line of text that is replaced in place and emptied at the end, so that an
    exported page holds no widget state; anything else gets nothing.
    """

    def __init__(self, total: int, label: str):
        self.total, self.label, self.done = total, label, 0
        self.started = self.shown = time.monotonic()
        self.handle = None
        self.bar = None if in_notebook() else tqdm(total=total, desc=label, leave=False, disable=None, file=sys.stderr)

    def update(self, n: int = 1) -> None:
        self.done += n
        if self.bar is not None:
            self.bar.update(n)
        elif time.monotonic() - self.shown > 2:
            self._show()

    def _show(self, text: str | None = None) -> None:
        from IPython.display import display

        now = time.monotonic()
        if text is None:
            left = (now - self.started) / max(self.done, 1e-9) * max(self.total - self.done, 0)
            text = f"{self.label}: {min(1, self.done / self.total):.0%}, about {left:.0f} s left"
        content = _Line(text)
        if self.handle is None:
            self.handle = display(content, display_id=True)
        else:
            self.handle.update(content)
        self.shown = now

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.handle is not None:
            self._show(f"{self.label}: done")

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _Line:
    """A line of text as a notebook shows it, without quotes."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """transformers without its progress bars and load reports, which nobody asked for in a notebook; restored afterwards."""
    from transformers import modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    verbosity, bars, gguf_bar = logging.get_verbosity(), logging.is_progress_bar_enabled(), gguf.tqdm
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    gguf.tqdm = lambda tensors, **_: tensors  # a plain bar that the switch above does not reach
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        gguf.tqdm = gguf_bar
        if bars:
            logging.enable_progress_bar()
