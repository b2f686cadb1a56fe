import dataclasses
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from faithlib import cache


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """An empty cache in a folder with a space."""
    root = tmp_path / "my cache"
    monkeypatch.setenv("FAITHLIB_CACHE", str(root))
    return root


def _write(text):
    return lambda folder: (folder / "result.txt").write_text(text)


# Folders


def test_finished_work_is_built_once(empty):
    calls = []
    for _ in range(2):
        folder = cache.folder("stage-1", lambda part: calls.append(part) or _write("done")(part))
    assert (folder / "result.txt").read_text() == "done"
    assert folder == empty / "stage-1"
    assert len(calls) == 1
    assert calls[0] != folder
    assert cache.has("stage-1")
    assert not cache.has("stage-2")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError(28, "No space left on device")])
def test_a_build_that_fails_leaves_nothing(empty, error):
    def failing(folder):
        _write("half")(folder)
        raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        cache.folder("stage-1", failing)
    assert not cache.has("stage-1")
    assert list(empty.iterdir()) == []
    assert (cache.folder("stage-1", _write("whole")) / "result.txt").read_text() == "whole"


def test_a_killed_build_does_not_count_as_done(empty):
    """A process that dies on the spot runs no clean-up."""
    code = "import os; from faithlib import cache; cache.folder('stage-1', lambda part: ((part / 'result.txt').write_text('half'), os._exit(9)))"
    root = Path(cache.__file__).resolve().parent.parent
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}).returncode == 9
    assert [path.read_text() for path in empty.rglob("result.txt")] == ["half"]
    assert not cache.has("stage-1")
    assert (cache.folder("stage-1", _write("whole")) / "result.txt").read_text() == "whole"


def test_of_two_builders_the_first_to_finish_wins():
    def slow(folder):
        _write("second")(folder)
        cache.folder("stage-1", _write("first"))

    assert (cache.folder("stage-1", slow) / "result.txt").read_text() == "first"
    assert cache.has("stage-1")


def test_a_folder_without_its_mark_is_built_again(empty):
    (empty / "stage-1").mkdir(parents=True)
    _write("half")(empty / "stage-1")
    assert (cache.folder("stage-1", _write("whole")) / "result.txt").read_text() == "whole"


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAITHLIB_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(
        cache.CacheError, match=r"cannot write the cache folder .*below \(Not a directory\); set FAITHLIB_CACHE to a folder that can be written"
    ):
        cache.folder("stage-1", _write("done"))


