"""What the paper says, what this run saw, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from faithlib.faithfulness import difference

LEAST_EXAMPLES = 20  # fewer examples test nothing


@dataclass(frozen=True)
class Claim:
    """verdict: ``holds``, ``does not``, or ``not tested`` with the reason in ``saw``."""

    claim: str
    saw: str
    verdict: str


@dataclass(frozen=True)
class Seen:
    """A number that a claim is about: its mean, 95 % interval, and from how many examples."""

    name: str
    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if not self.n:
            return f"{self.name} nothing"
        return f"{self.name} {self.mean:.2f} [{self.low:.2f}, {self.high:.2f}] n={self.n}"


def precision(values: pd.DataFrame) -> list[Seen]:
    """The precisions at k in rows of a summary (columns shortcut, model, precision_at_k, its interval, n)."""
    return [Seen(f"{r.model} {r.shortcut.replace('_', ' ')}", r.precision_at_k, r.precision_at_k_low, r.precision_at_k_high, r.n) for r in values.itertuples()]


def gain(table: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str], by: Sequence[str] = ()) -> list[Seen]:
    """How much better ``one`` ranks than ``other`` (see ``faithfulness.difference``), one number per value of the columns ``by``."""
    parts = table.groupby(list(by), sort=False) if by else [((), table)]
    found = [(" ".join(names).replace("_", " "), difference(part, one, other)) for names, part in parts]
    return [Seen(f"{name} difference".strip(), *numbers) for name, numbers in found]


def judge(claim: str, seen: Sequence[Seen], region: tuple[float, float], n_expected: int, tested: bool, why_not: str = "at this size") -> Claim:
    """Whether every number lies in ``region`` (least, most), asked of its interval.

    ``holds``: every interval lies inside. ``does not``: one lies wholly outside. Else the run cannot tell. It is ``not tested`` too where the
    profile is too small (``tested`` False, or another reason ``why_not``), where one of the ``n_expected`` numbers is missing (its pair failed verification or was not
    asked), or where one has fewer than 20 examples; so a claim never holds for want of data.
    """
    least, most = region
    saw = "; ".join(map(str, seen))
    if not tested:
        return Claim(claim, saw, f"not tested {why_not}")
    if len(seen) < n_expected:
        return Claim(claim, f"{saw or 'nothing'} ({len(seen)} of {n_expected} numbers)", "not tested")
    if any(number.n < LEAST_EXAMPLES for number in seen):
        return Claim(claim, saw, "not tested: too few examples")
    if any(number.high < least or number.low > most for number in seen):
        return Claim(claim, saw, "does not")
    inside = all(least <= number.low and number.high <= most for number in seen)
    return Claim(claim, saw, "holds" if inside else "not tested: an interval allows both")


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
