"""Score a ranking against the planted truth, and check first that it is the truth.

Bastings et al. (EMNLP 2022), section 3:

    P@k = (1 / (k |D|)) Σ_x |top_k(x) ∩ G(x)|            0 to 1, large is good
    R   = (1 / |D|) Σ_x min{ r : G(x) ⊆ top_r(x) }        at least k, small is good

Ties: both are expectations over a uniformly random order of the tied tokens, in closed form, so scores that are all equal score like Random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from faithlib.shapes import Numbers, Positions


def precision_at_k(scores: Numbers, evidence: Positions) -> float:
    """Expected share of the k = len(evidence) planted positions among the k highest scores; 0 to 1, NaN where nothing can be ranked.

    Fewer tokens than k: the sum still is divided by k. Raises ValueError for no evidence or a position outside the scores.
    """
    greater, tied = _places(scores, evidence)
    if not len(scores):
        return float("nan")
    k = len(evidence)
    return float(np.clip((k - greater) / tied, 0, 1).sum() / k)


def rank_of_evidence(scores: Numbers, evidence: Positions) -> float:
    """Expected number of highest-scored tokens that must be read until all evidence is seen; NaN where nothing can be ranked."""
    greater, tied = _places(scores, evidence)
    if not len(scores):
        return float("nan")
    lowest = greater == greater.max()  # the evidence in the lowest group of ties decides; m of its t places: expected last is m (t+1) / (m+1)
    m, t = int(lowest.sum()), int(tied[lowest][0])
    return float(greater.max() + m * (t + 1) / (m + 1))


def _places(scores: Numbers, evidence: Positions) -> tuple[np.ndarray, np.ndarray]:
    """Per planted position: how many tokens score higher, and how many score the same (itself included)."""
    scores = np.asarray(scores, dtype=np.float64)
    if not len(evidence):
        raise ValueError("no evidence: precision at k and rank need at least one planted position")
    if not len(scores):
        return np.zeros(0), np.zeros(0)
    if min(evidence) < 0 or max(evidence) >= len(scores):
        raise ValueError(f"evidence position {max(evidence)} is outside the {len(scores)} ranked tokens")
    if np.isnan(scores).any():
        raise ValueError(f"scores hold NaN at position {int(np.isnan(scores).argmax())}; a ranking needs numbers")
    own = scores[list(evidence)][:, None]
    return (scores > own).sum(1), (scores == own).sum(1)


def random_precision(n_tokens: int, k: int) -> float:
    """P@k of a random order: k/n, at most 1."""
    return min(1.0, k / n_tokens)


def random_rank(n_tokens: int, k: int) -> float:
    """Mean rank of a random order: k (n+1) / (k+1), so (n+1)/2 for one planted token and 2(n+1)/3 for two."""
    return k * (n_tokens + 1) / (k + 1)


def interval(values: Iterable[float], seed: int = 0, level: float = 0.95, statistic: Callable = np.mean) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean, or another statistic of numpy, 2000 resamples. Equal values give an interval of no width, which says nothing about how sure one can be: read n."""
    values = np.asarray([value for value in values if not np.isnan(value)], dtype=np.float64)
    if len(values) < 2 or np.ptp(values) == 0:
        return (float(values.mean()), float(values.mean())) if len(values) else (float("nan"), float("nan"))
    found = stats.bootstrap(
        (values,), statistic, n_resamples=2000, method="percentile", confidence_level=level, rng=np.random.default_rng(seed)
    ).confidence_interval
    return float(found.low), float(found.high)


