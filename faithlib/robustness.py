"""How far an explanation moved for how much the text moved: k, its curves over the share of replaced words, and the area under them.

Ivankay et al. (2022, arXiv 2212.09155), equations 2 to 4:

    k(s) = d[A(s~, F, l), A(s, F, l)] / d_s(s~, s)          at least 0, large means fragile
    k(A, F) = mean of k(s) over the data set

d lies in [0, 1]. Everything here reads one tidy table with a row per accepted replacement of an attack, see :func:`with_k`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from faithlib.distances import SENTENCE_DISTANCES, clamp
from faithlib.faithfulness import interval

EDGES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)  # of rho; a bin holds its upper edge
STATISTICS = {"mean": np.mean, "median": np.median}
ATTACK = ["dataset", "model", "attribution", "attack", "rules", "seed"]


def with_k(table: pd.DataFrame, least: Mapping[str, float] | None = None) -> pd.DataFrame:
    """The table with ``k_<name>`` and ``clamped_<name>`` for every sentence distance under k.

    table: columns dataset, model, attribution, attack, rules, seed, sample, step, rho, d, and a column per sentence distance (minilm and use:
    1 - cosine; perplexity: its relative increase, which may be negative). least: the smallest distance that k divides by, by name; the others keep the
    ``eps`` of ``SENTENCE_DISTANCES``. k = d / max(d_s, eps): 0 for an explanation that did not move, NaN where d_s is undefined.
    """
    result = table.copy()
    for name, distance in SENTENCE_DISTANCES.items():
        if distance.eps is None or name not in table:
            continue
        divisor, clamped = clamp(table[name].to_numpy(), (least or {}).get(name, distance.eps))
        result[f"k_{name}"] = table["d"].to_numpy() / divisor
        result[f"clamped_{name}"] = np.where(np.isnan(divisor), np.nan, clamped.astype(float))
    return result


def with_largest_k(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ``largest_k_<name>`` beside every ``k_<name>``: the largest of the rows of the same path up to this one.

    The search climbs d, so the last sentence of a path need not be the one with the largest k. Of a table that holds the last sentence of each bin alone
    (``robustness_experiment.measured``) it is the largest at the bins' ends; sentences between them were not measured.
    """
    result = table.sort_values("step", kind="stable")
    for column in [name for name in table if name.startswith("k_")]:
        result[f"largest_{column}"] = result.groupby([*ATTACK, "sample"])[column].cummax()
    return result.loc[table.index]


def at_each_share(table: pd.DataFrame, edges: Sequence[float] = EDGES) -> pd.DataFrame:
    """One row per attack, sample and bin of the true share rho of replaced words: the sample's last accepted sentence there.

    Adds ``bin`` (number) and ``rho_bin`` (the bin's middle). A run with a smaller budget is a prefix of the path, so that row is what an attack
    with that budget would have returned. Rows beyond the last edge are left out.
    """
    edges = np.asarray(edges)
    number = np.searchsorted(edges, table["rho"].to_numpy() - 1e-9) - 1  # (0, .05] is bin 0
    inside = (number >= 0) & (number < len(edges) - 1)
    binned = table[inside].reset_index(drop=True).assign(bin=number[inside], rho_bin=((edges[:-1] + edges[1:]) / 2)[number[inside]])
    return binned.sort_values("step", kind="stable").groupby([*ATTACK, "sample", "bin"], sort=False).tail(1).sort_index().reset_index(drop=True)


def curve(table: pd.DataFrame, metric: str, edges: Sequence[float] = EDGES, seed: int = 0) -> pd.DataFrame:
    """A metric over rho: per attack and bin its mean and its median, each with a 95 % percentile bootstrap interval over samples (NaN for a single one),
    and n samples.

    Several seeds attack the same sentences, so a sample is the mean of its seeds, or their median; ``*_lowest_seed`` and ``*_highest_seed`` are the mean and
    the median of single seeds.
    """
    of, rows = [name for name in ATTACK if name != "seed"], []
    for names, part in at_each_share(table, edges).groupby([*of, "bin", "rho_bin"], sort=True):
        values, row = part[metric].astype(float), dict(zip([*of, "bin", "rho_bin"], names, strict=True))
        row |= {"metric": metric, "n": int(values.groupby(part["sample"]).mean().notna().sum()), "n_seeds": part["seed"].nunique()}
        for name, statistic in STATISTICS.items():
            of_samples, of_seeds = values.groupby(part["sample"]).agg(name), values.groupby(part["seed"]).agg(name)
            low, high = interval(of_samples, seed, statistic=statistic) if row["n"] > 1 else (np.nan, np.nan)
            row |= {name: of_samples.agg(name), f"{name}_low": low, f"{name}_high": high}
            row |= {f"{name}_lowest_seed": of_seeds.min(), f"{name}_highest_seed": of_seeds.max()}
        rows.append(row)
    return pd.DataFrame(rows)


