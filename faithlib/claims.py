"""What the paper says, what this run saw, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

LEAST_EXAMPLES = 20  # fewer examples test nothing


@dataclass(frozen=True)
class Claim:
    """verdict: ``holds``, ``does not``, or ``not tested`` with the reason in ``saw``."""

    paper: str
    saw: str
    verdict: str


def judge(paper: str, values: pd.DataFrame, holds: Iterable[bool] | bool, n_expected: int, tested: bool) -> Claim:
    """A claim over rows of a summary (columns shortcut, model, precision_at_k, its interval, n).

    It is not tested where the profile is too small (``tested`` False), where one of the ``n_expected`` rows is missing (its pair failed
    verification or was not asked), or where a row has fewer than 20 examples; so it never holds for want of data.
    """
    saw = "; ".join(
        f"{r.model} {r.shortcut.replace('_', ' ')} {r.precision_at_k:.2f} [{r.precision_at_k_low:.2f}, {r.precision_at_k_high:.2f}] n={r.n}"
        for r in values.itertuples()
    )
    if not tested:
        return Claim(paper, saw, "not tested at this size")
    if len(values) < n_expected:
        return Claim(paper, f"{saw or 'nothing'} ({len(values)} of {n_expected} numbers)", "not tested")
    if (values["n"] < LEAST_EXAMPLES).any():
        return Claim(paper, saw, "not tested: too few examples")
    return Claim(paper, saw, "holds" if bool(np.all(np.asarray(holds))) else "does not")


def compare(paper: str, difference: tuple[float, float, float, int], holds: bool, tested: bool) -> Claim:
    """A claim over a paired difference (mean, low, high, n), see ``faithfulness.difference``."""
    mean, low, high, n = difference
    saw = f"difference {mean:+.2f} [{low:+.2f}, {high:+.2f}] n={n}" if n else "nothing"
    if not tested:
        return Claim(paper, saw, "not tested at this size")
    return Claim(paper, saw, "not tested: too few examples" if n < LEAST_EXAMPLES else "holds" if holds else "does not")


def pick(summary: pd.DataFrame, method: str, config: str, role: str = "mixed", **where: str) -> pd.DataFrame:
    """The rows of a summary of one configuration."""
    chosen = (summary["method"] == method) & (summary["config"] == config) & (summary["role"] == role)
    for column, value in where.items():
        chosen &= summary[column] == value
    return summary[chosen]


def table(claims: Sequence[Claim]) -> pd.DataFrame:
    return pd.DataFrame([vars(claim) for claim in claims])


def beside_the_paper(summary: pd.DataFrame, paper: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """The run's numbers beside the paper's where it has them, its SST2 cells beside Rotten Tomatoes, of which SST was made."""
    short = {"st": "single_token", "tic": "token_in_context", "op": "ordered_pair"}
    rows = []
    for r in paper[(paper["measure"] == "p_at_k") & (paper["dataset"] == dataset)].fillna("").itertuples():
        found = pick(summary, r.method, r.config or "of=logit", shortcut=short[r.shortcut], model=r.model)
        for mine in found.itertuples():
            where = {"model": r.model, "shortcut": short[r.shortcut], "method": r.method, "config": mine.config}
            rows.append(
                {
                    **where,
                    f"paper ({dataset})": r.value,
                    "this run": mine.precision_at_k,
                    "low": mine.precision_at_k_low,
                    "high": mine.precision_at_k_high,
                    "n": mine.n,
                }
            )
    return pd.DataFrame(rows)
