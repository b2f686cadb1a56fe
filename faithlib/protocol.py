"""The protocol as a call: your data, shortcut, model and method as plain functions, asked in the same way as the package's own.

    Protocol(reviews, [rule], [model], "learning_rate=2e-3").leaderboard([method, "gradient_l2"])    all of it yours
    Protocol.of_report().leaderboard([method])                                                       your method on the report's models and examples

What a function computes is kept like everything else, and is named by its source and by what it reads around it: change it, and it is asked anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from faithlib import experiment, faithfulness, figures, report, settings
from faithlib.data import DATASETS, DataSettings, Example
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier
from faithlib.models.markers import embed_markers
from faithlib.salience import salience
from faithlib.settings import Experiment, RunSettings
from faithlib.shortcuts import ShortcutSettings, enter_shortcut
from faithlib.training import TrainingSettings

N_EXAMPLES = 100


class Protocol:
    """Data, shortcuts and models; :meth:`verification` says which pairs can be believed, :meth:`leaderboard` ranks methods on those.

    data: a line for ``DataSettings``, or a function that returns a table with ``text``, ``label`` (and ``split``), or (text, label) pairs; a tenth of
    a function's texts, each, is left for validation and test where it brings no split.
    shortcuts: names in ``SHORTCUTS``, or functions ``plant(rng, words, label, markers, window) -> Example`` with the positions of the planted markers as its evidence.
    models: names of the report's (``lstm``, ``bert``), or functions ``model(texts, markers) -> (classifier, tokenizer)``, both of transformers, untrained, with one
    logit or two; the markers become tokens of it, and it must be of a class that ``AutoModelForSequenceClassification`` can load.
    training: a line for ``TrainingSettings``, for every model; without it the report's models have the report's, others the defaults. shortcut: a line for
    ``ShortcutSettings``, such as ``markers=@0,@1,@c``. window: tokens that a function's model reads.
    """

    def __init__(
        self,
        data: str | Callable[[], Any] = "name=rotten_tomatoes",
        shortcuts: Sequence[str | Callable[..., Example]] = ("single_token",),
        models: Sequence[str | Callable[..., tuple[Any, Any]]] = ("lstm",),
        training: str = "",
        shortcut: str = "",
        window: int = 64,
        seed: int = 0,
    ):
        rule = settings.parse(ShortcutSettings, shortcut)
        lines = report.declared(report.notebooks(["05"])[0])
        chosen = []
        for model in models:
            if callable(model):
                built = (enter_model(model), ModelSettings(model.__name__, weights="random", window=window), settings.parse(TrainingSettings, training))
            else:
                build = lines.get(model) if model in MODELS else None
                if build is None:
                    raise ValueError(f"unknown model {model!r}; choose from: {', '.join(name for name in MODELS if name in lines)}, or give a function")
                built = (model, settings.parse(ModelSettings, build, family=model), settings.parse(TrainingSettings, training or lines[f"{model}_training"]))
            chosen.append(built)
        self.experiment = Experiment(
            DataSettings(enter_data(data), n_validation=None, n_test=None) if callable(data) else settings.parse(DataSettings, data),
            tuple(enter_shortcut(s, rule.markers, rule.window) if callable(s) else s for s in shortcuts),
            rule,
            tuple(chosen),
            seed,
        )
        nothing = dict.fromkeys(self.experiment.model_names, "")
        self._asked = RunSettings(self.experiment, nothing, {}, nothing)

    @classmethod
    def of_report(cls, profile: str = report.QUICK) -> Protocol:
        """The models and examples of a profile's report, from the cache where it was made."""
        notebook = report.notebooks(["05"])[0]
        result = cls.__new__(cls)
        result._asked = settings.from_notebook({**report.declared(notebook), **report.parameters(profile, notebook)})
        result.experiment = result._asked.experiment
        return result

    def verification(self) -> pd.DataFrame:
        """A row per shortcut and model: ``verified``, ``why_not`` and the accuracies; see ``faithfulness.verification``. Trains what is not trained yet."""
        return experiment.verify(self.experiment)

    def scores(self, methods: Sequence[str | Callable[..., Tensor]], n: int = N_EXAMPLES, role: str = "mixed") -> pd.DataFrame:
        """The tidy table of ``experiment.scores``: a row per example, method and configuration of every verified pair.

        methods: names as for ``salience.explain``, or functions ``method(model, batch, target) -> (text, token)``, positive towards the target class. Asked
        about the first ``n`` texts of the synthetic test set, beside what a report asks anyway.
        """
        names = [enter_method(method) if callable(method) else method for method in methods]
        own = " ".join(f"{name}:{n}" for name in dict.fromkeys(["random", *names]))
        planned = self._asked.examples if role == "mixed" else self._asked.control
        return experiment.all_scores(self.experiment, {m: f"{own} {planned[m]}" for m in planned}, self._asked.extra if role == "mixed" else None, role)

    def leaderboard(self, methods: Sequence[str | Callable[..., Tensor]] = (), n: int = N_EXAMPLES) -> pd.DataFrame:
        """A row per method, best first; of a report, its table with your methods as further rows.

        Columns: a cell per model and shortcut, P@k with its 95 % interval and the number of examples; ``mean``, of P@k over these; ``false alarm``: the most
        that P@k exceeds a random ranking's on a model that does not use the planted tokens, which should be about 0 (NaN where that was not asked).
        """
        table = pd.concat([self.scores(methods, n, role) for role in ("mixed", "source")], ignore_index=True)
        summary = faithfulness.summarise(table)
        summary = summary.assign(
            name=[figures.describe(m, c) for m, c in zip(summary["method"], summary["config"], strict=True)],
            pair=summary["model"].map(figures.label) + ", " + summary["shortcut"].map(figures.label),
            cell=[
                f"{p:.2f} [{low:.2f}, {high:.2f}] n={k}"
                for p, low, high, k in zip(
                    summary["precision_at_k"], summary["precision_at_k_low"], summary["precision_at_k_high"], summary["n"], strict=True
                )
            ],
        )
        shown = figures.overview(summary) if any(self._asked.examples.values()) else summary[summary["role"] == "mixed"]
        board = shown.pivot_table(index="name", columns="pair", values="cell", aggfunc="first", sort=False)
        source = summary[summary["role"] == "source"]
        alarm = (source["precision_at_k"] - source["random_precision"]).groupby(source["name"]).max()
        board["mean"] = shown.groupby("name")["precision_at_k"].mean()
        board["false alarm"] = alarm.reindex(board.index)
        return board.sort_values("mean", ascending=False, kind="stable").rename_axis("method", axis=0).rename_axis(None, axis=1)


