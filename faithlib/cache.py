"""Finished work, kept on disk and never served for anything else.

A stage's folder is named by a hash of its settings, of the input files it reads, of the library versions that decide its numbers and
of the sources it depends on. The sources are found by following the imports of the stage's module through the package, so no list can
go stale; comments and docstrings do not count. They are read once, when this module is imported: a file edited under a running kernel must
not give its name to what the old code computes. A user's own functions are named by :func:`user_fingerprint`.
A folder is built under another name and renamed when complete: what is killed halfway never counts as done.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import sysconfig
import uuid
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from faithlib import paths

GROUND_FLOOR = {"faithlib", "faithlib.cache", "faithlib.devices", "faithlib.memory", "faithlib.paths", "faithlib.progress", "faithlib.registry", "faithlib.shapes"}
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})  # where code that is not the user's own lies
NUMERIC_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "lime", "scikit-learn")


PACKAGE = Path(__file__).resolve().parent
SOURCES = {  # module -> its source as this process loaded it
    ".".join(("faithlib", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}


class CacheError(OSError):
    """The cache folder cannot be written; the message names it and the variable that moves it."""


def freeze(value: Any) -> Any:
    """Settings as plain JSON values; a model, a tensor or anything else without a stable value is refused."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"": type(value).__name__, **{k: freeze(v) for k, v in asdict(value).items()}}
    if isinstance(value, dict):
        return {str(k): freeze(v) for k, v in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, list | tuple):
        return [freeze(v) for v in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"cannot make a cache key of {type(value).__name__}: pass settings, not objects")


def digest(*parts: Any) -> str:
    """32 hexadecimal digits of the parts' frozen form."""
    text = json.dumps([freeze(part) for part in parts], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.lru_cache(maxsize=256)
def _file_digest(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def file_fingerprint(path: str | Path) -> str:
    """Hash of a file's content, or of every file below a folder."""
    path = Path(path)
    if path.is_dir():
        return digest([[str(p.relative_to(path)), file_fingerprint(p)] for p in sorted(path.rglob("*")) if p.is_file()])
    stat = path.stat()
    return _file_digest(str(path), stat.st_size, stat.st_mtime_ns)


def _without_docstrings(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]
    return ast.dump(tree)


def imports(name: str) -> set[str]:
    """The faithlib modules that a faithlib module imports directly."""
    found = set()
    for node in ast.walk(ast.parse(SOURCES[name])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & set(SOURCES)


@functools.lru_cache(maxsize=64)
def source_fingerprint(*modules: str) -> str:
    """Hash of the code of these modules and of every faithlib module that they reach by import, the ground floor aside.

    A package (``faithlib.models``) stands for its ``__init__`` alone: what registers itself there is named by the stage that uses it.
    """
    todo, seen = list(modules), {}
    while todo:
        name = todo.pop()
        if name in seen or name in GROUND_FLOOR:
            continue
        seen[name] = hashlib.sha256(_without_docstrings(ast.parse(SOURCES[name])).encode()).hexdigest()
        todo.extend(imports(name))
    return digest(seen)


def function_fingerprint(function: Callable) -> str:
    """Hash of where a function's code comes from: its own ``fingerprint`` where it has one, its module's reach inside the package, else see
    :func:`user_fingerprint`."""
    if hasattr(function, "fingerprint"):
        return function.fingerprint
    if getattr(function, "__module__", "") in SOURCES:
        return source_fingerprint(function.__module__)
    return user_fingerprint(function)


def user_fingerprint(function: Callable) -> str:
    """Hash of a user's function: its code, what it closes over and the globals that it reads, by value (``datasets.fingerprint.Hasher``, with dill), and
    every file of the user's own that this process has imported, since what is imported counts by name alone. A function that cannot be
    hashed gets a name of its own, so that nothing is served for it. Not seen: files that it reads, and the version of a library that the key does not hold.
    """
    from datasets.fingerprint import Hasher

    files = {str(getattr(module, "__file__", None)) for name, module in list(sys.modules.items()) if name not in SOURCES and name != "__main__"}
    own = sorted(file for file in files if file.endswith(".py") and not file.startswith(LIBRARIES) and Path(file).is_file())
    try:
        code = Hasher.hash(function)
    except Exception:  # hashing runs the pickling code of whatever the function reads, which may raise anything
        code = uuid.uuid4().hex
    return digest(code, [file_fingerprint(file) for file in own])


@functools.lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """The libraries whose version can change a number."""
    return {name: importlib.metadata.version(name) for name in NUMERIC_LIBRARIES}


def key(stage: str, settings: Any, *fingerprints: str) -> str:
    """The name of a stage's folder: stage and hash of all that its result depends on."""
    return f"{stage}-{digest(settings, versions(), *fingerprints)}"


def folder(name: str, build: Callable[[Path], None]) -> Path:
    """The finished folder ``name``; ``build(folder)`` fills it when it is not there yet.

    ``build`` writes into ``<name>.part-…``, renamed when ``build`` returns. Another process or thread that asks for the same folder meanwhile waits for it.
    """
    target = paths.cache_root() / name
    if (target / ".complete").is_file():
        return target
    part, lock = target.with_name(f"{target.name}.part-{os.getpid()}-{uuid.uuid4().hex[:6]}"), target.with_name(f"{target.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        holder = FileLock(lock)
        holder.acquire()
    except OSError as error:
        raise CacheError(
            f"cannot write the cache folder {paths.cache_root()} ({error.strerror}); set FAITHLIB_CACHE to a folder that can be written"
        ) from error
    try:
        if (target / ".complete").is_file():
            return target
        part.mkdir()
        build(part)
        (part / ".complete").touch()
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        lock.unlink(missing_ok=True)  # who waits for it finds the folder finished
        holder.release()
    return target


def has(name: str) -> bool:
    """True where the folder is finished."""
    return (paths.cache_root() / name / ".complete").is_file()


def scratch(name: str) -> Path:
    """A folder beside a stage's own for what an interrupted run may resume from (checkpoints); the stage deletes it at its end."""
    return paths.cache_root() / f"{name}.resume"
