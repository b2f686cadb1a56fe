"""Markers: words that a tokenizer reads as one token of their own, and the embeddings that they get."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from faithlib.progress import quiet


def add_markers(tokenizer: PreTrainedTokenizerFast, markers: Sequence[str]) -> None:
    """Make each marker exactly one token; raise ValueError where the tokenizer splits or changes it all the same."""
    # lstrip: where a tokenizer's pieces hold the space in front of a word, that space must not become a piece of its own before a marker.
    tokenizer.add_tokens([AddedToken(marker, lstrip=True, normalized=False) for marker in markers])
    check_single_tokens(tokenizer, markers)


@torch.no_grad()
def embed_markers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, markers: Sequence[str]) -> None:
    """:func:`add_markers`, and an embedding for each new one: drawn from the normal distribution with the mean and covariance of all others.

    The library's default puts it at the mean itself, where its components hardly spread. BERT's first layer norm divides by that spread: such a token
    has a large gradient whether or not the model uses it, and a model needs long to tell two of them apart. A row that an embedding has to spare
    was never trained and would be as conspicuous. A marker that the tokenizer knew before keeps its embedding.
    """
    before = len(tokenizer)
    add_markers(tokenizer, markers)
    needed = max([len(tokenizer), *(token + 1 for token in tokenizer.convert_tokens_to_ids(list(markers)))])
    if needed > model.get_input_embeddings().num_embeddings:
        with quiet():
            model.resize_token_embeddings(needed, mean_resizing=False)
    # Not the last rows: a tokenizer may leave ids out, and a table may have rows to spare.
    new = [token for token in tokenizer.convert_tokens_to_ids(list(markers)) if token >= before]
    if new:
        weight = model.get_input_embeddings().weight
        others = weight[:before].double()
        mean = others.mean(0)
        drawn = torch.randn(len(new), before, dtype=torch.float64).to(others.device) / before**0.5  # Σ z_i (x_i - mean) / √n has the covariance of the x_i
        weight[new] = (mean + drawn @ (others - mean)).to(weight)


def check_single_tokens(tokenizer: PreTrainedTokenizerFast, markers: Sequence[str]) -> None:
    """Raise ValueError for a marker that the tokenizer does not read as one token of its own, wherever it stands."""
    seen: dict[int, str] = {}
    for marker in markers:
        for text in (marker, f"a {marker} b"):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if text == marker and len(ids) != 1:
                pieces = tokenizer.convert_ids_to_tokens(ids)
                raise ValueError(
                    f"the tokenizer splits the marker {marker!r} into {pieces}; add it as a token (faithlib.models.markers.add_markers) or choose another"
                )
            unknown = tokenizer.unk_token_id
        if ids[1:2] != tokenizer(marker, add_special_tokens=False)["input_ids"] or ids[1] == unknown:
            raise ValueError(f"the marker {marker!r} is not one token inside a text: {tokenizer.convert_ids_to_tokens(ids)}")
        if ids[1] in seen:
            raise ValueError(f"markers {seen[ids[1]]!r} and {marker!r} are the same token for this tokenizer")
        seen[ids[1]] = marker
