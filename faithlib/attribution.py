"""What an attack sees of a classifier and a salience method: two functions of sentences, and nothing else.

A sentence is a tuple of words. The score of a word is the mean over its pieces, special tokens dropped (Ivankay et al., ICLR 2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from faithlib.models.classifier import TextClassifier
from faithlib.models.encoding import Batch
from faithlib.salience import SALIENCE, configurations_of

Words = tuple[str, ...]
UNREAD = -1  # in the place of a class
MASKED = "\u2612"  # a word that stands for a masked one; no tokenizer's own mask can be written in a text, for what is written is text


def functions(classifier: TextClassifier, method: str, seed: int = 0) -> tuple[Callable, Callable]:
    """(predict, attribute) of a classifier under one configuration of a salience method, such as ``gradient_l1;of=logit``.

    predict(sentences) -> class indices (sentence,); ``UNREAD`` for a sentence that the model does not read to its end, so that no attack is credited for
    pushing words out of the window. attribute(sentences, target) -> per sentence one score per word, towards class ``target``; 0 for a word that the model
    does not read (cut, or of invisible characters). The word ``MASKED`` is read as the model's mask token, or its unknown token
    where it has none. Raises ValueError where the method names more than one configuration, or the model cannot answer it.
    """
    chosen = configurations_of(classifier, method)
    found = [(family, configuration) for family, configurations in chosen.items() for configuration in configurations]
    if len(found) != 1:
        names = ", ".join(str(configuration) for _, configuration in found) or f"none that {type(classifier.model).__name__} can answer"
        raise ValueError(f"{method!r} names {len(found)} configurations ({names}); an attack moves one explanation")
    [(family, configuration)] = found

    rows: dict[Words, int] = {}
    last = [encode(classifier, [])]

    def encoded(sentences: Sequence[Words]) -> Batch:
        """What was just predicted is not encoded again: that took a seventh of an attack on an LSTM."""
        if all(words in rows for words in sentences):
            return last[0].select([rows[words] for words in sentences])
        last[0] = encode(classifier, sentences)
        rows.clear()
        rows.update({words: row for row, words in enumerate(sentences)})
        return last[0]

    def predict(sentences: Sequence[Words]) -> np.ndarray:
        batch = encoded(sentences)
        return np.where([text.cut for text in batch.texts], UNREAD, classifier.predict(batch).cpu().numpy())

    def attribute(sentences: Sequence[Words], target: int) -> list[np.ndarray]:
        batch = encoded(sentences)
        classes = torch.full((len(batch),), target, device=batch.ids.device)
        answer = SALIENCE[family].function(classifier, batch, classes, [configuration], seed)[configuration]
        scores = (answer[0] if isinstance(answer, tuple) else answer).detach().cpu().double().numpy()
        return [by_word(scores[row], batch, row, len(words)) for row, words in enumerate(sentences)]

    return predict, attribute


def encode(classifier: TextClassifier, sentences: Sequence[Words]) -> Batch:
    """The sentences as a batch, with every piece of a ``MASKED`` word replaced by the mask token."""
    batch = classifier.encode([" ".join(words) for words in sentences])
    if not any(MASKED in words for words in sentences):
        return batch
    mask = classifier.special_ids.get("mask", classifier.special_ids.get("unk"))
    if mask is None:
        raise ValueError(f"{type(classifier.model).__name__} has neither a mask nor an unknown token; choose importance='random'")
    ids = batch.ids.clone()
    for row, words in enumerate(sentences):
        masked = {place for place, word in enumerate(words) if word == MASKED}
        for place, word in enumerate(batch.texts[row].word):
            if word in masked:
                ids[row, place] = mask
    return dataclasses.replace(batch, ids=ids)


def by_word(scores: np.ndarray, batch: Batch, row: int, n_words: int) -> np.ndarray:
    """(word,) means over the pieces of each word of a row of token scores."""
    sums, counts = np.zeros(n_words), np.zeros(n_words)
    rankable = batch.rankable[row].cpu().numpy()
    for place, word in enumerate(batch.texts[row].word):
        if rankable[place] and word >= 0:
            sums[word] += scores[place]
            counts[word] += 1
    return sums / np.maximum(counts, 1)
