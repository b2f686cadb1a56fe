"""One cell is a data set, a shortcut, a model and a seed. This module says what a cell yields, and keeps finished work.

Every function takes the same frozen ``Experiment``, so each notebook calls what it needs and the cache makes the second call free.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from faithlib import cache, devices, faithfulness
from faithlib.assets import PACKAGES, local_file
from faithlib.data import DATASETS, Dataset, Example, cut, load
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier
from faithlib.progress import Meter
from faithlib.salience import SALIENCE, Configuration, Family, configurations_of, explain
from faithlib.settings import Experiment, RunSettings, plan
from faithlib.shortcuts import SHORTCUTS, Mixed, check_markers, mix
from faithlib.training import correct, fit

PASSES_PER_PART = 6000  # forward passes after which finished scores are written to the cache


def remembered(maxsize: int) -> Callable[[Callable], Callable]:
    """Keep the last results of a function of an experiment in the process, as long as its data file, and the functions that its names stand for, are what
    they were (a notebook's cell may define a shortcut anew)."""

    def decorate(function: Callable) -> Callable:
        known = functools.lru_cache(maxsize)(lambda _fingerprints, *arguments: function(*arguments))

        @functools.wraps(function)
        def call(experiment: Experiment, *arguments: Any) -> Any:
            functions = [DATASETS[experiment.data.name], *(SHORTCUTS[name].plant for name in experiment.shortcuts)]
            functions += [MODELS[model.family] for _, model, _ in experiment.models]
            return known((experiment.data.fingerprint(), *map(cache.function_fingerprint, functions)), experiment, *arguments)

        call.cache_clear = known.cache_clear
        return call

    return decorate


# Data


def _build(experiment: Experiment, name: str, dataset: Dataset, n_texts: int | None = None) -> TextClassifier:
    """An untrained classifier for this data: one logit for two classes, else one per class."""
    settings, n_classes = experiment.model(name)[0], len(dataset.label_names)
    words = [example.text for example in dataset.train[:n_texts]]
    return MODELS[settings.family](settings, words, list(experiment.markers), 1 if n_classes == 2 else n_classes)


@remembered(4)
def texts(experiment: Experiment) -> Dataset:
    """The data set, cut to the shortest window of the experiment's models with room for the planted tokens, so that all see the same texts.

    ``notes`` counts the texts that lost words. Raises ValueError for a marker that occurs in the data, before anything is trained.
    """
    dataset = load(experiment.data)
    splits = {name: getattr(dataset, name) for name in ("train", "validation", "test")}
    check_markers(experiment.markers, [example.text for examples in splits.values() for example in examples])

    def write(folder: Path) -> None:
        kept = {split: [len(example.words) for example in examples] for split, examples in splits.items()}
        for name, model, _ in experiment.models:
            classifier = _build(experiment, name, dataset, 1000)
            for split, examples in splits.items():
                shorter, _ = cut(examples, model.window - experiment.room, classifier.count_tokens)
                kept[split] = [min(old, len(example.words)) for old, example in zip(kept[split], shorter, strict=True)]
        (folder / "kept.json").write_text(json.dumps(kept))

    models = [[model.family, model.weights, model.window, _weights_fingerprint(model)] for _, model, _ in experiment.models]
    key = cache.key("texts", [experiment.markers, experiment.room, models], _digest(dataset), *_sources(experiment, "faithlib.data"))
    kept = json.loads((cache.folder(key, write) / "kept.json").read_text())
    parts = {
        split: tuple(dataclasses.replace(example, words=example.words[:n]) for example, n in zip(examples, kept[split], strict=True))
        for split, examples in splits.items()
    }
    n_cut = sum(len(new.words) < len(old.words) for split, examples in splits.items() for new, old in zip(parts[split], examples, strict=True))
    return dataclasses.replace(dataset, **parts, notes={**dataset.notes, "cut": n_cut})


@remembered(16)
def _content(experiment: Experiment) -> str:
    """Hash of every text and label: what is trained on, however it came about. So another model beside them retrains none, unless it cuts the texts shorter."""
    return _digest(texts(experiment))


def _digest(dataset: Dataset) -> str:
    return cache.digest(dataset.label_names, [[e.words, e.label] for part in (dataset.train, dataset.validation, dataset.test) for e in part])


def source(experiment: Experiment, model: str) -> Dataset:
    """The texts that this model is trained on: ``n_source`` of the training split; validation and test are everybody's."""
    dataset = texts(experiment)
    return dataclasses.replace(dataset, train=dataset.train[: experiment.model(model)[1].n_source])


@remembered(16)
def mixed(experiment: Experiment, shortcut: str, model: str) -> Mixed:
    """The shortcut mixed into this model's texts. The synthetic test set is the same for every model."""
    return mix(source(experiment, model), experiment.rule(shortcut), experiment.seed)


# Models


def _weights_fingerprint(model: ModelSettings) -> str:
    if model.weights == "packaged":
        return cache.digest(PACKAGES)
    if model.weights in ("random", "hub") or not Path(model.weights).expanduser().exists():
        return model.weights
    return cache.file_fingerprint(local_file(model.weights, "weights"))


def _sources(experiment: Experiment, *modules: str) -> tuple[str, ...]:
    families = {cache.function_fingerprint(MODELS[model.family]) for _, model, _ in experiment.models}
    return (cache.source_fingerprint(*modules), *sorted(families))


def classifier_key(experiment: Experiment, model: str, shortcut: str | None) -> str:
    """A source model does not depend on the shortcut: it is trained once per data set, model and seed."""
    build, train = experiment.model(model)
    rule = [experiment.rule(shortcut), cache.function_fingerprint(SHORTCUTS[shortcut].plant)] if shortcut else [experiment.markers]
    settings = [rule, build, train, experiment.seed]
    fingerprints = [
        _content(experiment),
        _weights_fingerprint(build),
        cache.source_fingerprint("faithlib.training", "faithlib.shortcuts"),
        cache.function_fingerprint(MODELS[build.family]),
    ]
    return cache.key(f"model-{model}-{shortcut or 'source'}", settings, *fingerprints)


def _planted(experiment: Experiment, shortcut: str | None) -> Any:
    """What a test set is made by: the rule, whose code is in ``faithlib.shortcuts``, or the user's code that makes it."""
    if shortcut is None or SHORTCUTS[shortcut].plant.__module__ == "faithlib.shortcuts":
        return experiment.rule(shortcut) if shortcut else None
    return [experiment.rule(shortcut), cache.function_fingerprint(SHORTCUTS[shortcut].plant)]


def trained(experiment: Experiment, model: str, shortcut: str | None) -> Path:
    """The folder of the trained classifier and its history; trains where it is not there."""
    key = classifier_key(experiment, model, shortcut)

    def build(folder: Path) -> None:
        data = source(experiment, model)
        validations = {"source": data.validation}
        train = data.train
        if shortcut:
            train = mixed(experiment, shortcut, model).train
            validations["synthetic"] = mixed(experiment, shortcut, model).synthetic_validation
        with torch.random.fork_rng():
            torch.manual_seed(experiment.seed)
            fresh = _build(experiment, model, data)
            fresh.model.to(devices.chosen())
            label = f"training {model}, {(shortcut or 'source data').replace('_', ' ')}"
            progress = fit(fresh, train, validations, experiment.model(model)[1], experiment.seed, cache.scratch(key), label)
        fresh.save(folder)
        pd.DataFrame(progress).to_csv(folder / "history.csv", index=False)

    return cache.folder(key, build)


@remembered(8)
def classifier(experiment: Experiment, model: str, shortcut: str | None) -> TextClassifier:
    """The trained classifier: on mixed data, or on source data alone where ``shortcut`` is None."""
    found = TextClassifier.load(trained(experiment, model, shortcut))
    found.model.to(devices.chosen())
    return found


def history(experiment: Experiment, model: str, shortcut: str | None) -> pd.DataFrame:
    """How the training went: one row per evaluation, accuracies on the validation sets."""
    return pd.read_csv(trained(experiment, model, shortcut) / "history.csv")


@remembered(64)
def _right(experiment: Experiment, model: str, trained_on: str | None, tested_on: str | None) -> np.ndarray:
    """Whether each test example is classified right; ``None`` stands for source data."""
    key = cache.key(
        f"right-{model}",
        [classifier_key(experiment, model, trained_on), _planted(experiment, tested_on)],
        cache.source_fingerprint("faithlib.training", "faithlib.shortcuts"),
    )

    def build(folder: Path) -> None:
        examples = mixed(experiment, tested_on, model).synthetic_test if tested_on else texts(experiment).test
        np.save(folder / "right.npy", correct(classifier(experiment, model, trained_on), examples))

    return np.load(cache.folder(key, build) / "right.npy")


def verify(experiment: Experiment, thresholds: faithfulness.Thresholds = faithfulness.THRESHOLDS) -> pd.DataFrame:
    """One row per shortcut and model: does the mixed model provably use the planted tokens, and the source model not? See ``faithfulness.verification``."""
    rows = []
    for model in experiment.model_names:
        for shortcut in experiment.shortcuts:
            arrays = [_right(experiment, model, *pair) for pair in ((None, None), (shortcut, None), (shortcut, shortcut), (None, shortcut))]
            where = {"dataset": texts(experiment).name, "shortcut": shortcut, "model": model, "seed": experiment.seed}
            rows.append({**where, **faithfulness.verification(*arrays, thresholds)})
    return pd.DataFrame(rows)


def needed(experiment: Experiment, thresholds: faithfulness.Thresholds = faithfulness.THRESHOLDS) -> pd.DataFrame:
    """Does a verified model need every planted token? A row per pair whose rule plants several, and planted token that is taken out of the synthetic test texts.

    A model that reads the whole rule is at chance without a part of it. One that is still right reads less than the rule (one token alone, or which comes
    first), and what it does not read is no evidence. Columns: shortcut, model, without, still_right, low, high (Wilson's 95 % interval), n.
    """
    rows = []
    for shortcut, model in verified_pairs(experiment, thresholds):
        for without, right in _right_without(experiment, model, shortcut).items():
            low, high = faithfulness.share_interval(int(right.sum()), len(right))
            rows.append({"shortcut": shortcut, "model": model, "without": without, "still_right": right.mean(), "low": low, "high": high, "n": len(right)})
    return pd.DataFrame(rows, columns=["shortcut", "model", "without", "still_right", "low", "high", "n"])


@remembered(64)
def _right_without(experiment: Experiment, model: str, shortcut: str) -> dict[str, np.ndarray]:
    """Planted token -> whether each synthetic test text without it is classified right; empty for a rule of one token."""
    key = cache.key(
        f"right-without-{model}",
        [classifier_key(experiment, model, shortcut), _planted(experiment, shortcut)],
        cache.source_fingerprint("faithlib.training", "faithlib.shortcuts"),
    )

    def build(folder: Path) -> None:
        texts_without: dict[str, list[Example]] = {}
        context = experiment.shortcut.markers.context
        for example in mixed(experiment, shortcut, model).synthetic_test:
            planted = [example.words[i] for i in example.evidence]
            for place, (i, word) in enumerate(zip(example.evidence, planted, strict=True), start=1):
                name = word if word == context else "the indicator" if context in planted else f"planted token {place}"
                rest = dataclasses.replace(example, words=example.words[:i] + example.words[i + 1 :], evidence=())
                texts_without.setdefault(name, []).append(rest)
        several = texts_without if len(texts_without) > 1 else {}
        np.savez(folder / "right.npz", **{name: correct(classifier(experiment, model, shortcut), found) for name, found in several.items()})

    with np.load(cache.folder(key, build) / "right.npz") as found:
        return dict(found)


# Salience


def examples_per_configuration(classifier: TextClassifier, wanted: Sequence[tuple[str, int]]) -> dict[str, dict[Configuration, int]]:
    """Family -> configuration -> number of examples, for the configurations that this model can answer."""
    result: dict[str, dict[Configuration, int]] = {}
    for pattern, n in wanted:
        asked = Configuration.parse(pattern)
        for family, found in configurations_of(classifier, [asked.method]).items():
            matching = [c for c in found if set(asked.options) <= set(c.options)]
            if not matching and not _elsewhere(SALIENCE[family], asked):
                raise ValueError(f"no configuration matches {pattern!r}; choose from: {', '.join(map(str, found))}")
            result.setdefault(family, {}).update(dict.fromkeys(matching, n))
    return {family: {c: n for c, n in found.items() if n} for family, found in result.items()}


def _elsewhere(family: Family, asked: Configuration) -> bool:
    """True where another model could answer the pattern (this one has no mask token, say)."""
    return any(asked.method in (c.method, family.name) and set(asked.options) <= set(c.options) for c in family.configurations)


def passes(configurations: Sequence[Configuration]) -> int:
    """Forward passes per text, about: integration steps and perturbations that are not shared."""
    steps: dict[Any, int] = {}
    for c in configurations:
        group = (c.method, c.get("baseline"), c.get("mask"))
        steps[group] = max(steps.get(group, 1), int(c.get("steps", 1)), int(c.get("samples", 1)))
    return sum(steps.values())


def scores(experiment: Experiment, shortcut: str, model: str, wanted: Sequence[tuple[str, int]], role: str = "mixed") -> pd.DataFrame:
    """The tidy table: one row per example of the synthetic test set, method and configuration.

    role: ``mixed`` explains the model that uses the shortcut, ``source`` the one that does not (the false-alarm control). wanted: see :func:`plan`.
    Columns: dataset, shortcut, model, seed, role, example, method, config, label, predicted, n_tokens, tokens, evidence (token positions),
    scores, precision_at_k, rank, all_equal, completeness_gap, r2.
    """
    if role not in ("mixed", "source"):
        raise ValueError(f"unknown role {role!r}; choose from: mixed, source")
    explained = classifier(experiment, model, shortcut if role == "mixed" else None)
    chosen = examples_per_configuration(explained, wanted)
    tables = []
    total = sum(passes([c for c in counts if counts[c] >= end]) * (end - start) for counts in chosen.values() for start, end in _ranges(counts))
    with Meter(total, f"explaining {model}, {shortcut.replace('_', ' ')}") as meter:
        for family, counts in chosen.items():
            for start, end in _ranges(counts):
                configurations = [c for c in counts if counts[c] >= end]
                size = max(1, PASSES_PER_PART // passes(configurations))
                for first in range(start, end, size):
                    tables.append(_part(experiment, shortcut, model, role, family, configurations, first, min(first + size, end)))
                    meter.update(passes(configurations) * (min(first + size, end) - first))
    return faithfulness.score(pd.concat(tables, ignore_index=True)) if tables else pd.DataFrame()


def _ranges(counts: Mapping[Configuration, int]) -> list[tuple[int, int]]:
    bounds = [0, *sorted(set(counts.values()))]
    return list(itertools.pairwise(bounds))


def _part(
    experiment: Experiment, shortcut: str, model: str, role: str, family: str, configurations: Sequence[Configuration], first: int, last: int
) -> pd.DataFrame:
    explained_key = classifier_key(experiment, model, shortcut if role == "mixed" else None)
    settings = [explained_key, _planted(experiment, shortcut), family, sorted(map(str, configurations)), first, last]
    function = SALIENCE[family].function
    key = cache.key(f"scores-{family}", settings, cache.function_fingerprint(function), cache.source_fingerprint("faithlib.salience", "faithlib.shortcuts"))

    def build(folder: Path) -> None:
        examples = mixed(experiment, shortcut, model).synthetic_test[first:last]
        found = explain(classifier(experiment, model, shortcut if role == "mixed" else None), examples, list(map(str, configurations)), seed=experiment.seed)
        rows = []
        for number, (example, explanation) in enumerate(zip(examples, found, strict=True), start=first):
            evidence = [explanation.word.index(word) for word in example.evidence if explanation.word.count(word) == 1]
            if len(evidence) != len(example.evidence):
                raise ValueError(f"example {number}: a planted token is not exactly one token of {model}; text: {example.text[:80]!r}")
            for c in configurations:
                rows.append(
                    {
                        "example": number,
                        "method": c.method,
                        "config": c.config,
                        "label": example.label,
                        "predicted": explanation.predicted,
                        "n_tokens": len(explanation.tokens),
                        "tokens": list(explanation.tokens),
                        "evidence": evidence,
                        "scores": explanation.scores[str(c)].tolist(),
                        **{note: explanation.notes[str(c)].get(note, np.nan) for note in ("completeness_gap", "r2")},
                    }
                )
        pd.DataFrame(rows).to_parquet(folder / "scores.parquet", index=False)

    table = pd.read_parquet(cache.folder(key, build) / "scores.parquet")
    where = {"dataset": texts(experiment).name, "shortcut": shortcut, "model": model, "seed": experiment.seed, "role": role}
    return pd.DataFrame({**{name: [value] * len(table) for name, value in where.items()}, **table.to_dict("series")})


def verified_pairs(experiment: Experiment, thresholds: faithfulness.Thresholds = faithfulness.THRESHOLDS) -> list[tuple[str, str]]:
    """(shortcut, model) of the pairs that passed verification; the others are shown as failed and score nothing."""
    table = verify(experiment, thresholds)
    return [(row.shortcut, row.model) for row in table.itertuples() if row.verified]


def all_scores(
    experiment: Experiment,
    wanted: Mapping[str, str],
    extra: Mapping[str, Mapping[str, str]] | None = None,
    role: str = "mixed",
    thresholds: faithfulness.Thresholds = faithfulness.THRESHOLDS,
) -> pd.DataFrame:
    """:func:`scores` of every verified pair in one table.

    wanted: model -> plan line. extra: shortcut -> model -> a plan line that is added there (configurations that are asked on one shortcut only).
    """
    tables = []
    for shortcut, model in verified_pairs(experiment, thresholds):
        line = " ".join([wanted[model], (extra or {}).get(shortcut, {}).get(model, "")])
        tables.append(scores(experiment, shortcut, model, plan(line), role))
    if not tables:
        reasons = "; ".join(f"{row.model}, {row.shortcut}: {row.why_not}" for row in verify(experiment, thresholds).itertuples())
        raise ValueError(f"no pair of models passed verification, so there is nothing to score ({reasons})")
    return pd.concat(tables, ignore_index=True)


def everything(run: RunSettings, role: str = "mixed") -> pd.DataFrame:
    """The whole tidy table of a run: on the mixed models as many examples as planned, on the source models those of the control."""
    return all_scores(run.experiment, run.examples, run.extra) if role == "mixed" else all_scores(run.experiment, run.control, role="source")
