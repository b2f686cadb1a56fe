"""The protocol as a call: your data, shortcut, model and method as plain functions, asked in the same way as the package's own.

    Protocol(reviews, [rule], [model], "learning_rate=2e-3").leaderboard([method, "gradient_l2"])    all of it yours
    Protocol.of_report().leaderboard([method])                                                       your method on the report's models and examples

What a function computes is kept like everything else, named by its code and what it reads (``cache.user_fingerprint`` says what is not seen).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from faithlib import cache, experiment, faithfulness, figures, report, settings
from faithlib.data import DataSettings, Example
from faithlib.models import MODELS, ModelSettings
from faithlib.models.checkpoint import pad_on_the_right
from faithlib.models.classifier import TextClassifier
from faithlib.models.markers import embed_markers
from faithlib.registry import Registry
from faithlib.salience import SALIENCE, salience
from faithlib.settings import Experiment, RunSettings
from faithlib.shortcuts import SHORTCUTS, Markers, ShortcutSettings, enter_shortcut
from faithlib.training import TrainingSettings

N_EXAMPLES = 100
Named = str | Callable[..., Any]


class Protocol:
    """Data, shortcuts and models; :meth:`verification` says which pairs can be believed, :meth:`leaderboard` ranks methods on those.

    data: a line for ``DataSettings``, a table with ``text``, ``label`` (and ``split``), (text, label) pairs, or a function that returns one of the two; where
    there is no split, a tenth of the texts is left for test, and of the others for validation.
    shortcuts: names in ``SHORTCUTS``, or functions ``plant(rng, words, label, markers, window) -> Example`` with the positions of the planted markers as its evidence.
    models: names of the report's (``lstm``, ``bert``), or functions ``model(texts, markers) -> (classifier, tokenizer)``, both of transformers, untrained, with one
    logit or two; the markers become tokens of it.
    training: a line for ``TrainingSettings``, for every model; without it the report's models have the report's, others the defaults. shortcut: a line for
    ``ShortcutSettings``, such as ``markers=@0,@1,@c``. window: tokens that a function's model reads.

    A pair is verified as in the report, with .98 / sqrt(n test texts) added to the bounds on chance and drop (about two standard errors of a share of one half).
    """

    def __init__(
        self,
        data: Any = "name=rotten_tomatoes",
        shortcuts: Named | Sequence[Named] = "single_token",
        models: Named | Sequence[Named] = "lstm",
        training: str = "",
        shortcut: str = "",
        window: int = 64,
        seed: int = 0,
    ):
        rule = settings.parse(ShortcutSettings, shortcut)
        lines = report.declared(report.notebooks(["05"])[0])
        self._functions: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        chosen = []
        for model in _listed("models", models):
            if callable(model):
                name = self._enter(enter_model, model)
                chosen.append((name, ModelSettings(name, weights="random", window=window), settings.parse(TrainingSettings, training)))
            elif model in MODELS and model in lines:
                build, how = settings.parse(ModelSettings, lines[model], family=model), training or lines[f"{model}_training"]
                chosen.append((model, build, settings.parse(TrainingSettings, how)))
            else:
                raise ValueError(f"unknown model {model!r}; choose from: {', '.join(name for name in MODELS if name in lines)}, or give a function")
        named = tuple(self._enter(_enter_rule, s, rule.markers, rule.window) if callable(s) else s for s in _listed("shortcuts", shortcuts))
        where = settings.parse(DataSettings, data) if isinstance(data, str) else _as_file(data)
        self.experiment = Experiment(where, named, rule, tuple(chosen), seed)
        nothing = dict.fromkeys(self.experiment.model_names, "")
        self._planned = RunSettings(self.experiment, nothing, {}, nothing)
        self.thresholds = faithfulness.THRESHOLDS.for_few(len(experiment.texts(self.experiment).test))

    @classmethod
    def of_report(cls, profile: str = report.QUICK) -> Protocol:
        """The models and examples of a profile's report, from the cache where it was made; verified with the report's own bounds."""
        notebook = report.notebooks(["05"])[0]
        result = cls.__new__(cls)
        result._functions, result.thresholds = [], faithfulness.THRESHOLDS
        result._planned = settings.from_notebook({**report.declared(notebook), **report.parameters(profile, notebook)})
        result.experiment = result._planned.experiment
        return result

    def verification(self) -> pd.DataFrame:
        """A row per shortcut and model: ``verified``, ``why_not`` and the accuracies, see ``faithfulness.verification``; ``n_cut``: texts that lost words to
        the window. Trains what is not trained yet."""
        self._enter_again()
        return experiment.verify(self.experiment, self.thresholds).assign(n_cut=experiment.texts(self.experiment).notes["cut"])

    def needed(self) -> pd.DataFrame:
        """Is a verified model still right without one of several planted tokens? See ``experiment.needed``; it should be at about one half."""
        self._enter_again()
        return experiment.needed(self.experiment, self.thresholds)

    def scores(self, methods: Named | Sequence[Named], n: int = N_EXAMPLES, role: str = "mixed") -> pd.DataFrame:
        """The tidy table of ``experiment.scores``: a row per example, method and configuration of every verified pair.

        methods: names as for ``salience.explain``, or functions ``method(model, batch, target) -> (text, token)``, positive towards the target class, asked
        about the first ``n`` texts of the synthetic test set. role: ``mixed``, or ``source`` for the models that do not use the planted tokens.
        """
        self._enter_again()
        listed = _listed("methods", methods)
        names = [enter_method(method) if callable(method) else method for method in listed]
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise ValueError(f"two methods are called {repeated[0]!r}; give them different names")
        wanted = " ".join(f"{name}:{n}" for name in names)
        return experiment.all_scores(self.experiment, dict.fromkeys(self.experiment.model_names, wanted), role=role, thresholds=self.thresholds)

    def leaderboard(self, methods: Named | Sequence[Named] = (), n: int = N_EXAMPLES) -> pd.DataFrame:
        """A row per method, best first; of a report, its table with your methods as further rows.

        Columns: a cell per model and shortcut, P@k with its 95 % interval and the number of examples; ``mean``, of P@k over these; ``false alarm``: the most
        that P@k exceeds a random ranking's on a model that does not use the planted tokens, which should be about 0 (NaN where that was not asked).
        """
        asked, planned = _listed("methods", methods), any(self._planned.examples.values())
        asked = [*asked, *([] if planned or "random" in asked else ["random"])]
        tables = [self.scores(asked, n, role) for role in ("mixed", "source")] if asked else []
        own = faithfulness.summarise(pd.concat(tables, ignore_index=True)) if tables else pd.DataFrame()
        summary = own
        if planned:
            theirs = faithfulness.summarise(pd.concat([experiment.everything(self._planned, role) for role in ("mixed", "source")], ignore_index=True))
            shown = figures.overview(theirs)[["method", "config"]].apply(tuple, axis=1)
            theirs = theirs[theirs[["method", "config"]].apply(tuple, axis=1).isin(set(shown))]
            summary = pd.concat([own, theirs], ignore_index=True).drop_duplicates(faithfulness.GROUP)
        summary = summary.assign(
            name=[figures.describe(m, c) for m, c in zip(summary["method"], summary["config"], strict=True)],
            pair=summary["model"].map(figures.label) + ", " + summary["shortcut"].map(figures.label),
            cell=figures.cells(summary),
        )
        mixed, source = (summary[summary["role"] == role] for role in ("mixed", "source"))
        board = mixed.pivot_table(index="name", columns="pair", values="cell", aggfunc="first", sort=False)
        board["mean"] = mixed.groupby("name")["precision_at_k"].mean()
        board["false alarm"] = (source["precision_at_k"] - source["random_precision"]).groupby(source["name"]).max().reindex(board.index)
        return board.sort_values("mean", ascending=False, kind="stable").rename_axis("method", axis=0).rename_axis(None, axis=1)

    def _enter(self, enter: Callable[..., str], *given: Any) -> str:
        if any(known is enter and other[0] is not given[0] and _name(other[0]) == _name(given[0]) for known, other in self._functions):
            raise ValueError(f"two functions are called {_name(given[0])!r}; give them different names")
        self._functions.append((enter, given))
        return enter(*given)

    def _enter_again(self) -> None:
        """Another protocol may have a function of the same name."""
        for enter, given in self._functions:
            enter(*given)


def _listed(what: str, given: Any) -> list[Named]:
    listed = [given] if isinstance(given, str) or callable(given) else list(given)
    wrong = [value for value in listed if not isinstance(value, str) and not callable(value)]
    if wrong:
        raise TypeError(f"{what} holds {wrong[0]!r}; give names, or functions")
    return listed


def _name(function: Callable[..., Any]) -> str:
    if not hasattr(function, "__name__"):
        raise TypeError(f"{function!r} has no name to appear under; wrap it in a function")
    return function.__name__


def _as_file(data: Any) -> DataSettings:
    """The texts as a file of the cache, named by its content: what is read is what the function returns now."""
    name = _name(data) if callable(data) else "yours"
    made = data() if callable(data) else data
    if not isinstance(made, pd.DataFrame):
        pairs = list(made) if isinstance(made, Sequence) and not isinstance(made, str) else None
        if pairs is None or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise TypeError(f"data {name}: a {type(made).__name__}; give a line, a table with text and label, (text, label) pairs, or a function that returns them")
        made = pd.DataFrame(pairs, columns=["text", "label"])
    missing = [column for column in ("text", "label") if column not in made]
    if missing:
        raise ValueError(f"data {name}: no column {missing[0]!r}; it has: {', '.join(map(str, made.columns))}")
    table = made[["text", "label", *(["split"] if "split" in made else [])]].reset_index(drop=True)
    key = cache.key("data", [name, list(table.columns), [[str(value) for value in row] for row in table.itertuples(index=False)], str(table["label"].dtype)])
    file = cache.folder(key, lambda folder: table.to_parquet(folder / f"{name}.parquet", index=False)) / f"{name}.parquet"
    return DataSettings("local_file", path=str(file), n_validation=None, n_test=None)


# Functions as entries


def _mark(entry: Callable[..., Any], function: Callable[..., Any], registry: Registry) -> Callable[..., Any]:
    """``entry`` under the function's name, and with its fingerprint of now: what it reads may be changed by being used."""
    name = _name(function)
    if name in registry and not hasattr(getattr(registry[name], "function", None) or getattr(registry[name], "plant", None) or registry[name], "fingerprint"):
        raise ValueError(f"{registry.kind} {name!r} is taken; give your function another name")
    functools.update_wrapper(entry, function)
    entry.fingerprint = cache.user_fingerprint(function)
    return entry


