"""Attacks on the classifiers of an experiment: which sentences, what became of them, how far they are from the original. Finished parts are kept."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from faithlib import cache, experiment, robustness
from faithlib.attack import AttackSettings, preset
from faithlib.attack.candidates import Proposer, counter_fitted, glove, masked_language_model
from faithlib.attack.masked_model import MaskedModelSettings, masked_model
from faithlib.attack.search import attack, largest_cost
from faithlib.attribution import MASKED, functions
from faithlib.distances import DEFAULT, SENTENCE_DISTANCES, DistanceSettings, between
from faithlib.progress import Meter
from faithlib.salience import SALIENCE, configurations_of
from faithlib.settings import Experiment

TRAINED_HERE = MaskedModelSettings()
PART = 5  # samples after which finished attacks are written to the cache
# The paper's three attributions as configurations; Integrated Gradients names its steps where it is used.
ATTRIBUTIONS = {"saliency": "gradient_l1;of=logit", "integrated_gradients": "integrated_gradients;baseline=zero;of=logit;steps=10", "attention": "attention"}


@dataclasses.dataclass(frozen=True)
class Trial:
    """One attack as a notebook names it.

    attack: a key of ``ATTACKS``; rules: of ``RULES``, or ``own`` for the attack's; candidates: ``masked`` (a masked language model), ``glove``, or the
    path of a JSON table of counter-fitted neighbours. The rest as in ``AttackSettings``.
    """

    attack: str = "tea"
    rules: str = "own"
    candidates: str = "masked"
    rho_max: float = 0.3
    n_candidates: int = 15
    batch_masking: str = "own"

    def settings(self, seed: int) -> AttackSettings:
        """As the search reads them. Raises the registries' errors with the choices."""
        if self.batch_masking not in ("own", "yes", "no"):
            raise ValueError(f"batch_masking={self.batch_masking!r}; choose from: own, yes, no")
        changes: dict[str, Any] = {"rho_max": self.rho_max, "n_candidates": self.n_candidates, "seed": seed}
        if self.batch_masking != "own":
            changes["batch_masking"] = self.batch_masking == "yes"
        return preset(self.attack, None if self.rules == "own" else self.rules, **changes)


@dataclasses.dataclass(frozen=True)
class Attacked:
    """steps: a row per accepted replacement. samples: a row per sentence, attacked or not, with ``reason``, ``n_steps``, ``seconds`` and counts."""

    steps: pd.DataFrame
    samples: pd.DataFrame


def proposer(trial: Trial, run: Experiment, masked: MaskedModelSettings, seed: int) -> Proposer:
    """The trial's source of candidates, under its rules. ``masked`` says which masked language model; one that is trained here reads the training texts."""
    if trial.candidates == "masked":
        model, tokenizer = masked_model(masked, [example.text for example in experiment.texts(run).train], seed)
        return masked_language_model(model, tokenizer, trial.settings(seed), name=masked.name)
    if trial.candidates == "glove":
        return glove(trial.settings(seed))
    return counter_fitted(trial.candidates, trial.settings(seed))


def attacked(run: Experiment, model: str, attribution: str, trial: Trial, n: int, masked: MaskedModelSettings = TRAINED_HERE, first: int = 0) -> Attacked:
    """Attack ``n`` sentences of the test split, from number ``first`` on, on the classifier that was trained on source data.

    attribution: a key of ``ATTRIBUTIONS``, or a configuration. Each table begins with the columns dataset, model, attribution, attack, rules, candidates,
    seed, sample. ``seconds`` is the wall time of the attack on this sentence when it was computed.
    """
    method = ATTRIBUTIONS.get(attribution, attribution)
    functions(experiment.classifier(run, model, None), method)  # an attribution that this model has not is an error before anything is computed
    examples = experiment.texts(run).test[first : first + n]
    bound = sum(largest_cost(example.words, trial.settings(run.seed)) for example in examples)
    steps, samples = [], []
    with Meter(bound, f"attacking {model}, {attribution.replace('_', ' ')}, {trial.attack} ({bound:,} attributions at most)") as meter:
        for start in range(first, first + len(examples), PART):
            stop = min(start + PART, first + len(examples))
            folder = _part(run, model, method, trial, masked, start, stop, meter)
            steps.append(pd.read_parquet(folder / "steps.parquet"))
            samples.append(pd.read_parquet(folder / "samples.parquet"))
    where = {"dataset": experiment.texts(run).name, "model": model, "attribution": attribution, "attack": trial.attack, "rules": trial.rules, "seed": run.seed}
    return Attacked(*(_labelled(pd.concat(tables, ignore_index=True), where) for tables in (steps, samples)))