def relative_gain(
    table: pd.DataFrame,
    metric: str,
    one: Mapping[str, str],
    other: Mapping[str, str],
    statistic: str = "mean",
    edges: Sequence[float] = EDGES,
    seed: int = 0,
    n_resamples: int = 2000,
) -> dict:
    """(AUC_one - AUC_other) / AUC_other of a metric's curve over rho, figure 3 of the paper; positive where ``one`` is the stronger attack.

    table: rows of one model and attribution. one, other: column values that pick each side, for example ``{"attack": "tea"}``. Only bins that
    both sides fill are integrated, and named in ``bins``. statistic: ``mean`` or ``median`` of the samples in a bin, and of the seeds of a sample.
    Interval: 95 % percentile bootstrap over samples, both attacks on the same resample. Returns gain, low, high, auc_one, auc_other, bins, n (samples of
    either side), n_seeds, and the lowest_seed and highest_seed of the gains of single seeds.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"unknown statistic {statistic!r}; choose from: {', '.join(STATISTICS)}")
    binned = at_each_share(table, edges)
    sides = [binned[np.logical_and.reduce([binned[c] == v for c, v in side.items()])] for side in (one, other)]
    samples, first, second = _aligned(sides, metric, len(edges) - 1, statistic)
    bins = [b for b in range(len(edges) - 1) if np.isfinite(first[:, b]).any() and np.isfinite(second[:, b]).any()]

    everyone = np.arange(len(samples))
    mine, theirs = (float(values[0]) for values in _areas(first, second, everyone[None], bins, statistic, edges))
    low = high = float("nan")
    if len(samples) > 1 and len(bins) > 1:
        drawn = np.random.default_rng(seed).integers(len(samples), size=(n_resamples, len(samples)))
        one_areas, other_areas = _areas(first, second, drawn, bins, statistic, edges)
        ratios = one_areas / np.where(other_areas == 0, np.nan, other_areas) - 1
        low, high = np.nanpercentile(ratios, [2.5, 97.5]) if np.isfinite(ratios).any() else (low, high)
    of_seeds = []
    for value in table["seed"].unique() if table["seed"].nunique() > 1 else ():
        _, *matrices = _aligned([side[side["seed"] == value] for side in sides], metric, len(edges) - 1, statistic)
        areas = _areas(*matrices, np.arange(len(matrices[0]))[None], bins, statistic, edges)
        of_seeds.append(areas[0][0] / areas[1][0] - 1 if areas[1][0] else np.nan)
    gains = pd.Series(of_seeds, dtype=float)
    middle = [f"{(edges[b] + edges[b + 1]) / 2:.3g}" for b in bins]
    return {
        "metric": metric,
        "statistic": statistic,
        "gain": mine / theirs - 1 if theirs else float("nan"),
        "low": float(low),
        "high": float(high),
        "auc_one": mine,
        "auc_other": theirs,
        "bins": " ".join(middle),
        "n": len(samples),
        "n_seeds": table["seed"].nunique(),
        "lowest_seed": float(gains.min()),
        "highest_seed": float(gains.max()),
    }


def _areas(
    first: np.ndarray, second: np.ndarray, rows: np.ndarray, bins: Sequence[int], statistic: str, edges: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Both areas for each row of sample numbers, (resample,); over the bins that both fill in that resample, NaN for fewer than two."""
    reduce = np.nanmean if statistic == "mean" else np.nanmedian
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a bin that no sample of a resample fills is NaN, which is what is meant
        curves = [reduce(side[rows][:, :, list(bins)], axis=1) for side in (first, second)]
    filled = np.isfinite(curves[0]) & np.isfinite(curves[1])
    result = np.full((2, len(rows)), np.nan)
    middle = ((np.asarray(edges)[:-1] + np.asarray(edges)[1:]) / 2)[list(bins)]
    for pattern in np.unique(filled, axis=0):
        these = (filled == pattern).all(axis=1)
        if pattern.sum() >= 2:
            for into, curve_ in zip(result, curves, strict=True):
                into[these] = np.trapezoid(curve_[np.ix_(these, pattern)], middle[pattern], axis=1)
    return result[0], result[1]


def _aligned(sides: Sequence[pd.DataFrame], metric: str, n_bins: int, statistic: str) -> tuple[list, np.ndarray, np.ndarray]:
    """The samples of either side, and per side (sample, bin) of the metric, its mean or median over seeds; NaN where a sample has no sentence in a bin."""
    matrices = [side.pivot_table(index="sample", columns="bin", values=metric, aggfunc=statistic, dropna=False) for side in sides]
    samples = sorted(set(matrices[0].index) | set(matrices[1].index))
    first, second = (matrix.reindex(index=samples, columns=range(n_bins)).to_numpy() for matrix in matrices)
    return samples, first, second


def paired(table: pd.DataFrame, metric: str, one: Mapping[str, str], other: Mapping[str, str], edges: Sequence[float] = EDGES, seed: int = 0) -> dict:
    """Mean difference of a metric, ``one`` minus ``other``, over the samples and bins that both reached: mean, low, high, n (pairs)."""
    binned = at_each_share(table, edges)
    keys = ["dataset", "model", "attribution", "seed", "sample", "bin"]
    sides = [binned[np.logical_and.reduce([binned[c] == v for c, v in side.items()])].set_index(keys)[metric] for side in (one, other)]
    both = (sides[0] - sides[1]).dropna()
    per_sample = both.groupby(["dataset", "model", "attribution", "sample"]).mean()  # several seeds attack the same sentences
    if len(per_sample) < 2:
        return {"mean": float(both.mean()), "low": float("nan"), "high": float("nan"), "n": len(per_sample)}
    low, high = interval(per_sample, seed)
    return {"mean": float(per_sample.mean()), "low": low, "high": high, "n": len(per_sample)}
