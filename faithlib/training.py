"""Fit a classifier with transformers' Trainer: batches by length, early stopping, checkpoints to resume from. Knows nothing of shortcuts."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from faithlib.data import Example
from faithlib.models.classifier import TextClassifier, predicted_class
from faithlib.progress import Meter, quiet


@dataclass(frozen=True)
class TrainingSettings:
    """How a classifier is fitted.

    n_source: source training texts used (None: all). optimizer: ``adam`` or ``sgd`` (momentum 0.9). max_passes: over the training data;
    max_steps: optimizer steps (None: no limit of its own). evaluate_every: steps between evaluations (None: once per pass).
    patience: evaluations without improvement after which training stops. least_gain: of mean accuracy; less is noise, so it is no improvement, and
    weights that lost less than that, and nothing on the plateaus, are kept, for they have learned longer. solved: a validation set below this accuracy is on a plateau, and
    plateaus end: while one named in ``plateaus`` is below it, patience is not counted. precision: ``fp32`` or ``bf16`` (autocast).
    """

    n_source: int | None = None
    optimizer: str = "adam"
    learning_rate: float = 1e-4
    weight_decay: float = 5e-6
    batch_size: int = 32
    max_passes: int = 10
    max_steps: int | None = None
    evaluate_every: int | None = None
    patience: int = 2
    least_gain: float = 0.0
    solved: float = 0.99
    plateaus: tuple[str, ...] = ("synthetic",)
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "sgd"):
            raise ValueError(f"unknown optimizer {self.optimizer!r}; choose from: adam, sgd")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"unknown precision {self.precision!r}; choose from: fp32, bf16")


class _Texts(torch.utils.data.Dataset):
    """Token ids and labels, as the Trainer wants them."""

    def __init__(self, classifier: TextClassifier, examples: Sequence[Example]):
        batch = classifier.encode([example.text for example in examples])
        self.rows = [{"input_ids": ids[:n].cpu(), "labels": example.label} for ids, n, example in zip(batch.ids, batch.lengths.tolist(), examples, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross entropy for one logit, cross entropy for several; mean over the batch."""
    if logits.shape[1] == 1:
        return binary_cross_entropy_with_logits(logits[:, 0], labels.float())
    return cross_entropy(logits, labels)


def fit(
    classifier: TextClassifier,
    train: Sequence[Example],
    validations: Mapping[str, Sequence[Example]],
    settings: TrainingSettings,
    seed: int,
    checkpoints: Path,
    label: str = "training",
) -> list[dict[str, float]]:
    """Train in place, keep the best weights seen (see ``least_gain``), return the history.

    validations: name -> examples. Weights that solve the ``plateaus`` sets beat those that do not; then the mean accuracy over all sets decides. ``checkpoints`` is a folder
    that a killed run resumes from (Ctrl-C included); it is deleted at the end. History: one dict per evaluation with ``pass``, ``step``,
    the accuracy on every validation set, their ``mean``, ``solved`` and ``waited``.
    """
    device = classifier.device
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=settings.max_passes,
        max_steps=settings.max_steps or -1,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=4 * settings.batch_size,
        train_sampling_strategy="group_by_length",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=settings.weight_decay,
        optim="sgd" if settings.optimizer == "sgd" else "adamw_torch_fused",
        optim_args="momentum=0.9" if settings.optimizer == "sgd" else None,
        eval_strategy="steps" if settings.evaluate_every else "epoch",
        eval_steps=settings.evaluate_every,
        save_strategy="steps" if settings.evaluate_every else "epoch",
        save_steps=settings.evaluate_every or 500,
        save_total_limit=2,
        logging_strategy="no",
        bf16=settings.precision == "bf16",
        seed=seed,
        data_seed=seed,
        use_cpu=device.type == "cpu",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        max_grad_norm=1.0,
        remove_unused_columns=False,
    )
    steps = settings.max_steps or settings.max_passes * math.ceil(len(train) / settings.batch_size)
    with Meter(steps, label) as meter, quiet(), _own_messages_only():
        watcher = _Watcher(classifier, validations, settings, meter)
        trainer = Trainer(
            model=classifier.model,
            args=arguments,
            train_dataset=_Texts(classifier, train),
            eval_dataset=_Texts(classifier, train[:1]),
            data_collator=lambda rows: _collate(classifier, rows),
            compute_loss_func=lambda outputs, labels, num_items_in_batch=None: loss(outputs.logits, labels),
            callbacks=[watcher],
        )
        trainer.evaluate = watcher.evaluate_for(trainer)
        trainer.remove_callback(PrinterCallback)
        last = _last_checkpoint(checkpoints)
        watcher.resumed = torch.load(Path(last) / "order.pt", weights_only=True) if last else None
        trainer.train(resume_from_checkpoint=last)
    classifier.model.load_state_dict(torch.load(checkpoints / "best.pt", weights_only=True))
    classifier.model.eval()
    shutil.rmtree(checkpoints, ignore_errors=True)
    return watcher.history


