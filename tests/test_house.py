"""The house holds itself to its own rules."""

import ast
import itertools
import re
from pathlib import Path

import nbformat
import pytest
import yaml

from faithlib import cache, paths, report

ROOT = Path(__file__).resolve().parent.parent
ROOMS = [
    "assets",
    "data",
    "shortcuts",
    "models",
    "training",
    "salience",
    "attribution",
    "distances",
    "attack",
    "faithfulness",
    "suspects",
    "robustness",
    "settings",
    "experiment",
    "robustness_experiment",
    "claims",
    "figures",
    "robustness_figures",
    "heatmap",
    "ranking",
    "audit",
    "report",
    "protocol",
    "cli",
]
MODULES = sorted(path for path in (ROOT / "faithlib").rglob("*.py") if path.name != "__main__.py")
NOTEBOOKS = report.notebooks()
YAMLS = sorted((ROOT / "params").rglob("*.yaml"))


def _room(module: str) -> int:
    if module in cache.GROUND_FLOOR:
        return -1
    return ROOMS.index(module.split(".")[1])


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_point_left(path):
    name = _name(path)
    wrong = [found for found in cache.imports(name) if _room(found) > _room(name)]
    assert not wrong, f"{name} imports {wrong}, which is on its right"


def test_evidence_is_made_by_shortcuts_and_the_models_never_see_it():
    readers = {_name(path) for path in MODULES if re.search(r"\.evidence\b", path.read_text())}
    assert readers <= {"faithlib.data", "faithlib.shortcuts", "faithlib.experiment", "faithlib.faithfulness"}


def test_one_list_of_pins():
    pins = dict(line.split("==") for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0] != "#")
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert {"pip": ["-r requirements.txt"]} in environment["dependencies"]
    project = (ROOT / "pyproject.toml").read_text()
    ranges = re.findall(r'"([A-Za-z][\w-]*)>=([\d.]+),<([\d.]+)"', project)
    assert {name for name, _, _ in ranges} == set(pins)

    def version(text):
        return [int(part) for part in text.split(".")]

    for name, low, high in ranges:
        assert version(low) <= version(pins[name]) < version(high), name


def test_data_packages_are_pinned_in_one_place():
    from faithlib.assets import PACKAGES

    listed = [line for line in (ROOT / "requirements-data.txt").read_text().splitlines() if line and line[0] != "#"]
    assert sorted(PACKAGES.values()) == sorted(listed)


# Parameters


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_parameter_is_declared_with_its_type(path):
    values = yaml.safe_load(path.read_text())
    owners = NOTEBOOKS if path.stem == "_shared" else [n for n in NOTEBOOKS if n.stem == path.stem]
    for name, value in values.items():
        defaults = [report.declared(n)[name] for n in owners if name in report.declared(n)]
        assert defaults, f"{path}: no notebook declares {name}"
        assert all(type(value) is type(default) for default in defaults)


def test_a_misspelt_or_mistyped_parameter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "PARAMS", tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f"{NOTEBOOKS[0].stem}.yaml").write_text("sede: 3")
    with pytest.raises(report.ReportError, match="no parameter 'sede'; choose from: profile, seed"):
        report.parameters("mine", NOTEBOOKS[0])
    for wrong in ("seed: '01'", "seed: null", "seed: [0]", "seed: 1.5", "seed: true", "lstm: 3"):
        (tmp_path / "mine" / f"{NOTEBOOKS[0].stem}.yaml").write_text(wrong)
        with pytest.raises(report.ReportError, match="declares a"):
            report.parameters("mine", NOTEBOOKS[0])
    with pytest.raises(report.ReportError, match="unknown profile 'yours'; choose from: quick, mine"):
        report.parameters("yours", NOTEBOOKS[0])


def test_a_parameter_has_one_default():
    seen = {}
    for notebook in NOTEBOOKS:
        for name, value in report.declared(notebook).items():
            assert seen.setdefault(name, value) == value, f"{notebook.name}: {name}"


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_profile_says_only_what_differs_from_the_defaults(path):
    defaults = {}
    for notebook in NOTEBOOKS:
        if path.stem in ("_shared", notebook.stem):
            defaults.update(report.declared(notebook))
    values = yaml.safe_load(path.read_text())
    assert not [name for name, value in values.items() if defaults[name] == value]


