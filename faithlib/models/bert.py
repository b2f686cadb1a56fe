"""BERT (Devlin et al., 2019): MiniLM's six layers from a package in the quick run, bert-base-uncased from the hub in the paper profile."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

from faithlib import assets
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import ADAPTERS, PaddedClassifier, TextClassifier
from faithlib.models.markers import embed_markers
from faithlib.progress import quiet
from faithlib.shapes import Embeddings, Mask


class BertClassifier(PaddedClassifier):
    """The classifier reads only [CLS], so its last layer is computed for that one row: equal logits and gradients, less work.

    ``whole`` turns that off (the tests compare both).
    """

    whole = False

    def _forward(self, embeddings: Embeddings, mask: Mask) -> Tensor:
        model = self.model
        if self.whole or type(model) is not BertForSequenceClassification or model.config.is_decoder:
            return super()._forward(embeddings, mask)
        hidden = model.bert.embeddings(inputs_embeds=embeddings)
        attend = None if bool(mask.all()) else mask[:, None, None, :]
        *lower, last = model.bert.encoder.layer
        if attend is not None and model.config._attn_implementation == "eager":
            additive = torch.zeros(attend.shape, dtype=hidden.dtype, device=hidden.device).masked_fill(~attend, torch.finfo(hidden.dtype).min)
            for layer in lower:
                hidden = layer(hidden, additive)
        else:
            for layer in lower:
                hidden = layer(hidden, attend)
        first = _first_row(last, hidden, attend)
        return model.classifier(model.bert.pooler(first))


def _first_row(layer: nn.Module, hidden: Tensor, attend: Tensor | None) -> Tensor:
    """The last layer's output at position 0 alone; (batch, 1, hidden)."""
    attention = layer.attention.self
    heads = (*hidden.shape[:1], -1, attention.num_attention_heads, attention.attention_head_size)
    query, key, value = (
        projection(states).view(heads).transpose(1, 2)
        for projection, states in ((attention.query, hidden[:, :1]), (attention.key, hidden), (attention.value, hidden))
    )
    context = scaled_dot_product_attention(query, key, value, attn_mask=attend, scale=attention.scaling)
    context = context.transpose(1, 2).reshape(len(hidden), 1, -1)
    return layer.feed_forward_chunk(layer.attention.output(context, hidden[:, :1]))


ADAPTERS["bert"] = BertClassifier


@MODELS.register("bert")
def bert(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
    """A BERT with a fresh head. ``random`` weights: as many layers and as wide as the options say, with MiniLM's vocabulary."""
    settings.check_options("n_layers", "hidden_size", "n_heads")
    dropouts = {"hidden_dropout_prob": settings.dropout, "attention_probs_dropout_prob": settings.dropout}
    # One logit under a binary cross entropy is, in transformers' words, multi-label with a single label.
    head = {"num_labels": n_logits, "problem_type": "multi_label_classification" if n_logits == 1 else None}
    source, revision = settings.weights, None
    if settings.weights in ("packaged", "random"):
        source = str(assets.minilm())
    elif settings.weights == "hub":
        source, revision = assets.BERT_BASE.repository, assets.BERT_BASE.revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
        if settings.weights == "random":
            hidden = int(settings.option("hidden_size", 64))
            config = BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden,
                intermediate_size=4 * hidden,
                num_hidden_layers=int(settings.option("n_layers", 2)),
                num_attention_heads=int(settings.option("n_heads", 2)),
                **head,
                **dropouts,
            )
            model = BertForSequenceClassification(config)
        else:
            with quiet():
                model = AutoModelForSequenceClassification.from_pretrained(
                    source, revision=revision, use_safetensors=True, dtype=torch.float32, **head, **dropouts
                )
    except OSError as error:
        raise assets.MissingAssetError(
            f"BERT weights {source!r} (revision {revision}) could not be loaded: {error}\n"
            f"with a network: hf download {source} --revision {revision or 'main'}; without one, set weights to a local folder or to 'packaged'"
        ) from error
    embed_markers(model, tokenizer, list(markers))
    return TextClassifier.wrap(model, tokenizer, window=settings.window)