def _collate(classifier: TextClassifier, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    # XLNet's classifier reads the last place, so its tokenizer asks for padding in front.
    batch = classifier.rows([row["input_ids"] for row in rows], classifier.tokenizer.padding_side)
    return {"input_ids": batch.ids, "attention_mask": batch.mask.long(), "labels": torch.tensor([row["labels"] for row in rows])}


def _last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint; the watcher writes ``order.pt`` last."""
    found = [path for path in folder.glob("checkpoint-*") if (path / "order.pt").is_file()]
    return str(max(found, key=lambda path: int(path.name.split("-")[1]))) if found else None


def accuracy(classifier: TextClassifier, examples: Sequence[Example]) -> float:
    """Share of examples whose predicted class is their label, 0 to 1."""
    return float(np.mean(correct(classifier, examples)))


def correct(classifier: TextClassifier, examples: Sequence[Example]) -> np.ndarray:
    """Whether the predicted class is the label; (example,) of bool."""
    labels = torch.tensor([example.label for example in examples])
    return (classifier.predict([example.text for example in examples]).cpu() == labels).numpy()


class _Watcher(TrainerCallback):
    """Evaluates, remembers the best weights, and stops: the Trainer's own early stopping cannot tell a plateau from an end."""

    def __init__(self, classifier: TextClassifier, validations: Mapping[str, Sequence[Example]], settings: TrainingSettings, meter: Meter):
        self.classifier, self.validations, self.settings, self.meter = classifier, validations, settings, meter
        self.batches = {name: classifier.encode([e.text for e in examples]) for name, examples in validations.items()}
        self.labels = {name: torch.tensor([e.label for e in examples], device=classifier.device) for name, examples in validations.items()}
        self.history: list[dict[str, float]] = []
        self.resumed: Tensor | None = None

    def evaluate_for(self, trainer: Trainer):
        """What replaces ``trainer.evaluate``: accuracy on every set, by the classifier's own forward pass (evaluation mode, fp32)."""

        def evaluate(*_args: Any, **_kwargs: Any) -> dict[str, float]:
            row = {
                name: float((predicted_class(self.classifier.predict_logits(batch), self.classifier.head) == self.labels[name]).float().mean())
                for name, batch in self.batches.items()
            }
            trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, row)
            return row

        return evaluate

    def on_train_begin(self, args, state, control, **_kwargs):
        self.history = [dict(row) for row in state.log_history if "mean" in row]
        self.meter.update(state.global_step)

    def on_epoch_begin(self, args, state, control, **_kwargs):
        # The Trainer draws the order of a pass from torch's generator as it is here; a run resumed within the pass must draw the same order.
        if self.resumed is not None:
            torch.set_rng_state(self.resumed)
            self.resumed = None
        self.pass_start = torch.get_rng_state()

    def on_save(self, args, state, control, **_kwargs):
        pass_is_over = float(state.epoch).is_integer()
        _write(torch.get_rng_state() if pass_is_over else self.pass_start, Path(args.output_dir) / f"checkpoint-{state.global_step}" / "order.pt")

    def on_step_end(self, args, state, control, **_kwargs):
        self.meter.update()

    def on_evaluate(self, args, state, control, metrics=None, **_kwargs):
        mean = float(np.mean(list(metrics.values())))
        on_plateau = any(metrics.get(name, 1.0) < self.settings.solved for name in self.settings.plateaus)
        # Weights that left the plateau are better than any that did not; among equals the mean decides. Where the others' means differ by no more than noise,
        # the later weights are kept, if they have not begun to lose a plateau again.
        plateaus = [name for name in self.settings.plateaus if name in metrics]
        best = max(self.history, key=lambda row: (row["solved"], row["mean"]), default={"solved": 0.0, "mean": -1.0, **dict.fromkeys(plateaus, 0.0)})
        rank, noise = (float(not on_plateau), mean), self.settings.least_gain
        better = rank > (best["solved"], best["mean"])
        kept = better or (rank > (best["solved"], best["mean"] - noise) and all(metrics[name] >= best[name] for name in plateaus))
        gained = better and rank >= (best["solved"], best["mean"] + noise)
        row = {"pass": float(state.epoch), "step": float(state.global_step), **metrics, "mean": mean, "solved": float(not on_plateau)}
        if kept:
            _write(self.classifier.model.state_dict(), Path(args.output_dir) / "best.pt")
        waited = 0 if on_plateau or gained else int((self.history or [{"waited": 0}])[-1]["waited"]) + 1
        self.history.append({**row, "waited": float(waited)})
        state.log_history.append(self.history[-1])
        if waited >= self.settings.patience:
            control.should_training_stop = True
        return control


def _write(value: Any, target: Path) -> None:
    """Save under another name and rename, so that a file that is there is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, target.with_suffix(".part"))
    target.with_suffix(".part").replace(target)


@contextlib.contextmanager
def _own_messages_only() -> Iterator[None]:
    """Without the Trainer's warnings about arguments that were chosen on purpose (pinning, a constant schedule)."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
