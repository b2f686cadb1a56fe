"""What people look at. Every figure is a query on a table of the report, and is saved with the numbers it was drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from faithlib import paths
from faithlib.shapes import Numbers, Positions

LABELS = {
    "random": "Random",
    "gradient_l2": "Gradient L2",
    "gradient_l1": "Gradient L1",
    "gradient_mean": "Gradient mean",
    "gradient_times_input": "Gradient x Input",
    "integrated_gradients": "Integrated Gradients",
    "lime": "LIME",
    "saliency": "Saliency",
    "attention": "Attention",
    "cnn": "CNN",
    "lstm": "LSTM",
    "bert": "BERT",
    "lstm_ends": "LSTM without attention",
    "roberta": "RoBERTa",
    "xlnet": "XLNet",
    "minilm": "MiniLM",
    "use": "USE",
    "single_token": "single token",
    "token_in_context": "token in context",
    "ordered_pair": "ordered pair",
    "literal_tea": "TEA's rules as published",
    "tef": "TEF's rules for both",
}
COLOURS = {"lstm": "#e66101", "bert": "#3c6ebe"}
OTHERS = sns.color_palette("Dark2")
# One configuration per method for the overview: the one that asks most of those which every shortcut has.
OVERVIEW = (
    ("random", ""),
    ("gradient_l2", "of=logit"),
    ("gradient_l1", "of=logit"),
    ("gradient_mean", "of=logit"),
    ("gradient_times_input", "of=logit"),
    ("integrated_gradients", "baseline=zero;of=logit;steps=100"),
    ("integrated_gradients", "baseline=unk;of=logit;steps=100"),
    ("integrated_gradients", "baseline=pad;of=logit;steps=100"),
    ("integrated_gradients", "baseline=mask;of=logit;steps=100"),
    ("lime", "mask=unk;samples=100"),
    ("lime", "mask=mask;samples=100"),
    ("lime", "mask=erase;samples=100"),
)


def in_order(names: Iterable[str]) -> list[str]:
    """Distinct names, those of ``LABELS`` first and in its order, so that a pair that is left out moves no panel."""
    found = dict.fromkeys(names)
    return [*(name for name in LABELS if name in found), *(name for name in found if name not in LABELS)]


def label(name: str) -> str:
    """A name as people read it."""
    return LABELS.get(name, name.replace("_", " "))


def describe(method: str, config: str) -> str:
    """A configuration in a few words: ``LIME, unk, 100``."""
    values = [part.split("=")[1] for part in filter(None, config.split(";"))]
    drop = {"logit"} if "probability" not in values else set()
    return ", ".join([label(method), *[value for value in values if value not in drop]])


def cells(summary: pd.DataFrame) -> list[str]:
    """Each row's precision at k as a table shows it: ``0.85 [0.75, 0.94] n=24``."""
    columns = (summary[name] for name in ("precision_at_k", "precision_at_k_low", "precision_at_k_high", "n"))
    return [f"{mean:.2f} [{low:.2f}, {high:.2f}] n={n}" for mean, low, high, n in zip(*columns, strict=True)]


def style() -> None:
    """The report's look."""
    sns.set_theme(
        style="whitegrid",
        context="notebook",
        rc={"axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 90, "savefig.bbox": "tight", "svg.hashsalt": "faithlib"},
    )


def save(figure: Figure, name: str, data: pd.DataFrame, profile: str) -> None:
    """Write ``figures/<name>.png``, ``.svg`` and ``.csv`` into the profile's report, together."""
    folder = paths.report_root(profile) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=150)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    data.to_csv(folder / f"{name}.csv", index=False)


def save_table(data: pd.DataFrame, name: str, profile: str) -> None:
    """Write ``tables/<name>.csv`` into the profile's report."""
    folder = paths.report_root(profile) / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    data.to_csv(folder / f"{name}.csv", index=False)


def _colour(model: str, models: Sequence[str]) -> str:
    return COLOURS.get(model, OTHERS[list(models).index(model) % len(OTHERS)])


