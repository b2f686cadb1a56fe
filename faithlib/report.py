"""Execute the notebooks of a profile and leave a report: executed notebooks, HTML, figures, tables, an index."""

from __future__ import annotations

import contextlib
import html
import logging
import os
import shlex
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import nbformat
import psutil
import yaml

from faithlib import cache, paths, settings

QUICK = "quick"  # the notebooks' own defaults; it has no folder of parameters
AT_ONCE = 2  # notebooks that run side by side: much of a section's time is one core that imports and draws
MEASURE_TIME = ("timed", "budget")  # parameters that, where they are not empty, make a notebook measure what something takes


class ReportError(RuntimeError):
    """A report that could not be made; the message names the notebook, and the cell or the parameter."""


def notebooks(only: Sequence[str] = ()) -> list[Path]:
    """The sections of the report in reading order; ``only`` keeps those whose name starts with one of these."""
    found = sorted(path for path in paths.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    chosen = [path for path in found if not only or any(path.stem.startswith(start) for start in only)]
    if not chosen:
        raise ReportError(f"no notebook starts with {', '.join(only)} in {paths.NOTEBOOKS}; choose from: {', '.join(path.stem for path in found) or 'none'}")
    return chosen


def profiles() -> list[str]:
    return [QUICK, *sorted(path.name for path in paths.PARAMS.iterdir() if path.is_dir())]


def declared(notebook: Path) -> dict[str, Any]:
    """Parameter -> default, from the notebook's parameters cell (literals only)."""
    import ast

    cells = [cell for cell in nbformat.read(notebook, 4).cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ReportError(f"{notebook.name}: {len(cells)} cells are tagged 'parameters'; a section has one")
    result = {}
    for node in ast.parse(cells[0].source).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            raise ReportError(f"{notebook.name}: line {node.lineno} of the parameters cell is not 'name: type = literal'")
        result[node.target.id] = ast.literal_eval(node.value)
    return result


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(values, dict):
        raise ReportError(f"{path.relative_to(paths.ROOT)}: write 'name: value' lines, not a {type(values).__name__}")
    return values


def parameters(profile: str, notebook: Path) -> dict[str, Any]:
    """What the profile changes in this notebook: ``_shared.yaml`` where the notebook declares the key, and its own YAML.

    Raises ReportError for an unknown profile or key, and for a value whose type is not the default's.
    """
    if profile not in profiles():
        raise ReportError(f"unknown profile {profile!r}; choose from: {', '.join(profiles())}")
    known = declared(notebook)
    if profile == QUICK:
        return {}
    folder = paths.PARAMS / profile
    own = _read_yaml(folder / f"{notebook.stem}.yaml")
    unknown = sorted(set(own) - set(known))
    if unknown:
        raise ReportError(f"params/{profile}/{notebook.stem}.yaml: {notebook.name} has no parameter {unknown[0]!r}; choose from: {', '.join(known)}")
    values = {**{name: value for name, value in _read_yaml(folder / "_shared.yaml").items() if name in known}, **own, "profile": profile}
    for name, value in values.items():
        if type(value) is not type(known[name]):
            raise ReportError(
                f"params/{profile}: {name} = {value!r} is a {type(value).__name__}; {notebook.name} declares a {type(known[name]).__name__} ({known[name]!r})"
            )
    return values


def _code_fingerprint() -> str:
    return cache.digest(cache.SOURCES)


def _fingerprint(notebook: Path, values: dict[str, Any]) -> str:
    cells = [[cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))] for cell in nbformat.read(notebook, 4).cells]
    return cache.digest(cells, values, _code_fingerprint(), cache.versions(), _files_named({**declared(notebook), **values}))


def _files_named(values: dict[str, Any]) -> list[list[str]]:
    """(name, hash of the content) of every file or folder that a parameter names, alone or as ``name=path`` in a line: another content is another run."""
    words: list[str] = []
    for value in values.values():
        if isinstance(value, str):
            try:
                parts = shlex.split(value)
            except ValueError:  # an apostrophe in a sentence
                parts = value.split()
            words += [value, *(part.partition("=")[2] for part in parts)]
    found = []
    for word in sorted(set(filter(None, words))):
        for path in (Path(word).expanduser(), paths.ROOT / word):
            if ("/" in word or "." in word) and path.exists():
                found.append([word, cache.file_fingerprint(path)])
                break
    return found


