"""Figures of the robustness part; each is a query on its tables, and is saved with its numbers by ``figures.save``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from faithlib import robustness
from faithlib.figures import OTHERS, label, legend_below

METRICS = {  # column -> (what people read, statistic): a few near-zero distances carry the mean of a k
    "pcc": ("PCC of the explanations", "mean"),
    "sts_use": ("similarity, USE", "mean"),
    "sts_minilm": ("similarity, MiniLM", "mean"),
    "perplexity": ("ΔPP, relative (median)", "median"),
    "grammar": ("GE, grammatical errors", "mean"),
    "k_use": ("k, USE (median)", "median"),
    "k_minilm": ("k, MiniLM (median)", "median"),
    "k_perplexity": ("k, PP (median)", "median"),
}
DASHES = {"tef": "--"}
COUNTER_FITTED = "counter-fitted neighbours"  # what ``attack.candidates.counter_fitted`` calls itself
ATTACK_LABELS = {
    "tea": "TEA",
    "tef": "TEF",
    "random_importance": "TEA, positions in random order",
    "random_candidate": "TEA, a random candidate",
    "random": "TEA, both random",
}


def _places(table: pd.DataFrame, *columns: str) -> dict[tuple, str]:
    """Distinct values of the columns, the first of which is ``dataset`` -> a title, which names the data set where there are several."""
    several = table["dataset"].nunique() > 1
    found = dict.fromkeys(table[list(columns)].itertuples(index=False, name=None))
    return {place: ", ".join(map(label, place if several else place[1:])) for place in found}


def _sizes(table: pd.DataFrame, *columns: str) -> dict[tuple, str]:
    """Distinct values of the columns -> how many sentences (and seeds, where there are several) stand behind them."""
    several = f", {table['seed'].nunique()} seeds" if table["seed"].nunique() > 1 else ""
    return {place: f"n = {part['sample'].nunique()}{several}" for place, part in table.groupby(list(columns))}


def attack_names(table: pd.DataFrame) -> dict[str, str]:
    """Attack -> its name. TEF takes its words from counter-fitted vectors; with others it is another attack, and is called so."""
    sources = table.drop_duplicates("attack").set_index("attack")["candidates"].to_dict() if "candidates" in table else {}
    names = {attack: ATTACK_LABELS.get(attack, label(attack)) for attack in dict.fromkeys(table["attack"])}
    return names | {a: f"{names[a]} with {words}" for a, words in sources.items() if a == "tef" and words != COUNTER_FITTED}


def _line(axis: Axes, line: pd.DataFrame, statistic: str, colour: tuple, dashes: str, name: str | None = None) -> None:
    middle = line[statistic]
    errors = [(middle - line[f"{statistic}_low"]).clip(lower=0), (line[f"{statistic}_high"] - middle).clip(lower=0)]
    axis.errorbar(line["rho_bin"], middle, yerr=errors, fmt=dashes, marker="o", ms=3, lw=1.3, color=colour, elinewidth=0.7, label=name)
    if (line["n_seeds"] > 1).any():
        axis.fill_between(line["rho_bin"], line[f"{statistic}_lowest_seed"], line[f"{statistic}_highest_seed"], color=colour, alpha=0.12, lw=0)


def curves(table: pd.DataFrame, metrics: Mapping[str, tuple[str, str]] = METRICS) -> tuple[Figure, pd.DataFrame]:
    """Figure 2 of Ivankay et al. (2022): metrics over the true share rho of replaced words; a column of panels per data set and model, a colour per attribution,
    TEA solid and TEF dashed. Bars: 95 % bootstrap interval over samples; bands: from the lowest to the highest seed, where there are several."""
    known = [metric for metric in metrics if metric in table]
    numbers = pd.concat([robustness.curve(table, metric) for metric in known], ignore_index=True)
    places, attributions = _places(table, "dataset", "model"), list(dict.fromkeys(table["attribution"]))
    size = (3.4 * len(places) + 1, 2.1 * len(known) + 0.6)
    figure, axes = plt.subplots(len(known), len(places), figsize=size, sharex=True, sharey="row", squeeze=False, layout="constrained")
    for row, metric in zip(axes, known, strict=True):
        title, statistic = metrics[metric]
        for axis, (dataset, model) in zip(row, places, strict=True):
            here = numbers[(numbers["metric"] == metric) & (numbers["dataset"] == dataset) & (numbers["model"] == model)]
            for (attribution, attack), line in here.groupby(["attribution", "attack"], sort=False):
                _line(axis, line, statistic, OTHERS[attributions.index(attribution)], DASHES.get(attack, "-"))
            if metric.startswith("k_"):
                axis.set_yscale("log")
        row[0].set_ylabel(title, fontsize=9)
    sizes = _sizes(table, "dataset", "model")
    for axis, (place, title) in zip(axes[0], places.items(), strict=True):
        axis.set_title(f"{title}\n{sizes[place]}", fontsize=11)
    for axis in axes[-1]:
        axis.set_xlabel("share of words replaced")
    handles = [plt.Line2D([], [], color=OTHERS[i], label=label(name)) for i, name in enumerate(attributions)]
    handles += [plt.Line2D([], [], color="#444", ls=DASHES.get(attack, "-"), label=name) for attack, name in attack_names(table).items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure, numbers


def ablations(table: pd.DataFrame, metric: str = "pcc") -> tuple[Figure, pd.DataFrame]:
    """One metric over rho, a panel per data set, model and attribution, a colour per attack: what the order of the positions and the choice of the word are worth."""
    title, statistic = METRICS[metric]
    numbers = robustness.curve(table, metric)
    panels, sizes = _places(table, "dataset", "model", "attribution"), _sizes(table, "dataset", "model", "attribution")
    attacks = attack_names(table)
    figure, axes = plt.subplots(1, len(panels), figsize=(3.7 * len(panels) + 0.6, 3.6), sharey=True, squeeze=False, layout="constrained")
    for axis, (panel, name) in zip(axes[0], panels.items(), strict=True):
        here = numbers[(numbers[["dataset", "model", "attribution"]] == panel).all(axis=1)]
        for i, (attack, named) in enumerate(attacks.items()):
            _line(axis, here[here["attack"] == attack], statistic, OTHERS[i], "-", named)
        axis.set_title(f"{name}\n{sizes[panel]}", fontsize=11)
        axis.set_xlabel("share of words replaced")
    axes[0][0].set_ylabel(title)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, 2 * len(panels)), frameon=False)
    return figure, numbers


def gains(numbers: pd.DataFrame, rival: str = "TEF") -> Figure:
    """Figure 3: relative gain of TEA over TEF in the area under a metric, a panel per metric, a row per data set, model and attribution, a colour per
    set of rules. Bars: 95 % bootstrap interval over samples; small upright marks: the lowest and the highest seed, where there are several.

    numbers: rows of ``robustness.relative_gain`` with the columns dataset, model, attribution and rules. rival: TEF's name, see :func:`attack_names`.
    """
    metrics, rules = list(dict.fromkeys(numbers["metric"])), list(dict.fromkeys(numbers["rules"]))
    pairs = _places(numbers, "dataset", "model", "attribution")
    sizes = numbers.groupby(["dataset", "model", "attribution"])["n"].max()
    wide = bool(numbers["high"].max() > 3)  # a few long intervals would press everything else to the left
    row_of = {pair: row for row, pair in enumerate(pairs)}
    size = (3.5 * len(metrics) + 1.5, 0.42 * len(pairs) + 1.6)
    figure, axes = plt.subplots(1, len(metrics), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, metric in zip(axes[0], metrics, strict=True):
        for j, name in enumerate(rules):
            mine = numbers[(numbers["metric"] == metric) & (numbers["rules"] == name)]
            y = (
                np.array([row_of[pair] for pair in mine[["dataset", "model", "attribution"]].itertuples(index=False, name=None)])
                + (j - (len(rules) - 1) / 2) * 0.25
            )
            errors = [(mine["gain"] - mine["low"]).clip(lower=0), (mine["high"] - mine["gain"]).clip(lower=0)]
            axis.errorbar(mine["gain"], y, xerr=errors, fmt="o", ms=5, lw=1.3, color=OTHERS[j], label=label(name))
            if (mine["n_seeds"] > 1).any():
                for end in ("lowest_seed", "highest_seed"):
                    axis.plot(mine[end], y, "|", ms=7, color=OTHERS[j])
        axis.axvline(0, color="#888", lw=1, ls="--")
        axis.set(title=METRICS[metric][0].removesuffix(" (median)"), yticks=range(len(pairs)))
        axis.set_yticklabels([f"{name} (n = {sizes[pair]})" for pair, name in pairs.items()])
        low, high = axis.get_xlim()
        if wide:
            axis.set_xscale("symlog", linthresh=1)
            axis.set(xlim=(min(low, -1), high), xticks=[tick for tick in (-1, 0, 1, 2, 5, 10, 20, 50, 100) if tick <= high])
            axis.minorticks_off()
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes[0][0].invert_yaxis()
    axes[0][len(metrics) // 2].set_xlabel(f"relative gain of TEA over {rival}{' (logarithmic beyond 1)' * wide}")  # a legend would cover a figure's own label
    legend_below(figure, axes[0])
    return figure


def run_times(times: pd.DataFrame) -> Figure:
    """Figure 4: seconds per sample of the variants, a panel per data set, a colour per rho_max; dots are samples, bars their medians."""
    sets, budgets, order = list(dict.fromkeys(times["dataset"])), sorted(times["rho_max"].unique()), list(dict.fromkeys(times["variant"]))
    figure, axes = plt.subplots(1, len(sets), figsize=(4.4 * len(sets) + 0.5, 3.6), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], sets, strict=True):
        for j, rho_max in enumerate(budgets):
            here = times[(times["dataset"] == name) & (times["rho_max"] == rho_max)]
            x = np.arange(len(order)) + (j - (len(budgets) - 1) / 2) * 0.36
            medians = [here[here["variant"] == variant]["seconds"].median() for variant in order]
            axis.bar(x, medians, width=0.32, color=OTHERS[j], alpha=0.55, label=f"at most {rho_max:.0%} of the words")
            for place, variant in zip(x, order, strict=True):
                seconds = here[here["variant"] == variant]["seconds"]
                axis.plot(np.full(len(seconds), place), seconds, ".", ms=4, color="#333")
        n = times[times["dataset"] == name].groupby(["variant", "rho_max"]).size()
        size = f"n = {n.min()}" if n.min() == n.max() else f"n = {n.min()} to {n.max()}"  # a small budget leaves out the shortest
        axis.set(title=f"{label(name)}, {size}", xticks=range(len(order)), ylabel="seconds per sample")
        axis.set_xticklabels([textwrap.fill(variant, 16) for variant in order], fontsize=8)
    legend_below(figure, axes[0])
    return figure
