"""Text in: what a tokenizer makes of it, as batches."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding
from torch import Tensor

from faithlib.shapes import Ids, Mask

# "[SEP]" written in a text is a text, not a separator; tokens added as markers are not special and still match.
AS_WRITTEN = {"split_special_tokens": True}
TOKEN_BUDGET = 4096  # tokens per forward pass, padding included: what bounds memory, whatever the steps and samples


@dataclass(frozen=True)
class EncodedText:
    """One text as the model reads it. Lists run over the token positions of its row, special tokens included.

    tokens: what stands in the text (the vocabulary's name for special tokens and bare space). offsets: character spans. word: index into
    ``words``, -1 for special tokens and where there are no words. words: the text's chunks between white space. cut: True where the model does not read the whole text.
    """

    text: str
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    word: tuple[int, ...]
    words: tuple[str, ...]
    cut: bool


@dataclass(frozen=True)
class Batch:
    """Rows of token ids, padded on the right. rankable: False on special tokens and padding."""

    ids: Ids
    mask: Mask
    rankable: Mask
    texts: tuple[EncodedText, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(1)

    def select(self, rows: Sequence[int]) -> Batch:
        """These rows, with no more padding than they need."""
        index = torch.as_tensor(list(rows), device=self.ids.device, dtype=torch.long)
        width = int(self.lengths[index].max()) if len(index) else 0
        texts = tuple(self.texts[i] for i in rows) if self.texts else ()
        return Batch(self.ids[index, :width], self.mask[index, :width], self.rankable[index, :width], texts)

    def repeat(self, n: int) -> Batch:
        """A single row ``n`` times, without copying."""
        return Batch(*(t.expand(n, -1) for t in (self.ids, self.mask, self.rankable)))

    def by_length(self, budget: int = TOKEN_BUDGET) -> Iterator[list[int]]:
        """Row numbers in groups of similar length whose padded size stays within ``budget`` tokens (a longer row stands alone)."""
        group: list[int] = []
        lengths = self.lengths.tolist()
        for row in sorted(range(len(self)), key=lambda i: (lengths[i], i)):
            if group and (len(group) + 1) * lengths[row] > budget:
                yield group
                group = []
            group.append(row)
        if group:
            yield group


def describe(text: str, encoding: Encoding) -> EncodedText:
    """What the model sees of a text, from the tokenizer's own encoding of it."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    starts = [start for start, _ in spans]
    tokens, offsets, word = [], [], []
    for name, (start, end), special in zip(encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True):
        while start < end and text[start].isspace():  # byte-level tokenizers may count the space in front
            start += 1
        offsets.append((start, end))
        tokens.append(name if special or start >= end else text[start:end])
        word.append(-1 if special else min(max(0, bisect.bisect_right(starts, start) - 1), len(spans) - 1))
    return EncodedText(text, tuple(tokens), tuple(offsets), tuple(word), tuple(text[a:b] for a, b in spans), bool(encoding.overflowing))
