"""What the rest of the house sees of a model: encode, embed, logits. Nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from faithlib.data import as_texts
from faithlib.models.encoding import AS_WRITTEN, Batch, describe
from faithlib.progress import quiet
from faithlib.shapes import Embeddings, Logits, Mask


class TextClassifier:
    """A Hugging Face sequence classifier and its tokenizer, whatever the architecture.

    The number of logits tells the head (the convention of transformers' own text-classification pipeline): one logit is binary with
    p(1) = sigmoid, unless ``config.problem_type`` says regression; several are softmax classes, or independent labels when it says multi_label.
    window: tokens read at most, special tokens included. precision: ``fp32`` or ``bf16`` (autocast). The wrapper never moves the model, never
    changes its mode for longer than a call, and never leaves a gradient on its parameters.
    """

    # Models that read a padded batch right when only embeddings are given. Everything else is run on rows of equal length: a decoder takes its
    # answer from the last position, which padding would move.
    pads_safely = False

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, window: int | None = None, precision: str = "fp32"):
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(f"{type(tokenizer).__name__} gives no character offsets; load the fast tokenizer (AutoTokenizer with use_fast=True)")
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"unknown precision {precision!r}; choose from: fp32, bf16")
        dtype = next(model.parameters()).dtype
        if dtype == torch.float16:
            raise ValueError("the model's weights are float16, whose gradients underflow; load it with dtype=torch.float32 (or bfloat16)")
        self.model, self.tokenizer, self.precision = model, tokenizer, precision
        limit = min(getattr(tokenizer, "model_max_length", 10**9), self._position_limit())
        if window is not None and window > limit:
            raise ValueError(f"window={window} is more than the {limit} tokens that {type(model).__name__} can read")
        self.window = window or min(limit, 512)

    @staticmethod
    def wrap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **settings: Any) -> TextClassifier:
        """The adapter that knows this architecture's habits, or the general one."""
        adapter = ADAPTERS.get(model.config.model_type, TextClassifier)
        return adapter(model, tokenizer, **settings)

    @staticmethod
    def load(source: str | Path, window: int | None = None, precision: str = "fp32", revision: str | None = None) -> TextClassifier:
        """From a folder that :meth:`save` wrote, any local checkpoint, or a hub repository, in float32 whatever it was saved in.

        Safetensors only; no code of the repository is run.
        """
        saved = Path(source) / "faithlib.json"
        if window is None and saved.is_file():
            window = json.loads(saved.read_text())["window"]
        try:
            with quiet():
                model, report = AutoModelForSequenceClassification.from_pretrained(
                    source, revision=revision, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
                )
        except (OSError, ValueError) as error:
            raise ValueError(f"no sequence classifier could be loaded from {str(source)!r}: {error}") from error
        if report["missing_keys"]:
            raise ValueError(f"{str(source)!r} is not a fine-tuned classifier: its checkpoint has no {', '.join(sorted(report['missing_keys'])[:4])}")
        return TextClassifier.wrap(model, AutoTokenizer.from_pretrained(source, revision=revision), window=window, precision=precision)

    def save(self, folder: str | Path) -> None:
        with quiet():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (Path(folder) / "faithlib.json").write_text(json.dumps({"window": self.window}))

    # What the model is

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def head(self) -> str:
        """``binary`` (one logit), ``regression`` (one number), ``softmax`` or ``multi_label``."""
        config = self.model.config
        if config.num_labels == 1:
            return "regression" if config.problem_type == "regression" else "binary"
        return "multi_label" if config.problem_type == "multi_label_classification" else "softmax"

    @property
    def label_names(self) -> tuple[str, ...]:
        names = self.model.config.id2label
        return ("0", "1") if self.head == "binary" else tuple(str(names.get(i, i)) for i in range(self.model.config.num_labels))

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of ``unk``, ``pad`` and ``mask``, of those that the tokenizer has."""
        found = {"unk": self.tokenizer.unk_token_id, "pad": self.tokenizer.pad_token_id, "mask": self.tokenizer.mask_token_id}
        return {name: token for name, token in found.items() if token is not None}

    def special_id(self, name: str) -> int:
        if name not in self.special_ids:
            raise ValueError(f"{type(self.model).__name__} has no {name} token; choose from: {', '.join(self.special_ids) or 'none'}")
        return self.special_ids[name]

    def _position_limit(self) -> int:
        config = self.model.config
        limit = getattr(config, "max_position_embeddings", 10**9)
        if limit <= 0:  # XLNet's positions are relative
            return 10**9
        # RoBERTa's kind counts positions from its padding id on.
        return limit - 2 if config.model_type in ("roberta", "xlm-roberta", "camembert") else limit

    def _filler(self) -> int:
        """What stands in unread places, and in the one place of an empty text that a tokenizer puts nothing around."""
        candidates = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, self.tokenizer.unk_token_id)
        return next((token for token in candidates if token is not None), 0)

    # Text in

    def encode(self, texts: Any) -> Batch:
        """Texts (see ``as_texts``) as one padded batch on the model's device. A text longer than the window is cut, and says so."""
        texts = as_texts(texts)
        if not texts:
            empty = torch.zeros((0, 0), dtype=torch.long, device=self.device)
            return Batch(empty, empty.bool(), empty.bool())
        encodings = self.tokenizer(texts, truncation=True, max_length=self.window, return_special_tokens_mask=True, **AS_WRITTEN).encodings
        width = max(1, max(len(e.ids) for e in encodings))
        ids = torch.full((len(texts), width), self._filler(), dtype=torch.long)
        mask = torch.zeros((len(texts), width), dtype=torch.bool)
        rankable = torch.zeros((len(texts), width), dtype=torch.bool)
        described = []
        for row, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            n = len(encoding.ids)
            ids[row, :n] = torch.tensor(encoding.ids, dtype=torch.long)
            mask[row, :n] = True
            rankable[row, :n] = ~torch.tensor(encoding.special_tokens_mask, dtype=torch.bool)
            described.append(describe(text, encoding))
        if not mask.any(1).all():  # a tokenizer without special tokens and an empty text: one filler, read but never ranked
            mask[~mask.any(1), 0] = True
        return Batch(ids.to(self.device), mask.to(self.device), rankable.to(self.device), tuple(described))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, uncut, special tokens included."""
        return [len(e.ids) for e in self.tokenizer(list(texts), verbose=False, **AS_WRITTEN).encodings] if texts else []

    def rows(self, ids: Sequence[Tensor], padding_side: str = "right") -> Batch:
        """Given token id rows (special tokens included) as one batch; nothing in it is rankable. Padding in front is for training alone."""
        padded = pad_sequence(list(ids), batch_first=True, padding_value=self._filler(), padding_side=padding_side)
        mask = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in ids], batch_first=True, padding_side=padding_side)
        return Batch(padded, mask, torch.zeros_like(mask))

    # Numbers out

    def embed(self, batch: Batch) -> Embeddings:
        """Word embeddings, before positions and segments are added."""
        if batch.ids.is_floating_point():
            raise TypeError(f"token ids are whole numbers, got {batch.ids.dtype}; pass embeddings as the second argument of logits")
        return self.model.get_input_embeddings()(batch.ids)

    def logits(self, batch: Batch, embeddings: Embeddings | None = None) -> Logits:
        """(batch, logit) in float32. With ``embeddings``, these are read in place of the ids, which still give shape and mask."""
        if embeddings is not None and not embeddings.is_floating_point():
            raise TypeError(f"embeddings are floating point numbers, got {embeddings.dtype}: token ids go into the batch")
        embeddings = self.embed(batch) if embeddings is None else embeddings
        with self._evaluating(), self._precision():
            if self.pads_safely or bool(batch.mask.all()):
                return self._forward(embeddings, batch.mask).float()
            lengths = batch.lengths
            parts = []
            for n in lengths.unique().tolist():
                at = (lengths == n).nonzero()[:, 0]
                parts.append((at, self._forward(embeddings[at, :n], batch.mask[at, :n])))
            order = torch.cat([at for at, _ in parts]).argsort()
            return torch.cat([part for _, part in parts])[order].float()

    def _forward(self, embeddings: Embeddings, mask: Mask) -> Tensor:
        return self.model(inputs_embeds=embeddings, attention_mask=mask.long()).logits

    # The place whose last state is classified; None where this project does not know it.
    reads: str | None = None

    @property
    def has_attention(self) -> bool:
        """True where :meth:`attention` has an answer."""
        return self.reads is not None

    @torch.no_grad()
    def attention(self, batch: Batch, layer: int = -1, head: int | None = None) -> Tensor:
        """Softmax weights that the place which is classified gives to every token, (batch, token): 0 to 1, 0 on padding, each row sums to 1.

        layer: counted as in a list. head: None is the mean of all. Raises ValueError for a model without attention, or with fewer layers or heads.
        """
        if not self.has_attention:
            raise ValueError(f"{type(self.model).__name__} has no attention that is known to be read by its classifier")
        result = torch.zeros(batch.ids.shape, device=self.device)
        lengths = batch.lengths
        for n in lengths.unique().tolist():  # rows of equal length, so that no architecture's padding can matter
            at = (lengths == n).nonzero()[:, 0]
            with self._evaluating():
                layers = self._attention(batch.select(at.tolist()))
            if not -len(layers) <= layer < len(layers):
                raise ValueError(f"layer {layer} is not one of the {len(layers)} of {type(self.model).__name__}")
            weights = layers[layer][:, :, 0 if self.reads == "first" else -1]
            if head is not None and not 0 <= head < weights.shape[1]:
                raise ValueError(f"head {head} is not one of the {weights.shape[1]} of {type(self.model).__name__}")
            result[at, :n] = (weights.mean(1) if head is None else weights[:, head]).float()
        return result

    def _attention(self, batch: Batch) -> tuple[Tensor, ...]:
        """Per layer (batch, head, from, to), rows of equal length. Only the eager implementation keeps its weights, so it is asked for by name."""
        config = self.model.config
        before = config._attn_implementation
        self.model.set_attn_implementation("eager")
        try:
            return self.model(inputs_embeds=self.embed(batch), attention_mask=batch.mask.long(), output_attentions=True).attentions
        finally:
            self.model.set_attn_implementation(before)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = [module for module in self.model.modules() if module.training]
        config = self.model.config.get_text_config()
        no_pad = getattr(config, "pad_token_id", None) is None
        for module in training:
            module.training = False
        if no_pad:
            config.pad_token_id = 0  # without one, decoders refuse more than one row; given embeddings of equal length they never use it
        try:
            yield
        finally:
            for module in training:
                module.training = True
            if no_pad:
                config.pad_token_id = None

    def _precision(self) -> contextlib.AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else contextlib.nullcontext()

    @torch.no_grad()
    def predict_logits(self, texts: Any) -> Logits:
        """Logits of many texts, in batches by length."""
        batch = self.encode(texts) if not isinstance(texts, Batch) else texts
        n_logits = self.model.config.num_labels
        result = torch.zeros((len(batch), n_logits), device=self.device)
        for group in batch.by_length():
            result[group] = self.logits(batch.select(group))
        return result

    def predict(self, texts: Any) -> Tensor:
        """Predicted class per text; for a regression head 0, its only output."""
        return predicted_class(self.predict_logits(texts), self.head)


ADAPTERS: dict[str, type[TextClassifier]] = {}


class PaddedClassifier(TextClassifier):
    """Encoders for which the attention mask is all that padding needs; they classify their first place."""

    pads_safely = True
    reads = "first"


class LastPlaceClassifier(TextClassifier):
    """Decoders, and XLNet, whose [CLS] stands at the end: the classifier reads the last place."""

    reads = "last"


for _model_type in ("roberta", "distilbert", "electra", "albert", "xlm-roberta", "deberta-v2"):
    ADAPTERS[_model_type] = PaddedClassifier
for _model_type in ("gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2", "xlnet"):
    ADAPTERS[_model_type] = LastPlaceClassifier


def predicted_class(logits: Logits, head: str) -> Tensor:
    """Class index per row. One logit above zero is class 1."""
    if head == "binary":
        return (logits[:, 0] > 0).long()
    return logits.argmax(1)


def class_score(logits: Logits, target: Tensor, of: str, head: str) -> Tensor:
    """g, the number that a salience method explains: f_c (``of="logit"``) or p_c (``of="probability"``) of class ``target``; shape (batch,).

    Bastings et al. write p(c|x) = sigmoid(f_c(x)): with one logit f_1 = f and f_0 = -f. A regression head has no probability (ValueError).
    """
    if of not in ("logit", "probability"):
        raise ValueError(f"unknown quantity {of!r}; choose from: logit, probability")
    if head == "binary":
        signed = logits[:, 0] * (2 * target - 1)
        return signed if of == "logit" else signed.sigmoid()
    if of == "probability" and head == "regression":
        raise ValueError("a regression head has no probability; choose of=logit")
    picked = {"softmax": logits.softmax(1), "multi_label": logits.sigmoid()}.get(head, logits) if of == "probability" else logits
    return picked.gather(1, target[:, None])[:, 0]
