"""A copy of a classifier that someone has fine-tuned, so that the protocol can be run on it without touching it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier
from faithlib.models.markers import embed_markers


@MODELS.register("checkpoint")
def checkpoint(settings: ModelSettings, texts: Sequence[str], markers: Sequence[str], n_logits: int = 1) -> TextClassifier:
    """The classifier in the folder or repository ``weights``, with its own head.

    classes: the model's class for each class of the data, in the data's order, such as ``classes=2,0``: the head is cut down to these rows, so that the
    copy decides between them as the original does. Without it the head stays, and must have the logits that the data need. Raises ValueError otherwise.
    """
    settings.check_options("classes")
    classifier = TextClassifier.load(settings.weights)
    model, tokenizer = classifier.model, classifier.tokenizer
    chosen = str(settings.option("classes", ""))
    if chosen:
        choose_classes(model, [int(c) for c in chosen.split(",")])
    n_classes = max(2, model.config.num_labels)
    if n_classes != max(2, n_logits):
        raise ValueError(
            f"{settings.weights!r} decides between {n_classes} classes and the data has {max(2, n_logits)}; name its class for each with classes=0,1"
        )
    pad_on_the_right(model, tokenizer)
    embed_markers(model, tokenizer, list(markers))
    return TextClassifier.wrap(model, tokenizer, window=min(settings.window, classifier.window))


def pad_on_the_right(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Make batches possible for a model that was not trained in any: a padding token, and padding behind the text whatever side the tokenizer was saved with."""
    if tokenizer.pad_token_id is None:  # decoders; without one, transformers refuses to train on a batch
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if model.config.model_type != "xlnet":  # the others are read from the left, whatever side their tokenizer was saved with
        tokenizer.padding_side = "right"


@torch.no_grad()
def choose_classes(model: PreTrainedModel, classes: Sequence[int]) -> None:
    """Cut the head down to these classes, in this order; a model of one logit can only be turned round. Raises ValueError where it has no such head."""
    n = model.config.num_labels
    known = list(range(max(2, n)))
    if len(set(classes)) < max(2, len(classes)) or not set(classes) <= set(known):
        raise ValueError(f"classes {list(classes)} are not two or more different ones of {known}")
    body = f"{model.base_model_prefix}." if model.base_model_prefix else None  # a layer inside the body may happen to be as wide
    found = [
        (model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == n and not (body and path.startswith(body))
    ]
    if not found:
        raise ValueError(f"{type(model).__name__} has no linear layer with {n} outputs, so its classes cannot be chosen among")
    owner, name = found[-1]
    layer = getattr(owner, name)
    if n == 1:
        if list(classes) == [1, 0]:
            for parameter in layer.parameters():
                parameter.neg_()
        return
    if list(classes) == known:
        return
    new = nn.Linear(layer.in_features, len(classes), bias=layer.bias is not None, dtype=layer.weight.dtype, device=layer.weight.device)
    new.weight.copy_(layer.weight[list(classes)])
    if layer.bias is not None:
        new.bias.copy_(layer.bias[list(classes)])
    setattr(owner, name, new)
    names = [str(model.config.id2label.get(c, c)) for c in classes]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: i for i, name in enumerate(names)}
    model.num_labels = len(classes)
