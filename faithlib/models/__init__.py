"""Classifiers, one file per family; all speak the TextClassifier protocol of ``faithlib.models.classifier``.

``MODELS[family](settings, texts, markers, n_logits)`` builds an untrained classifier; ``texts`` are the training texts (a word-level model takes its
vocabulary from them), ``markers`` the planted tokens, which become one token each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from faithlib.memory import keep_freed_memory
from faithlib.registry import Registry, import_siblings

MODELS: Registry = Registry("model family")


@dataclass(frozen=True)
class ModelSettings:
    """Which classifier.

    family: a key of ``MODELS``. weights: ``packaged`` (what the quick run's packages carry), ``random``, ``hub`` (the paper's), or a folder, file or
    hub repository. window: tokens that the model reads, special tokens included. dropout: applied where the family applies it.
    options: sizes that a family understands, as (name, value) pairs; an unknown name is an error.
    """

    family: str = "bert"
    weights: str = "packaged"
    window: int = 64
    dropout: float = 0.1
    options: tuple[tuple[str, int | float | str], ...] = field(default=())

    def option(self, name: str, default: int | float | str) -> int | float | str:
        return dict(self.options).get(name, default)

    def check_options(self, *known: str) -> None:
        unknown = sorted(set(dict(self.options)) - set(known))
        if unknown:
            raise ValueError(f"model family {self.family!r} has no option {unknown[0]!r}; choose from: {', '.join(known) or 'none'}")


keep_freed_memory()
import_siblings(__name__, __path__)