def test_a_read_only_cache_still_serves_what_is_finished(empty, monkeypatch):
    folder = cache.folder("stage-1", _write("done"))

    def refused(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    assert cache.folder("stage-1", _write("other")) == folder
    with pytest.raises(cache.CacheError, match=r"my cache \(Permission denied\); set FAITHLIB_CACHE"):
        cache.folder("stage-2", _write("done"))


def test_what_an_interrupted_run_resumes_from_is_no_finished_work(empty):
    cache.scratch("stage-1").mkdir(parents=True)
    assert cache.scratch("stage-1").parent == empty
    assert not cache.has("stage-1")


# Keys


@dataclasses.dataclass(frozen=True)
class Settings:
    n: int = 3
    names: tuple[str, ...] = ("a",)


@dataclasses.dataclass(frozen=True)
class OtherSettings:
    n: int = 3
    names: tuple[str, ...] = ("a",)


def test_equal_settings_have_one_key_and_any_change_another():
    assert cache.key("stage", Settings(), "x") == cache.key("stage", Settings(), "x")
    keys = [
        cache.key("stage", Settings(), "x"),
        cache.key("stage", Settings(n=4), "x"),
        cache.key("stage", Settings(names=("a", "b")), "x"),
        cache.key("stage", OtherSettings(), "x"),
        cache.key("stage", Settings(), "y"),
        cache.key("other", Settings(), "x"),
        cache.key("stage", [Settings(), None], "x"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0].startswith("stage-")


def test_values_that_print_alike_have_different_keys():
    values = [1, "1", 1.5, "1.5", True, "True", None, "None", [1, 2], ["1", "2"], "[1, 2]", {"a": 1}, [["a", 1]]]
    assert len({cache.digest(value) for value in values}) == len(values)
    assert cache.digest({"a": 1, "b": 2}) == cache.digest({"b": 2, "a": 1})
    assert cache.digest((1, 2)) == cache.digest([1, 2])


def test_another_library_version_has_another_key(monkeypatch):
    before = cache.key("stage", 1)
    monkeypatch.setattr(cache, "versions", lambda: {"torch": "0.1"})
    assert cache.key("stage", 1) != before


@pytest.mark.parametrize(
    ("value", "kind"),
    [(torch.zeros(2), "Tensor"), (torch.nn.Linear(1, 1), "Linear"), (np.zeros(2), "ndarray"), ({"a"}, "set"), (object(), "object"), (Settings, "type")],
)
def test_objects_are_refused_as_a_key(value, kind):
    with pytest.raises(TypeError, match=f"cannot make a cache key of {kind}: pass settings, not objects"):
        cache.key("stage", {"inside": [value]})


# Files


def test_a_changed_file_has_another_fingerprint(tmp_path):
    path = tmp_path / "a file.csv"
    path.write_text("one")
    first = cache.file_fingerprint(path)
    assert cache.file_fingerprint(str(path)) == first
    path.write_text("two")
    os.utime(path, ns=(1, 1))
    assert cache.file_fingerprint(path) != first
    path.write_text("one")
    os.utime(path, ns=(2, 2))
    assert cache.file_fingerprint(path) == first


def test_a_folder_is_its_files_and_their_names(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("one")
    seen = [cache.file_fingerprint(tmp_path)]
    (tmp_path / "b").write_text("two")
    seen.append(cache.file_fingerprint(tmp_path))
    (tmp_path / "b").rename(tmp_path / "c")
    seen.append(cache.file_fingerprint(tmp_path))
    (tmp_path / "sub" / "a").write_text("three")
    seen.append(cache.file_fingerprint(tmp_path))
    assert len(set(seen)) == 4


# Sources


@pytest.fixture
def edited(monkeypatch):
    """edited(module, change) -> the fingerprint of faithlib.shortcuts after ``change`` of that module's source."""

    def fingerprint(module=None, change=None):
        with monkeypatch.context() as patch:
            if module:
                assert change(cache.SOURCES[module]) != cache.SOURCES[module]
                patch.setitem(cache.SOURCES, module, change(cache.SOURCES[module]))
            cache.source_fingerprint.cache_clear()
            return cache.source_fingerprint("faithlib.shortcuts")

    yield fingerprint
    cache.source_fingerprint.cache_clear()


def test_code_counts_and_what_is_only_read_does_not(edited):
    before = edited()
    assert edited("faithlib.shortcuts", lambda source: source + "\n# a remark\n") == before
    assert edited("faithlib.shortcuts", lambda source: source.replace('"""Plant evidence', '"""Hide evidence')) == before
    assert edited("faithlib.shortcuts", lambda source: source.replace('"""Three markers', '"""Some markers')) == before
    assert edited("faithlib.shortcuts", lambda source: source.replace("\n\n\ndef", "\n\n\n\n\ndef")) == before
    assert edited("faithlib.shortcuts", lambda source: source.replace("self.window < 1", "self.window < 2")) != before
    assert edited("faithlib.shortcuts", lambda source: source.replace('zero: str = "#0"', 'zero: str = "#9"')) != before


def test_what_is_imported_counts_and_the_ground_floor_does_not(edited):
    before = edited()
    assert edited("faithlib.data", lambda source: source + "\nx = 1\n") != before
    assert edited("faithlib.assets", lambda source: source + "\nx = 1\n") != before
    assert edited("faithlib.progress", lambda source: source + "\nx = 1\n") == before
    assert edited("faithlib.training", lambda source: source + "\nx = 1\n") == before


def test_imports_are_found_inside_functions_and_packages(monkeypatch):
    source = (
        "import faithlib.data as d\nfrom faithlib.models import lstm\nfrom faithlib import training\ndef f():\n    from faithlib.salience.lime import lime\n"
    )
    monkeypatch.setitem(cache.SOURCES, "faithlib.invented", source + "import torch\nfrom faithlib.data import Example\n")
    expected = {"faithlib", "faithlib.data", "faithlib.models", "faithlib.models.lstm", "faithlib.training", "faithlib.salience.lime"}
    assert cache.imports("faithlib.invented") == expected


def test_a_source_that_changes_while_the_process_runs_does_not_change_its_keys(tmp_path):
    """The keys name the code that was loaded, not what an editor saved since."""
    code = (
        "import pathlib, faithlib.cache as c; p = pathlib.Path(c.__file__).with_name('shortcuts.py'); a = c.source_fingerprint('faithlib.shortcuts');"
        "p.write_text('x = 1'); c.source_fingerprint.cache_clear(); print(a == c.source_fingerprint('faithlib.shortcuts'))"
    )
    shutil.copytree(cache.PACKAGE, tmp_path / "faithlib", ignore=shutil.ignore_patterns("__pycache__"))
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, cwd=tmp_path)
    assert run.stdout.strip() == "True"


def _plus(number):
    scope = {}
    exec(f"def function(x):\n    return x + {number}", scope)
    return scope["function"]


def test_a_function_from_a_notebook_is_known_by_its_code():
    assert cache.function_fingerprint(_plus(1)) == cache.function_fingerprint(_plus(1))
    assert cache.function_fingerprint(_plus(1)) != cache.function_fingerprint(_plus(2))


def _user(code, **around):
    scope = {"__name__": "a_notebook", **around}
    exec(code, scope)
    return cache.function_fingerprint(scope["method"])


def test_a_function_of_a_user_is_known_by_what_it_uses_too():
    """Its helpers, constants, defaults and what it closes over; not by a library's insides."""
    code = "import numpy as np\nstep = 1\ndef helper(x):\n    return x + 1\ndef method(x, y=1):\n    return [np.exp(helper(v)) + step for v in x]"
    same = _user(code)
    assert _user(code) == same
    for old, new in (("return x + 1", "return x + 2"), ("step = 1", "step = 2"), ("y=1", "y=2"), ("np.exp", "np.log")):
        assert old in code
        assert _user(code.replace(old, new)) != same
    closing = "def build(k):\n    def method(x):\n        return x * k\n    return method\nmethod = build({})"
    assert _user(closing.format(1)) != _user(closing.format(2))
    assert _user(closing.format(1)) == _user(closing.format(1))
    inner = "a = {}\ndef method(x):\n    def inside(v):\n        return v + a\n    return inside(x)"
    assert _user(inner.format(1)) != _user(inner.format(2))
    assert _user(inner.format(1)) == _user(inner.format(1))
    again = "def method(x):\n    return method(x - 1) if x else 0"
    assert _user(again) == _user(again)
    weights = "def method(x):\n    return x @ w"
    assert _user(weights, w=np.ones(3)) == _user(weights, w=np.ones(3))
    assert _user(weights, w=np.ones(3)) != _user(weights, w=np.zeros(3))


def test_a_function_that_reads_what_has_no_content_is_refused():
    with pytest.raises(TypeError, match="method reads stream, a generator whose content cannot name a result"):
        _user("def method(x):\n    return next(stream)", stream=(i for i in range(3)))


def test_a_wrapped_function_is_known_by_what_it_wraps():
    def wrapped(number):
        return functools.wraps(_plus(number))(lambda *_: None)

    assert cache.function_fingerprint(wrapped(1)) != cache.function_fingerprint(wrapped(2))
