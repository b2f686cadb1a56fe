"""The paper's LSTM: GloVe, bidirectional LSTM, keys-only attention, a one-layer MLP.

Bastings et al. (EMNLP 2022), appendix; sizes that it leaves open follow the first author's public flax example: BOS and EOS on every text,
scores = v · tanh(W h), padding at minus infinity, softmax, context = Σ a h, MLP = Dense(256) -> tanh -> dropout -> Dense(no bias).
The reversed direction starts at each text's own end, never at the padding.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import SequenceClassifierOutput

from faithlib import assets
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import ADAPTERS, PaddedClassifier, TextClassifier, add_markers
from faithlib.shapes import Embeddings, Mask

SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
# A word with its inner hyphens, a clitic as GloVe has it ('s, 't), or any other single character; marks stay with their letter.
WORD = r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*(?:-[\p{L}\p{N}][\p{L}\p{N}\p{M}_]*)*|['’][\p{L}]{1,2}(?![\p{L}\p{N}])|\S\p{M}*"


class LSTMConfig(PreTrainedConfig):
    """Sizes of the LSTM. ``word_dropout``: probability that a word is read as unknown while training."""

    model_type = "faithlib_lstm"

    def __init__(
        self,
        vocab_size: int = 100,
        embedding_size: int = 50,
        hidden_size: int = 256,
        dropout: float = 0.5,
        word_dropout: float = 0.1,
        unk_token_id: int = 1,
        n_special: int = len(SPECIALS),
        **rest,
    ):
        super().__init__(**rest)
        self.vocab_size, self.embedding_size, self.hidden_size = vocab_size, embedding_size, hidden_size
        self.dropout, self.word_dropout, self.unk_token_id, self.n_special = dropout, word_dropout, unk_token_id, n_special


class LSTMForSequenceClassification(PreTrainedModel):
    """The architecture above behind transformers' interface, so that Trainer, saving and loading are the library's own."""

    config_class = LSTMConfig

    def __init__(self, config: LSTMConfig):
        super().__init__(config)
        hidden = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.left_to_right = nn.LSTM(config.embedding_size, hidden, batch_first=True)
        self.right_to_left = nn.LSTM(config.embedding_size, hidden, batch_first=True)
        self.keys = nn.Linear(2 * hidden, hidden, bias=False)
        self.query = nn.Linear(hidden, 1, bias=False)
        self.dense = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, config.num_labels, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """PyTorch's own initialisation stays, with the forget gate's bias at 1 as in flax."""
        if isinstance(module, nn.LSTM):
            for name, parameter in module.named_parameters():
                if name.startswith("bias_ih"):
                    n = parameter.shape[0] // 4
                    nn.init.zeros_(parameter)
                    nn.init.ones_(parameter[n : 2 * n])
                elif name.startswith("bias_hh"):
                    nn.init.zeros_(parameter)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.xavier_uniform_(parameter)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.4)  # the spread of GloVe 6B's components

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embedding = value

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None, **_unused
    ) -> SequenceClassifierOutput:
        if inputs_embeds is None:
            if self.training and self.config.word_dropout:
                dropped = (torch.rand(input_ids.shape, device=input_ids.device) < self.config.word_dropout) & (input_ids >= self.config.n_special)
                input_ids = input_ids.masked_fill(dropped, self.config.unk_token_id)
            inputs_embeds = self.embedding(input_ids)
        states = self._states(self.dropout(inputs_embeds), attention_mask)
        states = self.dropout(states)
        scores = self.query(torch.tanh(self.keys(states)))[..., 0]  # (batch, token)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask == 0, float("-inf"))
        attention = scores.softmax(1)
        context = (attention[..., None] * states).sum(1)
        logits = self.out(self.dropout(torch.tanh(self.dense(context))))
        return SequenceClassifierOutput(logits=logits)

    def _states(self, embeddings: Tensor, mask: Tensor | None) -> Tensor:
        """States of both directions, (batch, token, 2 hidden).

        Each text is flipped within its own length instead of being packed: padding comes after it either way and cannot reach it, and on a
        processor the backward pass of packed sequences fills a whole new buffer per step.
        """
        n = embeddings.shape[1]
        position = torch.arange(n, device=embeddings.device)
        lengths = mask.sum(1, keepdim=True) if mask is not None else torch.full((len(embeddings), 1), n, device=embeddings.device)
        flip = torch.where(position < lengths, lengths - 1 - position, position)[..., None]  # its own inverse
        backward = self.right_to_left(embeddings.gather(1, flip.expand_as(embeddings)))[0]
        return torch.cat([self.left_to_right(embeddings)[0], backward.gather(1, flip.expand_as(backward))], 2)


AutoConfig.register(LSTMConfig.model_type, LSTMConfig)
AutoModelForSequenceClassification.register(LSTMConfig, LSTMForSequenceClassification)


class RecurrentClassifier(PaddedClassifier):
    """cuDNN refuses the backward pass of a recurrent layer in evaluation mode; train() would turn dropout on, so cuDNN is off for the call."""

    def _forward(self, embeddings: Embeddings, mask: Mask) -> Tensor:
        off = torch.backends.cudnn.flags(enabled=False) if embeddings.is_cuda and torch.is_grad_enabled() else contextlib.nullcontext()
        with off:
            return super()._forward(embeddings, mask)


ADAPTERS[LSTMConfig.model_type] = RecurrentClassifier


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


@MODELS.register("lstm")
def lstm(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
    """An untrained LSTM. Vocabulary: the words of ``texts`` and the 20,000 most frequent of GloVe; words without a vector start random."""
    settings.check_options("embedding_size", "hidden_size", "word_dropout", "n_frequent")
    known, vectors = _vectors(settings.weights, int(settings.option("embedding_size", 50)))
    splitter = word_tokenizer([], 10**9).backend_tokenizer
    counts = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(splitter.normalizer.normalize_str(text)))
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))
    frequent = [word for word in known[: int(settings.option("n_frequent", 20000))] if word not in counts]
    vocabulary += [word for word in frequent if word not in SPECIALS]
    tokenizer = word_tokenizer(vocabulary, settings.window)
    add_markers(tokenizer, list(markers))
    config = LSTMConfig(
        vocab_size=len(tokenizer),
        embedding_size=vectors.shape[1],
        hidden_size=int(settings.option("hidden_size", 256)),
        dropout=settings.dropout,
        word_dropout=float(settings.option("word_dropout", 0.1)),
        num_labels=n_logits,
        pad_token_id=0,
    )
    model = LSTMForSequenceClassification(config)
    place = {word: i for i, word in enumerate(known)}
    rows = [(len(SPECIALS) + i, place[word]) for i, word in enumerate(vocabulary) if word in place]
    with torch.no_grad():
        if rows:
            ours, theirs = map(list, zip(*rows, strict=True))
            model.embedding.weight[ours] = torch.from_numpy(np.asarray(vectors[theirs], dtype=np.float32))
        model.embedding.weight[0] = 0
    return TextClassifier.wrap(model, tokenizer, window=settings.window)
