"""What a run is about, and how a notebook's parameters cell says so."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from faithlib.data import DataSettings
from faithlib.models import MODELS, ModelSettings
from faithlib.salience import Configuration
from faithlib.shortcuts import SHORTCUTS, Markers, ShortcutSettings
from faithlib.training import TrainingSettings


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What a run is about. models: name -> how it is built and trained, as pairs; shortcut: settings that all ``shortcuts`` share."""

    data: DataSettings = dataclasses.field(default_factory=DataSettings)
    shortcuts: tuple[str, ...] = ("single_token", "token_in_context", "ordered_pair")
    shortcut: ShortcutSettings = dataclasses.field(default_factory=ShortcutSettings)
    models: tuple[tuple[str, ModelSettings, TrainingSettings], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.shortcuts:
            SHORTCUTS[name]
        for name, model, _ in self.models:
            MODELS[model.family]
            if self.model_names.count(name) > 1:
                raise ValueError(f"two models are called {name!r}; give them different names")

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.models)

    @property
    def markers(self) -> tuple[str, ...]:
        """The tokens that may be planted; none where the experiment plants nothing."""
        return tuple(self.shortcut.markers) if self.shortcuts else ()

    @property
    def room(self) -> int:
        """Tokens that a text must leave free in the window for what is planted."""
        return max((SHORTCUTS[name].n_evidence for name in self.shortcuts), default=0)

    def model(self, name: str) -> tuple[ModelSettings, TrainingSettings]:
        for known, model, training in self.models:
            if known == name:
                return model, training
        raise KeyError(f"unknown model {name!r}; choose from: {', '.join(self.model_names)}")

    def rule(self, name: str) -> ShortcutSettings:
        """The settings of one shortcut of this experiment."""
        return dataclasses.replace(self.shortcut, name=SHORTCUTS[name].name)


def parse(kind: type, text: str, **given: Any) -> Any:
    """Settings from a line of ``name=value`` pairs, as a notebook's parameters cell writes them; quotes protect a space.

    ``parse(DataSettings, "name=local_file path='my texts.csv'")``. Raises ValueError naming the setting, the value and the choices.
    """
    hints = get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)} - {"options"}
    settings, options = dict(given), []
    for pair in shlex.split(text):
        name, equals, value = pair.partition("=")
        if equals and name in fields:
            settings[name] = _value(hints[name], value, f"{kind.__name__} {name}")
        elif equals and "options" in hints:
            options.append((name, _value(int | float | str, value, name)))
        else:
            raise ValueError(f"{kind.__name__} has no setting {pair!r}; write name=value with a name of: {', '.join(sorted(fields))}")
    return kind(**settings, **({"options": tuple(options)} if options else {}))


def _value(hint: Any, text: str, where: str) -> Any:
    if hint is Markers:
        parts = text.split(",")
        if len(parts) != 3:
            raise ValueError(f"{where}={text!r}: write three markers, zero,one,context")
        return Markers(*parts)
    kinds = get_args(hint) or (hint,)
    if text == "all" and type(None) in kinds:
        return None
    if str(hint).startswith("tuple"):
        return tuple(filter(None, text.split(",")))
    for kind in kinds:
        if kind in (int, float, str):
            with contextlib.suppress(ValueError):
                if not (kind is int and text.strip().startswith("0") and len(text) > 1):  # 01 is a slip, not a one
                    return kind(text)
    expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
    raise ValueError(f"{where}={text!r} is not {expected}{', or all' if type(None) in kinds else ''}")


def from_parameters(data: str, shortcuts: str, shortcut: str, models: str, seed: int, settings: Mapping[str, tuple[str, str]]) -> Experiment:
    """The experiment of a parameters cell. settings: model name -> (how it is built, how it is trained), each a line for :func:`parse`."""
    chosen = []
    for name in models.split():
        if name not in settings:
            raise ValueError(f"unknown model {name!r}; choose from: {', '.join(settings)}")
        build, train = settings[name]
        chosen.append((name, parse(ModelSettings, build, **({} if "family=" in build else {"family": name})), parse(TrainingSettings, train)))
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed={seed!r} is not a whole number")
    return Experiment(parse(DataSettings, data), tuple(shortcuts.split()), parse(ShortcutSettings, shortcut), tuple(chosen), seed)


def counts(line: str) -> tuple[tuple[str, int], ...]:
    """(name, n) pairs from ``name:n`` words: ``lstm:40 bert:10``. Raises ValueError naming the word that is none."""
    result = []
    for word in line.split():
        name, colon, n = word.rpartition(":")
        if not colon or not name or not n.isdigit():
            raise ValueError(f"cannot read {word!r}; write name:n, for example gradient:300 or lime;samples=100:24")
        result.append((name, int(n)))
    return tuple(result)


def plan(lines: str) -> tuple[tuple[str, int], ...]:
    """How many examples each configuration gets, from ``pattern:n`` words: ``gradient:300 integrated_gradients;steps=100:24``.

    A pattern is a family or method, with any of its options; a configuration takes the n of the last pattern that matches it.
    """
    result = counts(lines)
    for pattern, _ in result:
        Configuration.parse(pattern)
    return result


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """An experiment and how many examples each configuration gets, as a parameters cell gives them."""

    experiment: Experiment
    examples: Mapping[str, str]
    extra: Mapping[str, Mapping[str, str]]
    control: Mapping[str, str]


def from_lines(values: Mapping[str, Any], models: str = "models") -> Experiment:
    """The experiment in a notebook's parameters: ``data``, ``shortcuts``, ``shortcut``, ``seed``, the parameter ``models`` that names the classifiers (or
    ``name:n``, see :func:`counts`), and per classifier ``<name>`` and ``<name>_training``."""
    names = [word.partition(":")[0] for word in str(values[models]).split()]
    missing = [f"{name}{end}" for name in names for end in ("", "_training") if f"{name}{end}" not in values]
    if missing:
        raise ValueError(f"the parameter {models!r} names {', '.join(names)} but the parameters do not declare {missing[0]!r}")
    lines = {name: (values[name], values[f"{name}_training"]) for name in names}
    return from_parameters(values["data"], values["shortcuts"], values["shortcut"], " ".join(names), values["seed"], lines)


def from_notebook(values: Mapping[str, Any]) -> RunSettings:
    """The settings in a notebook's parameters: those of :func:`from_lines`, and per model ``<name>_examples`` and ``<name>_control``; ``long_on`` and
    ``<name>_long``: the shortcut that gets the expensive configurations too, and which."""
    experiment = from_lines(values)
    missing = [f"{name}{end}" for name in experiment.model_names for end in ("_examples", "_control", "_long") if f"{name}{end}" not in values]
    if missing:
        raise ValueError(f"the parameter 'models' names {', '.join(experiment.model_names)} but the parameters do not declare {missing[0]!r}")
    per_model = {end: {name: values[f"{name}_{end}"] for name in experiment.model_names} for end in ("examples", "long", "control")}
    return RunSettings(experiment, per_model["examples"], {values["long_on"]: per_model["long"]} if values["long_on"] else {}, per_model["control"])
