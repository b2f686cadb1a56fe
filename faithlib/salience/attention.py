"""Attention as an explanation: how much the place that is classified looks at every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from faithlib.models.classifier import TextClassifier
from faithlib.models.encoding import Batch
from faithlib.salience import Configuration, salience


@salience("attention;head=mean;layer=last", needs="has_attention")
def attention(model: TextClassifier, batch: Batch, target: Tensor, configurations: Sequence[Configuration], seed: int) -> Mapping[Configuration, Tensor]:
    """Softmax weights, 0 to 1; unsigned, and the same for every target class.

    layer: a number from 0, or ``last``; head: a number from 0, or ``mean``. A transformer's weights are those of the row that its classifier reads
    ([CLS] in BERT); an LSTM has one layer with one head. Ivankay et al. (2022) use attention so; which layer and head they leave open.
    """
    answers = {}
    for c in configurations:
        layer, head = (-1 if c["layer"] == "last" else int(c["layer"])), (None if c["head"] == "mean" else int(c["head"]))
        answers[c] = model.attention(batch, layer, head) * batch.rankable
    return answers