def _enter_rule(function: Callable[..., Example], markers: Markers, window: int) -> str:
    def plant(*given: Any) -> Any:
        return function(*given)

    return enter_shortcut(_mark(plant, function, SHORTCUTS), markers, window)


def enter_model(function: Callable[..., tuple[Any, Any]]) -> str:
    """Enter a function as a model family under its name; see :class:`Protocol`. Raises TypeError for what cannot be trained, saved and loaded again."""

    def build(build_settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
        made = function(texts, markers)
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], PreTrainedModel):
            raise TypeError(f"{build.__name__} returned a {type(made).__name__}, not (a classifier of transformers, its tokenizer)")
        model, tokenizer = copy.deepcopy(made)  # one that it keeps for itself would be trained twice
        known = AutoModelForSequenceClassification._model_mapping.get(type(model.config), None)
        if type(model) is not known:
            raise TypeError(
                f"{build.__name__} returned a {type(model).__name__}, which AutoModelForSequenceClassification would load as {getattr(known, '__name__', known)}; "
                "enter it by AutoConfig.register and AutoModelForSequenceClassification.register"
            )
        if model.config.num_labels > 2 or model.config.problem_type == "regression":
            raise ValueError(f"{build.__name__} has {model.config.num_labels} outputs ({model.config.problem_type}); a shortcut decides between two classes")
        pad_on_the_right(model, tokenizer)
        embed_markers(model, tokenizer, list(markers))
        return TextClassifier.wrap(model, tokenizer, window=build_settings.window)

    MODELS.add(_name(function), _mark(build, function, MODELS))
    return build.__name__


