"""A masked language model for an attack: from the hub, from a folder, or MiniLM's body under a head that is trained here once.

No package carries an English masked language model. What is trained here is of the same class as the hub's and takes the same code path; a
report names which one was used, and :func:`top_accuracy` says how good it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from faithlib import assets, cache
from faithlib.progress import Meter, quiet

HUB = {"distilbert": assets.DISTILBERT, "bert": assets.BERT_BASE}


@dataclass(frozen=True)
class MaskedModelSettings:
    """Which masked language model.

    source: ``trained`` (MiniLM's body, head and body trained on the texts given), ``distilbert`` or ``bert`` (the hub's), a folder or a hub
    repository. n_steps, batch_size, learning_rate, head_learning_rate, window: of the training here; 15 % of the tokens are masked.
    """

    source: str = "trained"
    n_steps: int = 300
    batch_size: int = 64
    learning_rate: float = 2e-4
    head_learning_rate: float = 1e-3
    window: int = 64

    @property
    def name(self) -> str:
        """How a report calls it."""
        if self.source == "trained":
            return f"MiniLM with a head trained here ({self.n_steps} steps)"
        return HUB[self.source].repository if self.source in HUB else self.source


def masked_model(settings: MaskedModelSettings, texts: Sequence[str], seed: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """(model, tokenizer) in evaluation mode; trained on ``texts`` where ``source`` is ``trained``, once, and kept in the cache."""
    if settings.source != "trained":
        asset = HUB.get(settings.source, assets.HubAsset(settings.source, None))
        try:
            with quiet():
                model = AutoModelForMaskedLM.from_pretrained(asset.repository, revision=asset.revision, use_safetensors=True)
            return model.eval(), AutoTokenizer.from_pretrained(asset.repository, revision=asset.revision)
        except (OSError, ValueError) as error:
            raise assets.MissingAssetError(
                f"masked language model {asset.repository!r} (revision {asset.revision}) could not be loaded: {error}\n"
                f"with a network: hf download {asset.repository} --revision {asset.revision or 'main'}; without one, set source to a local folder or to 'trained'"
            ) from error

    key = cache.key("masked-model", [settings, cache.digest(list(texts)), seed], cache.digest(assets.PACKAGES), cache.source_fingerprint(__name__))

    def build(folder: Path) -> None:
        with torch.random.fork_rng(), quiet():
            torch.manual_seed(seed)
            model = BertForMaskedLM.from_pretrained(assets.minilm())
            _train(model, AutoTokenizer.from_pretrained(assets.minilm()), texts, settings, seed, cache.scratch(key))
            model.save_pretrained(folder)

    folder = cache.folder(key, build)
    with quiet():
        model = BertForMaskedLM.from_pretrained(folder)
    return model.eval(), AutoTokenizer.from_pretrained(assets.minilm())


def _train(model: BertForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], settings: MaskedModelSettings, seed: int, scratch: Path) -> None:
    rows = [{"input_ids": ids} for ids in tokenizer(list(texts), truncation=True, max_length=settings.window)["input_ids"]]
    head = [*model.cls.predictions.transform.parameters(), model.cls.predictions.bias]
    of_head = set(map(id, head))
    groups = [
        {"params": head, "lr": settings.head_learning_rate},
        {"params": [p for p in model.parameters() if id(p) not in of_head], "lr": settings.learning_rate},
    ]
    arguments = TrainingArguments(
        output_dir=str(scratch),
        max_steps=settings.n_steps,
        per_device_train_batch_size=settings.batch_size,
        train_sampling_strategy="group_by_length",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=seed,
        data_seed=seed,
    )
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, settings.n_steps)
    with Meter(settings.n_steps, "training the masked language model") as meter:
        trainer = _MaskedTokensOnly(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=seed),
            optimizers=(optimizer, schedule),
            callbacks=[_Steps(meter)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


class _MaskedTokensOnly(Trainer):
    """The head, as wide as the vocabulary, answers for the masked tokens alone: the same loss for about half the work."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        asked = labels != -100
        hidden = model.bert(**inputs).last_hidden_state[asked]
        return torch.nn.functional.cross_entropy(model.cls(hidden), labels[asked])


class _Steps(TrainerCallback):
    """Moves the progress bar."""

    def __init__(self, meter: Meter):
        self.meter = meter

    def on_step_end(self, args, state, control, **_kwargs):
        self.meter.update()


@torch.no_grad()
def top_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], k: int = 15, seed: int = 0) -> tuple[float, int]:
    """Share of masked tokens that are among the k most probable answers, 0 to 1, and how many were masked: one token of each text, drawn by ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    found, asked = 0, 0
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")["input_ids"]
        if ids.shape[1] < 4:  # specials and one token: nothing to guess from
            continue
        place = int(torch.randint(1, ids.shape[1] - 1, (), generator=generator))
        true = int(ids[0, place])
        ids[0, place] = tokenizer.mask_token_id
        found += true in model(input_ids=ids).logits[0, place].topk(k).indices.tolist()
        asked += 1
    return found / max(1, asked), asked
