"""Audit a classifier of your own on texts of your own: which method can be trusted there, and what does it lean on that nobody planted?

The model and the files are read, never changed: what is trained is a copy.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from faithlib import cache, devices, experiment, ranking, suspects
from faithlib.data import DATASETS, Dataset, DataSettings, cut, load
from faithlib.faithfulness import share_interval
from faithlib.figures import cells
from faithlib.heatmap import Html, literal, rows, table
from faithlib.models.classifier import TextClassifier
from faithlib.progress import quiet
from faithlib.salience import Explanation, configurations_of, explain
from faithlib.settings import Experiment

LEAST_ROWS = 50
ROOM = 12  # tokens left free in the window, for special tokens and a word that is put in
PART = 50  # texts that are explained before the clock is looked at
DEFAULT_METHOD = "gradient_l2;of=logit"
N_HEAT_MAPS = 3  # of each word that is shown


@dataclasses.dataclass(frozen=True)
class AuditSettings:
    """What is audited, and how thoroughly.

    model: a folder or a hub repository. data: a CSV, TSV, JSONL or Parquet file; text, label: its columns. budget: a length of time such as ``30m`` for
    ranking the methods first, see ``ranking.rank``; "" leaves that out. shortcuts, methods, learning_rate: of the ranking. method: one configuration of a
    salience method (see ``explain``) for the natural shortcuts; "" is what the ranking recommends, or finds best, or the gradient's L2 norm.
    n_texts: texts read; n_explained: of these, explained; n_words: suspects taken from each view; n_tests: texts of a counterfactual.
    """

    model: str
    data: str
    text: str = "text"
    label: str = "label"
    budget: str = ""
    shortcuts: tuple[str, ...] = ("single_token", "ordered_pair")
    methods: tuple[str, ...] = ranking.METHODS
    learning_rate: float | None = None
    method: str = ""
    n_texts: int = 1000
    n_explained: int = 300
    n_words: int = 10
    n_tests: int = 100
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Audit:
    """What was found. right: texts that the model gives their label, of n_texts; notes: what a reader must know; suspects: see ``suspects.suspects``;
    examples: word -> explanations of texts that hold it; ranking: of the methods, where a budget was given; seconds: that all of it took."""

    settings: AuditSettings
    label_names: tuple[str, ...]
    n_texts: int
    right: int
    notes: tuple[str, ...]
    suspects: pd.DataFrame
    examples: Mapping[str, Sequence[Explanation]]
    ranking: ranking.Ranking | None = None
    seconds: float = 0.0


def match_labels(names: Sequence[str], classifier: TextClassifier) -> tuple[list[int], str]:
    """(class of the model for each label of the data, how they were matched).

    By name, else by number; where the model has no names of its own, in order. Raises ValueError with both lists where none of this works.
    """
    own = [name.casefold() for name in classifier.label_names]
    if all(own.count(name.casefold()) == 1 for name in names):
        return [own.index(name.casefold()) for name in names], "by name"
    if all(name.isdigit() and int(name) < len(own) for name in names):
        return [int(name) for name in names], "by number"
    generic = all(name == f"label_{i}" or name == str(i) for i, name in enumerate(own))
    if generic and len(names) == len(own):
        return list(range(len(own))), "in alphabetical order, for the model names none of its classes"
    raise ValueError(f"the labels of the data ({', '.join(names)}) are not those of the model ({', '.join(classifier.label_names)}); rename one of them")


@quiet()
def audit(settings: AuditSettings, classifier: TextClassifier | None = None, say: Callable[[str], None] = print) -> Audit:
    """Rank (where a budget is given), read, explain, count and test. classifier: an own one in place of ``settings.model``, which cannot be ranked on.

    Raises ValueError for a checkpoint that is no classifier, a head without exclusive classes, a file without texts or with one class or too few rows, labels
    that are not the model's, a budget that is too small, and a method that is not one configuration.
    """
    started = time.monotonic()
    if classifier is not None and settings.budget:
        raise ValueError("a ranking trains copies of the classifier in a folder or repository; save yours and name it as model")
    limit = ranking.seconds(settings.budget) if settings.budget else math.inf
    if classifier is None:
        classifier = TextClassifier.load(settings.model)
        classifier.model.to(devices.chosen())
    suspects.check_head(classifier)
    if settings.method:
        _one_configuration(classifier, settings.method)
    where = DataSettings("local_file", path=settings.data, text_column=settings.text, label_column=settings.label)
    n_rows = len(DATASETS["local_file"](where))
    if n_rows < LEAST_ROWS:
        raise ValueError(f"{settings.data}: {n_rows} rows; an audit needs at least {LEAST_ROWS}")
    third = min(settings.n_texts, n_rows // 3)
    dataset = load(dataclasses.replace(where, n_validation=third, n_test=third))
    classes, how = match_labels(dataset.label_names, classifier)
    notes = [f"Labels and classes were matched {how}."]
    notes += [f"{n} texts were {name}." for name, n in dataset.notes.items() if n]
    ranked = None
    if settings.budget:
        two, chosen_classes = _two_classes(dataset, classes)
        if len(classes) > 2:
            notes.append(f"The methods were ranked on the two most frequent classes, {' and '.join(classifier.label_names[c] for c in chosen_classes)}.")
        ranked = ranking.rank(
            settings.model, two, chosen_classes, limit, settings.shortcuts, settings.methods, settings.learning_rate, seed=settings.seed, say=say
        )
    method = _one_configuration(classifier, settings.method or (ranked and (ranked.recommended or ranked.best)) or DEFAULT_METHOD)
    everyone = [*dataset.test, *dataset.validation, *dataset.train][: settings.n_texts]
    # What a model does not read moves nothing, so all that follows is about what it reads, with room for a word that is put in.
    chosen, n_cut = cut(everyone, max(1, classifier.window - min(ROOM, classifier.window // 4)), classifier.count_tokens)
    notes += [f"{n_cut} of {len(chosen)} texts are longer than the {classifier.window} tokens that are read; their ends were left out."] if n_cut else []
    texts, labels = [example.text for example in chosen], np.array([classes[example.label] for example in chosen])
    predicted = suspects.probabilities(classifier, texts).argmax(1)
    n_explained = min(settings.n_explained, len(texts) // 2)  # the other texts are left for the experiment
    explanations: list[Explanation] = []
    while not explanations or (len(explanations) < n_explained and time.monotonic() - started < 0.85 * limit):
        explanations += explain(classifier, texts[len(explanations) : min(len(explanations) + PART, n_explained)], method, seed=settings.seed)
    if len(explanations) < n_explained:
        notes.append(f"The budget ended after {len(explanations)} of {n_explained} texts were explained.")
    n = len(explanations)
    found = suspects.suspects(
        classifier, explanations, labels[:n].tolist(), texts[n:], method, settings.n_words, settings.n_tests, settings.seed, deadline=started + limit
    )
    if len(found) and math.isfinite(limit) and (untested := int((found["removed_n"] + found["inserted_n"] == 0).sum())):
        notes.append(f"{untested} suspects were not tested: no text could be changed, or the budget had ended.")
    notes.append(f"Suspicion rests on {n} texts, the experiment on {len(texts) - n} others.")
    notes += _below_chance(labels, predicted, classifier.label_names)
    examples = {word: [e for e in explanations if word in map(suspects.key, e.words)][:N_HEAT_MAPS] for word in found["word"]}
    right = int((predicted == labels).sum())
    settings = dataclasses.replace(settings, method=method)
    return Audit(settings, classifier.label_names, len(texts), right, tuple(notes), found, examples, ranked, time.monotonic() - started)


def _one_configuration(classifier: TextClassifier, method: str) -> str:
    found = [str(c) for chosen in configurations_of(classifier, method).values() for c in chosen]
    if len(found) != 1:
        raise ValueError(f"method={method!r} names {len(found)} configurations ({', '.join(found) or 'none'}); choose one of them")
    return found[0]


def _two_classes(dataset: Dataset, classes: Sequence[int]) -> tuple[DataSettings, list[int]]:
    """(the texts of the two most frequent classes as a file of the cache, the model's class for each)."""
    everyone = [example for part in (dataset.train, dataset.validation, dataset.test) for example in part]
    counts = Counter(example.label for example in everyone)
    kept = sorted(label for label, _ in counts.most_common(2))
    table = pd.DataFrame([(example.text, kept.index(example.label)) for example in everyone if example.label in kept], columns=["text", "label"])
    key = cache.key("two-classes", [cache.digest(table["text"].tolist()), table["label"].tolist()])
    file = cache.folder(key, lambda folder: table.to_csv(folder / f"{dataset.name}.csv", index=False)) / f"{dataset.name}.csv"
    sizes = {"n_validation": min(300, len(table) // 6), "n_test": min(1000, len(table) // 4)}
    return DataSettings("local_file", path=str(file), **sizes), [classes[label] for label in kept]


def _below_chance(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> list[str]:
    """A note where the model is right less often than by chance, with the exchange of classes that would explain it."""
    _, high = share_interval(int((labels == predicted).sum()), len(labels))
    present = sorted(set(labels.tolist()))
    if high >= 1 / len(present):
        return []
    note = f"The model is right less often than by chance (1 in {len(present)}): are the labels exchanged?"
    if len(present) <= 6:
        best = max(itertools.permutations(present), key=lambda order: np.mean(np.array([order[present.index(x)] for x in labels]) == predicted))
        pairs = ", ".join(f"{names[a]} as {names[b]}" for a, b in zip(present, best, strict=True))
        note += f" Read {pairs}, it would be right on {np.mean(np.array([best[present.index(x)] for x in labels]) == predicted):.0%}."
    return [note]


# The page


def in_words(found: Audit) -> list[str]:
    """The result in plain sentences."""
    low, high = share_interval(found.right, found.n_texts)
    said = [f"The model gives {found.right / found.n_texts:.0%} of {found.n_texts} texts their label (95 % interval {low:.0%} to {high:.0%})."]
    said += found.ranking.said if found.ranking else ()
    confirmed = found.suspects[found.suspects["confirmed"].astype(bool)]
    if not len(confirmed):
        said.append(f"No word of the {len(found.suspects)} suspects is confirmed: none moves the model by itself beyond what another word in its place does.")
    for row in confirmed.rename(columns={"class": "target"}).itertuples():
        name, parts = found.label_names[row.target], []
        if row.removed_n and row.removed_high < 0:
            parts.append(
                f"taken out of {row.removed_n} texts it lowers the probability by {-row.removed:.2f} [{-row.removed_high:.2f}, {-row.removed_low:.2f}]"
            )
        if row.inserted_n and row.inserted_low > 0:
            parts.append(
                f"put into {row.inserted_n} texts of other classes it raises the probability by {row.inserted:.2f} [{row.inserted_low:.2f}, {row.inserted_high:.2f}] "
                f"and changes the class of {row.inserted_flipped:.0%} more of them than another word"
            )
        said.append(f"“{row.written}” speaks for “{name}”: {'; '.join(parts)}.")
    said.append("Whether a word is a shortcut or a good reason is for you to say; the test only says that the model leans on it.")
    return said


def shown(found: Audit) -> pd.DataFrame:
    """The suspects as people read them."""
    t = found.suspects

    def effect(name: str) -> list[str]:
        return [
            f"{m:+.2f} [{low:+.2f}, {high:+.2f}] n={n}" if n else "no text to try"
            for m, low, high, n in zip(t[name], t[f"{name}_low"], t[f"{name}_high"], t[f"{name}_n"], strict=True)
        ]

    return pd.DataFrame(
        {
            "word": t["written"],
            "class": [found.label_names[c] for c in t["class"]],
            "texts": t["n_texts"].fillna(0).astype(int),
            "share of salience": t["share"],
            "largest of its text": t["first"],
            "z of its counts": t["z"],
            "taken out": effect("removed"),
            "put in": effect("inserted"),
            "confirmed": t["confirmed"].astype(bool),
        }
    )


def page(found: Audit) -> Html:
    """One self-contained, static page; every text from outside is escaped."""
    sentences = "".join(f"<li>{literal(sentence)}</li>" for sentence in in_words(found))
    notes = "".join(f"<li>{literal(note)}</li>" for note in found.notes)
    maps = []
    for row in found.suspects.itertuples():
        lines = [
            rows([e.text[a:b] for a, b in e.offsets], {f"as {found.label_names[e.target]}": e.scores[found.settings.method]}, _places(e, row.word))
            for e in found.examples[row.word]
        ]
        if lines:
            maps.append(f"<h3>{literal(row.written)}</h3>{''.join(lines)}")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("faithlib", "torch", "transformers", "tokenizers", "lime", "captum"))
    settings = "".join(f"<tr><td>{literal(name)}</td><td>{literal(str(value))}</td></tr>" for name, value in dataclasses.asdict(found.settings).items())
    ranked = _ranking_section(found.ranking) if found.ranking else ""
    suspects_table = table(shown(found), 2) if len(found.suspects) else "<p>No word stands in enough texts.</p>"
    return Html(
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Audit of a classifier</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;font-size:90%;margin:1rem 0}}td,th{{padding:2px 8px;text-align:left;vertical-align:top}}</style>
<h1>What does this classifier lean on?</h1><ul>{sentences}</ul>{ranked}
<h2>Suspects</h2><p>Suspected by the salience of the model's explanations or by the counts of the data; confirmed, on other texts, by taking the word out or putting it in,
less what the same does with another word. Intervals are 95 %, for one word; over all words, of those that are confirmed at most 5 % are expected not to move the model.</p>{suspects_table}
<h2>Where they stand</h2>{"".join(maps)}
<h2>What to know</h2><ul>{notes}</ul><h2>Settings</h2><table>{settings}</table><p>{literal(versions)}</p></html>"""
    )


def ranked_methods(found: ranking.Ranking) -> pd.DataFrame:
    """A row per configuration, P@k [95 % interval] and n for each planted shortcut, and the same on the copy that does not use the tokens; empty where no pair
    was verified."""
    t = found.summary
    if not len(t):
        return pd.DataFrame(columns=["method", "config"])
    wide = t.assign(cell=cells(t), column=t["shortcut"].str.replace("_", " ") + t["role"].map({"mixed": "", "source": ", not used"}))
    return wide.pivot_table(index=["method", "config"], columns="column", values="cell", aggfunc="first", sort=False).rename_axis(columns=None).reset_index()


def _ranking_section(found: ranking.Ranking) -> str:
    """The plan, the verification and the precision of every configuration, on the model that uses the planted tokens and on the one that does not."""
    said = "".join(f"<li>{literal(sentence)}</li>" for sentence in found.plan.in_words())
    columns = ["shortcut", "source_accuracy", "mixed_accuracy", "synthetic_accuracy", "source_on_synthetic", "verified", "why_not"]
    body = table(ranked_methods(found)) if len(found.summary) else ""
    return (
        f"<h2>Which method can be trusted here?</h2><p>Tokens were planted in these texts and copies of the model trained to use them; a method is right where it "
        f"puts them on top (precision at k, 95 % intervals), and wrong where it does so on the copy that does not use them. A pair of copies is verified as in the report, "
        f"but for the noise of few test texts, which is added to what is tolerated at chance and as a drop.</p><ul>{said}</ul>"
        f"{table(found.verification[columns])}{body}<p>{literal(found.took())}</p>"
    )


def _places(explanation: Explanation, word: str) -> list[int]:
    return [i for i, w in enumerate(explanation.word) if suspects.key(explanation.words[w]) == word]


def write(found: Audit, folder: str | Path) -> Path:
    """``audit.html`` and ``results.parquet``; each is whole or not there. Returns the page."""
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    found.suspects.to_parquet(folder / "results.parquet.part", index=False)
    (folder / "results.parquet.part").replace(folder / "results.parquet")
    (folder / "audit.html.part").write_text(page(found), encoding="utf-8")
    (folder / "audit.html.part").replace(folder / "audit.html")
    return folder / "audit.html"


# A demonstration


def demonstration(run: Experiment, target: int = 1, share: float = 0.3) -> tuple[Path, Path, str]:
    """The folder of a classifier that has learned a shortcut which its author does not know, the file it was trained on, and the secret (do not look).

    The first model of ``run`` is trained on its data with a harmless word planted in a share of the texts of class ``target``, see ``plant_secretly``; what
    is written down says which text is of which split, so that the audit can be asked about texts that were not trained on.
    """
    dataset = experiment.texts(run)
    examples = [(example, split) for split in ("train", "validation", "test") for example in getattr(dataset, split)]
    words, labels = [example.text for example, _ in examples], [example.label for example, _ in examples]
    planted, secret = suspects.plant_secretly(words, labels, target, share, run.seed)
    table = pd.DataFrame({"text": planted, "label": labels, "split": [split for _, split in examples]})
    key = cache.key("demonstration", [cache.digest(planted), labels, table["split"].tolist()])
    file = cache.folder(key, lambda folder: table.to_csv(folder / "reviews.csv", index=False)) / "reviews.csv"
    data = DataSettings("local_file", path=str(file), n_validation=None, n_test=None)
    return experiment.trained(dataclasses.replace(run, data=data, shortcuts=()), run.model_names[0], None), file, secret
