"""How far an explanation moved, and how far the sentence did: the two sides of k(s) = d[A(s~), A(s)] / d_s(s~, s).

Ivankay et al. (2022), equations 2 and 3. ``maps`` holds d. Here and in ``sentences`` stands d_s: a sentence distance says what measures one sentence
(a :class:`Backend`) and how two such measurements compare, so a new one is one function, and measuring in batches, once per distinct sentence, with
progress and a cache, is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from faithlib import cache
from faithlib.distances.maps import map_distance, pearson
from faithlib.progress import Meter
from faithlib.registry import Registry, import_siblings
from faithlib.shapes import Numbers

__all__ = ["DEFAULT", "SENTENCE_DISTANCES", "Backend", "DistanceSettings", "Distances", "between", "clamp", "map_distance", "measured", "pearson"]

SENTENCE_DISTANCES: Registry = Registry("sentence distance")
BATCH = 32  # sentences handed to a backend at once
PART = 1000  # sentences after which finished measurements are written to the cache


@dataclass(frozen=True)
class Backend:
    """What gives every sentence a number or a vector.

    name: which one it was, said wherever its numbers stand. fingerprint: of its weights or rules, so that others are never served for them.
    measure: sentences -> array with one row per sentence, which does not depend on the others. known: what this process has measured.
    """

    name: str
    fingerprint: str
    measure: Callable[[Sequence[str]], np.ndarray]
    known: dict[str, np.ndarray | float] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class DistanceSettings:
    """language_model: ``packaged`` (SmolLM2, which stands in for GPT-2), ``hub`` (GPT-2, the paper's), or the folder or hub repository of another.
    language_tool: address of a LanguageTool server; without one, or where it does not answer, Harper counts the grammatical errors."""

    language_model: str = "packaged"
    language_tool: str = ""


DEFAULT = DistanceSettings()


@dataclass(frozen=True)
class SentenceDistance:
    """An entry of ``SENTENCE_DISTANCES``. function(settings) -> (backend, compare); compare(before, after) takes the measurements of all pairs, one
    row a pair, to one number a pair. eps: the least d_s under k; None for a distance that is reported and never in k."""

    name: str
    function: Callable[[DistanceSettings], tuple[Backend, Callable[[np.ndarray, np.ndarray], np.ndarray]]]
    eps: float | None


@dataclass(frozen=True)
class Distances:
    """values: one number a pair, before any clamp, large where the sentences are far apart; NaN where undefined. backend: what measured them."""

    values: np.ndarray
    backend: str


def sentence_distance(eps: float | None) -> Callable[[Callable], Callable]:
    """Decorator that enters a sentence distance under the function's name."""

    def enter(function: Callable) -> Callable:
        SENTENCE_DISTANCES.add(function.__name__, SentenceDistance(function.__name__, function, eps))
        return function

    return enter


def between(name: str, originals: Iterable[Any], changed: Iterable[Any], settings: DistanceSettings = DEFAULT, on_disk: bool = True) -> Distances:
    """The distance ``name`` of every changed sentence from its original. A sentence is at exactly 0 from itself, or NaN where it has no measurement.

    on_disk: keep the measurements in the cache; off for the many small questions of a search. Raises UnknownNameError with the choices, ValueError for
    lists of unequal length, TypeError naming the row for what is not a text, MissingAssetError with the command that gets what is missing.
    """
    backend, compare = SENTENCE_DISTANCES[name].function(settings)
    originals, changed = _texts(originals, "originals"), _texts(changed, "changed")
    if len(originals) != len(changed):
        raise ValueError(f"{name}: {len(originals)} original and {len(changed)} changed sentences; give one changed sentence for each original")
    if not originals:
        return Distances(np.zeros(0), backend.name)
    rows = measured(backend, originals + changed, on_disk)
    return Distances(np.asarray(compare(rows[: len(originals)], rows[len(originals) :]), dtype=np.float64), backend.name)


def clamp(values: Numbers, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """d_s = max(value, eps), and where that changed the value (bool), so that its share can be told. NaN stays NaN and is not counted.

    Near-paraphrases have a d_s near 0, which alone could carry a mean of k; the paper has such a constant for perplexities and leaves its size open.
    """
    if not eps > 0:
        raise ValueError(f"eps={eps} is not above 0; k = d / d_s is undefined for an unchanged sentence")
    values = np.asarray(values, dtype=np.float64)
    return np.maximum(values, eps), values < eps


def measured(backend: Backend, sentences: Iterable[Any], on_disk: bool = True) -> np.ndarray:
    """The backend's measurements, one row per sentence in the order given; a sentence that stands there twice is measured once."""
    sentences = _texts(sentences, "sentences")
    distinct = sorted(set(sentences))
    rows: dict[str, np.ndarray | float] = {}
    with Meter(len(distinct), f"measuring sentences with {backend.name}") as meter:
        for first in range(0, len(distinct), PART):
            part = distinct[first : first + PART]
            rows.update(zip(part, _part(backend, part, on_disk, meter), strict=True))
    return np.stack([rows[sentence] for sentence in sentences]) if sentences else np.zeros(0)


def _part(backend: Backend, distinct: list[str], on_disk: bool, meter: Meter) -> np.ndarray:
    def table() -> np.ndarray:
        missing = sorted((sentence for sentence in distinct if sentence not in backend.known), key=lambda sentence: (len(sentence), sentence))
        for first in range(0, len(missing), BATCH):
            batch = missing[first : first + BATCH]
            backend.known.update(zip(batch, backend.measure(batch), strict=True))
            meter.update(len(batch))
        return np.stack([backend.known[sentence] for sentence in distinct])

    if not on_disk:
        return table()
    key = cache.key("sentences", [backend.fingerprint, distinct], cache.function_fingerprint(backend.measure))
    found = np.load(cache.folder(key, lambda folder: np.save(folder / "measured.npy", table())) / "measured.npy")
    backend.known.update(zip(distinct, found, strict=True))
    return found


def _texts(sentences: Iterable[Any], what: str) -> list[str]:
    if isinstance(sentences, str):
        raise TypeError(f"{what} is one string; give a list of sentences")
    found = list(sentences)
    for row, sentence in enumerate(found):
        if not isinstance(sentence, str):
            raise TypeError(f"{what} row {row}: {sentence!r} is a {type(sentence).__name__}, not a text")
    return found


import_siblings(__name__, __path__)