def run(profile: str, only: Sequence[str] = (), say=print) -> Path:
    """Execute what has changed and write the index. Returns the report's folder.

    The models are trained and explained first, with progress in the terminal, and handed to the notebooks through the cache; so ``AT_ONCE`` notebooks
    can run side by side, but for those that measure time, which come last and alone. Notebooks chosen by ``only`` are not prepared for, and run one by one.

    A notebook is executed into ``*.part.ipynb`` and renamed when all of its cells ran; a cell that fails raises ReportError with notebook and
    cell, and leaves the part for reading.
    """
    folder = paths.report_root(profile)
    chosen = notebooks(only)
    values = {notebook: parameters(profile, notebook) for notebook in chosen}  # all of them checked before any runs
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot write the report folder {folder} ({error.strerror}); set FAITHLIB_REPORT to a folder that can be written") from error
    fingerprints = {notebook: _fingerprint(notebook, values[notebook]) for notebook in chosen}
    stale = [notebook for notebook in chosen if not _is_current(folder / notebook.name, fingerprints[notebook])]
    if stale and not only and chosen[-1].stem.startswith("99"):
        warm(profile, say)
    for notebook in chosen:
        if notebook not in stale:
            say(f"{notebook.stem}: unchanged")

    one_by_one = threading.Lock()

    def tell(line: str) -> None:
        with one_by_one:  # print writes a line and its end separately
            say(line)

    def make(notebook: Path) -> None:
        started = time.monotonic()
        tell(f"{notebook.stem}: running")
        try:
            _execute(notebook, folder / notebook.name, values[notebook], folder, fingerprints[notebook])
        except ReportError:
            tell(f"{notebook.stem}: failed")
            raise
        _export_html(folder / notebook.name)
        tell(f"{notebook.stem}: done in {time.monotonic() - started:.0f} s")

    timed = [notebook for notebook in stale if any(values[notebook].get(name, declared(notebook).get(name)) for name in MEASURE_TIME)]
    failures = _side_by_side(make, [notebook for notebook in stale if notebook not in timed], 1 if only else AT_ONCE)
    failures += _side_by_side(make, timed, 1)
    write_index(profile, folder)
    if failures:
        raise ReportError("\n".join(map(str, failures))) from failures[0]
    say(f"{len(stale)} of {len(chosen)} notebooks executed, the others had not changed" if len(stale) < len(chosen) else f"{len(stale)} notebooks executed")
    say(f"read {folder / 'index.html'}")
    return folder


def _side_by_side(make: Callable[[Path], None], chosen: Sequence[Path], at_once: int) -> list[ReportError]:
    """``make`` for each, ``at_once`` at a time. Returns the ReportErrors, in the order of ``chosen``: the others still end."""
    threads, stopped = os.environ.get("OMP_NUM_THREADS"), threading.Event()

    def guarded(notebook: Path) -> ReportError | None:
        if stopped.is_set():
            return None
        try:
            make(notebook)
        except ReportError as error:
            return error
        return None

    if min(at_once, len(chosen)) > 1 and threads is None:  # a kernel takes what it finds here
        os.environ["OMP_NUM_THREADS"] = str(max(1, _n_cores() // at_once))
    others = set(psutil.Process().children())
    try:
        with ThreadPoolExecutor(at_once) as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = [pool.submit(guarded, notebook) for notebook in chosen]
            try:
                wait(made, return_when=FIRST_EXCEPTION)
            except KeyboardInterrupt:
                stopped.set()
                while wait(made, timeout=0.2).not_done:  # a thread waits for its kernel, which does not hear Ctrl-C, or is about to start one
                    for kernel in set(psutil.Process().children()) - others:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            kernel.terminate()
                raise
            return [error for error in (future.result() for future in made) if error]
    finally:
        if threads is None:
            os.environ.pop("OMP_NUM_THREADS", None)


def _n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_current(target: Path, fingerprint: str) -> bool:
    if not target.is_file() or not target.with_suffix(".html").is_file():
        return False
    recorded = nbformat.read(target, 4).metadata.get("faithlib", {})
    return recorded.get("fingerprint") == fingerprint and all((target.parent / name).is_file() for name in recorded.get("files", []))


def _execute(notebook: Path, target: Path, values: dict[str, Any], folder: Path, fingerprint: str) -> None:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    part = target.with_suffix(".part.ipynb")
    before, others = _files(folder), {f"{other.stem[:2]}_" for other in notebooks()} - {f"{notebook.stem[:2]}_"}
    os.environ["FAITHLIB_REPORT"] = str(folder)
    os.environ["FAITHLIB_ROOT"] = str(paths.ROOT)
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # as in faithlib/__init__, for a notebook that imports another library first
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        papermill.execute_notebook(
            str(notebook),
            str(part),
            values or None,
            kernel_name="python3",
            progress_bar=sys.stderr.isatty(),
            autosave_cell_every=60,
            extra_arguments=["--log-level=50"],  # kernels warn of a connection within this machine, and of the interrupt that ends them
            resources={"metadata": {"path": str(paths.NOTEBOOKS)}},  # where the kernel starts; papermill's cwd would move this whole process
        )
    except PapermillExecutionError as error:
        raise ReportError(
            f"{notebook.name}, cell {error.exec_count or error.cell_index}: {error.ename}: {error.evalue}\nthe notebook up to there: {part}"
        ) from error
    document = nbformat.read(part, 4)
    document.metadata["faithlib"] = {
        "fingerprint": fingerprint,
        "files": sorted(name for name, changed in _files(folder).items() if before.get(name) != changed and Path(name).name[:3] not in others),
    }
    nbformat.write(document, part)
    part.rename(target)


def _files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for sub in ("figures", "tables") for path in (folder / sub).glob("*.*")}


def _export_html(executed: Path) -> None:
    """One static page: images and styles inside, no script fetched from anywhere."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="classic", embed_images=True, mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    body, _ = exporter.from_filename(str(executed))
    part = executed.with_suffix(".html.part")
    part.write_text(body, encoding="utf-8")
    part.rename(executed.with_suffix(".html"))


def title(notebook: Path) -> str:
    """The notebook's first heading."""
    for cell in nbformat.read(notebook, 4).cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return cell.source.splitlines()[0][2:].strip()
    return notebook.stem


def write_index(profile: str, folder: Path) -> None:
    """``index.html``: links to every executed notebook, figure and table."""
    sections = "".join(
        f'<li><a href="{path.stem}.html">{html.escape(path.stem[:2])} {html.escape(title(path))}</a> <small>(<a href="{path.name}">notebook</a>)</small></li>'
        for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))
        if ".part" not in path.name
    )
    figures = "".join(
        f'<figure><a href="figures/{p.stem}.svg"><img src="figures/{p.stem}.svg" alt="{html.escape(p.stem)}"></a><figcaption>'
        f'{html.escape(p.stem.replace("_", " "))} · <a href="figures/{p.name}">PNG</a> · <a href="figures/{p.stem}.csv">numbers</a></figcaption></figure>'
        for p in sorted((folder / "figures").glob("*.png"))
    )
    tables = "".join(f'<li><a href="tables/{p.name}">{html.escape(p.stem.replace("_", " "))}</a></li>' for p in sorted((folder / "tables").glob("*.csv")))
    page = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>faithlib, {html.escape(profile)} report</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}}
