"""Step 2 of the attack: replace words one after another, each by the candidate that moves the explanation furthest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from faithlib.attack import AttackSettings, Attribute, Predict, Propose, SentenceDistance, Words
from faithlib.attack.importance import DECIMALS, attackable, by_importance, in_random_order, with_word, word_importance
from faithlib.data import content_rng
from faithlib.distances import map_distance, pearson

TIE = 10.0**-DECIMALS  # values that differ by no more are a tie; what single precision leaves undecided must not depend on the batch size


@dataclass(frozen=True)
class Counts:
    """How often each function was called so far, and for how many sentences."""

    n_predict_calls: int = 0
    n_predictions: int = 0
    n_attribute_calls: int = 0
    n_attributions: int = 0
    n_propose_calls: int = 0


@dataclass(frozen=True)
class Step:
    """One accepted replacement, and the sentence after it.

    rho: share of the words replaced so far, in (0, rho_max]. d: distance of the explanation to that of the original sentence, 0 to 1, large is far. pcc:
    their Pearson correlation, NaN where a map is constant. objective: what the choice climbed, d or k. position, old, new: the replacement. n_candidates:
    words proposed for the position; n_kept: those of them that keep the class, among which was chosen. n_visited: positions tried so far. counts: so far.
    """

    rho: float
    d: float
    pcc: float
    objective: float
    words: Words
    position: int
    old: str
    new: str
    n_candidates: int
    n_kept: int
    n_visited: int
    counts: Counts


@dataclass(frozen=True)
class Path:
    """What an attack did to one sentence.

    reason: why it was not attacked: ``misclassified``, ``too short`` (not one word fits the budget), ``nothing to attack`` (the rules bar every position);
    "" where it was. n_positions: P, positions that may be attacked. steps: the accepted replacements in order. n_candidates, n_kept: as in ``Step``, for
    every position that was visited.
    """

    words: Words
    label: int
    settings: AttackSettings
    reason: str = ""
    n_positions: int = 0
    steps: tuple[Step, ...] = ()
    n_candidates: tuple[int, ...] = ()
    n_kept: tuple[int, ...] = ()
    counts: Counts = Counts()

    @property
    def adversarial(self) -> Words:
        """The last sentence of the path; the original where nothing was accepted."""
        return self.steps[-1].words if self.steps else self.words

    def until(self, rho_max: float) -> Path:
        """What the attack with this smaller rho_max does, without running it: it is a prefix of this one.

        Raises ValueError where it is not, because its batches would have another size.
        """
        settings = replace(self.settings, rho_max=rho_max)
        if self.reason == "misclassified":
            return replace(self, settings=settings)
        n, batch = budget(len(self.words), settings)
        if n == 0:
            return Path(self.words, self.label, settings, "too short", self.n_positions, counts=Counts(n_predict_calls=1, n_predictions=1))
        own = budget(len(self.words), self.settings)
        if n > own[0] or batch != own[1]:
            raise ValueError(
                f"rho_max={rho_max} replaces {n} words in batches of {batch}, this path of rho_max={self.settings.rho_max} {own[0]} in batches of {own[1]}; run it by itself"
            )
        if len(self.steps) < n:
            return replace(self, settings=settings)
        last = self.steps[n - 1]
        seen = slice(last.n_visited)
        return replace(self, settings=settings, steps=self.steps[:n], n_candidates=self.n_candidates[seen], n_kept=self.n_kept[seen], counts=last.counts)

    def table(self) -> list[dict[str, Any]]:
        """A row per step: its number from 1 on, what :class:`Step` holds, and the counts."""
        rows = [{"step": i, **vars(step), **asdict(step.counts)} for i, step in enumerate(self.steps, 1)]
        return [{name: value for name, value in row.items() if name != "counts"} for row in rows]


def budget(n_words: int, settings: AttackSettings) -> tuple[int, int]:
    """(n_max, b): words that may be replaced, and positions in a batch. In fractions: 100 words times 0.29 in floats allow 28, not 29."""
    n_max = math.floor(n_words * _exact(settings.rho_max))
    share = math.floor(n_words * _exact(settings.batch_share)) if settings.batch_masking else 1
    return n_max, min(n_max, max(1, share))


def _exact(share: float) -> Fraction:
    return Fraction(str(float(share)))


def largest_cost(words: Words, settings: AttackSettings) -> int:
    """The most attributions that the attack on this sentence can ask for: 1 + P (1 + |C|), with P the positions that may be attacked.

    A position without gain uses no budget, so every position may be visited. Random importance spares P of them, random choice all but one of |C|.
    """
    n_positions = len(attackable(words, settings.rules))
    if not n_positions or not budget(len(words), settings)[0]:
        return 0
    return 1 + n_positions * ((settings.importance == "masking") + (settings.n_candidates if settings.choice == "greedy" else 1))


class _Counted:
    """The functions that the attack was given: what they were asked, that they answer what was asked, and that the bound holds."""

    def __init__(self, predict: Predict, attribute: Attribute, propose: Propose, bound: int):
        self.functions, self.bound, self.counts = (predict, attribute, propose), bound, Counts()

    def predict(self, sentences: Sequence[Words]) -> np.ndarray:
        if not sentences:
            return np.zeros(0, dtype=np.int64)
        self._count(n_predict_calls=1, n_predictions=len(sentences))
        classes = np.asarray(self.functions[0](sentences))
        if classes.shape != (len(sentences),):
            raise ValueError(f"predict returned shape {classes.shape} for {len(sentences)} sentences; one class index each is needed")
        return classes

    def attribute(self, sentences: Sequence[Words], target: int) -> list[np.ndarray]:
        self._count(n_attribute_calls=1, n_attributions=len(sentences))
        if self.counts.n_attributions > self.bound:
            raise RuntimeError(f"{self.counts.n_attributions} attributions are more than the bound of {self.bound}")
        maps = [np.asarray(scores) for scores in self.functions[1](sentences, target)]
        if len(maps) != len(sentences):
            raise ValueError(f"attribute returned {len(maps)} maps for {len(sentences)} sentences")
        for words, scores in zip(sentences, maps, strict=True):
            if scores.shape != (len(words),) or not np.isfinite(scores).all():
                raise ValueError(f"attribute returned {scores!r:.80} for the {len(words)} words {' '.join(words)!r:.80}; one finite score per word is needed")
        return maps

    def propose(self, words: Words, positions: Sequence[int]) -> list[list[str]]:
        self._count(n_propose_calls=1)
        found = self.functions[2](words, positions)
        if len(found) != len(positions):
            raise ValueError(f"propose returned {len(found)} lists for {len(positions)} positions")
        return found

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + n for name, n in more.items()})


def attack(
    words: Sequence[str],
    label: int,
    settings: AttackSettings,
    predict: Predict,
    attribute: Attribute,
    propose: Propose,
    mask_word: str,
    sentence_distance: SentenceDistance | None = None,
) -> Path:
    """Move the explanation of one sentence as far as the budget allows, and keep its class.

    words: chunks between white space. label: the true class; a sentence that ``predict`` gives another is not attacked [DARE]. predict, attribute, propose:
    see ``faithlib.attack``; each answers a batch in one call, and of what is proposed the first |C| words count. mask_word: stands for a masked word in
    step 1. sentence_distance(variants, original): positive distances, for ``objective="k"``. Every sentence on the path has the class, the number of
    words, and at most the share rho_max of words replaced; else RuntimeError. Raises ValueError for words that hold white space and for answers of the
    wrong size. The attack lasts until the budget is used or every position was visited; its explanations are compared with the original's alone [TEF, DARE].
    """
    words = tuple(words)
    _check(words, settings, mask_word, sentence_distance)
    n_max, b = budget(len(words), settings)
    positions = attackable(words, settings.rules)
    asked = _Counted(predict, attribute, propose, largest_cost(words, settings))
    reason = "misclassified" if asked.predict([words])[0] != label else "too short" if not n_max else "nothing to attack" if not positions else ""
    if reason:
        return Path(words, label, settings, reason, len(positions), counts=asked.counts)

    [original] = asked.attribute([words], label)
    if settings.importance == "masking":
        order = by_importance(positions, word_importance(words, positions, original, label, asked.attribute, mask_word))
    else:
        order = in_random_order(words, positions, settings)

    current, best = words, 0.0
    steps: list[Step] = []
    n_candidates: list[int] = []
    n_kept: list[int] = []
    for start in range(0, len(order), b):
        if len(steps) == n_max:
            break
        batch = order[start : start + b]  # all of it is masked, even where less budget is left: a smaller rho_max then sees the same candidates
        for position, proposed in zip(batch, asked.propose(current, batch), strict=True):
            if len(steps) == n_max:
                break
            candidates = [word for word in dict.fromkeys(proposed) if word.split() == [word] and word != current[position]][: settings.n_candidates]
            variants = [with_word(current, position, word) for word in candidates]
            variants = [variant for variant, found in zip(variants, asked.predict(variants), strict=True) if found == label]
            n_candidates.append(len(candidates))
            n_kept.append(len(variants))
            if not variants:
                continue
            if settings.choice == "random":  # any one, and whatever it does [DARE]
                variants = [variants[int(content_rng(settings.seed, "attack choice", position, *current).integers(len(variants)))]]
            maps = np.stack(asked.attribute(variants, label))
            d = map_distance(maps, original)
            values = d if settings.objective == "d" else d / _positive(sentence_distance(variants, words))
            chosen = int(np.argmax(values >= values.max() - TIE))  # the first of equals, which is the most probable
            if settings.choice == "greedy" and values[chosen] <= best + TIE:
                continue
            old, current, best = current[position], variants[chosen], float(values[chosen])
            rho = _share_replaced(words, current, settings)
            moved = float(d[chosen]), float(pearson(maps, original)[chosen]), best
            steps.append(Step(rho, *moved, current, position, old, current[position], n_candidates[-1], n_kept[-1], len(n_kept), asked.counts))
    return Path(words, label, settings, "", len(positions), tuple(steps), tuple(n_candidates), tuple(n_kept), asked.counts)


def _share_replaced(words: Words, current: Words, settings: AttackSettings) -> float:
    """rho of a sentence on the path; RuntimeError where it left the constraints, which would be a defect of the search."""
    rho = Fraction(sum(map(str.__ne__, current, words)), len(words))
    if rho > _exact(settings.rho_max) or len(" ".join(current).split()) != len(words):
        raise RuntimeError(f"a sentence of rho={float(rho)} left the constraints (rho_max={settings.rho_max}, {len(words)} words): {' '.join(current)!r}")
    return float(rho)


def _check(words: Words, settings: AttackSettings, mask_word: str, sentence_distance: SentenceDistance | None) -> None:
    for place, word in [*((f"word {i}", word) for i, word in enumerate(words)), ("mask_word", mask_word)]:
        if word.split() != [word]:
            raise ValueError(f"{place} of the attack is {word!r}; it must be one word without white space")
    if settings.objective == "k" and sentence_distance is None:
        raise ValueError("objective='k' divides by a distance between sentences; give sentence_distance, or choose objective='d'")


def _positive(distances: np.ndarray) -> np.ndarray:
    distances = np.asarray(distances, dtype=np.float64)
    if not (distances > 0).all():
        raise ValueError(f"sentence_distance returned {distances.min()}; it must be above 0, so clamp it to a small constant")
    return distances
