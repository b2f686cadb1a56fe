import os
import re
import signal
import subprocess
import sys
import time

import nbformat
import pandas as pd
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from faithlib import figures, heatmap, paths, report


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A report folder with a space in its name and two small sections."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(paths, "PARAMS", tmp_path / "params")
    monkeypatch.setenv("FAITHLIB_REPORT", str(tmp_path / "my report"))
    monkeypatch.setenv("FAITHLIB_ROOT", str(paths.ROOT))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "params" / "other").mkdir(parents=True)
    (tmp_path / "params" / "other" / "_shared.yaml").write_text("seed: 5")
    _section(tmp_path, "01_first", "print('seed', seed, profile)")
    return tmp_path


def _section(root, stem, source, parameter=""):
    notebook = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    notebook.cells = [
        new_markdown_cell(f"# Show {stem} <b>&amp;</b>"),
        new_code_cell(f'profile: str = "quick"\nseed: int = 0\n{parameter}', metadata={"tags": ["parameters"]}),
        new_code_cell(source),
    ]
    nbformat.write(notebook, root / "notebooks" / f"{stem}.ipynb")


def _run(profile="quick"):
    said = []
    report.run(profile, say=said.append)
    return said


def test_a_second_run_does_nothing_and_says_so_and_a_change_is_run(house):
    assert _run()[-2] == "1 notebooks executed"
    assert (house / "my report" / "index.html").is_file()
    said = _run()
    assert "01_first: unchanged" in said
    assert said[-2].startswith("0 of 1")
    _section(house, "01_first", "print('other')")
    assert "01_first: running" in _run()
    _section(house, "02_second", "print('new')")
    assert [line for line in _run() if "running" in line] == ["02_second: running"]


def test_a_profile_reaches_the_notebook(house):
    _run("other")
    cells = nbformat.read(house / "my report" / "01_first.ipynb", 4).cells
    assert "seed 5 other" in str(cells)


def test_a_failing_cell_names_notebook_and_cell_and_is_not_taken_for_done(house):
    _section(house, "02_broken", "print('as far as here')\nraise ValueError('no such luck')")
    for _ in range(2):
        with pytest.raises(report.ReportError, match=r"02_broken.ipynb, cell 2: ValueError: no such luck"):
            _run()
        assert not (house / "my report" / "02_broken.ipynb").exists()
        assert "as far as here" in str(nbformat.read(house / "my report" / "02_broken.part.ipynb", 4))
    assert (house / "my report" / "01_first.ipynb").is_file()


MEET = """
import pathlib, time
here = pathlib.Path({folder!r})
(here / {mine!r}).touch()
until = time.monotonic() + 60
while not (here / {other!r}).exists() and time.monotonic() < until:
    time.sleep(0.05)
assert (here / {other!r}).exists(), 'alone'
"""


THREADS = "import os\nprint('threads', os.environ.get('OMP_NUM_THREADS'))\n"


def test_notebooks_run_side_by_side_and_what_measures_time_runs_alone(house, monkeypatch):
    """Two that wait for each other both end; the one that measures time starts when both have ended, with all cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(report, "_n_cores", lambda: 6)
    for mine, other in (("one", "two"), ("two", "one")):
        last = f"time.sleep(1)\n(here / 'end of {mine}').touch()"
        _section(house, f"0{1 + (mine == 'two')}_{mine}", THREADS + MEET.format(folder=str(house), mine=mine, other=other) + last)
    (house / "notebooks" / "01_first.ipynb").unlink()
    ends = f"import pathlib\nprint(sorted(path.name for path in pathlib.Path({str(house)!r}).glob('end of *')))"
    _section(house, "00_timed", THREADS + ends, 'timed: str = "cnn:5"')
    said = [line for line in _run() if "done" not in line]
    assert sorted(said[:2]) == ["01_one: running", "02_two: running"]
    assert said[2] == "00_timed: running"
    printed = {stem: nbformat.read(house / "my report" / f"{stem}.ipynb", 4).cells[-1].outputs[0].text for stem in ("00_timed", "01_one", "02_two")}
    assert printed == {"00_timed": "threads None\n['end of one', 'end of two']\n", "01_one": "threads 3\n", "02_two": "threads 3\n"}
    assert "OMP_NUM_THREADS" not in os.environ


def test_chosen_notebooks_run_one_by_one(house):
    """They are not prepared for: two would train the same model at a time."""
    _section(house, "02_second", "print(2)")
    said = []
    report.run("quick", ["01", "02"], said.append)
    assert [line.split(" in ")[0] for line in said[:4]] == ["01_first: running", "01_first: done", "02_second: running", "02_second: done"]


def test_a_notebook_owns_the_figures_of_its_number_whatever_another_writes_meanwhile(house):
    write = "import os, pathlib\np = pathlib.Path(os.environ['FAITHLIB_REPORT']) / 'figures'\np.mkdir(exist_ok=True)\n"
    _section(house, "01_first", write + "(p / '01_a.csv').write_text('1')\n" + MEET.format(folder=str(house), mine="one", other="two"))
    _section(house, "02_second", MEET.format(folder=str(house), mine="two", other="one") + write + "(p / '02_b.csv').write_text('1')")
    _run()
    (house / "my report" / "figures" / "01_a.csv").unlink()
    assert [line for line in _run() if "running" in line] == ["01_first: running"]


def test_those_that_fail_do_not_stop_the_others_and_all_are_named(house):
    for stem in ("00_broken", "03_broken"):
        _section(house, stem, "raise ValueError('no such luck')")
    _section(house, "02_timed", "print('done')", 'budget: str = "4m"')
    said = []
    with pytest.raises(report.ReportError, match=r"(?s)00_broken.ipynb, cell 2: ValueError: no such luck.*03_broken.ipynb, cell 2: ValueError"):
        report.run("quick", say=said.append)
    assert "03_broken: failed" in said
    assert {path.name for path in (house / "my report").glob("0*.html")} == {"01_first.html", "02_timed.html"}
    assert "02_timed.html" in (house / "my report" / "index.html").read_text()


def test_ctrl_c_ends_the_kernels(house):
    """In a process of its own: the interrupt comes while a cell sleeps for two minutes, after another notebook has failed; a third is not begun."""
    _section(house, "00_broken", "raise ValueError('no such luck')")
    _section(house, "02_second", "import time\ntime.sleep(120)")
    _section(house, "03_third", "import time\ntime.sleep(120)")
    _section(house, "01_first", f"import os, pathlib, time\n(pathlib.Path({str(house)!r}) / 'pid').write_text(str(os.getpid()))\ntime.sleep(120)")
    program = f"""
