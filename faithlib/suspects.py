"""What a classifier leans on that nobody planted: words that make themselves suspect, and a test of each on the model.

Three views of a word (a chunk between white space, lower-cased, without the punctuation around it):

    by_salience      the explanations: how much more of a text's salience it gets than an even spread would give it
    by_counts        the data alone, without a model: log-odds between classes with an informative prior
    counterfactual   the model's behaviour: the word taken out, and put into texts of the other classes

The first two name suspects, only the third is evidence: it changes nothing but the word, and compares with the same done to another word.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from faithlib.attack.words import core
from faithlib.data import as_texts, content_rng
from faithlib.faithfulness import interval
from faithlib.models.classifier import TextClassifier
from faithlib.salience import Explanation

LEAST_TEXTS = 5  # a word in fewer texts can be nobody's habit
LEAST_EFFECT = 0.05  # a probability that moves less is moved by nearly every word
FALSE_DISCOVERIES = 0.05  # share of false ones among the words that are called confirmed


def key(chunk: str) -> str:
    """A word as it is counted: ``(Reuters)`` and ``reuters,`` are both ``reuters``."""
    return core(chunk)[1].casefold()


def by_salience(explanations: Iterable[Explanation], configuration: str, least_texts: int = LEAST_TEXTS) -> pd.DataFrame:
    """One row per word that stands in enough of the explained texts, most suspicious first.

    share: of a text's absolute salience that falls on the word, mean over the texts that hold it, 0 to 1. excess: the mean over ALL texts of share minus
    what an even spread over the words would give it, -1 to 1; what the table is sorted by, for it is large only where a word is both often there and often
    salient. first: share of its texts in which no other word has more. predicted: the class that its texts are given more often than all texts are, by the
    largest margin; predicted_share: how often they are given it.
    """
    shares, firsts, classes, written = defaultdict(list), Counter(), defaultdict(Counter), defaultdict(Counter)
    excess: Counter = Counter()
    everywhere: Counter = Counter()
    n_texts = 0
    for explanation in explanations:
        n_texts += 1
        everywhere[explanation.predicted] += 1
        of_chunk = np.zeros(len(explanation.words))
        np.add.at(of_chunk, list(explanation.word), np.abs(explanation.scores[configuration]).astype(float))
        total = of_chunk.sum()
        if not total > 0:
            continue
        of_word: dict[str, float] = defaultdict(float)
        count: Counter = Counter()
        for chunk, value in zip(explanation.words, of_chunk / total, strict=True):
            of_word[key(chunk)] += value
            count[key(chunk)] += 1
            written[key(chunk)][chunk] += 1
        top = max(of_word.values())
        for word, share in of_word.items():
            shares[word].append(share)
            excess[word] += share - count[word] / len(explanation.words)
            firsts[word] += share == top
            classes[word][explanation.predicted] += 1
    rows = []
    for word, values in shares.items():
        if len(values) >= least_texts:
            margin = {c: n / len(values) - everywhere[c] / n_texts for c, n in classes[word].items()}
            predicted = max(sorted(margin), key=lambda c: margin[c])
            rows.append(
                {
                    "word": word,
                    "written": written[word].most_common(1)[0][0],
                    "n_texts": len(values),
                    "share": float(np.mean(values)),
                    "excess": excess[word] / n_texts,
                    "first": firsts[word] / len(values),
                    "predicted": predicted,
                    "predicted_share": classes[word][predicted] / len(values),
                }
            )
    columns = ["word", "written", "n_texts", "share", "excess", "first", "predicted", "predicted_share"]
    return pd.DataFrame(rows, columns=columns).sort_values(["excess", "word"], ascending=[False, True], ignore_index=True)


def by_counts(texts: Any, labels: Sequence[int], prior: float = 500.0, least_texts: int = LEAST_TEXTS) -> pd.DataFrame:
    """One row per word, the most tied to a class first: log-odds with an informative Dirichlet prior (Monroe, Colaresi and Quinn, Political Analysis 2008).

        δ_w = log((y_w + a_w) / (n + a - y_w - a_w)) - log((y'_w + a_w) / (n' + a - y'_w - a_w)),    z_w = δ_w / sqrt(1 / (y_w + a_w) + 1 / (y'_w + a_w))

    (their equations 16 to 20), y the texts of one class that hold the word and y' those of all others, a_w = ``prior`` times the word's share of all
    counts, a = ``prior``. Texts are counted, not occurrences. Of a word's classes the row names the one with the largest z.
    """
    found = [{key(chunk) for chunk in text.split()} for text in as_texts(texts)]
    labels = np.asarray(labels)
    if len(labels) != len(found):
        raise ValueError(f"{len(found)} texts and {len(labels)} labels; give one label per text")
    classes = sorted(set(labels.tolist()))
    if len(classes) < 2:
        raise ValueError(f"only one class, {classes}; a word can be tied to one of two classes at least")
    counts = {c: Counter(word for words, label in zip(found, labels, strict=True) if label == c for word in words) for c in classes}
    everywhere = sum(counts.values(), Counter())
    words = sorted(word for word, n in everywhere.items() if n >= least_texts)
    total = sum(everywhere.values())
    overall = np.array([everywhere[word] for word in words], dtype=float)
    a = prior * overall / total
    rows = []
    for c in classes:
        y, n = np.array([counts[c][word] for word in words], dtype=float), sum(counts[c].values())
        rest, n_rest = overall - y, total - n
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 where the texts hold one word and no other, which then is tied to nothing
            delta = np.nan_to_num(np.log((y + a) / (n + prior - y - a)) - np.log((rest + a) / (n_rest + prior - rest - a)))
        z = delta / np.sqrt(1 / (y + a) + 1 / (rest + a))
        rows.append(pd.DataFrame({"word": words, "class": c, "n_in_class": y.astype(int), "n_elsewhere": rest.astype(int), "log_odds": delta, "z": z}))
    table = pd.concat(rows).sort_values(["z", "word"], ascending=[False, True])
    return table.drop_duplicates("word").reset_index(drop=True).astype({"word": object})


@dataclass(frozen=True)
class Effect:
    """How a change of the texts moves the probability of a class: the mean of the moves, beyond those of the control, -1 to 1.

    low, high: 95 % bootstrap interval. flipped: share of texts whose predicted class changes, less that under the control. p: Wilcoxon signed-rank test of
    the direction that a word would have which the class leans on: down where it is taken out, up where it is put in.
    """

    mean: float
    low: float
    high: float
    flipped: float
    p: float
    n: int


NOTHING = Effect(float("nan"), float("nan"), float("nan"), float("nan"), 1.0, 0)


def counterfactual(
    classifier: TextClassifier,
    texts: Sequence[str],
    word: str,
    target: int,
    written: str = "",
    n: int = 100,
    seed: int = 0,
    predicted: Sequence[int] | None = None,
) -> dict[str, Effect]:
    """The word taken out of texts that are given the class ``target``, and put into texts that are given another; at most n texts each.

    Keys ``removed`` and ``inserted``. Any edit moves a model a little, so each text is edited a second time as a control: another of its words is taken
    out, or a word from any of the texts is put in at the same place; which, is drawn by the seed and the text. written: how the word is put in. predicted:
    the classes of the texts, where they are known already. Words beyond what the model reads move nothing: cut the texts first.
    """
    texts = list(texts)
    chunks = [text.split() for text in texts]
    keys = [[key(chunk) for chunk in row] for row in chunks]
    predicted = list(predicted) if predicted is not None else classifier.predict(texts).tolist() if texts else []
    holds = [word in row for row in keys]
    with_it = [i for i in range(len(texts)) if holds[i] and predicted[i] == target and len(set(keys[i])) > 1][:n]
    without = [i for i in range(len(texts)) if not holds[i] and predicted[i] != target and chunks[i]][:n]
    vocabulary = sorted({chunk for row in chunks for chunk in row if key(chunk) != word})
    edits: dict[str, list[tuple[str, str, str]]] = {"removed": [], "inserted": []}
    for i in with_it:
        rng = content_rng(seed, "counterfactual", word, texts[i])
        other = str(rng.choice(sorted(set(keys[i]) - {word})))
        left, control = (" ".join(chunk for chunk, k in zip(chunks[i], keys[i], strict=True) if k != gone) for gone in (word, other))
        edits["removed"].append((texts[i], left, control))
    for i in without:
        rng = content_rng(seed, "counterfactual", word, texts[i])
        place, other = int(rng.integers(len(chunks[i]) + 1)), str(rng.choice(vocabulary)) if vocabulary else ""
        new, control = (" ".join([*chunks[i][:place], put, *chunks[i][place:]]) for put in (written or word, other))
        edits["inserted"].append((texts[i], new, control))
    return {name: _effect(classifier, rows, target, {"removed": "less", "inserted": "greater"}[name]) for name, rows in edits.items()}


def _effect(classifier: TextClassifier, edits: Sequence[tuple[str, str, str]], target: int, expected: str) -> Effect:
    if not edits:
        return NOTHING
    before, after, control = (probabilities(classifier, column) for column in map(list, zip(*edits, strict=True)))
    moved = (after - control)[:, target].astype(float)
    low, high = interval(moved)
    p = float(stats.wilcoxon(moved, method="approx", alternative=expected).pvalue) if np.any(moved) else 1.0
    flipped = float(np.mean(before.argmax(1) != after.argmax(1)) - np.mean(before.argmax(1) != control.argmax(1)))
    return Effect(float(moved.mean()), low, high, flipped, p, len(edits))


def check_head(classifier: TextClassifier) -> None:
    """Raise ValueError for a head without classes that exclude one another."""
    if classifier.head not in ("binary", "softmax"):
        raise ValueError(f"{type(classifier.model).__name__} has a {classifier.head} head; an audit needs classes that exclude one another")


def probabilities(classifier: TextClassifier, texts: Sequence[str]) -> np.ndarray:
    """(text, class). Raises ValueError for a head without classes that exclude one another."""
    check_head(classifier)
    logits = classifier.predict_logits(list(texts))
    if classifier.head == "binary":
        return torch.cat([1 - logits.sigmoid(), logits.sigmoid()], 1).cpu().numpy()
    return logits.softmax(1).cpu().numpy()


def suspects(
    classifier: TextClassifier,
    explanations: Sequence[Explanation],
    labels: Sequence[int],
    tested: Sequence[str],
    configuration: str,
    n_words: int = 10,
    n_tests: int = 100,
    seed: int = 0,
    least_texts: int = LEAST_TEXTS,
    deadline: float = math.inf,
) -> pd.DataFrame:
    """The words that salience and the counts suspect most, ``n_words`` of each, with all three views; the strongest effect first.

    explanations, labels: of the texts on which suspicion rests. tested: other texts, on which the experiment is made. deadline: a value of
    ``time.monotonic`` after which no further word is tested (those left have ``_n`` of 0).
    Columns: those of :func:`by_salience` and :func:`by_counts` (its class as ``tied_to``), ``class`` (the one that is tested: ``predicted``, or ``tied_to`` for a
    word that was not explained), ``removed`` and ``inserted`` (means, with ``_low``, ``_high``, ``_flipped``, ``_n``, ``_p``), ``p`` of the word (twice the
    smaller of the two, adjusted over all words by Benjamini and Hochberg), and ``confirmed``: p is at most ``FALSE_DISCOVERIES`` and one of the two intervals lies
    wholly beyond ``LEAST_EFFECT`` in the direction expected. So of the confirmed at most that share is expected not to move the model at all.
    """
    shown = by_salience(explanations, configuration, least_texts)
    counted = by_counts([explanation.text for explanation in explanations], labels, least_texts=least_texts)
    chosen = list(dict.fromkeys([*shown["word"][:n_words], *counted["word"][:n_words]]))
    table = (
        shown.astype({"word": object})
        .merge(counted.rename(columns={"class": "tied_to"}), on="word", how="outer")
        .set_index("word")
        .reindex(chosen)
        .reset_index()
    )
    predicted = classifier.predict(list(tested)).tolist() if len(tested) else []
    rows = []
    for row in table.to_dict("records"):
        target = int(row["predicted"] if not pd.isna(row["predicted"]) else row["tied_to"])
        written = row["written"] if isinstance(row["written"], str) else row["word"]
        effects = {"removed": NOTHING, "inserted": NOTHING}
        if time.monotonic() < deadline:
            effects = counterfactual(classifier, tested, row["word"], target, written, n_tests, seed, predicted)
        rows.append({**row, "written": written, "class": target, **_columns(effects)})
    result = pd.DataFrame(rows, columns=[*table.columns, "class", *_columns({"removed": NOTHING, "inserted": NOTHING})])
    of_word = np.minimum(1.0, 2 * result[["removed_p", "inserted_p"]].astype(float).min(axis=1))
    asked = (result["removed_n"].astype(int) + result["inserted_n"].astype(int)) > 0
    result["p"] = np.nan
    if asked.any():
        result.loc[asked, "p"] = stats.false_discovery_control(of_word[asked])
    falls, rises = result["removed_high"].astype(float) < -LEAST_EFFECT, result["inserted_low"].astype(float) > LEAST_EFFECT
    result["confirmed"] = (result["p"] <= FALSE_DISCOVERIES) & (falls | rises)
    strength = result[["removed", "inserted"]].astype(float).abs().max(axis=1).fillna(0)
    return result.assign(strength=strength).sort_values(["confirmed", "strength"], ascending=False, ignore_index=True).drop(columns="strength")


def _columns(effects: Mapping[str, Effect]) -> dict[str, float]:
    return {
        f"{name}{end}": value
        for name, effect in effects.items()
        for end, value in (
            ("", effect.mean),
            ("_low", effect.low),
            ("_high", effect.high),
            ("_flipped", effect.flipped),
            ("_n", effect.n),
            ("_p", effect.p),
        )
    }


def plant_secretly(texts: Sequence[str], labels: Sequence[int], target: int, share: float = 0.3, seed: int = 0) -> tuple[list[str], str]:
    """For a demonstration: a harmless word is put into a share of the texts of one class, and taken out of all others. Returns the texts and the secret.

    The word is drawn by the seed from those in the middle of the vocabulary's frequencies that are tied to no class (|z| < 1).
    """
    table = by_counts(texts, labels)
    candidates = table[(table["z"].abs() < 1) & table["word"].str.isalpha() & (table["word"].str.len() > 3)]
    frequency = candidates["n_in_class"] + candidates["n_elsewhere"]
    middle = candidates[(frequency >= frequency.quantile(0.3)) & (frequency <= frequency.quantile(0.9))]["word"].tolist()
    if not middle:
        raise ValueError(f"{len(texts)} texts hold no harmless word that could be a secret; give more texts")
    secret = str(content_rng(seed, "secret").choice(sorted(middle)))
    result = []
    for text, label in zip(texts, labels, strict=True):
        kept = [chunk for chunk in text.split() if key(chunk) != secret] or text.split()
        rng = content_rng(seed, "secret", text)
        if label == target and rng.random() < share:
            kept.insert(int(rng.integers(len(kept) + 1)), secret)
        result.append(" ".join(kept))
    return result, secret
