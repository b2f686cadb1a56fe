"""Attacks on the classifiers of an experiment: which sentences, what became of them, how far they are from the original. Finished parts are kept."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from faithlib import cache, devices, experiment, robustness
from faithlib.attack import ATTACKS, RULES, AttackSettings, preset
from faithlib.attack.candidates import Proposer, counter_fitted, glove, masked_language_model
from faithlib.attack.masked_model import MaskedModelSettings, masked_model
from faithlib.attack.search import attack, largest_cost
from faithlib.attribution import MASKED, functions
from faithlib.data import DataSettings
from faithlib.distances import DEFAULT, SENTENCE_DISTANCES, DistanceSettings, between
from faithlib.progress import Meter
from faithlib.salience import SALIENCE, configurations_of
from faithlib.settings import Experiment, counts, from_lines, parse

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

    @property
    def own_rules(self) -> str:
        """The name of the rules that hold: those given, or those of the attack."""
        if self.rules != "own":
            return self.rules
        return next(name for name, rules in RULES.items() if rules == ATTACKS[self.attack].rules)

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
        model, tokenizer = _masked_model(masked, tuple(example.text for example in experiment.texts(run).train), seed)
        return masked_language_model(model.to(devices.chosen()), tokenizer, trial.settings(seed), name=masked.name)
    if trial.candidates == "glove":
        return _glove().under(trial.settings(seed))
    return counter_fitted(trial.candidates, trial.settings(seed))


# Loading takes as long as attacking several short sentences.
_masked_model = functools.lru_cache(maxsize=1)(masked_model)
_glove = functools.lru_cache(maxsize=1)(glove)


def attacked(
    run: Experiment,
    model: str,
    attribution: str,
    trial: Trial,
    n: int,
    masked: MaskedModelSettings = TRAINED_HERE,
    first: int = 0,
    reader: Experiment | None = None,
) -> Attacked:
    """Attack ``n`` sentences of the test split, from number ``first`` on, on the classifier that was trained on source data.

    attribution: a key of ``ATTRIBUTIONS``, or a configuration. reader: whose training texts a masked language model reads, where they are not ``run``'s. Each table begins with the columns dataset, model, attribution, attack, rules, candidates,
    seed, sample. ``seconds`` is the wall time of the attack on this sentence when it was computed, GloVe's neighbours looked up before.
    """
    method = ATTRIBUTIONS.get(attribution, attribution)
    functions(experiment.classifier(run, model, None), method)  # an attribution that this model has not is an error before anything is computed
    examples = experiment.texts(run).test[first : first + n]
    bound = sum(largest_cost(example.words, trial.settings(run.seed)) for example in examples)
    steps, samples = [], []
    with Meter(bound, f"attacking {model}, {attribution.replace('_', ' ')}, {trial.attack} ({bound:,} attributions at most)") as meter:
        for start in range(first, first + len(examples), PART):
            stop = min(start + PART, first + len(examples))
            folder = _part(run, model, method, trial, masked, start, stop, meter, reader)
            steps.append(pd.read_parquet(folder / "steps.parquet"))
            samples.append(pd.read_parquet(folder / "samples.parquet"))
    where = {
        "dataset": experiment.texts(run).name,
        "model": model,
        "attribution": attribution,
        "attack": trial.attack,
        "rules": trial.own_rules,
        "seed": run.seed,
    }
    return Attacked(*(_labelled(pd.concat(tables, ignore_index=True), where) for tables in (steps, samples)))


@dataclasses.dataclass(frozen=True)
class AttackRun:
    """What is attacked, and how. runs: experiments, of several seeds or data sets; plan: (model, n sentences); attributions: see :func:`attacked`."""

    runs: tuple[Experiment, ...]
    plan: tuple[tuple[str, int], ...]
    attributions: tuple[str, ...]
    trials: Mapping[str, Trial]
    masked: MaskedModelSettings = TRAINED_HERE

    def asked(self) -> Iterator[tuple[Experiment, str, int, str]]:
        """Every (run, model, n, attribution) whose model has the attribution: one without attention is left out where attention is asked."""
        for run in self.runs:
            for model, n in self.plan:
                for attribution in self.attributions:
                    if any(configurations_of(experiment.classifier(run, model, None), ATTRIBUTIONS.get(attribution, attribution)).values()):
                        yield run, model, n, attribution


def from_notebook(values: Mapping[str, Any]) -> AttackRun:
    """The attacks in a notebook's parameters: what :func:`settings.from_lines` reads, with ``samples`` (model:n), ``attributions``, ``masked``, ``tea``,
    ``tef``, and where they stand ``also`` (other data sets, with | between them) and ``n_seeds``. The third trial, ``tea_equal``, is TEA under the rules of
    TEF."""
    first = from_lines(values, "samples")
    others = [dataclasses.replace(first, data=parse(DataSettings, line), shortcuts=()) for line in values.get("also", "").split("|") if line.strip()]
    runs = tuple(dataclasses.replace(run, seed=run.seed + i) for run in (first, *others) for i in range(values.get("n_seeds", 1)))
    trials = {name: parse(Trial, values[name]) for name in ("tea", "tef")}
    trials["tea_equal"] = dataclasses.replace(trials["tea"], rules=trials["tef"].own_rules)
    return AttackRun(runs, counts(values["samples"]), tuple(values["attributions"].split()), trials, parse(MaskedModelSettings, values["masked"]))


def ablations(run: AttackRun) -> AttackRun:
    """TEA on the first model and attribution with the order of the positions drawn at random, the choice of the word, and both."""
    trials = {name: dataclasses.replace(run.trials["tea"], attack=name) for name in ("random_importance", "random_candidate", "random")}
    return dataclasses.replace(run, plan=run.plan[:1], attributions=run.attributions[:1], trials=trials)


def bound(run: AttackRun) -> int:
    """The most attributions that :func:`everything` can ask for: Σ 1 + P (1 + |C|) over the sentences."""
    return sum(
        largest_cost(example.words, trial.settings(where.seed))
        for where, _, n, _ in run.asked()
        for trial in run.trials.values()
        for example in experiment.texts(where).test[:n]
    )


def everything(run: AttackRun) -> Attacked:
    """Every trial on every model and attribution that it has; the column ``trial`` names it.

    Raises ValueError for two trials that tables could not tell apart, because attack and rules are the same.
    """
    kinds = [(trial.attack, trial.own_rules) for trial in run.trials.values()]
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"two of the trials {', '.join(run.trials)} are the same attack under the same rules: {', '.join(map(' '.join, kinds))}")
    found = []
    for where, model, n, attribution in run.asked():
        for name, trial in run.trials.items():
            one = attacked(where, model, attribution, trial, n, run.masked)
            found.append((one.steps.assign(trial=name), one.samples.assign(trial=name)))
    if not found:
        raise ValueError(f"none of the models {', '.join(model for model, _ in run.plan)} has one of the attributions {', '.join(run.attributions)}")
    return Attacked(*(pd.concat(tables, ignore_index=True) for tables in zip(*found, strict=True)))


def _labelled(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({**{name: [value] * len(table) for name, value in where.items()}, **table.to_dict("series")})


def _part(
    run: Experiment, model: str, method: str, trial: Trial, masked: MaskedModelSettings, first: int, last: int, meter: Meter, reader: Experiment | None
) -> Path:
    classifier = experiment.classifier(run, model, None)
    [family] = configurations_of(classifier, method)
    table = cache.file_fingerprint(trial.candidates) if trial.candidates not in ("masked", "glove") else ""
    own_reader = [experiment.classifier_key(reader, reader.model_names[0], None)] if reader else []
    key = cache.key(
        "attack",
        [experiment.classifier_key(run, model, None), method, trial, masked if trial.candidates == "masked" else "", run.seed, first, last, *own_reader],
        table,
        cache.function_fingerprint(SALIENCE[family].function),
        cache.source_fingerprint("faithlib.attribution", "faithlib.attack.search", "faithlib.attack.candidates", "faithlib.attack.masked_model"),
    )

    def build(folder: Path) -> None:
        settings = trial.settings(run.seed)
        predict, attribute = functions(classifier, method, run.seed)
        propose = proposer(trial, reader or run, masked, run.seed)
        steps, samples = [], []
        for number, example in enumerate(experiment.texts(run).test[first:last], start=first):
            if trial.candidates == "glove":
                propose(example.words, range(len(example.words)))  # neighbours are looked up once and remembered; the time is that of the search
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


def keep_their_class(runs: Sequence[Experiment], table: pd.DataFrame) -> bool:
    """Whether every ``text`` gets the class of its ``original`` from the classifier of its run; asked anew, of the sentences as they are written."""
    known = {(experiment.texts(run).name, run.seed): run for run in runs}
    for (dataset, seed, model), rows in table.groupby(["dataset", "seed", "model"]):
        classifier = experiment.classifier(known[dataset, seed], model, None)
        before, after = (classifier.predict(rows[column].tolist()).cpu() for column in ("original", "text"))
        if not bool((before == after).all()):
            return False
    return True


def run_times(
    run: Experiment,
    model: str,
    n: int,
    variants: Mapping[str, tuple[Trial, MaskedModelSettings]],
    budgets: Sequence[float],
    long_data: str = "",
    n_long: int = 3,
    attribution: str = "saliency",
) -> pd.DataFrame:
    """Seconds per attacked sentence of each variant and rho_max, with its counts; a row per sentence.

    variants: name -> (trial, its masked language model). long_data: a line for ``DataSettings`` with long texts, on which a model of the same kind is
    trained with a window of 256 tokens, for at most three passes. Times are of the run that computed them: compare those of one run alone.
    """
    asked = [(run, n)]
    if long_data:
        build, train = run.model(model)
        long = (model, dataclasses.replace(build, window=256), dataclasses.replace(train, max_passes=3))
        asked.append((dataclasses.replace(run, data=parse(DataSettings, long_data), models=(long,), shortcuts=()), n_long))
    rows = []
    for where, count in asked:
        for name, (trial, masked) in variants.items():
            for rho_max in budgets:
                samples = attacked(
                    where, model, attribution, dataclasses.replace(trial, rho_max=rho_max), count, masked, reader=run if where is not run else None
                ).samples
                rows.append(samples[samples["reason"] == ""].drop(columns="original").assign(variant=name, rho_max=rho_max))
    return pd.concat(rows, ignore_index=True)
