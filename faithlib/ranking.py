"""Which method can be trusted on MY classifier and MY data: the protocol on a copy of a fine-tuned model, within a budget of time.

Shortcuts are planted into the user's texts, the copy is trained on them and on the texts alone, the pair is verified, every method ranked, and the
false-alarm control asked. A method is recommended only if it is ahead of every other beyond the interval of their paired difference, and passes the control.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from faithlib import cache, devices, experiment, faithfulness, figures
from faithlib.data import Dataset, DataSettings, load
from faithlib.models import ModelSettings
from faithlib.models.checkpoint import pad_on_the_right
from faithlib.models.classifier import TextClassifier
from faithlib.models.words import WordModel
from faithlib.salience import SALIENCE, Configuration, configurations_of, explain
from faithlib.settings import Experiment, plan
from faithlib.shortcuts import SHORTCUTS, Markers, ShortcutSettings, free_markers
from faithlib.training import TrainingSettings, loss

YOURS = "yours"
TRAINING_SHARE, RANKING_SHARE = 0.55, 0.3  # of the budget; what is left is for reading, verification and the natural shortcuts
LEAST_PASSES, MOST_PASSES = 4, 12  # over the training texts
LEAST_STEPS = 100  # of training, for each model; with fewer a shortcut is hardly learned
LEAST_EXAMPLES, MOST_EXAMPLES = 20, 300
ALARM = 0.15  # P@k over a random ranking that is tolerated on a model that does not use the tokens, as in the report's claim
# What is asked for, dearest last; a budget that is too small drops from the end.
METHODS = ("random", "gradient", "integrated_gradients;steps=100", "lime;samples=100", "lime;samples=1000")


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds, measured on this machine: a training step, an encoded text's gradient, a point of an integration path, a perturbed text."""

    step: float
    gradient: float
    point: float
    perturbation: float
    batch_size: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a budget buys, decided before anything is trained. seconds: expected, by part."""

    n_source: int
    n_passes: int
    examples: str
    control: str
    dropped: tuple[str, ...]
    seconds: Mapping[str, float]

    def in_words(self) -> list[str]:
        said = [f"training on {self.n_source} texts, at most {self.n_passes} passes: at most about {self.seconds['training']:.0f} s"]
        said.append(f"ranking ({self.examples}; on the model that does not use the tokens {self.control}): about {self.seconds['ranking']:.0f} s")
        if self.dropped:
            said.append(f"left out, for the budget does not buy {LEAST_EXAMPLES} examples of it: {', '.join(self.dropped)}")
        return said


def seconds(text: str) -> float:
    """A length of time: ``90``, ``90s``, ``30m``, ``1.5h``. Raises ValueError for anything else."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        value = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"budget {text!r} is not a length of time; write 90s, 30m or 1.5h")
    return value


