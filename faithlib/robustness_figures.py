"""Figures of the robustness part; each is a query on its tables, and is saved with its numbers by ``figures.save``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from faithlib import robustness
from faithlib.figures import OTHERS, label

METRICS = {  # column -> (what people read, whether large values mean that the attack did well)
    "pcc": "PCC of the explanations",
    "sts_use": "similarity, USE",
    "sts_minilm": "similarity, MiniLM",
    "perplexity": "ΔPP, relative",
    "grammar": "GE, grammatical errors",
    "k_use": "k, USE",
    "k_minilm": "k, MiniLM",
    "k_perplexity": "k, PP",
}
DASHES = {"tef": "--", "random": ":"}


def curves(table: pd.DataFrame, metrics: Mapping[str, str] = METRICS, statistic: str = "mean") -> tuple[Figure, pd.DataFrame]:
    """Figure 2 of Ivankay et al. (2022): metrics over the true share rho of replaced words; a column of panels per model, a colour per attribution, TEA
    solid and TEF dashed. Bars: 95 % bootstrap interval of the mean over samples."""
    known = [metric for metric in metrics if metric in table]
    numbers = pd.concat([robustness.curve(table, metric) for metric in known], ignore_index=True)
    models, attributions = list(dict.fromkeys(table["model"])), list(dict.fromkeys(table["attribution"]))
    figure, axes = plt.subplots(
        len(known), len(models), figsize=(3.4 * len(models) + 1, 2.1 * len(known) + 0.6), sharex=True, squeeze=False, layout="constrained"
    )
    for row, metric in zip(axes, known, strict=True):
        for axis, model in zip(row, models, strict=True):
            here = numbers[(numbers["metric"] == metric) & (numbers["model"] == model)]
            for (attribution, attack), line in here.groupby(["attribution", "attack"], sort=False):
                colour = OTHERS[attributions.index(attribution)]
                errors = [(line["mean"] - line["low"]).clip(lower=0), (line["high"] - line["mean"]).clip(lower=0)] if statistic == "mean" else None
                axis.errorbar(
                    line["rho_bin"], line[statistic], yerr=errors, fmt=DASHES.get(attack, "-"), marker="o", ms=3, lw=1.3, color=colour, elinewidth=0.7
                )
        row[0].set_ylabel(metrics[metric], fontsize=9)
        if metric.startswith("k_"):
            for axis in row:
                axis.set_yscale("log")
    for axis, model in zip(axes[0], models, strict=True):
        axis.set_title(label(model))
    for axis in axes[-1]:
        axis.set_xlabel("share of words replaced")
    handles = [plt.Line2D([], [], color=OTHERS[i], label=label(name)) for i, name in enumerate(attributions)]
    handles += [plt.Line2D([], [], color="#444", ls=DASHES.get(name, "-"), label=name.upper()) for name in dict.fromkeys(table["attack"])]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure, numbers


def gains(numbers: pd.DataFrame) -> Figure:
    """Figure 3: relative gain of TEA over TEF in the area under k, a panel per distance, a row per model and attribution, a colour per set of rules."""
    metrics, rules = list(dict.fromkeys(numbers["metric"])), list(dict.fromkeys(numbers["rules"]))
    pairs = list(dict.fromkeys(zip(numbers["model"], numbers["attribution"], strict=True)))
    figure, axes = plt.subplots(1, len(metrics), figsize=(3.5 * len(metrics) + 1.5, 0.42 * len(pairs) + 1.6), sharey=True, squeeze=False, layout="constrained")
    for axis, metric in zip(axes[0], metrics, strict=True):
        for j, name in enumerate(rules):
            mine = numbers[(numbers["metric"] == metric) & (numbers["rules"] == name)]
            y = np.array([pairs.index(pair) for pair in zip(mine["model"], mine["attribution"], strict=True)]) + (j - (len(rules) - 1) / 2) * 0.25
            errors = [(mine["gain"] - mine["low"]).clip(lower=0), (mine["high"] - mine["gain"]).clip(lower=0)]
            axis.errorbar(mine["gain"], y, xerr=errors, fmt="o", ms=5, lw=1.3, color=OTHERS[j], label=name)
        axis.axvline(0, color="#888", lw=1, ls="--")
        axis.set(title=METRICS.get(metric, metric), xlabel="relative gain, TEA over TEF", yticks=range(len(pairs)))
        axis.set_yticklabels([f"{label(model)}, {label(attribution)}" for model, attribution in pairs])
        axis.set_xscale("symlog", linthresh=1)
    axes[0][0].invert_yaxis()
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def run_times(times: pd.DataFrame, order: Sequence[str]) -> Figure:
    """Figure 4: seconds per sample of the four variants, a panel per data set, a colour per rho_max; dots are samples, bars their medians."""
    sets, budgets = list(dict.fromkeys(times["dataset"])), sorted(times["rho_max"].unique())
    figure, axes = plt.subplots(1, len(sets), figsize=(4.4 * len(sets) + 0.5, 3.4), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], sets, strict=True):
        for j, rho_max in enumerate(budgets):
            here = times[(times["dataset"] == name) & (times["rho_max"] == rho_max)]
            x = np.arange(len(order)) + (j - (len(budgets) - 1) / 2) * 0.36
            medians = [here[here["variant"] == variant]["seconds"].median() for variant in order]
            axis.bar(x, medians, width=0.32, color=OTHERS[j], alpha=0.55, label=f"rho_max {rho_max}")
            for place, variant in zip(x, order, strict=True):
                seconds = here[here["variant"] == variant]["seconds"]
                axis.plot(np.full(len(seconds), place), seconds, ".", ms=4, color="#333")
        axis.set(title=label(name), xticks=range(len(order)), ylabel="seconds per sample")
        axis.set_xticklabels(order, rotation=20, ha="right", fontsize=8)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
