"""Where the candidates come from: a masked language model, a table of neighbours, word vectors. The rules of the game apply to all alike."""

from __future__ import annotations

import bisect
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from faithlib import assets
from faithlib.attack import AttackSettings, Words
from faithlib.attack.words import TAGGERS, core, is_function_word, is_punctuation

DEFAULT = AttackSettings()


@dataclass(frozen=True)
class Proposer:
    """A source of candidates under the rules of an attack: calling it with (words, positions) gives at most |C| words for each position, best first.

    name: the source, as tables call it. nearest(words, positions, n): what the source says, at most n bare words for each position. settings: its
    ``rules``, ``n_taken`` and ``n_candidates`` are applied, in this order: take, filter, cut. The current word in any case is no candidate. Candidates
    come in the case of the source; punctuation that sticks to a word stays.
    """

    name: str
    nearest: Callable[[Words, Sequence[int], int], list[list[str]]]
    settings: AttackSettings

    def __call__(self, words: Words, positions: Sequence[int]) -> list[list[str]]:
        found = self.nearest(words, positions, self.settings.n_taken)
        return [self._filtered(words, position, candidates[: self.settings.n_taken]) for position, candidates in zip(positions, found, strict=True)]

    def under(self, settings: AttackSettings) -> Proposer:
        """The same source under other rules."""
        return replace(self, settings=settings)

    def _filtered(self, words: Words, position: int, candidates: Sequence[str]) -> list[str]:
        rules = self.settings.rules
        before, current, after = core(words[position])
        left = [
            candidate
            for candidate in dict.fromkeys(candidates)
            if candidate.split() == [candidate]
            and candidate.casefold() != current.casefold()
            and (rules.propose_punctuation or not is_punctuation(candidate))
            and (rules.propose_function_words or not is_function_word(candidate))
        ]
        if rules.same_part_of_speech:
            wanted, *tags = TAGGERS[rules.tagger](words, position, [current, *left])
            left = [candidate for candidate, tag in zip(left, tags, strict=True) if tag == wanted]
        return [before + candidate + after for candidate in left[: self.settings.n_candidates]]


def neighbours(table: Mapping[str, Sequence[str]], settings: AttackSettings = DEFAULT, name: str = "neighbours") -> Proposer:
    """Neighbours from a table, word -> words, nearest first; looked up as written, then in lower case. Each word stands alone."""

    def nearest(words: Words, positions: Sequence[int], n: int) -> list[list[str]]:
        cores = [core(words[position])[1] for position in positions]
        return [list(table.get(word) or table.get(word.lower()) or [])[:n] for word in cores]

    return Proposer(name, nearest, settings)


def counter_fitted(path: str | Path, settings: AttackSettings = DEFAULT) -> Proposer:
    """TEF's own source: neighbours in counter-fitted vectors, from a JSON file {word: [nearest, next, ...]} [TEF]."""
    path = assets.local_file(path, "table of counter-fitted neighbours")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path}: holds a {type(table).__name__}; a table of neighbours is an object, word -> list of words")
    for word, found in table.items():
        if not isinstance(found, list) or not all(isinstance(neighbour, str) for neighbour in found):
            raise ValueError(f"{path}: the neighbours of {word!r} are not a list of words: {str(found)[:60]}")
    return neighbours(table, settings, "counter-fitted neighbours")


def vector_neighbours(words: Sequence[str], vectors: np.ndarray, settings: AttackSettings = DEFAULT, name: str = "GloVe neighbours") -> Proposer:
    """Neighbours by the cosine of word vectors, (word, component); words without a vector have none.

    Raw GloVe puts antonyms side by side (good, bad): whatever uses it is called by this name, and says nothing about counter-fitted vectors.
    """
    if len(words) != len(vectors):
        raise ValueError(f"{len(words)} words for {len(vectors)} vectors; give one vector per word")
    return Proposer(name, _Vectors(words, vectors).nearest, settings)


def glove(settings: AttackSettings = DEFAULT) -> Proposer:
    """:func:`vector_neighbours` over the packaged GloVe 6B, 50-d."""
    import pandas as pd

    vectors, names = assets.glove_50d()
    return vector_neighbours(pd.read_parquet(names)["index"].astype(str).tolist(), np.load(vectors, mmap_mode="r"), settings)


