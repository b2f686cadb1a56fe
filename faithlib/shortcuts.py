"""Plant evidence that we know, so that an explanation can be right or wrong.

Source: Bastings, Ebert, Zablotskaia, Sandholm and Filippova (EMNLP 2022), section 3. A shortcut is a rule by which planted tokens decide
the label:

    single_token        .. #0 ..            -> 0      .. #1 ..            -> 1
    token_in_context    .. #0 .. #c ..      -> 0      .. #1 .. #c ..      -> 1    (either order; #0 or #1 alone says nothing)
    ordered_pair        .. #0 .. #1 ..      -> 0      .. #1 .. #0 ..      -> 1    (either alone says nothing)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from faithlib.data import Dataset, Example, content_rng
from faithlib.registry import Registry

SHORTCUTS: Registry = Registry("shortcut")
Rng = np.random.Generator
Words = tuple[str, ...]


@dataclass(frozen=True)
class Markers:
    """The planted strings. They must not occur in the data, and every model must read each as exactly one token."""

    zero: str = "#0"
    one: str = "#1"
    context: str = "#c"

    def __iter__(self):
        return iter((self.zero, self.one, self.context))


@dataclass(frozen=True)
class Shortcut:
    """A rule, both ways.

    plant(rng, words, label, markers, window) -> Example: the words with the tokens of the rule for that label in them, evidence marked.
    read(words, markers) -> the label that the rule gives, or None where it does not apply; the tests hold plant against it.
    n_evidence: planted tokens per example, the k of precision at k. has_decoys: one indicator alone says nothing, so it is shown alone too.
    """

    name: str
    n_evidence: int
    has_decoys: bool
    plant: Callable[[Rng, Words, int, Markers, int], Example]
    read: Callable[[Sequence[str], Markers], int | None]


def _insert(words: Words, tokens: dict[int, str], label: int) -> Example:
    """``tokens`` by their position in the result, everything else in the old order."""
    rest = iter(words)
    n = len(words) + len(tokens)
    return Example(tuple(tokens.get(i) or next(rest) for i in range(n)), label, tuple(sorted(tokens)))


def _two_positions(rng: Rng, n: int, window: int) -> tuple[int, int]:
    """Two different positions below ``n``, in order, at most ``window`` apart, uniform over such pairs.

    Drawn without replacement: with it, about 1/(n+1) of the pairs would fall on one slot and could carry the wrong label.
    """
    while True:
        first, second = sorted(int(p) for p in rng.choice(n, size=2, replace=False))
        if second - first <= window:
            return first, second


def _single_token(rng: Rng, words: Words, label: int, markers: Markers, window: int) -> Example:
    position = int(rng.integers(len(words) + 1))
    return _insert(words, {position: (markers.zero, markers.one)[label]}, label)


def _read_single_token(words: Sequence[str], markers: Markers) -> int | None:
    found = [label for label, marker in enumerate((markers.zero, markers.one)) if marker in words]
    return found[0] if len(found) == 1 else None


def _token_in_context(rng: Rng, words: Words, label: int, markers: Markers, window: int) -> Example:
    pair = [(markers.zero, markers.one)[label], markers.context]
    rng.shuffle(pair)
    return _insert(words, dict(zip(_two_positions(rng, len(words) + 2, window), pair, strict=True)), label)


def _read_token_in_context(words: Sequence[str], markers: Markers) -> int | None:
    return _read_single_token(words, markers) if markers.context in words else None


def _ordered_pair(rng: Rng, words: Words, label: int, markers: Markers, window: int) -> Example:
    pair = (markers.zero, markers.one) if label == 0 else (markers.one, markers.zero)
    return _insert(words, dict(zip(_two_positions(rng, len(words) + 2, window), pair, strict=True)), label)


def _read_ordered_pair(words: Sequence[str], markers: Markers) -> int | None:
    if markers.zero not in words or markers.one not in words:
        return None
    return int(list(words).index(markers.one) < list(words).index(markers.zero))


for _shortcut in (
    Shortcut("single_token", 1, False, _single_token, _read_single_token),
    Shortcut("token_in_context", 2, True, _token_in_context, _read_token_in_context),
    Shortcut("ordered_pair", 2, True, _ordered_pair, _read_ordered_pair),
):
    SHORTCUTS.add(_shortcut.name, _shortcut)


def enter_shortcut(plant: Callable[..., Example], markers: Markers, window: int) -> str:
    """Enter a function as a shortcut under its name, after a try of both labels. Where it plants several tokens, one of the two indicators alone is a decoy.

    Raises ValueError where what it plants cannot decide a label, is not marked as evidence, or differs when it is asked again.
    """
    words = tuple("some words to try it on and a few more so that chance would show".split())
    planted = [plant(np.random.default_rng(7), words, label, markers, window) for label in (0, 1)]
    for label, example in enumerate(planted):
        name = f"{plant.__name__}, label {label}:"
        if not isinstance(example, Example) or example.label != label:
            raise ValueError(f"{name} returned {example!r}, not an Example with that label")
        if not all(0 <= position < len(example.words) for position in example.evidence):
            raise ValueError(f"{name} marks the positions {example.evidence} of {len(example.words)} words")
        found = [example.words[i] for i in example.evidence]
        if not found or not set(found) <= set(markers):
            raise ValueError(f"{name} its evidence is {found}; it must be positions of planted markers, which are {', '.join(markers)}")
        if plant(np.random.default_rng(7), words, label, markers, window) != example:
            raise ValueError(f"{name} plants differently when asked twice; draw with its argument rng alone")
    sizes = {len(example.evidence) for example in planted}
    if len(sizes) > 1 or planted[0].words == planted[1].words:
        raise ValueError(f"{plant.__name__} plants {planted[0].words} and {planted[1].words}: as many tokens for both labels, and not the same words, must decide")
    [n_evidence] = sizes
    SHORTCUTS.add(plant.__name__, Shortcut(plant.__name__, n_evidence, n_evidence > 1, plant, lambda _words, _markers: None))
    return plant.__name__


def decoy(rng: Rng, words: Words, tokens: Sequence[str]) -> Words:
    """The words with ONE of ``tokens`` at a random place: the indicator alone, which must not decide anything."""
    return _insert(words, {int(rng.integers(len(words) + 1)): str(rng.choice(tokens))}, 0).words


@dataclass(frozen=True)
class ShortcutSettings:
    """How a shortcut is mixed into a data set.

    synthetic_share: synthetic training examples per source training example (paper: 0.2). decoy_share: probability that a source training
    example receives a decoy (paper: 0.25). window: planted tokens are at most so many words apart (the paper says 50 tokens and leaves
    open how they are counted; words here). decoy_tokens: ``indicators`` or ``all``; the paper leaves open whether the context token
    counts among the decoys. markers: zero, one, context; the paper shows #0 and #1 and leaves the context token's spelling open.
    """

    name: str = "single_token"
    synthetic_share: float = 0.2
    decoy_share: float = 0.25
    window: int = 50
    decoy_tokens: str = "indicators"
    markers: Markers = Markers()

    def __post_init__(self) -> None:
        if self.decoy_tokens not in ("indicators", "all"):
            raise ValueError(f"unknown decoy_tokens {self.decoy_tokens!r}; choose from: indicators, all")
        if not (self.synthetic_share > 0 and 0 <= self.decoy_share <= 1):
            raise ValueError(f"synthetic_share={self.synthetic_share} must be positive and decoy_share={self.decoy_share} between 0 and 1")
        if self.window < 1:
            raise ValueError(f"window={self.window}: two tokens are at least one word apart")


@dataclass(frozen=True)
class Mixed:
    """What a shortcut makes of a data set. ``train`` holds source (with decoys) and synthetic examples; the synthetic sets hold nothing else."""

    train: tuple[Example, ...]
    synthetic_validation: tuple[Example, ...]
    synthetic_test: tuple[Example, ...]
    n_synthetic: int
    n_decoys: int


def check_markers(markers: Iterable[str], texts: Sequence[str]) -> None:
    """Raise ValueError for a marker that is empty, holds white space, equals another, or occurs in the data."""
    wanted = list(markers)
    for marker in wanted:
        if not marker or marker.split() != [marker]:
            raise ValueError(f"marker {marker!r} is empty or holds white space; choose one word, for example '#0'")
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"two markers are equal: {', '.join(map(repr, wanted))}; choose three different ones")
    for row, text in enumerate(texts):
        for marker in wanted:
            if marker.casefold() in text.casefold():
                at = text.casefold().index(marker.casefold())
                raise ValueError(
                    f"marker {marker!r} occurs in text {row}: '…{text[max(0, at - 30) : at + 30]}…'; choose markers that do not, for example {', '.join(free_markers(texts))}"
                )


def free_markers(texts: Sequence[str]) -> list[str]:
    """Three markers that occur in none of the texts."""
    joined = "\n".join(texts).casefold()
    for stem in ("#", "##", "@#", "zq#", "xqz#"):
        found = [stem + ending for ending in "01c"]
        if not any(marker in joined for marker in found):
            return found
    return ["qzx#0", "qzx#1", "qzx#c"]


def synthesise(examples: Sequence[Example], settings: ShortcutSettings, seed: int, split: str) -> tuple[Example, ...]:
    """One synthetic example per given example: the rule's tokens at random positions, labels balanced and independent of the old ones.

    Positions depend on the text and the seed alone; the labels on the seed and the number of texts.
    """
    rule = SHORTCUTS[settings.name]
    labels = np.arange(len(examples)) % 2
    content_rng(seed, "labels", settings.name, split).shuffle(labels)
    return tuple(
        rule.plant(content_rng(seed, settings.name, split, example.text), example.words, int(label), settings.markers, settings.window)
        for example, label in zip(examples, labels, strict=True)
    )


def mix(dataset: Dataset, settings: ShortcutSettings, seed: int) -> Mixed:
    """Training data of which a part obeys the rule, and test data that is nothing but the rule.

    Synthetic training examples are made from a sample of the training texts, with replacement only when more are needed than there are (the
    paper leaves that open). Synthetic validation and test texts come from the source's own splits.
    """
    if len(dataset.label_names) != 2:
        raise ValueError(f"{dataset.name}: a shortcut decides between two classes, the data has {len(dataset.label_names)}: {', '.join(dataset.label_names)}")
    rule = SHORTCUTS[settings.name]
    n = round(settings.synthetic_share * len(dataset.train))
    if n < 2:
        raise ValueError(
            f"{dataset.name}: {len(dataset.train)} training texts x synthetic_share={settings.synthetic_share} give {n} synthetic examples; at least 2 are needed"
        )
    rng = content_rng(seed, "sample", settings.name)
    chosen = rng.choice(len(dataset.train), size=n, replace=n > len(dataset.train))
    synthetic = synthesise([dataset.train[i] for i in chosen], settings, seed, "train")
    tokens = [settings.markers.zero, settings.markers.one] + ([settings.markers.context] if settings.decoy_tokens == "all" else [])
    source, n_decoys = [], 0
    for example in dataset.train:
        rng = content_rng(seed, "decoy", settings.name, example.text)
        if rule.has_decoys and rng.random() < settings.decoy_share:
            n_decoys += 1
            example = Example(decoy(rng, example.words, tokens), example.label)
        source.append(example)
    return Mixed(
        train=(*source, *synthetic),
        synthetic_validation=synthesise(dataset.validation, settings, seed, "validation"),
        synthetic_test=synthesise(dataset.test, settings, seed, "test"),
        n_synthetic=len(synthetic),
        n_decoys=n_decoys,
    )