def share_interval(n_right: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; unlike the bootstrap it has a width at 0 and 1."""
    found = stats.binomtest(n_right, n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class Thresholds:
    """When a pair of models counts as verified. synthetic: least accuracy of the mixed model on synthetic data. chance: the source model is
    at most so far from 0.5 there. drop: the mixed model loses at most so much accuracy on source data. All in shares, not per cent."""

    synthetic: float = 0.99
    chance: float = 0.05
    drop: float = 0.04

    def for_few(self, n_test: int) -> Thresholds:
        """With .98 / sqrt(n_test), two standard errors of a share of one half, added to chance and drop: a model at chance is off by more than .05 often
        where the test texts are few."""
        noise = 0.98 / n_test**0.5
        return Thresholds(self.synthetic, self.chance + noise, self.drop + noise)


THRESHOLDS = Thresholds()


def verification(
    source_on_source: np.ndarray, mixed_on_source: np.ndarray, mixed_on_synthetic: np.ndarray, source_on_synthetic: np.ndarray, thresholds: Thresholds
) -> dict:
    """One row of the verification table from whether each test example was classified right (arrays of bool).

    ``source_accuracy``, ``mixed_accuracy``, ``synthetic_accuracy``, ``source_on_synthetic``: shares with ``_low`` and ``_high`` (Wilson). ``drop``:
    source minus mixed accuracy on the same texts, with a paired bootstrap interval. ``verified`` and, where it is False, ``why_not``.
    """
    row: dict = {}
    for name, right in (
        ("source_accuracy", source_on_source),
        ("mixed_accuracy", mixed_on_source),
        ("synthetic_accuracy", mixed_on_synthetic),
        ("source_on_synthetic", source_on_synthetic),
    ):
        row[name] = float(np.mean(right))
        row[f"{name}_low"], row[f"{name}_high"] = share_interval(int(np.sum(right)), len(right))
    lost = source_on_source.astype(float) - mixed_on_source.astype(float)
    row["drop"] = float(lost.mean())
    row["drop_low"], row["drop_high"] = interval(lost)
    reasons = []
    if row["synthetic_accuracy"] < thresholds.synthetic:
        reasons.append(f"synthetic accuracy {row['synthetic_accuracy']:.3f} < {thresholds.synthetic}")
    if abs(row["source_on_synthetic"] - 0.5) > thresholds.chance:
        reasons.append(f"source model at {row['source_on_synthetic']:.3f} on synthetic data, not near 0.5")
    if row["drop"] > thresholds.drop:
        reasons.append(f"drop {row['drop']:.3f} > {thresholds.drop}")
    return {**row, "n_test": len(source_on_source), "verified": not reasons, "why_not": "; ".join(reasons)}


def score(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ``precision_at_k`` and ``rank`` per row, from its ``scores`` and ``evidence`` (token positions)."""
    return table.assign(
        precision_at_k=[precision_at_k(scores, evidence) for scores, evidence in zip(table["scores"], table["evidence"], strict=True)],
        rank=[rank_of_evidence(scores, evidence) for scores, evidence in zip(table["scores"], table["evidence"], strict=True)],
        all_equal=[len(scores) > 0 and np.ptp(scores) == 0 for scores in table["scores"]],
    )


GROUP = ["dataset", "shortcut", "model", "role", "method", "config"]


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """One row per data set, shortcut, model, role, method and configuration.

    ``precision_at_k`` and ``rank`` are means over examples with 95 % bootstrap intervals (``_low``, ``_high``); ``n`` examples counted,
    ``n_undefined`` left out for want of a rankable token, ``n_all_equal`` whose tokens all tie; ``random_precision`` and ``random_rank`` are the closed
    forms on the same examples. With several seeds, ``precision_seed_low`` and ``_high`` are the interval over the seeds' means.
    """
    rows = []
    for names, group in table.groupby(GROUP, sort=False):
        defined = group[~group["precision_at_k"].isna()]
        row = dict(zip(GROUP, names, strict=True))
        row |= {"n": len(defined), "n_undefined": len(group) - len(defined), "n_all_equal": int(defined["all_equal"].sum()), "n_seeds": group["seed"].nunique()}
        for measure in ("precision_at_k", "rank"):
            row[measure] = float(defined[measure].mean())
            row[f"{measure}_low"], row[f"{measure}_high"] = interval(defined[measure])
        if row["n_seeds"] > 1:
            row["precision_seed_low"], row["precision_seed_high"] = interval(defined.groupby("seed")["precision_at_k"].mean())
        k = defined["evidence"].map(len)
        row["random_precision"] = float(np.mean([random_precision(n, j) for n, j in zip(defined["n_tokens"], k, strict=True)]))
        row["random_rank"] = float(np.mean([random_rank(n, j) for n, j in zip(defined["n_tokens"], k, strict=True)]))
        rows.append(row)
    return pd.DataFrame(rows)


def difference(table: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str]) -> tuple[float, float, float, int]:
    """Mean difference of P@k, ``one`` minus ``other``, over the examples that both were asked about: (mean, low, high, n).

    one, other: the values that tell the two sides apart, such as ``{"method": "lime", "config": "mask=unk;samples=100"}``; both name the same
    columns. Examples are paired on all other columns that identify a ranking. Raises ValueError for a name that is no such column.
    """
    columns = [*GROUP, "seed", "example"]
    unknown = sorted((set(one) | set(other)) - set(columns))
    if unknown or set(one) != set(other):
        raise ValueError(f"the two sides name {sorted(one)} and {sorted(other)}; both must name the same columns of: {', '.join(columns)}")
    keys = [column for column in columns if column not in one]
    sides = []
    for side in (one, other):
        chosen = table[np.logical_and.reduce([table[column] == value for column, value in side.items()])]
        sides.append(chosen.set_index(keys)["precision_at_k"])
    both = (sides[0] - sides[1]).dropna()
    low, high = interval(both)
    return float(both.mean()), low, high, len(both)
