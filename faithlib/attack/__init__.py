"""Move an explanation with an edit that keeps the prediction: TEA, TEF and their ablations, as settings of one search.

Sources: TransformerExplanationAttack, Ivankay et al. 2022 (arXiv 2212.09155) [paper]; TextExplanationFooler, Ivankay et al., ICLR 2022 [TEF]; the later
released attack of the first author, ACL 2023 [DARE]. TEA itself was never released. What none of them says is a choice of this project, marked [OPEN].

The attack receives three functions and knows neither a model class nor a salience method:

    predict(sentences) -> class index of each              attribute(sentences, target) -> one score per word, for each
    propose(words, positions) -> for each position candidates, most probable first, that the rules of the game let through, |C| at most

What differs between TEA and TEF is where the candidates come from (``faithlib.attack.candidates``) and the rules, so each rule is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from faithlib.attack.words import TAGGERS
from faithlib.registry import Registry, import_siblings

Words = tuple[str, ...]
Predict = Callable[[Sequence[Words]], np.ndarray]
Attribute = Callable[[Sequence[Words], int], list[np.ndarray]]
Propose = Callable[[Words, Sequence[int]], list[list[str]]]
SentenceDistance = Callable[[Sequence[Words], Words], np.ndarray]

RULES: Registry = Registry("rules of the game")
ATTACKS: Registry = Registry("attack")


@dataclass(frozen=True)
class Rules:
    """What an edit may touch, and what it may put there. The defaults are this project's own [OPEN]: TEA's, without punctuation.

    attack_punctuation, propose_punctuation: words without a letter or digit (punctuation, symbols, emoji, invisible characters) may be replaced; may be
    put in. attack_function_words: step 1 does not skip stop words [TEF: it does]. propose_function_words: stop words may be put in. same_part_of_speech:
    a candidate has the coarse part of speech of the word that it replaces [TEF, DARE]. tagger: who says which that is, a key of ``TAGGERS`` [OPEN].
    """

    attack_punctuation: bool = False
    propose_punctuation: bool = False
    attack_function_words: bool = False
    propose_function_words: bool = True
    same_part_of_speech: bool = False
    tagger: str = "pattern"

    def __post_init__(self) -> None:
        TAGGERS[self.tagger]


RULES.add("default", Rules())
# TEA as written: no rule but step 1's stop words. Punctuation and function words then carry most of its gain over TEF.
RULES.add("literal_tea", Rules(attack_punctuation=True, propose_punctuation=True))
RULES.add("tef", Rules(propose_function_words=False, same_part_of_speech=True))
# Both attacks under the stricter of every rule, which is TEF's: what is left of a gain then comes from the candidates.
RULES.add("equal", RULES["tef"])


@dataclass(frozen=True)
class AttackSettings:
    """One attack. Which candidates it tries is not said here: that is the ``propose`` function.

    rho_max: largest share of the words that may be replaced; 0.01 to 0.4 [paper]. batch_share: rho_b, the share of the words whose candidates one
    forward pass proposes; 0.15, as masked language models are trained [paper]. batch_masking: False proposes for one position at a time (TEF, and TEA
    without it). n_candidates: |C|, candidates tried for a position; 15 [paper]. n_taken: words asked of the source before the rules filter them; 75, so
    that filtered attacks have |C| candidates too [DARE]. importance: order of the positions, ``masking`` (how far the explanation moves when the word
    is masked) or ``random`` [TEF]. choice: ``greedy`` takes the candidate that moves the explanation most, if it moves it further than before; ``random``
    any that keeps the class, whatever it does [TEF, DARE]. objective: what the greedy choice climbs, the attribution distance ``d`` [TEF, DARE] or
    ``k`` = d over a sentence distance [OPEN]. seed: of the random order and choice, which depend on it and the sentence alone.
    """

    rho_max: float = 0.3
    batch_share: float = 0.15
    batch_masking: bool = True
    n_candidates: int = 15
    n_taken: int = 75
    importance: str = "masking"
    choice: str = "greedy"
    objective: str = "d"
    rules: Rules = Rules()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("importance", ("masking", "random")), ("choice", ("greedy", "random")), ("objective", ("d", "k"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; choose from: {', '.join(choices)}")
        for name in ("rho_max", "batch_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a share of the words; choose one above 0 and at most 1")
        if not 1 <= self.n_candidates <= self.n_taken:
            raise ValueError(f"n_candidates={self.n_candidates} must be at least 1 and at most n_taken={self.n_taken}")


_TEA = AttackSettings(rules=RULES["literal_tea"])
ATTACKS.add("tea", _TEA)
ATTACKS.add("tea_one_mask", replace(_TEA, batch_masking=False))
ATTACKS.add("tef", AttackSettings(batch_masking=False, rules=RULES["tef"]))
ATTACKS.add("random_importance", replace(_TEA, importance="random"))
ATTACKS.add("random_candidate", replace(_TEA, choice="random"))
ATTACKS.add("random", replace(_TEA, importance="random", choice="random"))


def preset(name: str, rules: str | Rules | None = None, **changes: Any) -> AttackSettings:
    """The settings of a named attack, under its own rules or others, with any setting changed: ``preset("tef", rules="equal", rho_max=0.1)``.

    The ablations are TEA's; ``preset("tef", choice="random")`` ablates TEF. Raises UnknownNameError or ValueError with the choices.
    """
    known = [field.name for field in fields(AttackSettings)]
    for setting in changes:
        if setting not in known:
            raise ValueError(f"an attack has no setting {setting!r}; choose from: {', '.join(known)}")
    if rules is not None:
        changes["rules"] = rules if isinstance(rules, Rules) else RULES[rules]
    return replace(ATTACKS[name], **changes)


import_siblings(__name__, __path__)
