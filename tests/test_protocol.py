"""Your own data, shortcut, model and method as plain functions."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from faithlib import assets, experiment, faithfulness, report, settings
from faithlib.data import DATASETS, DataSettings, Example
from faithlib.models import MODELS, ModelSettings
from faithlib.protocol import Protocol, enter_data, enter_method, enter_model
from faithlib.registry import UnknownNameError
from faithlib.salience import SALIENCE, explain
from faithlib.shortcuts import SHORTCUTS, Markers, enter_shortcut

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
MARKERS = Markers("#0", "#1", "#c")


@pytest.fixture(autouse=True)
def clean_registries():
    before = [(registry, set(registry)) for registry in (DATASETS, SHORTCUTS, MODELS, SALIENCE)]
    yield
    for registry, names in before:
        for name in set(registry) - names:
            registry.remove(name)


def pairs():
    rng = np.random.default_rng(0)
    words = [" ".join(rng.choice(["film", "a", "good", "dull", "warm", "long", "actor", "story", "the"], 6)) for _ in range(3000)]
    table = pd.DataFrame({"text": [f"{text} {i}" for i, text in enumerate(words)], "label": ["pos" if "good" in text else "neg" for text in words]})
    return table.assign(split=np.repeat(["train", "validation", "test"], [1700, 300, 1000]))


def first_word(rng, words, label, markers, window):
    return Example(((markers.zero, markers.one)[label], *words), label, (0,))


def lateness(model, batch, target):
    return batch.rankable.cumsum(1).float()


def earliness(model, batch, target):
    return -batch.rankable.cumsum(1).float()


def small_bert(texts, markers):
    config = BertConfig(num_labels=1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, hidden_dropout_prob=0.0)
    return BertForSequenceClassification(config), AutoTokenizer.from_pretrained(assets.minilm())


def test_all_four_are_plain_functions():
    mine = Protocol(pairs, [first_word], [small_bert], "learning_rate=5e-3 max_passes=4 patience=4", "synthetic_share=1", window=24)
    [row] = mine.verification().itertuples()
    assert (row.dataset, row.shortcut, row.model, row.verified) == ("pairs", "first_word", "small_bert", True)
    board = mine.leaderboard([earliness, lateness, "gradient_l2"], n=20)
    column = "small bert, first word"
    assert board.loc["earliness", column] == "1.00 [1.00, 1.00] n=20"
    assert board.loc["lateness", column] == "0.00 [0.00, 0.00] n=20"
    assert board.loc["earliness", "false alarm"] > 0.7  # it looks nowhere, so it says the same of a model that does not use the word
    assert list(board["mean"]) == sorted(board["mean"], reverse=True)
    assert {"Random", "Gradient L2"} <= set(board.index)


def test_a_report_gets_one_row_more_on_its_own_models_and_examples(monkeypatch):
    """The table that section 05 makes, and beside it the new method on the same texts."""
    lines = report.declared(report.notebooks(["05"])[0]) | {
        "data": "name=pairs",
        "shortcuts": "single_token",
        "models": "lstm",
        "lstm": "weights=random window=24 hidden_size=16 embedding_size=16 dropout=0",
        "lstm_training": "learning_rate=2e-2 max_passes=8 patience=8",
        "lstm_examples": "random:30 gradient:30",
        "lstm_long": "",
        "lstm_control": "random:30 gradient:30",
        "long_on": "",
    }
    enter_data(pairs)
    monkeypatch.setattr(report, "declared", lambda _notebook: lines)
    theirs = faithfulness.summarise(experiment.everything(settings.from_notebook(lines)))
    board = Protocol.of_report().leaderboard([earliness], n=30)
    column = "LSTM, single token"
    [l2] = theirs[(theirs["method"] == "gradient_l2") & (theirs["config"] == "of=logit")].itertuples()
    assert board.loc["Gradient L2", column].startswith(f"{l2.precision_at_k:.2f} [{l2.precision_at_k_low:.2f}, ")
    assert board.loc["earliness", column].endswith("n=30")
    asked = experiment.scores(settings.from_notebook(lines).experiment, "single_token", "lstm", (("earliness", 30),))
    assert board.loc["earliness", "mean"] == pytest.approx(asked["precision_at_k"].mean())
    assert np.isfinite(board.loc["earliness", "false alarm"])


def test_pairs_of_text_and_label_are_a_table_of_which_a_tenth_is_test():
    def few():
        return [(f"text {i}", "ab"[i % 2]) for i in range(40)]

    dataset = experiment.texts(Protocol(few, ["single_token"], ["lstm"]).experiment)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [33, 3, 4]  # a tenth of what is left, each
    assert dataset.label_names == ("a", "b")


def test_what_was_defined_anew_is_asked_anew():
    def build(sign):
        def again(rng, words, label, markers, window):
            return Example((*words, (markers.zero, markers.one)[label if sign > 0 else 1 - label]), label, (len(words),))

        return again

    protocol = Protocol(pairs, [build(1)], ["lstm"])
    first = experiment.mixed(protocol.experiment, "again", "lstm").synthetic_test[0]
    protocol = Protocol(pairs, [build(-1)], ["lstm"])
    second = experiment.mixed(protocol.experiment, "again", "lstm").synthetic_test[0]
    assert first.words[:-1] == second.words[:-1]
    assert first.words[-1] != second.words[-1]


def test_a_method_s_scores_of_what_is_not_rankable_do_not_count(tiny_bert):
    enter_method(lateness)
    [explanation] = explain(tiny_bert, "a good film", "lateness")
    assert explanation.scores["lateness"].tolist() == [1, 2, 3]
    together = explain(tiny_bert, ["a good film", "a good and moving film"], "lateness")
    assert [len(e.scores["lateness"]) for e in together] == [3, 5]


def _named(name, function):
    function.__name__ = function.__qualname__ = name
    return function


@pytest.mark.parametrize(
    ("enter", "message"),
    [
        (lambda: enter_shortcut(_named("r", lambda *_: ("a", "b")), MARKERS, 9), r"r, label 0: returned \('a', 'b'\), not an Example with that label"),
        (lambda: enter_shortcut(_named("r", lambda r, w, y, m, n: Example(w, y)), MARKERS, 9), r"its evidence is \[\]; it must be positions of planted markers"),
        (lambda: enter_shortcut(_named("r", lambda r, w, y, m, n: Example(w, y, (0,))), MARKERS, 9), r"its evidence is \['some'\].* are #0, #1, #c"),
        (
            lambda: enter_shortcut(_named("r", lambda r, w, y, m, n: Example((*w, m.zero), y, (len(w),))), MARKERS, 9),
            "and not the same words, must decide",
        ),
        (lambda: Protocol(models=["gpt"]), "unknown model 'gpt'; choose from: bert, lstm, or give a function"),
        (lambda: DATASETS[enter_data(_named("d", lambda: pd.DataFrame({"body": ["x"], "label": [0]})))](DataSettings()), r"d\(\) has no column 'text'; it has: body, label"),
    ],
)
def test_a_function_that_cannot_be_asked_says_why(enter, message):
    with pytest.raises(ValueError, match=message):
        enter()


def test_a_model_that_is_no_pair_and_scores_of_another_shape_or_without_a_number(tiny_bert):
    with pytest.raises(TypeError, match=r"m returned a str, not \(classifier, tokenizer\)"):
        MODELS[enter_model(_named("m", lambda texts, markers: "bert"))](ModelSettings(), [], [])
    enter_method(_named("short", lambda model, batch, target: torch.zeros(1, 2)))
    with pytest.raises(ValueError, match=r"'short' returned scores of shape \(1, 2\) for short; the batch has \(1, 5\)"):
        explain(tiny_bert, "a good film", "short")
    enter_method(_named("nothing", lambda model, batch, target: batch.rankable / 0.0 * 0))
    with pytest.raises(ValueError, match="nothing returned scores that are not finite"):
        explain(tiny_bert, "a good film", "nothing")
    with pytest.raises(UnknownNameError, match="unknown shortcut 'last'"):
        Protocol(shortcuts=["last"])


def test_the_package_s_own_names_are_not_taken_by_accident():
    with pytest.raises(ValueError, match="model family 'lstm' is taken by"):
        enter_model(_named("lstm", lambda texts, markers: None))
    with pytest.raises(ValueError, match="shortcut 'ordered_pair' is taken by faithlib.shortcuts._ordered_pair"):
        enter_shortcut(_named("ordered_pair", lambda *given: first_word(*given)), MARKERS, 9)


@pytest.mark.slow
def test_the_example_of_the_readme_runs_and_shows_what_it_says(capsys):
    [code] = [block for block in re.findall(r"```python\n(.*?)```", README, flags=re.S) if "from faithlib.protocol" in block]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 20
    quick = [line for line in lines if "of_report" not in line]  # the report's own models take longer than a test
    assert len(quick) == len(lines) - 1
    exec("\n".join(quick), {"__name__": "readme_example"})
    printed = capsys.readouterr().out
    assert re.search(r"lateness +1\.00", printed)
