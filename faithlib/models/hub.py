"""RoBERTa (Liu et al., 2019) and XLNet (Yang et al., NeurIPS 2019), the other two transformers of Ivankay et al. (2022). No package carries their weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from faithlib import assets
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier
from faithlib.models.markers import embed_markers
from faithlib.progress import quiet

ROBERTA_BASE = assets.HubAsset("FacebookAI/roberta-base", "e2da8e2f811d1448a5b465c236feacd80ffbac7b")
XLNET_BASE = assets.HubAsset("xlnet/xlnet-base-cased", "ceaa69c7bc5e512b5007106a7ccbb7daf24b2c79")


@MODELS.register("roberta")
def roberta(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
    """A RoBERTa with a fresh head; weights: ``hub`` (roberta-base), a folder or a repository."""
    return _with_a_fresh_head(settings, ROBERTA_BASE, markers, n_logits, "hidden_dropout_prob", "attention_probs_dropout_prob")


@MODELS.register("xlnet")
def xlnet(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
    """An XLNet with a fresh head; weights: ``hub`` (xlnet-base-cased), a folder or a repository."""
    return _with_a_fresh_head(settings, XLNET_BASE, markers, n_logits, "dropout", "summary_last_dropout")


def _with_a_fresh_head(settings: ModelSettings, pinned: assets.HubAsset, markers: Sequence[str], n_logits: int, *dropouts: str) -> TextClassifier:
    settings.check_options()
    if settings.weights in ("packaged", "random"):
        raise ValueError(f"weights={settings.weights!r}: no package carries {settings.family}; choose from: hub, a local folder, a hub repository")
    asset = pinned if settings.weights == "hub" else assets.HubAsset(settings.weights, None)
    where = {"revision": asset.revision}
    # One logit under a binary cross entropy is, in transformers' words, multi-label with a single label.
    head = {"num_labels": n_logits, "problem_type": "multi_label_classification" if n_logits == 1 else None}
    try:
        tokenizer = AutoTokenizer.from_pretrained(asset.repository, **where)
        with quiet():
            model = AutoModelForSequenceClassification.from_pretrained(
                asset.repository, **where, use_safetensors=True, dtype=torch.float32, **head, **dict.fromkeys(dropouts, settings.dropout)
            )
    except OSError as error:
        raise assets.MissingAssetError(
            f"{settings.family} weights {asset.repository!r} (revision {asset.revision}) could not be loaded: {error}\n"
            f"with a network: hf download {asset.repository} --revision {asset.revision or 'main'}; without one, set weights to a local folder"
        ) from error
    embed_markers(model, tokenizer, list(markers))
    return TextClassifier.wrap(model, tokenizer, window=settings.window)
