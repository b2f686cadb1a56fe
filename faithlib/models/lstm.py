"""The paper's LSTM: GloVe, bidirectional LSTM, keys-only attention, a one-layer MLP.

Bastings et al. (EMNLP 2022), appendix; sizes that it leaves open follow the first author's public flax example: BOS and EOS on every text,
scores = v · tanh(W h), padding at minus infinity, softmax, context = Σ a h, MLP = Dense(256) -> tanh -> dropout -> Dense(no bias).
The reversed direction starts at each text's own end, never at the padding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import ADAPTERS, PaddedClassifier, TextClassifier
from faithlib.models.encoding import Batch
from faithlib.models.words import SPECIALS, WordModel, vocabulary
from faithlib.shapes import Embeddings, Mask


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
        pooling: str = "attention",
        **rest,
    ):
        if pooling not in ("attention", "ends"):
            raise ValueError(f"unknown pooling {pooling!r}; choose from: attention, ends")
        super().__init__(**rest)
        self.vocab_size, self.embedding_size, self.hidden_size = vocab_size, embedding_size, hidden_size
        self.dropout, self.word_dropout, self.unk_token_id, self.n_special = dropout, word_dropout, unk_token_id, n_special
        self.pooling = pooling


class LSTMForSequenceClassification(WordModel):
    """The architecture above."""

    config_class = LSTMConfig

    def __init__(self, config: LSTMConfig):
        super().__init__(config)
        hidden = config.hidden_size
        self.left_to_right = nn.LSTM(config.embedding_size, hidden, batch_first=True)
        self.right_to_left = nn.LSTM(config.embedding_size, hidden, batch_first=True)
        if config.pooling == "attention":
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
        else:
            super()._init_weights(module)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None, **_unused
    ) -> SequenceClassifierOutput:
        if inputs_embeds is None:
            if self.training and self.config.word_dropout:
                dropped = (torch.rand(input_ids.shape, device=input_ids.device) < self.config.word_dropout) & (input_ids >= self.config.n_special)
                input_ids = input_ids.masked_fill(dropped, self.config.unk_token_id)
            inputs_embeds = self.embedding(input_ids)
        states = self.dropout(self._states(self.dropout(inputs_embeds), attention_mask))
        if self.config.pooling == "attention":
            context = (self.attention(states, attention_mask)[..., None] * states).sum(1)
        else:
            last = attention_mask.sum(1) - 1 if attention_mask is not None else torch.full((len(states),), states.shape[1] - 1, device=states.device)
            left_to_right, right_to_left = states.chunk(2, 2)
            context = torch.cat([left_to_right[torch.arange(len(states), device=states.device), last], right_to_left[:, 0]], 1)
        return SequenceClassifierOutput(logits=self.out(self.dropout(torch.tanh(self.dense(context)))))

    def attention(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(v · tanh(W h)) over the tokens of each text; (batch, token)."""
        scores = self.query(torch.tanh(self.keys(states)))[..., 0]
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return scores.softmax(1)

    def _states(self, embeddings: Tensor, mask: Tensor | None) -> Tensor:
        """States of both directions, (batch, token, 2 hidden).

        Each text is flipped within its own length instead of being packed: padding comes after it either way and cannot reach it, and on a
        processor the backward pass of packed sequences fills a whole new buffer per step.
        """
        n = embeddings.shape[1]
        position = torch.arange(n, device=embeddings.device)
        lengths = mask.sum(1, keepdim=True) if mask is not None else torch.full((len(embeddings), 1), n, device=embeddings.device)
        flip = torch.where(position < lengths, lengths - 1 - position, position)[..., None]  # its own inverse
        # Not every processor has a recurrence in half precision (oneDNN refuses it there), so on a CPU this part stays in fp32.
        whole = torch.autocast("cpu", enabled=False) if embeddings.device.type == "cpu" else contextlib.nullcontext()
        with whole:
            embeddings = embeddings.to(self.left_to_right.weight_ih_l0.dtype)
            forward = self.left_to_right(embeddings)[0]
            backward = self.right_to_left(embeddings.gather(1, flip.expand_as(embeddings)))[0]
        return torch.cat([forward, backward.gather(1, flip.expand_as(backward))], 2)


AutoConfig.register(LSTMConfig.model_type, LSTMConfig)
AutoModelForSequenceClassification.register(LSTMConfig, LSTMForSequenceClassification)


class RecurrentClassifier(PaddedClassifier):
    """cuDNN refuses the backward pass of a recurrent layer in evaluation mode; train() would turn dropout on, so cuDNN is off for the call."""

    @property
    def has_attention(self) -> bool:
        return self.model.config.pooling == "attention"

    def _forward(self, embeddings: Embeddings, mask: Mask) -> Tensor:
        off = torch.backends.cudnn.flags(enabled=False) if embeddings.is_cuda and torch.is_grad_enabled() else contextlib.nullcontext()
        with off:
            return super()._forward(embeddings, mask)

    def _attention(self, batch: Batch) -> tuple[Tensor, ...]:
        weights = self.model.attention(self.model._states(self.embed(batch), batch.mask.long()), batch.mask)
        return (weights[:, None, None],)


ADAPTERS[LSTMConfig.model_type] = RecurrentClassifier


@MODELS.register("lstm")
def lstm(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
    """An untrained LSTM. Vocabulary: the words of ``texts`` and the most frequent of GloVe; words without a vector start random.

    pooling: ``attention`` (the paper's), or ``ends`` for an LSTM without: each direction's state where it has read the whole text.
    """
    settings.check_options("embedding_size", "hidden_size", "word_dropout", "n_frequent", "pooling")
    tokenizer, ids, vectors = vocabulary(settings, texts, markers)
    config = LSTMConfig(
        vocab_size=len(tokenizer),
        embedding_size=vectors.shape[1],
        hidden_size=int(settings.option("hidden_size", 256)),
        dropout=settings.dropout,
        word_dropout=float(settings.option("word_dropout", 0.1)),
        pooling=str(settings.option("pooling", "attention")),
        num_labels=n_logits,
        pad_token_id=0,
    )
    model = LSTMForSequenceClassification(config)
    model.fill_embedding(ids, vectors)
    return TextClassifier.wrap(model, tokenizer, window=settings.window)