import signal
from pathlib import Path
from faithlib import paths, report
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may have been started without
paths.NOTEBOOKS = Path({str(house / "notebooks")!r})
report.run("quick")
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=paths.ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        try:
            until = time.monotonic() + 90
            while not ((house / "pid").exists() and (house / "my report" / "00_broken.part.ipynb").exists()) and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(2)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not psutil.pid_exists(int((house / "pid").read_text()))
    assert not list((house / "my report").glob("0[123]_*[a-z].html"))


def test_the_pages_are_static(house):
    _run()
    page = (house / "my report" / "01_first.html").read_text()
    assert "seed 0 quick" in page
    assert not re.findall(r'<script[^>]*src="http', page)
    assert "Show 01_first &lt;b&gt;&amp;amp;&lt;/b&gt;" in (house / "my report" / "index.html").read_text()


def test_a_missing_figure_is_made_again(house):
    _section(
        house,
        "01_first",
        "import os, pathlib\np = pathlib.Path(os.environ['FAITHLIB_REPORT']) / 'figures'\np.mkdir(exist_ok=True)\n(p / 'x.csv').write_text('1')",
    )
    _run()
    (house / "my report" / "figures" / "x.csv").unlink()
    assert "01_first: running" in _run()


def test_parameters_cell_must_be_annotated_literals(house):
    notebook = nbformat.read(house / "notebooks" / "01_first.ipynb", 4)
    notebook.cells[1].source = "seed = 0"
    nbformat.write(notebook, house / "notebooks" / "01_first.ipynb")
    with pytest.raises(report.ReportError, match="line 1 of the parameters cell"):
        _run()


# What is shown

NASTY = ["<b>", "<!--", "<script>alert(1)</script>", "&amp;", "$x$", "_a_", "`c`", "<br", "/>", "\\(y\\)"]


def test_heat_maps_and_tables_show_texts_literally():
    from html.parser import HTMLParser

    class Text(HTMLParser):
        def __init__(self):
            super().__init__(convert_charrefs=True)
            self.text, self.tags = "", set()

        def handle_data(self, data):
            self.text += data

        def handle_starttag(self, tag, attrs):
            self.tags.add(tag)

    for page in (heatmap.line(NASTY, range(len(NASTY))), heatmap.table(pd.DataFrame({"text": NASTY})), heatmap.rows(NASTY, {"<i>": [0.0] * len(NASTY)})):
        reader = Text()
        reader.feed(page)
        assert all(token in reader.text.replace("\n", "") for token in NASTY)
        assert not reader.tags & {"b", "script", "i", "br"}
        assert not re.search(r"\$[^<]*\$", page), "two dollars in one piece of text open a formula"


