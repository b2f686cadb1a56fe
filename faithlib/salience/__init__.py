"""Ask a method where the evidence is. One file per family; a new file is one more family.

A family is a function ``fn(model, batch, target, configurations, seed)`` that answers all its configurations at once, so that they share
their work, and returns ``{configuration: scores}`` or ``{configuration: (scores, notes)}``; scores have shape (batch, token), a positive score
means "towards the target class", and whatever is not rankable scores exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithlib.models.classifier import TextClassifier
from faithlib.models.encoding import Batch
from faithlib.registry import Registry, UnknownNameError, import_siblings

SALIENCE: Registry = Registry("salience family")
Answer = Mapping["Configuration", Tensor | tuple[Tensor, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Configuration:
    """A method and its options, written ``integrated_gradients;baseline=mask;of=logit;steps=100``."""

    method: str
    options: tuple[tuple[str, str | int], ...] = ()

    @staticmethod
    def parse(text: str) -> Configuration:
        method, *parts = text.split(";")
        pairs = [part.partition("=") for part in parts]
        if not method or any(not name or not equals or not value for name, equals, value in pairs):
            raise ValueError(f"cannot read configuration {text!r}; write method;option=value;option=value")
        return Configuration(method, tuple(sorted((name, int(value) if value.isdigit() else value) for name, _, value in pairs)))

    def __getitem__(self, option: str) -> str | int:
        return dict(self.options)[option]

    def get(self, option: str, default: Any = None) -> Any:
        return dict(self.options).get(option, default)

    @property
    def config(self) -> str:
        return ";".join(f"{name}={value}" for name, value in self.options)

    def __str__(self) -> str:
        return ";".join(filter(None, [self.method, self.config]))


@dataclass(frozen=True)
class Family:
    """An entry of ``SALIENCE``: its name, its function, and the configurations of the report, all of which the function must answer.

    needs: a property of the TextClassifier that must be true, such as ``has_attention``.
    """

    name: str
    function: Callable[..., Answer]
    configurations: tuple[Configuration, ...]
    needs: str | None = None

    def available(self, model: TextClassifier) -> tuple[Configuration, ...]:
        """Those that this model can answer: its tokens exist, and its head has a probability where one is asked for."""
        if self.needs and not getattr(model, self.needs):
            return ()
        special = {"unk", "pad", "mask"} - set(model.special_ids)
        return tuple(
            c
            for c in self.configurations
            if not special & {c.get("baseline"), c.get("mask")} and not (model.head == "regression" and c.get("of") == "probability")
        )


def salience(*configurations: str, needs: str | None = None) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Decorator that enters a family under the function's name; see :class:`Family`."""

    def enter(function: Callable[..., Answer]) -> Callable[..., Answer]:
        SALIENCE.add(function.__name__, Family(function.__name__, function, tuple(map(Configuration.parse, configurations)), needs))
        return function

    return enter


@dataclass(frozen=True)
class Explanation:
    """What the methods say about one text.

    tokens, offsets, word: of the rankable tokens, in order; ``text[a:b]`` is the token, ``words[word[i]]`` the word it belongs to. cut: the model
    does not read the whole text. predicted, target: class indices. scores: configuration -> one number per token, positive towards the target
    (norms are unsigned). notes: configuration -> what the method says about itself (``completeness_gap``, ``r2``).
    """

    text: str
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    word: tuple[int, ...]
    cut: bool
    predicted: int
    target: int
    scores: dict[str, np.ndarray] = field(repr=False)
    notes: dict[str, dict[str, float]] = field(repr=False)


def configurations_of(model: TextClassifier, methods: str | Iterable[str]) -> dict[str, list[Configuration]]:
    """Family -> configurations, from the names of families, of methods, or whole configurations.

    A family or method name stands for all of its configurations that the model can answer. Raises UnknownNameError with the choices.
    """
    chosen: dict[str, list[Configuration]] = {}
    for name in [methods] if isinstance(methods, str) else methods:
        if name in SALIENCE:
            family, found = name, list(SALIENCE[name].available(model))
        else:
            wanted = Configuration.parse(name)
            owners = [f for f in SALIENCE.values() if any(c.method == wanted.method for c in f.configurations)]
            if not owners:
                known = dict.fromkeys([*SALIENCE, *(c.method for f in SALIENCE.values() for c in f.configurations)])
                raise UnknownNameError(f"unknown salience method {wanted.method!r}; choose from: {', '.join(known)}")
            family = owners[0].name
            found = [c for c in owners[0].available(model) if c.method == wanted.method] if not wanted.options else [_complete(wanted, owners[0])]
        chosen.setdefault(family, []).extend(c for c in found if c not in chosen.get(family, []))
    return chosen