@pytest.mark.parametrize("profile", report.profiles())
def test_every_profile_makes_an_experiment(profile):
    from faithlib import robustness_experiment, settings

    last = NOTEBOOKS[-1]
    run = settings.from_notebook({**report.declared(last), **report.parameters(profile, last)})
    for name in run.experiment.model_names:
        assert settings.plan(run.examples[name])
        assert settings.plan(run.control[name])
    seven = next(path for path in NOTEBOOKS if path.stem.startswith("07"))
    attacks = robustness_experiment.from_notebook({**report.declared(seven), **report.parameters(profile, seven)})
    for trial in attacks.trials.values():
        trial.settings(0)


def test_the_paper_profile_attacks_the_papers_pairs_on_the_papers_data():
    """Ivankay et al. (2022): 16 pairs of model and attribution, attention where the model has it, on five data sets; GPT-2 and LanguageTool measure."""
    from faithlib import robustness_experiment, settings
    from faithlib.distances import DistanceSettings

    seven = next(path for path in NOTEBOOKS if path.stem.startswith("07"))
    values = {**report.declared(seven), **report.parameters("paper", seven)}
    attacks = robustness_experiment.from_notebook(values)
    plain, attentive = {"cnn", "lstm_ends"}, {"lstm", "bert", "roberta", "xlnet"}
    assert {name for name, _ in attacks.plan} == plain | attentive
    assert [attribution.partition(";")[0] for attribution in attacks.attributions] == ["saliency", "integrated_gradients", "attention"]
    assert dict(attacks.runs[0].model("lstm_ends")[0].options)["pooling"] == "ends"
    assert {"mr", "ag_news", "imdb", "yelp", "fake_news"} < {run.data.name for run in attacks.runs}
    assert {run.seed for run in attacks.runs} == {0, 1, 2}
    assert settings.parse(DistanceSettings, values["distances"]) == DistanceSettings("hub", "localhost:8081")


# Notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_opens_in_one_order(path):
    cells = nbformat.read(path, 4).cells
    assert re.match(r"# [A-Z]\w+", cells[0].source)
    for heading in ("**What you'll do:**", "**What you'll learn:**", "**What you'll need:**"):
        assert heading in cells[0].source
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code[0].metadata["tags"] == ["parameters"]
    assert "import" in code[1].source
    assert {"profile", "seed"} <= set(report.declared(path))
    assert sum("<summary>Answer</summary>" in cell.source for cell in cells) == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_keeps_the_budget(path):
    cells = nbformat.read(path, 4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert len(code) <= 25
    for previous, cell in itertools.pairwise(cells):
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= (35 if "parameters" in cell.metadata.get("tags", []) else 25)  # parameters: a line each, to look up
            assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(cell.source)))
            assert previous.cell_type == "markdown" or previous.metadata.get("tags") == ["parameters"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_holds_the_outputs_of_a_fresh_run_in_order(path):
    """nbval passes silently on a stripped notebook, so the stored outputs are demanded here."""
    code = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert not any(output.output_type == "error" for output in cell.outputs)
        if "nbval-check-output" in cell.metadata.get("tags", []):
            text = "".join(output.get("text", "") for output in cell.outputs)
            assert text.strip()
            assert not re.search(r"\d\.\d{3}", text), "a checked cell prints a verdict, never a measured number"
    assert path.stat().st_size < 1_500_000


def test_every_notebook_checks_something():
    for path in NOTEBOOKS:
        if not path.stem.startswith("00"):
            assert any("nbval-check-output" in cell.metadata.get("tags", []) for cell in nbformat.read(path, 4).cells), path.stem


def test_no_name_of_a_machine_in_what_is_committed():
    """Every file is readable on its own: no absolute folder of the machine that made it."""
    home = re.compile(r"/(?:home|root|Users|tmp|work)/\w")
    for path in [*NOTEBOOKS, *MODULES, ROOT / "README.md", ROOT / "Makefile", ROOT / "CONTRIBUTING.md"]:
        found = home.search(path.read_text())
        assert not found, f"{path.name}: {found}"