def calibrate(classifier: TextClassifier, texts: Sequence[str], batch_size: int) -> Costs:
    """Measure on a few of these texts; the classifier is not changed."""
    few = list(texts[:4])
    ours = copy.deepcopy(classifier)
    pad_on_the_right(ours.model, ours.tokenizer)
    # Training reads batches of like length; the middle one costs what they do on average.
    by_length = sorted(texts[: 16 * batch_size], key=len)
    batch = ours.encode(by_length[max(0, (len(by_length) - batch_size) // 2) :][:batch_size])
    labels = torch.zeros(len(batch), dtype=torch.long, device=batch.ids.device)
    optimizer = torch.optim.AdamW(ours.model.parameters(), lr=0.0, fused=True)  # as in training

    def step() -> None:
        # As the Trainer does: with dropout, and a batch in one piece, whatever padding does to the answer. A GPU answers before it has worked; .item() waits.
        ours.model.train()
        logits = ours.model(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
        loss(logits, labels).backward()
        torch.nn.utils.clip_grad_norm_(ours.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        logits.sum().item()

    def of(method: str, passes: int) -> float:
        return _timed(lambda: explain(classifier, few, method)) / (len(few) * passes)

    return Costs(
        step=_timed(step) * batch_size / len(batch),
        gradient=of("gradient_l2;of=logit", 1),
        point=of("integrated_gradients;baseline=zero;of=logit;steps=20", 20),
        perturbation=of(f"lime;mask={'unk' if 'unk' in classifier.special_ids else 'erase'};samples=60", 60),
        batch_size=batch_size,
    )


def _costs(classifier: TextClassifier, model: str, texts: Sequence[str], batch_size: int) -> Costs:
    """:func:`calibrate`, once per model, texts, window, device, batch size, threads and code of the calibration: a plan that followed the clock of the
    moment could not be taken up again."""
    weights = cache.file_fingerprint(model) if Path(model).expanduser().exists() else model
    measured = [weights, cache.digest(list(texts)), classifier.window, str(classifier.device), batch_size, torch.get_num_threads()]
    key = cache.key("costs", measured, *map(inspect.getsource, (calibrate, _timed)))

    def build(folder: Path) -> None:
        (folder / "costs.json").write_text(json.dumps(dataclasses.asdict(calibrate(classifier, texts, batch_size))))

    return Costs(**json.loads((cache.folder(key, build) / "costs.json").read_text()))


def _timed(work) -> float:
    """Median seconds of three runs after one that warms up."""
    work()
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def make_plan(costs: Costs, budget: float, n_train: int, n_shortcuts: int, classifier: TextClassifier, methods: Sequence[str] = METHODS) -> Plan:
    """Spend ``budget`` seconds: as much training as its share buys, then the same number of examples of every method, dearest dropped first.

    Raises ValueError where not even the least training fits, and says which budget would do.
    """
    # A mixed training set is a fifth larger, and evaluations after each pass cost about a fifth of it.
    per_step = costs.step * 1.2 * (1 + 1.2 * n_shortcuts)
    steps = TRAINING_SHARE * budget / per_step
    if steps < LEAST_STEPS:
        least = math.ceil(LEAST_STEPS * per_step / TRAINING_SHARE / 60)
        raise ValueError(
            f"a budget of {budget:.0f} s buys {steps:.0f} steps of training for each of {1 + n_shortcuts} models, {LEAST_STEPS} are needed: choose at least {least}m"
        )
    n_source = min(n_train, int(steps * costs.batch_size / LEAST_PASSES))
    n_passes = min(MOST_PASSES, int(steps * costs.batch_size / n_source))
    training = math.ceil(n_source / costs.batch_size) * n_passes * per_step
    left = RANKING_SHARE * budget
    cost_of = {method: _seconds_per_text(classifier, method, costs) for method in methods}
    kept, dropped = list(methods), []
    while len(kept) > 1 and LEAST_EXAMPLES * 2 * n_shortcuts * sum(cost_of[m] for m in kept) > left:
        dropped.append(kept.pop())
    # Half as many examples again are asked of the model that does not use the tokens.
    affordable = left / (n_shortcuts * sum(cost_of[m] for m in kept))
    n = int(min(affordable / 1.5, affordable - LEAST_EXAMPLES))
    n = max(LEAST_EXAMPLES, min(MOST_EXAMPLES, n))
    n_control = max(LEAST_EXAMPLES, n // 2)
    lines = [" ".join(f"{method}:{k}" for method in kept) for k in (n, n_control)]
    expected = {"training": training, "ranking": (n + n_control) * n_shortcuts * sum(cost_of[m] for m in kept)}
    return Plan(n_source, n_passes, lines[0], lines[1], tuple(dropped[::-1]), expected)


def _seconds_per_text(classifier: TextClassifier, method: str, costs: Costs) -> float:
    asked = Configuration.parse(method)
    configurations = [c for found in configurations_of(classifier, [asked.method]).values() for c in found if set(asked.options) <= set(c.options)]
    n = experiment.passes(configurations) if configurations else 0
    if asked.method == "random":
        return 1e-4
    return {"integrated_gradients": costs.point, "lime": costs.perturbation}.get(asked.method, costs.gradient) * max(1, n)


@dataclasses.dataclass(frozen=True)
class Ranking:
    """verification: a row per shortcut; summary: see ``faithfulness.summarise``, empty where no pair was verified; said: the recommendation in words;
    recommended: the configuration, or None where it cannot be told; best: of those that pass the control; taken: seconds, by part, as in ``plan.seconds``."""

    plan: Plan
    verification: pd.DataFrame
    summary: pd.DataFrame
    said: tuple[str, ...]
    recommended: str | None
    best: str | None
    taken: Mapping[str, float]

    def took(self) -> str:
        """Planned and taken, in words."""
        parts = [f"{name} {self.taken[name]:.0f} s (planned: {expected:.0f} s)" for name, expected in self.plan.seconds.items()]
        return f"It took: {', '.join(parts)}. What had been finished before takes no time."


def rank(
    model: str,
    data: DataSettings,
    classes: Sequence[int],
    budget: float,
    shortcuts: Sequence[str] = ("single_token", "ordered_pair"),
    methods: Sequence[str] = METHODS,
    learning_rate: float | None = None,
    batch_size: int = 32,
    seed: int = 0,
    say=print,
) -> Ranking:
    """Run the protocol on a copy of the classifier in ``model``. data: two classes; classes: the model's class for each.

    Verified is a pair as in ``faithfulness.verification``, with .98 / sqrt(n test texts), about two standard errors of a share of one half, added to the bounds
    on chance and drop. budget: seconds; what it buys is measured first (once, see :func:`calibrate`), said, and planned for; what it then takes is said beside it.
    learning_rate: of the copies; None is 1e-3 for a word model of this package and 5e-5, usual for a fine-tuned transformer, for any other. Raises ValueError
    where the budget is too small, or where no markers are free.
    """
    if not shortcuts:
        raise ValueError(f"no shortcut to plant; choose from: {', '.join(SHORTCUTS)}")
    for name in shortcuts:
        SHORTCUTS[name]
    classifier = TextClassifier.load(model)
    wanted = [(method, 1) for method in methods]
    if not any(family != "random" for family, found in experiment.examples_per_configuration(classifier, wanted).items() if found):
        raise ValueError(f"methods {' '.join(methods)!r} name nothing to rank; choose from: {', '.join(SALIENCE)}")
    dataset = load(data)
    everyone = [example.text for part in (dataset.train, dataset.validation, dataset.test) for example in part]
    window = window_for(classifier, dataset)
    markers = Markers(*free_markers(everyone))
    narrow = TextClassifier.load(model, window=window)
    narrow.model.to(devices.chosen())
    found = make_plan(_costs(narrow, model, everyone, batch_size), budget, len(dataset.train), len(shortcuts), narrow, methods)
    for sentence in found.in_words():
        say(sentence)
    started = time.monotonic()
    if learning_rate is None:
        learning_rate = 1e-3 if isinstance(classifier.model, WordModel) else 5e-5
    build = ModelSettings("checkpoint", weights=str(Path(model).expanduser()), window=window, options=(("classes", ",".join(map(str, classes))),))
    how = TrainingSettings(n_source=found.n_source, learning_rate=learning_rate, batch_size=batch_size, max_passes=found.n_passes, patience=1, least_gain=0.005)
    run = Experiment(data, tuple(shortcuts), ShortcutSettings(markers=markers), ((YOURS, build, how),), seed)
    if n_cut := experiment.texts(run).notes["cut"]:
        say(f"{n_cut} texts are longer than the {window} tokens that are read here; their ends are left out")
    verification = experiment.verify(run, faithfulness.THRESHOLDS.for_few(len(dataset.test)))
    taken = {"training": time.monotonic() - started, "ranking": 0.0}
    pairs = [row.shortcut for row in verification.itertuples() if row.verified]
    if not pairs:
        reasons = "; ".join(f"{row.shortcut.replace('_', ' ')}: {row.why_not}" for row in verification.itertuples())
        said = f"It cannot be told which method to trust: no planted shortcut was provably learned ({reasons}). More texts or a larger budget may help."
        return Ranking(found, verification, pd.DataFrame(), (said,), None, None, taken)
    examples, control = (_answerable(classifier, lines) for lines in (found.examples, found.control))
    mixed = pd.concat([experiment.scores(run, shortcut, YOURS, examples) for shortcut in pairs], ignore_index=True)
    source = pd.concat([experiment.scores(run, shortcut, YOURS, control, "source") for shortcut in pairs], ignore_index=True)
    summary = faithfulness.summarise(pd.concat([mixed, source], ignore_index=True))
    taken["ranking"] = time.monotonic() - started - taken["training"]
    return Ranking(found, verification, summary, *recommend(mixed, source), taken)


def _answerable(classifier: TextClassifier, lines: str) -> list[tuple[str, int]]:
    """The plan's configurations one by one, of those that the user's model can answer: a decoder's copies got a padding token to be trained in batches, and
    with it a baseline that the model itself does not have."""
    return [(str(c), n) for found in experiment.examples_per_configuration(classifier, plan(lines)).values() for c, n in found.items()]


def window_for(classifier: TextClassifier, dataset: Dataset) -> int:
    """Tokens that are read: what 95 of 100 texts need and three planted tokens more, at most what the model reads, and at most 256 for the time it takes."""
    counts = classifier.count_tokens([example.text for example in dataset.train[:500]])
    return int(min(classifier.window, 256, max(16, np.quantile(counts, 0.95) + 3)))


def recommend(mixed: pd.DataFrame, source: pd.DataFrame) -> tuple[tuple[str, ...], str | None, str | None]:
    """(what can be said, the configuration that can be recommended or None, the best of those that pass the control or None).

    mixed, source: rankings of the model that uses the planted tokens and of the one that does not. Control: a configuration's precision there, less that of
    a random ranking. It passes where the 95 % interval lies below ``ALARM`` for every shortcut, and raises an alarm where one lies above. The best is
    compared with the best passing configuration of each other family; within a family most configurations are close, and cost the same.
    """
    mixed, source = (table.assign(name=_names(table), chance=_chance(table)) for table in (mixed, source))
    means = mixed[mixed["method"] != "random"].groupby("name")["precision_at_k"].mean().sort_values(ascending=False, kind="stable")
    if means.empty:
        return ("It cannot be told which method to trust: none was asked.",), None, None
    control = {name: _control(part) for name, part in source.groupby("name")}
    passing = [name for name in means.index if control.get(name) == "passes"]
    said = []
    top = means.index[0]
    if not passing or passing[0] != top:
        why = {
            "alarm": "on the model that does not use the tokens it puts them on top as well",
            "unclear": "too few texts were asked to tell whether it passes the control",
        }
        said.append(f"{_label(top)} finds most, P@k {means.iloc[0]:.2f}, but is not recommended: {why.get(control.get(top, 'unclear'), why['unclear'])}.")
    if not passing:
        return (*said, "It cannot be told which method to trust: none is known to pass the control."), None, None
    best = passing[0]
    rivals = {}
    for name in passing[1:]:
        if _family(name) != _family(best):
            rivals.setdefault(_family(name), name)
    differences = {name: _difference(mixed, best, name) for name in rivals.values()}
    close = {name: d for name, d in differences.items() if not d[1] > 0}
    n = int((mixed["name"] == best).sum())
    alike = [name for name in passing[1:] if _family(name) == _family(best) and not _difference(mixed, best, name)[1] > 0]
    if alike:
        said.append(f"Of its own family these are as good, as far as can be told: {'; '.join(map(_label, alike[:4]))}.")
    if not close:
        ahead = "the only family that passes the control"
        if differences:
            name, (mean, low, high, _) = min(differences.items(), key=lambda item: item[1][0])
            ahead = f"ahead of every other family, of {_label(name)} by {mean:.2f} [{low:.2f}, {high:.2f}]"
        return (f"Recommended: {_label(best)}; P@k {means[best]:.2f} on n={n} examples, {ahead}.", *said), best, best
    name, (mean, low, high, compared) = min(close.items(), key=lambda item: abs(item[1][0]))
    lead = [
        f"Best here is {_label(best)}, P@k {means[best]:.2f} on n={n} examples, but it cannot be told whether it is better than "
        f"{' or '.join(map(_label, close))}: from {_label(name)} it differs by {mean:.2f} [{low:.2f}, {high:.2f}]."
    ]
    if mean > 0:
        # Twice what puts the interval's lower end at 0: then such a difference shows four times in five.
        needed = math.ceil(2 * compared * ((mean - low) / mean) ** 2)
        lead.append(
            f"If that difference is real, about {needed} examples would be likely to show it; a larger budget asks up to {MOST_EXAMPLES} for each shortcut."
        )
    return (*lead, *said), None, best


def _control(table: pd.DataFrame) -> str:
    """``passes``, ``alarm`` or ``unclear``, from one configuration's rankings of the model that does not use the tokens."""
    intervals = [faithfulness.interval(part["precision_at_k"] - part["chance"]) for _, part in table.groupby("shortcut")]
    if any(low > ALARM for low, _ in intervals):
        return "alarm"
    return "passes" if all(high <= ALARM for _, high in intervals) else "unclear"


def _family(name: str) -> str:
    method = name.partition(";")[0]
    return next((family.name for family in SALIENCE.values() if any(c.method == method for c in family.configurations)), method)


def _label(name: str) -> str:
    method, _, config = name.partition(";")
    return figures.describe(method, config)


def _names(table: pd.DataFrame) -> list[str]:
    return [";".join(filter(None, pair)) for pair in zip(table["method"], table["config"], strict=True)]


def _chance(table: pd.DataFrame) -> list[float]:
    return [faithfulness.random_precision(n, len(evidence)) for n, evidence in zip(table["n_tokens"], table["evidence"], strict=True)]


def _difference(table: pd.DataFrame, one: str, other: str) -> tuple[float, float, float, int]:
    sides = [{"method": name.partition(";")[0], "config": name.partition(";")[2]} for name in (one, other)]
    return faithfulness.difference(table, *sides)