class _Vectors:
    def __init__(self, words: Sequence[str], vectors: np.ndarray):
        self.words, self.vectors = words, vectors
        self.rows = {word: row for row, word in reversed(list(enumerate(words)))}  # of a word that is listed twice, the first
        self.norms: np.ndarray | None = None
        self.known: dict[tuple[str, int], list[str]] = {}

    def nearest(self, words: Words, positions: Sequence[int], n: int) -> list[list[str]]:
        cores = [core(words[position])[1] for position in positions]
        cores = [word if word in self.rows else word.lower() for word in cores]
        for word in cores:
            if word in self.rows and (word, n) not in self.known:
                self.known[word, n] = [self.words[row] for row in self._order(self.rows[word], n)]
        return [self.known.get((word, n), []) for word in cores]

    def _order(self, row: int, n: int) -> list[int]:
        """The n other rows of largest cosine, equal ones in the order of the list. Word by word, for a matrix product rounds as its batch is wide."""
        if self.norms is None:
            self.vectors = np.asarray(self.vectors, dtype=np.float32)
            norms = np.linalg.norm(self.vectors, axis=1)
            self.norms = np.where(norms > 0, norms, np.inf)  # a zero vector is near nothing
        cosines = self.vectors @ self.vectors[row] / self.norms
        cosines[row] = -np.inf
        return _largest(cosines, min(n, len(cosines) - 1))


def _largest(values: np.ndarray, n: int) -> list[int]:
    """Where the n largest values stand, largest first, equal ones in their order."""
    n = min(n, len(values))
    least = np.partition(values, -n)[-n] if n else np.inf
    best = np.flatnonzero(values >= least)
    return best[np.argsort(-values[best], kind="stable")][:n].tolist()


def masked_language_model(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, settings: AttackSettings = DEFAULT, name: str | None = None, window: int | None = None
) -> Proposer:
    """TEA's source: what a masked language model would write [paper]. All positions that are asked for are masked at once, in ONE forward pass.

    model, tokenizer: any masked language model of transformers and its own tokenizer; the model keeps its device and mode. name: the default says which
    architecture it is. Pieces that continue a word and special tokens are no candidates. A text longer than ``window`` tokens (default: what the model can
    read) is read through windows around its masks, side by side in the same pass. Raises ValueError for a tokenizer without a mask token.
    """
    return Proposer(name or f"{type(model).__name__} (masked language model)", _MaskedLanguageModel(model, tokenizer, window).nearest, settings)