def test_heat_map_colours_follow_sign_and_size():
    page = heatmap.line(["a", "b", "c", "d"], [2.0, -2.0, 0.0, 0.1], evidence=[1])
    spans = re.findall(r"<span style=\"background:rgb\((\d+),(\d+),(\d+)\);(outline)?", page)
    red, _, blue = zip(*[tuple(map(int, s[:3])) for s in spans], strict=True)
    assert red[0] > blue[0]
    assert blue[1] > red[1]
    assert (red[2], blue[2]) == (255, 255)
    assert blue[0] < blue[3] < 255
    assert [bool(s[3]) for s in spans] == [False, True, False, False]
    assert heatmap.line([], []) == ""
    with pytest.raises(ValueError, match="1 scores for 2 tokens"):
        heatmap.line(["a", "b"], [1.0])


def test_a_figure_is_saved_with_its_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("FAITHLIB_REPORT", str(tmp_path))
    figure, data = figures.salience_grid(["$x$", "b"], {"gradient_l2": [1.0, 0.5]}, [0])
    figures.save(figure, "grid", data, "quick")
    assert {p.suffix for p in (tmp_path / "figures").iterdir()} == {".png", ".svg", ".csv"}
    assert pd.read_csv(tmp_path / "figures" / "grid.csv")["score"].tolist() == [1.0, 0.5]


def test_the_overview_keeps_a_method_that_it_does_not_know():
    rows = pd.DataFrame({"method": ["occlusion", "lime"], "config": ["", "mask=unk;samples=3000"], "role": "mixed"})
    assert figures.overview(rows)["method"].tolist() == ["occlusion"]


def test_false_alarms_show_what_each_model_was_asked_and_nothing_without_a_control():
    asked = [("lstm", "lime", "mask=unk;samples=100"), ("lstm", "gradient_l2", "of=logit"), ("bert", "gradient_l2", "of=logit")]
    rows = pd.DataFrame(
        [
            {"model": m, "shortcut": "single_token", "method": method, "config": c, "role": role, "precision_at_k": value, "random_precision": 0.1}
            | {"precision_at_k_low": value - 0.1, "precision_at_k_high": value + 0.05, "n": 300 if role == "mixed" else 12}
            for m, method, c in asked
            for role, value in (("mixed", 0.9), ("source", 0.2))
        ]
    )
    figure, numbers = figures.false_alarms(rows)
    assert [[text.get_text() for text in axis.get_yticklabels()] for axis in figure.axes] == [
        ["Gradient L2 (n=12)", "LIME, unk, 100 (n=12)"],
        ["Gradient L2 (n=12)"],
    ]
    ends = [tuple(map(float, bar.get_segments()[0][:, 0])) for axis in figure.axes for container in axis.containers for bar in container[2]]
    assert ends == [(pytest.approx(0.1), pytest.approx(0.25))] * 2
    assert (numbers["precision_at_k_mixed"] - numbers["precision_at_k_source"]).tolist() == pytest.approx([0.7] * 3)
    assert len(figures.false_alarms(rows[rows["role"] == "mixed"])[1]) == 0


def test_a_pivot_has_no_column_for_the_name_of_its_columns():
    pivot = pd.DataFrame({"model": ["lstm"], "trial": ["tea"], "n": [3]}).pivot_table(index="model", columns="trial", values="n").reset_index()
    header = heatmap.table(pivot).split("</thead>")[0]
    assert re.findall(r"<th>(.*?)</th>", header) == ["model", "tea"]


def test_points_of_a_line_that_stand_for_different_numbers_of_texts_say_so():
    rows = pd.DataFrame(
        [
            {"model": m, "shortcut": "x", "role": "mixed", "method": "lime", "config": f"mask=unk;samples={samples}", "n": n}
            | {"precision_at_k": 0.5, "precision_at_k_low": 0.4, "precision_at_k_high": 0.6}
            for m, counts in {"lstm": (100, 100), "bert": (24, 6)}.items()
            for samples, n in zip((100, 1000), counts, strict=True)
        ]
    )
    figure, _ = figures.lime_budget(rows, "x")
    assert [[text.get_text() for text in axis.texts] for axis in figure.axes] == [[], ["n=24", "n=6"]]


def test_known_names_come_in_one_order_whatever_is_missing():
    assert figures.in_order(["ordered_pair", "mine", "single_token", "ordered_pair", "yours"]) == ["single_token", "ordered_pair", "mine", "yours"]


def test_every_file_that_a_parameter_names_is_part_of_the_fingerprint(tmp_path):
    file, folder = tmp_path / "my table.csv", tmp_path / "model"
    file.write_text("a")
    folder.mkdir()
    values = {"file": str(file), "tef": f"attack=tef candidates='{file}'", "model": str(folder), "sentence": "it's a film . really /", "n": 3}
    before = report._files_named(values)
    assert {name for name, _ in before} == {str(file), str(folder)}
    file.write_text("ab")
    changed = report._files_named(values)
    assert changed != before
    (folder / "weights").write_text("1")
    assert report._files_named(values) != changed
    assert report._files_named({"sentence": "nothing . here"}) == []
