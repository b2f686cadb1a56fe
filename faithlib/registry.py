"""A dictionary that fills itself by decorator and whose error lists the choices."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class UnknownNameError(KeyError):
    """A name that no registry entry carries; the message names the value and the choices."""

    def __str__(self) -> str:
        return self.args[0]


class Registry(Mapping[str, Any]):
    """Name -> entry. ``kind`` is what error messages call an entry, for example ``salience family``."""

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, Any] = {}

    def add(self, name: str, entry: Any) -> Any:
        """Enter ``entry`` under ``name``.

        The same definition may be entered again (a notebook cell that runs twice); another one under a taken name is an error.
        """
        old = self._entries.get(name)
        if old is not None and _origin(old) != _origin(entry):
            raise ValueError(f"{self.kind} {name!r} is taken by {_origin(old)}; choose another name")
        self._entries[name] = entry
        return entry

    def register(self, name: str) -> Callable[[Any], Any]:
        """Decorator form of :meth:`add`."""
        return lambda entry: self.add(name, entry)

    def remove(self, name: str) -> None:
        """Take an entry out, as a test or a notebook that tries one does."""
        self._entries.pop(name)

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            raise UnknownNameError(f"unknown {self.kind} {name!r}; choose from: {', '.join(self._entries)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _origin(entry: Any) -> str:
    target = getattr(entry, "function", None) or getattr(entry, "plant", None) or entry
    target = target if hasattr(target, "__qualname__") else type(target)
    return f"{target.__module__}.{target.__qualname__}"


def import_siblings(package: str, path: list[str]) -> None:
    """Import every module of a package, so that one new file is enough to add one more entry."""
    for module in sorted(pkgutil.iter_modules(path), key=lambda found: found.name):
        importlib.import_module(f"{package}.{module.name}")
