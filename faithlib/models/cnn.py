"""A convolutional network over GloVe (Kim, EMNLP 2014): filters of several widths, the largest answer of each, one linear layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import ADAPTERS, PaddedClassifier, TextClassifier
from faithlib.models.words import WordModel, vocabulary

WIDTHS = (3, 4, 5)  # words that a filter sees at once; Kim's sizes


class CNNConfig(PreTrainedConfig):
    """n_filters: of each width."""

    model_type = "faithlib_cnn"

    def __init__(self, vocab_size: int = 100, embedding_size: int = 50, n_filters: int = 100, dropout: float = 0.5, **rest):
        super().__init__(**rest)
        self.vocab_size, self.embedding_size, self.n_filters, self.dropout = vocab_size, embedding_size, n_filters, dropout


class CNNForSequenceClassification(WordModel):
    """The network above."""

    config_class = CNNConfig

    def __init__(self, config: CNNConfig):
        super().__init__(config)
        self.filters = nn.ModuleList(nn.Conv1d(config.embedding_size, config.n_filters, width) for width in WIDTHS)
        self.dropout = nn.Dropout(config.dropout)
        self.out = nn.Linear(len(WIDTHS) * config.n_filters, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None, **_unused
    ) -> SequenceClassifierOutput:
        inputs = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        n = inputs.shape[1]
        lengths = attention_mask.sum(1) if attention_mask is not None else torch.full((len(inputs),), n, device=inputs.device)
        # Zeros outside the text, of which a batch may hold more than a text alone: a window counts where it touches the text.
        inside = torch.arange(n, device=inputs.device) < lengths[:, None]
        inputs = (inputs * inside[..., None]).transpose(1, 2)
        answers = []
        for width, filters in zip(WIDTHS, self.filters, strict=True):
            answer = filters(pad(inputs, (width - 1, width - 1)))
            touches = torch.arange(answer.shape[2], device=inputs.device) < (lengths + width - 1)[:, None]
            answers.append(answer.masked_fill(~touches[:, None], float("-inf")).amax(2).relu())
        return SequenceClassifierOutput(logits=self.out(self.dropout(torch.cat(answers, 1))))


AutoConfig.register(CNNConfig.model_type, CNNConfig)
AutoModelForSequenceClassification.register(CNNConfig, CNNForSequenceClassification)


class ConvolutionalClassifier(PaddedClassifier):
    """It has no attention."""

    has_attention = False


ADAPTERS[CNNConfig.model_type] = ConvolutionalClassifier


@MODELS.register("cnn")
def cnn(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
    """An untrained CNN. Vocabulary: the words of ``texts`` and the most frequent of GloVe; words without a vector start random."""
    settings.check_options("embedding_size", "n_filters", "n_frequent")
    tokenizer, ids, vectors = vocabulary(settings, texts, markers)
    config = CNNConfig(
        vocab_size=len(tokenizer),
        embedding_size=vectors.shape[1],
        n_filters=int(settings.option("n_filters", 100)),
        dropout=settings.dropout,
        num_labels=n_logits,
        pad_token_id=0,
    )
    model = CNNForSequenceClassification(config)
    model.fill_embedding(ids, vectors)
    return TextClassifier.wrap(model, tokenizer, window=settings.window)