# Functions as entries


def enter_data(function: Callable[[], Any]) -> str:
    """Enter a function as a data set under its name; see :class:`Protocol`."""

    @functools.wraps(function)
    def read(_settings: DataSettings) -> pd.DataFrame:
        made = function()
        table = made if isinstance(made, pd.DataFrame) else pd.DataFrame(list(made), columns=["text", "label"])
        missing = [column for column in ("text", "label") if column not in table]
        if missing:
            raise ValueError(f"{function.__name__}() has no column {missing[0]!r}; it has: {', '.join(map(str, table.columns))}")
        return table

    DATASETS.add(function.__name__, read)
    return function.__name__


def enter_model(function: Callable[..., tuple[Any, Any]]) -> str:
    """Enter a function as a model family under its name; see :class:`Protocol`."""

    @functools.wraps(function)
    def build(build_settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
        made = function(texts, markers)
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(f"{function.__name__} returned a {type(made).__name__}, not (classifier, tokenizer)")
        model, tokenizer = made
        embed_markers(model, tokenizer, list(markers))
        return TextClassifier.wrap(model, tokenizer, window=build_settings.window)

    MODELS.add(function.__name__, build)
    return function.__name__


def enter_method(function: Callable[..., Tensor]) -> str:
    """Enter a function as a salience family of one configuration under its name; see :meth:`Protocol.scores`. What is not rankable scores 0, whatever it says."""

    @functools.wraps(function)
    def family(model, batch, target, configurations, _seed):
        scores = torch.as_tensor(function(model, batch, target))
        if scores.shape == batch.rankable.shape:  # else explain says what is wrong
            scores = scores.detach().to(batch.rankable.device).masked_fill(~batch.rankable, 0)
            if not bool(torch.isfinite(scores).all()):
                raise ValueError(f"{function.__name__} returned scores that are not finite, which cannot be ranked")
        return dict.fromkeys(configurations, scores)

    salience(function.__name__)(family)
    return function.__name__