def _complete(wanted: Configuration, family: Family) -> Configuration:
    """The configuration with its unnamed options taken from the family's first of that method; unknown options are an error."""
    first = next(c for c in family.configurations if c.method == wanted.method)
    unknown = sorted(set(dict(wanted.options)) - set(dict(first.options)))
    if unknown:
        raise ValueError(f"salience method {wanted.method!r} has no option {unknown[0]!r}; choose from: {', '.join(dict(first.options)) or 'none'}")
    for name, value in wanted.options:
        if isinstance(first[name], int) and not (isinstance(value, int) and value > 0):
            raise ValueError(f"{wanted}: {name}={value} is not a whole number above 0")
    return Configuration(wanted.method, tuple(sorted({**dict(first.options), **dict(wanted.options)}.items())))


def explain(
    model: TextClassifier,
    texts: Any,
    methods: str | Iterable[str] = ("gradient",),
    target: int | str | Sequence[int | str] | None = None,
    seed: int = 0,
) -> list[Explanation]:
    """Explain the model's decision on every text with every configuration.

    texts: a string, list, tuple, array, Series, data set column, or Examples. methods: see :func:`configurations_of`. target: the class that
    is explained, by index or by the model's own name for it, one for all or one per text; None is the predicted class. seed: of sampling methods; a text's samples depend on the seed and
    the text alone, not on its company. Returns one Explanation per text. The model keeps its device, mode and gradients.
    """
    batch = model.encode(texts)
    if not len(batch):
        return []
    predicted = model.predict(batch)
    wanted = predicted if target is None else _targets(model, target, predicted)
    scores: list[dict[str, np.ndarray]] = [{} for _ in range(len(batch))]
    notes: list[dict[str, dict[str, float]]] = [{} for _ in range(len(batch))]
    rankable = batch.rankable.cpu()
    for family, chosen in configurations_of(model, methods).items():
        answers = SALIENCE[family].function(model, batch, wanted, chosen, seed)
        for configuration in chosen:
            answer, remarks = answers[configuration] if isinstance(answers[configuration], tuple) else (answers[configuration], {})
            answer = answer.detach().cpu().float()
            if answer.shape != rankable.shape:
                raise ValueError(
                    f"salience family {family!r} returned scores of shape {tuple(answer.shape)} for {configuration}; the batch has {tuple(rankable.shape)}"
                )
            for row in range(len(batch)):
                scores[row][str(configuration)] = answer[row][rankable[row]].numpy()
                notes[row][str(configuration)] = {name: float(values[row]) for name, values in remarks.items()}
    result = []
    for row, text in enumerate(batch.texts):
        at = rankable[row].nonzero()[:, 0].tolist()
        pick = [tuple(column[i] for i in at) for column in (text.tokens, text.offsets, text.word)]
        result.append(Explanation(text.text, pick[0], text.words, pick[1], pick[2], text.cut, int(predicted[row]), int(wanted[row]), scores[row], notes[row]))
    return result


def _targets(model: TextClassifier, target: int | str | Sequence[int | str], predicted: Tensor) -> Tensor:
    """One class index per text, or an error that names the classes."""
    n_classes = 2 if model.head == "binary" else model.model.config.num_labels
    names = model.label_names
    classes = f"0..{n_classes - 1}: {', '.join(names)}"
    several = np.ndim(target) > 0
    chosen = list(target) if several else [target]
    for place, value in enumerate(chosen):
        if isinstance(value, str):
            if names.count(value) != 1:
                raise ValueError(f"target {value!r} is not the name of one class in {classes}")
            chosen[place] = names.index(value)
    wanted = torch.as_tensor(chosen, device=predicted.device)
    if len(wanted) != len(predicted) and several:
        raise ValueError(f"{len(wanted)} targets for {len(predicted)} texts; give one for all or one per text")
    if wanted.is_floating_point() or wanted.dtype == torch.bool:
        raise ValueError(f"target {target} is not a class index in {classes}")
    if bool(((wanted < 0) | (wanted >= n_classes)).any()):
        raise ValueError(f"target {wanted.tolist()} holds a class outside {classes}")
    return wanted.long().expand(len(predicted)).clone()


def spread(batch: Batch, row: int, values: Tensor) -> Tensor:
    """Values of one row's rankable tokens in a row as wide as the batch, 0 elsewhere."""
    wide = torch.zeros(batch.ids.shape[1], dtype=values.dtype, device=batch.ids.device)
    wide[batch.rankable[row]] = values.to(wide.device)
    return wide


import_siblings(__name__, __path__)
