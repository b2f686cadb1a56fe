"""Between two attribution maps of the same sentence, one number per word.

Ivankay et al. (2022), after equation 3: d = 1 - (1 + PCC)/2 with PCC the Pearson correlation of the two maps over the words. A constant map has no
PCC; the paper leaves that open. Here d is then 0 where both maps are constant and 0.5, as far as an uncorrelated map, where one is.
"""

from __future__ import annotations

import numpy as np

from faithlib.shapes import Numbers

CONSTANT = 1e-12  # a spread below this share of the largest value is the rounding error of its own mean, which must not be correlated


def pearson(a: Numbers, b: Numbers) -> np.ndarray | float:
    """Pearson correlation over the words (the last axis), -1 to 1; NaN where a map is constant, so that this can be counted.

    Either side may be a stack of maps, (..., word): all candidates against one original, say. Maps that are equal correlate exactly 1.
    Raises ValueError for maps of unequal length and for values that are not finite.
    """
    a, b = _aligned(a, b)
    undefined = _constant(a) | _constant(b)
    a, b = _centred(a), _centred(b)
    # One reduction for all three sums: then (a·a) / sqrt((a·a)(a·a)) is exactly 1.
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.clip((a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1)), -1, 1)
    return np.where(undefined, np.nan, found)[()]


def map_distance(a: Numbers, b: Numbers) -> np.ndarray | float:
    """d = 1 - (1 + PCC)/2, from 0 (same direction) over 0.5 (uncorrelated) to 1 (opposite). Shapes, errors: see :func:`pearson`.

    Two constant maps are at 0, a constant one is at 0.5 from any other. A map of one word is constant.
    """
    correlation = pearson(a, b)
    a, b = _aligned(a, b)
    without = np.where(_constant(a) & _constant(b), 0.0, 0.5)
    return np.where(np.isnan(correlation), without, (1 - correlation) / 2)[()]


def _aligned(a: Numbers, b: Numbers) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-1]:
        raise ValueError(f"attribution maps of shapes {a.shape} and {b.shape} cannot be compared: both need one number for each of the same words")
    for values in (a, b):
        if not np.isfinite(values).all():
            where = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
            raise ValueError(f"an attribution map holds {values[where]} at position {where[-1]}; a correlation needs finite numbers")
    a, b = np.broadcast_arrays(a, b)
    return a, b


def _constant(values: np.ndarray) -> np.ndarray | np.bool:
    if not values.shape[-1]:
        return np.ones(values.shape[:-1], dtype=bool)
    return np.asarray(np.ptp(values, axis=-1) <= CONSTANT * np.abs(values).max(-1))


def _centred(values: np.ndarray) -> np.ndarray:
    """Without their mean and at most 1 in size, so that no square leaves the range of floats."""
    if not values.shape[-1]:
        return values
    largest = np.abs(values).max(-1, keepdims=True)
    values = values / np.where(largest, largest, 1)
    values = values - values.mean(-1, keepdims=True)
    spread = np.abs(values).max(-1, keepdims=True)
    return values / np.where(spread, spread, 1)