def overview(summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of the overview's configurations, and of every method that it does not know."""
    known = {method for method, _ in OVERVIEW}
    wanted = summary[["method", "config"]].apply(tuple, axis=1).isin(OVERVIEW) | ~summary["method"].isin(known)
    return summary[wanted & (summary["role"] == "mixed")].assign(name=lambda d: [describe(m, c) for m, c in zip(d["method"], d["config"], strict=True)])


def precision_by_method(summary: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """P@k with 95 % intervals, a panel per shortcut, a row per method, a colour per model; the dashed line is a random ranking."""
    data = overview(summary)
    names = list(dict.fromkeys(data["name"]))
    shortcuts, models = in_order(data["shortcut"]), list(dict.fromkeys(data["model"]))
    figure, axes = plt.subplots(
        1, len(shortcuts), figsize=(3.6 * len(shortcuts) + 1.6, 0.36 * len(names) + 1.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, shortcut in zip(axes[0], shortcuts, strict=True):
        here = data[data["shortcut"] == shortcut]
        for j, model in enumerate(models):
            mine = here[here["model"] == model]
            y = np.array([names.index(name) for name in mine["name"]]) + (j - (len(models) - 1) / 2) * 0.26
            errors = [mine["precision_at_k"] - mine["precision_at_k_low"], mine["precision_at_k_high"] - mine["precision_at_k"]]
            axis.errorbar(mine["precision_at_k"], y, xerr=errors, fmt="o", ms=5, lw=1.4, color=_colour(model, models), label=label(model))
        axis.axvline(here["random_precision"].mean(), color="#888", ls="--", lw=1)
        axis.set(title=label(shortcut), xlim=(-0.03, 1.03), xlabel="precision at k", yticks=range(len(names)), yticklabels=names)
    axes[0][0].invert_yaxis()
    legend_below(figure, axes[0])
    return figure, data


def legend_below(figure: Figure, axes: Iterable[plt.Axes]) -> None:
    """One legend for all panels, where it covers nothing."""
    found = dict(pair[::-1] for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True))
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=len(found), frameon=False)


def _lines(data: pd.DataFrame, x: str, hue: str, xlabel: str, logarithmic: bool) -> Figure:
    """P@k over x, a line per hue, a panel per model, with intervals; n is written at the points of a line that stand for different numbers of texts."""
    models = list(dict.fromkeys(data["model"]))
    figure, axes = plt.subplots(1, max(1, len(models)), figsize=(4.2 * max(1, len(models)), 3.8), sharey=True, squeeze=False, layout="constrained")
    hues = list(dict.fromkeys(data[hue]))
    for axis, model in zip(axes[0], models, strict=False):
        for i, value in enumerate(hues):
            mine = data[(data["model"] == model) & (data[hue] == value)].sort_values(x)
            if len(mine):
                shift = mine[x] * (1.04 ** (i - len(hues) / 2))
                errors = [mine["precision_at_k"] - mine["precision_at_k_low"], mine["precision_at_k_high"] - mine["precision_at_k"]]
                axis.errorbar(shift, mine["precision_at_k"], yerr=errors, marker="o", ms=5, lw=1.4, color=OTHERS[i], label=f"{hue} {value}")
                if mine["n"].nunique() > 1:
                    for place, height, n in zip(shift, mine["precision_at_k"], mine["n"], strict=True):
                        axis.annotate(f"n={n}", (place, height), xytext=(5, -11), textcoords="offset points", fontsize=7, color=OTHERS[i])
        axis.set(title=label(model), xlabel=xlabel, ylim=(-0.03, 1.05))
        if logarithmic:
            axis.set_xscale("log")
        ticks = sorted(data[x].unique())
        axis.set_xticks(ticks, [f"{int(tick)}" for tick in ticks])
        axis.set_xlim(min(ticks) / 1.4, max(ticks) * 1.4)
        axis.minorticks_off()
    axes[0][0].set_ylabel("precision at k")
    legend_below(figure, axes[0])
    return figure


def options(summary: pd.DataFrame, method: str) -> pd.DataFrame:
    """Rows of one method with its options as columns."""
    rows = summary[summary["method"] == method]
    parsed = [dict(part.split("=") for part in config.split(";")) for config in rows["config"]]
    return rows.assign(**{name: [p[name] for p in parsed] for name in (parsed[0] if parsed else {})})


def baseline_by_steps(summary: pd.DataFrame, shortcut: str) -> tuple[Figure, pd.DataFrame]:
    """Integrated Gradients on one shortcut: does the baseline matter, do more steps help?"""
    data = options(summary[(summary["shortcut"] == shortcut) & (summary["role"] == "mixed")], "integrated_gradients")
    data = data[data["of"] == "logit"].assign(steps=lambda d: d["steps"].astype(int))
    return _lines(data, "steps", "baseline", "integration steps", True), data


def lime_budget(summary: pd.DataFrame, shortcut: str) -> tuple[Figure, pd.DataFrame]:
    """LIME on one shortcut: what does a larger budget buy, under each mask?"""
    data = options(summary[(summary["shortcut"] == shortcut) & (summary["role"] == "mixed")], "lime")
    data = data.assign(samples=lambda d: d["samples"].astype(int))
    return _lines(data, "samples", "mask", "perturbations", True), data


def false_alarms(summary: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The same ranking on the model that uses the planted tokens (filled) and on the source model that does not (open, with its 95 % interval and the fewest
    texts it was asked about); a panel per model. The dashed lines are random rankings."""
    chosen = summary[summary[["method", "config"]].apply(tuple, axis=1).isin(OVERVIEW)]
    data = chosen.assign(name=[describe(m, c) for m, c in zip(chosen["method"], chosen["config"], strict=True)])
    values, roles = ["precision_at_k", "precision_at_k_low", "precision_at_k_high", "random_precision", "n"], ["mixed", "source"]
    both = data.pivot_table(index=["model", "shortcut", "name"], columns="role", values=values, sort=False)
    both = both.reindex(columns=pd.MultiIndex.from_product([values, roles])).dropna()
    flat = both.reset_index()
    flat.columns = ["_".join(filter(None, column)) for column in flat.columns]
    order = [describe(*pair) for pair in OVERVIEW]
    rows = {model: sorted(set(part["name"]), key=order.index) for model, part in flat.groupby("model", sort=False)}
    shortcuts = in_order(flat["shortcut"])
    size = (6.1 * max(1, len(rows)), 0.42 * max(map(len, rows.values()), default=0) + 1.6)
    figure, axes = plt.subplots(1, max(1, len(rows)), figsize=size, squeeze=False, layout="constrained")
    for axis, (model, names) in zip(axes[0], rows.items(), strict=False):
        for j, shortcut in enumerate(shortcuts):
            mine = flat[(flat["model"] == model) & (flat["shortcut"] == shortcut)]
            y = np.array([names.index(name) for name in mine["name"]]) + (j - (len(shortcuts) - 1) / 2) * 0.22
            axis.hlines(y, mine["precision_at_k_source"], mine["precision_at_k_mixed"], color=OTHERS[j], lw=1, alpha=0.6)
            axis.plot(mine["precision_at_k_mixed"], y, "o", ms=6, color=OTHERS[j], label=label(shortcut))
            source = mine["precision_at_k_source"]
            errors = [source - mine["precision_at_k_low_source"], mine["precision_at_k_high_source"] - source]
            axis.errorbar(source, y, xerr=errors, fmt="o", ms=6, mfc="white", lw=2.2, color=OTHERS[j])
            axis.axvline(mine["random_precision_source"].mean(), color=OTHERS[j], ls="--", lw=0.8)
        fewest = flat[flat["model"] == model].groupby("name")["n_source"].min().astype(int)
        axis.set(
            title=f"{label(model)}: uses the shortcut (filled), does not (open)",
            xlim=(-0.03, 1.03),
            xlabel="precision at k",
            yticks=range(len(names)),
            yticklabels=[f"{name} (n={fewest[name]})" for name in names],
        )
        axis.title.set_fontsize(10)
        axis.invert_yaxis()
    legend_below(figure, axes[0])
    return figure, flat


def salience_grid(tokens: Sequence[str], scores: Mapping[str, Numbers], evidence: Positions = ()) -> tuple[Figure, pd.DataFrame]:
    """One sentence under several methods: a row per method, scaled by its largest absolute score; planted tokens in bold."""
    matrix = np.array([np.asarray(values, dtype=float) / (np.abs(values).max() or 1) for values in scores.values()])
    figure, axis = plt.subplots(figsize=(0.52 * len(tokens) + 2.6, 0.36 * len(scores) + 1.3))
    # Orange towards the prediction, blue away from it, as in the HTML heat maps.
    palette = sns.blend_palette(["#3c6ebe", "#ffffff", "#e66101"], as_cmap=True)
    sns.heatmap(matrix, cmap=palette, vmin=-1, vmax=1, linewidths=1, linecolor="white", cbar=False, ax=axis, yticklabels=[label(name) for name in scores])
    # Text from the data is text: a $ must not open a formula.
    axis.set_xticks(np.arange(len(tokens)) + 0.5, [token.replace("$", r"\$") for token in tokens], rotation=55, ha="right")
    for i, tick in enumerate(axis.get_xticklabels()):
        if i in set(evidence):
            tick.set_fontweight("bold")
    axis.tick_params(length=0)
    axis.set_yticklabels(axis.get_yticklabels(), rotation=0)
    figure.tight_layout()
    long = pd.DataFrame(
        [{"method": name, "position": i, "token": token, "score": float(values[i])} for name, values in scores.items() for i, token in enumerate(tokens)]
    )
    return figure, long


def learning_curves(histories: Mapping[tuple[str, str], pd.DataFrame]) -> tuple[Figure, pd.DataFrame]:
    """Validation accuracy on synthetic data over passes, per (model, shortcut): how long each shortcut takes to learn."""
    data = pd.concat([h.assign(model=model, shortcut=shortcut) for (model, shortcut), h in histories.items()], ignore_index=True)
    models = list(dict.fromkeys(data["model"]))
    figure, axes = plt.subplots(1, len(models), figsize=(4.2 * len(models), 3.2), sharey=True, squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        sns.lineplot(
            data=data[data["model"] == model].assign(shortcut=lambda d: d["shortcut"].map(label)),
            x="pass",
            y="synthetic",
            hue="shortcut",
            marker="o",
            ax=axis,
            palette="Dark2",
        )
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(title=label(model), xlabel="passes over the training data", ylabel="accuracy, synthetic validation", ylim=(0.4, 1.03))
    figure.tight_layout()
    return figure, data