class _MaskedLanguageModel:
    def __init__(self, model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, window: int | None):
        if tokenizer.mask_token_id is None:
            raise ValueError(f"{type(tokenizer).__name__} has no mask token; candidates need a masked language model, for example distilbert-base-uncased")
        self.model, self.tokenizer = model, tokenizer
        config = model.config
        offset = 2 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0  # these count positions from their padding id on
        limit = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", 512) - offset)
        some = tokenizer("a").encodings[0]
        first, last = some.special_tokens_mask.index(0), len(some.ids) - some.special_tokens_mask[::-1].index(0)
        self.lead, self.trail = some.ids[:first], some.ids[last:]  # the special tokens around a text
        n_special = len(self.lead) + len(self.trail)
        if window is not None and not n_special < window <= limit:
            raise ValueError(f"window={window}: {type(model).__name__} reads {n_special + 1} to {limit} tokens")
        self.room = (window or limit) - n_special
        tokens = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), config.vocab_size))))
        # WordPiece marks what continues a word, byte-level BPE and SentencePiece what begins one; a word-level vocabulary marks nothing.
        counts = {marker: sum(token.startswith(marker) for token in tokens) for marker in ("##", "Ġ", "▁")}
        self.marker = max(counts, key=lambda marker: counts[marker]) if any(counts.values()) else ""
        special = set(tokenizer.all_special_tokens)
        self.words = {i: self._word(token) for i, token in enumerate(tokens) if token not in special and self._begins_a_word(token)}
        self.words = {i: word for i, word in self.words.items() if word and "\ufffd" not in word}
        self.ids = np.array(sorted(self.words), dtype=np.int64)

    def _begins_a_word(self, token: str) -> bool:
        begins = not token.startswith("##") if self.marker == "##" else token.startswith(self.marker)
        return begins and not re.fullmatch(r"\[unused\d+\]", token)

    def _word(self, token: str) -> str:
        return self.tokenizer.convert_tokens_to_string([token]).strip() if self.marker == "Ġ" else token.removeprefix(self.marker).strip()

    def nearest(self, words: Words, positions: Sequence[int], n: int) -> list[list[str]]:
        if not positions:
            return []
        row, places = self._masked(words, set(positions))
        windows = _windows(sorted(places.values()), len(row), self.room)
        inputs = [torch.tensor([*self.lead, *row[start:end], *self.trail]) for start, end, _ in windows]
        ids = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True, padding_value=self.tokenizer.pad_token_id or 0)
        mask = torch.arange(ids.shape[1]) < torch.tensor([len(one) for one in inputs])[:, None]
        device = next(self.model.parameters()).device
        with torch.no_grad(), _evaluating(self.model):
            logits = self.model(input_ids=ids.to(device), attention_mask=mask.long().to(device)).logits
        found: dict[int, list[str]] = {}
        for window, (start, _, inside) in enumerate(windows):
            scores = logits[window, [len(self.lead) + place - start for place in inside]].float().cpu().numpy()[:, self.ids]
            found |= {place: [self.words[i] for i in self.ids[_largest(own, n)].tolist()] for place, own in zip(inside, scores, strict=True)}
        return [found[places[position]] for position in positions]

    def _masked(self, words: Words, positions: set[int]) -> tuple[list[int], dict[int, int]]:
        """(ids of the words with one mask for each position, position -> place of its mask).

        The words go in as one text and are found again by their offsets: given as a list, a byte-level tokenizer would glue them together. What reads
        like a special token in the text stays text. A word without pieces (invisible characters) is unknown to the model.
        """
        text = " " * (self.marker == "Ġ") + " ".join(words)
        starts = np.cumsum([len(text) - len(" ".join(words)), *(len(word) + 1 for word in words)]).tolist()[:-1]
        encoding = self.tokenizer(text, split_special_tokens=True, verbose=False).encodings[0]
        pieces: list[list[tuple[int, int, int]]] = [[] for _ in words]
        n = len(encoding.ids) - len(self.trail)
        for token, (start, end) in zip(encoding.ids[len(self.lead) : n], encoding.offsets[len(self.lead) : n], strict=True):
            while start < end and text[start].isspace():  # byte-level tokenizers may count the space in front
                start += 1
            pieces[max(0, bisect.bisect_right(starts, start) - 1)].append((token, start, end))
        unknown = [] if self.tokenizer.unk_token_id is None else [self.tokenizer.unk_token_id]
        row: list[int] = []
        places = {}
        for position, (word, begin) in enumerate(zip(words, starts, strict=True)):
            if position not in positions:
                row += [token for token, _, _ in pieces[position]] or unknown
                continue
            before, inner, _ = core(word)
            begin += len(before)
            row += [token for token, start, end in pieces[position] if start < begin and end <= begin]
            places[position] = len(row)
            row += [self.tokenizer.mask_token_id, *(token for token, start, _ in pieces[position] if start >= begin + len(inner))]
        return row, places


def _windows(places: Sequence[int], n: int, room: int) -> list[tuple[int, int, list[int]]]:
    """(start, end, places in it): slices of at most ``room`` out of ``n`` pieces, around places that lie less than half a window apart."""
    if n <= room:
        return [(0, n, list(places))]
    groups: list[list[int]] = []
    for place in places:
        if groups and place - groups[-1][0] < room // 2:
            groups[-1].append(place)
        else:
            groups.append([place])
    starts = [min(max(0, (group[0] + group[-1] + 1 - room) // 2), n - room) for group in groups]
    return [(start, start + room, group) for start, group in zip(starts, groups, strict=True)]


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout, and as before afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
