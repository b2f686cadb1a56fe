"""Texts coloured by salience, and tables of texts, as static HTML: everything is escaped, nothing runs, nothing is fetched."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from faithlib.shapes import Numbers, Positions


class Html(str):
    """A string that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        return str(self)


def literal(text: str) -> str:
    """Text as HTML that shows it exactly: ``<br />``, ``&amp;`` and ``$x$`` stay as they are written (a lone $ in a tag of its own never opens a formula)."""
    return html.escape(text).replace("$", "<span>&#36;</span>").replace("`", "&#96;").replace("\\", "&#92;")


def colour(value: float) -> str:
    """CSS colour of a score in -1..1: orange towards the explained class, blue away from it, white at 0."""
    value = float(np.clip(value, -1, 1))
    strong = (230, 97, 1) if value > 0 else (60, 110, 190)
    mixed = [round(255 + (c - 255) * abs(value) * 0.8) for c in strong]
    return f"rgb({mixed[0]},{mixed[1]},{mixed[2]})"


def line(tokens: Sequence[str], scores: Numbers, evidence: Positions = ()) -> str:
    """One text's tokens, coloured relative to its largest absolute score; planted tokens are framed. A hover shows the score."""
    scores = np.asarray(scores, dtype=float)
    if len(scores) != len(tokens):
        raise ValueError(f"{len(scores)} scores for {len(tokens)} tokens")
    top = np.abs(scores).max() if len(scores) else 0
    shares = scores / top if top > 0 else scores
    spans = []
    for i, (token, share, score) in enumerate(zip(tokens, shares, scores, strict=True)):
        frame = "outline:2px solid #222;" if i in set(evidence) else ""
        spans.append(
            f'<span style="background:{colour(share)};{frame}color:#111;padding:1px 3px;margin:1px;border-radius:3px;display:inline-block" title="{score:.4g}">{literal(token)}</span>'
        )
    return "".join(spans)


def rows(tokens: Sequence[str], scores: Mapping[str, Numbers], evidence: Positions = (), caption: str = "") -> Html:
    """The same text under several methods, a row each."""
    left, right = "text-align:right;padding-right:10px;white-space:nowrap;color:#444;font-size:90%", "text-align:left;line-height:1.9"
    body = "".join(
        f'<tr><td style="{left}">{literal(name)}</td><td style="{right}">{line(tokens, values, evidence)}</td></tr>' for name, values in scores.items()
    )
    head = f'<caption style="text-align:left;color:#444">{literal(caption)}</caption>' if caption else ""
    return Html(f'<table style="border-collapse:collapse">{head}{body}</table>')


def table(data: pd.DataFrame, digits: int = 3) -> Html:
    """A data frame as a table whose texts are shown literally."""
    shown = data.rename_axis(columns=None)  # the name of a pivot's columns would be a column of its own
    for name in shown.columns:
        if pd.api.types.is_float_dtype(shown[name]):
            shown[name] = ["–" if pd.isna(v) else f"{v:.{digits}f}" for v in shown[name]]
        else:
            shown[name] = [
                ("yes" if v else "no") if isinstance(v, bool | np.bool_) else literal(" ".join(map(str, v)) if isinstance(v, tuple) else str(v))
                for v in shown[name]
            ]
    return Html(shown.to_html(index=False, escape=False, border=0, justify="left"))