def _labelled(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({**{name: [value] * len(table) for name, value in where.items()}, **table.to_dict("series")})


def _part(run: Experiment, model: str, method: str, trial: Trial, masked: MaskedModelSettings, first: int, last: int, meter: Meter) -> Path:
    classifier = experiment.classifier(run, model, None)
    [family] = configurations_of(classifier, method)
    table = cache.file_fingerprint(trial.candidates) if trial.candidates not in ("masked", "glove") else ""
    key = cache.key(
        "attack",
        [experiment.classifier_key(run, model, None), method, trial, masked if trial.candidates == "masked" else "", run.seed, first, last],
        table,
        cache.function_fingerprint(SALIENCE[family].function),
        cache.source_fingerprint("faithlib.attribution", "faithlib.attack.search", "faithlib.attack.candidates", "faithlib.attack.masked_model"),
    )

    def build(folder: Path) -> None:
        settings = trial.settings(run.seed)
        predict, attribute = functions(classifier, method, run.seed)
        propose = proposer(trial, run, masked, run.seed)
        steps, samples = [], []
        for number, example in enumerate(experiment.texts(run).test[first:last], start=first):
            started = time.perf_counter()
            path = attack(example.words, example.label, settings, predict, attribute, propose, MASKED)
            seconds = time.perf_counter() - started
            meter.update(largest_cost(example.words, settings))
            where = {"sample": number, "original": example.text, "n_words": len(example.words), "candidates": propose.name}
            steps += [{**where, **row, "words": None, "text": " ".join(row["words"])} for row in path.table()]
            asked = sum(path.n_candidates)
            samples.append(
                {
                    **where,
                    "reason": path.reason,
                    "n_positions": path.n_positions,
                    "n_visited": len(path.n_candidates),
                    "n_steps": len(path.steps),
                    "candidates_per_position": asked / len(path.n_candidates) if path.n_candidates else float("nan"),
                    "kept_per_position": sum(path.n_kept) / len(path.n_kept) if path.n_kept else float("nan"),
                    "seconds": seconds,
                    **dataclasses.asdict(path.counts),
                }
            )
        empty = ["sample", "original", "n_words", "candidates", "step", "rho", "d", "pcc", "position", "old", "new", "text"]
        (pd.DataFrame(steps).drop(columns="words") if steps else pd.DataFrame(columns=empty)).to_parquet(folder / "steps.parquet", index=False)
        pd.DataFrame(samples).to_parquet(folder / "samples.parquet", index=False)

    return cache.folder(key, build)


def measured(
    steps: pd.DataFrame,
    distances: Sequence[str] = ("minilm", "use", "perplexity", "grammar"),
    settings: DistanceSettings = DEFAULT,
    least: Mapping[str, float] | None = None,
    edges: Sequence[float] = robustness.EDGES,
) -> tuple[pd.DataFrame, dict[str, str]]:
    """What curves and areas are made of: per sample and bin of rho its last sentence, with every distance to the original and every k.

    Distances are measured for these sentences alone, for a perplexity costs more than an attack. Returns the table and distance -> the backend that
    gave the numbers.
    """
    for name in distances:
        SENTENCE_DISTANCES[name]
    table = robustness.at_each_share(steps, edges)
    backends = {}
    for name in distances:
        found = between(name, table["original"], table["text"], settings)
        table[name] = found.values
        backends[name] = found.backend
    return robustness.with_k(table, least), backends


def keep_their_class(run: Experiment, table: pd.DataFrame) -> list[bool]:
    """Per row whether its classifier gives ``text`` the class that it gives ``original``; asked anew, of the sentences as they are written."""
    kept = pd.Series(False, index=table.index)
    for model, rows in table.groupby("model"):
        classifier = experiment.classifier(run, model, None)
        before, after = (classifier.predict(rows[column].tolist()).cpu().numpy() for column in ("original", "text"))
        kept[rows.index] = before == after
    return kept.tolist()