img{{max-width:100%;border:1px solid #ddd}}figure{{margin:1.5rem 0}}figcaption,small{{color:#666}}</style>
<h1>Which highlight can you trust?</h1><p>The {html.escape(profile)} report: evidence is planted in real text, classifiers are trained to use it, and every salience method is asked where it is.</p>
<h2>Sections</h2><ul>{sections}</ul><h2>Figures</h2>{figures}<h2>Tables</h2><ul>{tables}</ul></html>"""
    part = folder / "index.html.part"
    part.write_text(page, encoding="utf-8")
    part.rename(folder / "index.html")


def warm(profile: str, say=print) -> None:
    """Fill the cache with all that the profile's notebooks ask for, with progress in the terminal, so that executing them is quick."""
    from faithlib import experiment, robustness_experiment
    from faithlib.distances import DistanceSettings

    last = notebooks(["99"])[0]
    values = {**declared(last), **parameters(profile, last)}
    run_settings = settings.from_notebook(values)
    for model in run_settings.experiment.model_names:
        for shortcut in (None, *run_settings.experiment.shortcuts):
            experiment.classifier(run_settings.experiment, model, shortcut)
            say(f"{model}, {(shortcut or 'source data').replace('_', ' ')}: trained")
    say(f"{len(experiment.verified_pairs(run_settings.experiment))} pairs verified")
    experiment.needed(run_settings.experiment)
    for role in ("mixed", "source"):
        experiment.everything(run_settings, role)
        say(f"{role} models explained")
    seven = notebooks(["07"])[0]
    values = {**declared(seven), **parameters(profile, seven)}
    attacks = robustness_experiment.from_notebook(values)
    for run in (attacks, robustness_experiment.ablations(attacks)):
        robustness_experiment.everything(run)
        say(f"{', '.join(run.trials)}: attacked")
    robustness_experiment.measured(robustness_experiment.everything(attacks).steps, settings=settings.parse(DistanceSettings, values["distances"]))
    say("attacked sentences measured")


def store(profile: str = QUICK) -> None:
    """Put the executed notebooks' outputs into ``notebooks/``, for readers of the repository."""
    folder = paths.report_root(profile)
    for notebook in notebooks():
        executed, source = folder / notebook.name, nbformat.read(notebook, 4)
        if not _is_current(executed, _fingerprint(notebook, parameters(profile, notebook))):
            raise ReportError(f"{executed} is not of the present sources; run the report first")
        outputs = {cell.id: cell for cell in nbformat.read(executed, 4).cells if cell.cell_type == "code"}
        for cell in source.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = outputs[cell.id].outputs, outputs[cell.id].execution_count
        nbformat.write(source, notebook)


def clean(profile: str) -> None:
    """Remove a profile's built report, the committed tables of the laptop run aside."""
    folder = paths.report_root(profile)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name == "tables" and profile == "laptop":
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
