"""Step 1 of the attack: which positions may be attacked, and in what order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from faithlib.attack import AttackSettings, Attribute, Rules, Words
from faithlib.attack.words import is_function_word, is_punctuation
from faithlib.data import content_rng
from faithlib.distances import map_distance

DECIMALS = 6  # distances of single-precision maps that differ by less are called equal, so that another batch size gives the same order


def attackable(words: Words, rules: Rules) -> list[int]:
    """Positions that the rules let the attack touch, from left to right."""
    return [
        position
        for position, word in enumerate(words)
        if (rules.attack_punctuation or not is_punctuation(word)) and (rules.attack_function_words or not is_function_word(word))
    ]


def with_word(words: Words, position: int, word: str) -> Words:
    """The sentence with one word replaced."""
    return (*words[:position], word, *words[position + 1 :])


def word_importance(words: Words, positions: Sequence[int], original: np.ndarray, label: int, attribute: Attribute, mask_word: str) -> np.ndarray:
    """How far the explanation moves when the word is masked: I_i = d[A(s with word i masked, l), A(s, l)], for each position; 0 to 1.

    TEF masks with a zero embedding; here a word does it, the model's mask or unknown token, so that the attack needs no embeddings [OPEN].
    """
    masked = [with_word(words, position, mask_word) for position in positions]
    return map_distance(np.stack(attribute(masked, label)), original)


def by_importance(positions: Sequence[int], importance: np.ndarray) -> list[int]:
    """Positions by falling importance; equal ones from left to right."""
    return [positions[i] for i in np.argsort(-np.round(importance, DECIMALS), kind="stable")]


def in_random_order(words: Words, positions: Sequence[int], settings: AttackSettings) -> list[int]:
    """Positions in an order that depends on the seed and the sentence alone."""
    return [int(position) for position in content_rng(settings.seed, "attack order", *words).permutation(positions)]