def enter_method(function: Callable[..., Tensor]) -> str:
    """Enter a function as a salience family of one configuration under its name; see :meth:`Protocol.scores`.

    It is asked about a few texts at a time, of similar length. What is not rankable scores 0, whatever it says. Raises ValueError for scores of another
    shape than the batch's or that are not finite.
    """

    def family(model, batch, target, configurations, _seed):
        scores = torch.zeros(batch.ids.shape)
        for rows in batch.by_length():
            part = batch.select(rows)
            found = torch.as_tensor(function(model, part, target[rows])).detach().cpu().float()
            if found.shape != part.ids.shape:
                raise ValueError(f"{family.__name__} returned scores of shape {tuple(found.shape)}; the batch has {tuple(part.ids.shape)}, (text, token)")
            found = found.masked_fill(~part.rankable.cpu(), 0)
            if not bool(torch.isfinite(found).all()):
                raise ValueError(f"{family.__name__} returned scores that are not finite, which cannot be ranked")
            scores[rows, : found.shape[1]] = found
        model.model.zero_grad(set_to_none=True)  # it may have called backward
        return dict.fromkeys(configurations, scores)

    name = _name(function)
    owners = [f.name for f in SALIENCE.values() if f.name != name and any(c.method == name for c in f.configurations)]
    if owners:
        raise ValueError(f"salience method {name!r} is of the family {owners[0]!r}; give your function another name")
    salience(name)(_mark(family, function, SALIENCE))
    return name
