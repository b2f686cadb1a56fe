"""What the word-level models share: words as tokens, and GloVe under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from faithlib import assets
from faithlib.models import ModelSettings
from faithlib.models.markers import add_markers

SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
# A word with its inner hyphens, a clitic as GloVe has it ('s, 't), or any other single character; marks stay with their letter.
WORD = r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*(?:-[\p{L}\p{N}][\p{L}\p{N}\p{M}_]*)*|['’][\p{L}]{1,2}(?![\p{L}\p{N}])|\S\p{M}*"


def word_tokenizer(vocabulary: Sequence[str], window: int) -> PreTrainedTokenizerFast:
    """Lower-cased words as tokens, [BOS] and [EOS] around them."""
    ids = {word: i for i, word in enumerate([*SPECIALS, *vocabulary])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(WORD), behavior="isolated")])
    backend.post_processor = processors.TemplateProcessing(single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", 3)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]", eos_token="[EOS]", model_max_length=window
    )


def _vectors(weights: str, size: int) -> tuple[list[str], np.ndarray]:
    """GloVe words, most frequent first, and their vectors: from the package, or from a GloVe text file (``word 0.1 0.2 …`` a line)."""
    if weights == "random":
        return [], np.zeros((0, size), dtype=np.float32)
    if weights == "packaged":
        vectors, words = assets.glove_50d()
        return parquet.read_table(words)["index"].to_pylist(), np.load(vectors, mmap_mode="r")
    path = assets.local_file("glove.6B.300d.txt" if weights == "hub" else weights, "GloVe text file (https://nlp.stanford.edu/projects/glove, glove.6B.zip)")
    words, rows = [], []
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            word, *numbers = line.rstrip().split(" ")
            words.append(word)
            rows.append(np.asarray(numbers, dtype=np.float32))
    return words, np.stack(rows)


def vocabulary(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str]) -> tuple[PreTrainedTokenizerFast, list[int], np.ndarray]:
    """A tokenizer for the words of ``texts`` and the ``n_frequent`` (20,000) most frequent of GloVe, and the vectors that are known.

    Returns (tokenizer, ids, vectors): ``vectors[i]`` belongs to token ``ids[i]``; a word without a vector is not among them. The vectors have the
    width of the file, or ``embedding_size`` (50) where weights are ``random``.
    """
    known, vectors = _vectors(settings.weights, int(settings.option("embedding_size", 50)))
    splitter = word_tokenizer([], 10**9).backend_tokenizer
    counts = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(splitter.normalizer.normalize_str(text)))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    frequent = [word for word in known[: int(settings.option("n_frequent", 20000))] if word not in counts]
    words += [word for word in frequent if word not in SPECIALS]
    tokenizer = word_tokenizer(words, settings.window)
    add_markers(tokenizer, list(markers))
    place = {word: i for i, word in enumerate(known)}
    found = [(len(SPECIALS) + i, place[word]) for i, word in enumerate(words) if word in place]
    ids, rows = map(list, zip(*found, strict=True)) if found else ([], [])
    return tokenizer, ids, np.asarray(vectors[rows], dtype=np.float32)


class WordModel(PreTrainedModel):
    """A network over word embeddings behind transformers' interface, so that Trainer, saving and loading are the library's own.

    Its configuration has ``vocab_size`` and ``embedding_size``.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.4)  # the spread of GloVe 6B's components
        elif isinstance(module, nn.Linear | nn.Conv1d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embedding = value

    @torch.no_grad()
    def fill_embedding(self, ids: Sequence[int], vectors: np.ndarray) -> None:
        """Put the known vectors in their places and 0 in the padding's; the other words keep their random start."""
        if len(ids):
            self.embedding.weight[list(ids)] = torch.from_numpy(vectors)
        self.embedding.weight[0] = 0
