import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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


def test_who_asks_for_what_is_being_built_waits_for_it(empty):
    """So two runs never train one model at a time, into one folder of checkpoints."""
    started, built = threading.Event(), []

    def slow(folder):
        built.append("slow")
        started.set()
        time.sleep(0.5)
        _write("first")(folder)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.folder, "stage-1", slow)
        started.wait(10)
        second = pool.submit(cache.folder, "stage-1", lambda _folder: built.append("second"))
        assert first.result(10) == second.result(10)
    assert built == ["slow"]
    assert sorted(path.name for path in empty.iterdir()) == ["stage-1"]


def test_who_waited_for_what_failed_builds_it(empty):
    started = threading.Event()

    def failing(_folder):
        started.set()
        time.sleep(0.3)
        raise InterruptedError

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.folder, "stage-1", failing)
        started.wait(10)
        second = pool.submit(cache.folder, "stage-1", _write("whole"))
        with pytest.raises(InterruptedError):
            first.result(10)
        assert (second.result(10) / "result.txt").read_text() == "whole"
    assert sorted(path.name for path in empty.iterdir()) == ["stage-1"]


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


USER = """
import functools, sys
sys.path.insert(0, {folder!r})
import numpy as np, torch
from faithlib import cache
import mine

step, words, weights = 1, {{"a", "b", "c"}}, torch.ones(2)

class Base:
    def scale(self):
        return 2

class Net(Base):
    def __init__(self, k):
        self.k = k
    def score(self, *given):
        return helper(self.k) * self.scale()

def helper(x, y=1):
    return x + step

def method(model, batch, target):
    def inside(v):
        return [helper(v), Net(1).score(), words, np.exp(weights), mine.helper(v)]
    return inside(batch.step)

def twice(function):
    @functools.wraps(function)
    def called(*given):
        return function(*given)
    return called

for function in (method, twice(method), Net(1).score, Net(2).score, functools.partial(helper, y=1), lambda x: 1, lambda x: 2):
    print(cache.user_fingerprint(function))
"""


def _printed(folder, codes, hash_seed="0"):
    """What scripts of the user print, one after the other in one process as cells of a notebook are: the fingerprints of seven functions for each."""
    files = [folder / f"{i}.py" for i in range(len(codes))]
    for file, code in zip(files, codes, strict=True):
        file.write_text(code)
    program = "import sys\nfor file in sys.argv[1:]:\n    exec(compile(open(file).read(), 'cell.py', 'exec'))\n    print('-')"
    environment = {**os.environ, "PYTHONPATH": str(Path(cache.__file__).resolve().parent.parent), "PYTHONHASHSEED": hash_seed}
    run = subprocess.run([sys.executable, "-c", program, *map(str, files)], env=environment, capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    return [printed.split() for printed in run.stdout.split("-")[:-1]]


@pytest.mark.slow
def test_a_function_of_a_user_is_known_by_all_that_it_uses(tmp_path):
    """Helpers, constants, classes and their bases, defaults, decorators, what it closes over, own modules; the same in every process."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.py").write_text("def helper(x):\n    return x\n")
    code = USER.format(folder=str(own))
    changes = [("return x + step", "return x - step"), ("step, words, weights = 1", "step, words, weights = 2"), ('"c"', '"d"'), ("ones(2)", "zeros(2)")]
    changes += [("return 2", "return 3"), ("np.exp", "np.log"), ("y=1):", "y=2):"), ("return function(*given)", "return -function(*given)")]
    assert all(code.count(old) == 1 for old, _ in changes)
    before, *changed, again = _printed(tmp_path, [code, *(code.replace(*change) for change in changes), code])
    assert len(set(before)) == 7
    assert again == before
    for (old, _), after in zip(changes, changed, strict=True):
        known = 1 if "given" in old else 0  # the decorator is around the second alone
        assert after[known] != before[known], old
    assert _printed(tmp_path, [code], "1") == [before]
    (own / "mine.py").write_text("def helper(x):\n    return -x\n")
    assert _printed(tmp_path, [code])[0][0] != before[0]


def test_nothing_is_served_for_a_function_that_cannot_be_hashed():
    stream = (i for i in range(3))
    assert cache.user_fingerprint(lambda: next(stream)) != cache.user_fingerprint(lambda: next(stream))
