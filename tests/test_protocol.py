"""Your own data, shortcut, model and method as plain functions."""

import functools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from faithlib import assets, experiment, faithfulness, figures, protocol, report, settings
from faithlib.data import DATASETS, Example
from faithlib.models import MODELS, ModelSettings
from faithlib.protocol import Protocol, enter_method, enter_model
from faithlib.registry import UnknownNameError
from faithlib.salience import SALIENCE, explain
from faithlib.shortcuts import SHORTCUTS

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


@pytest.fixture(autouse=True)
def clean_registries():
    before = [(registry, set(registry)) for registry in (DATASETS, SHORTCUTS, MODELS, SALIENCE)]
    yield
    for registry, names in before:
        for name in set(registry) - names:
            registry.remove(name)


def pairs():
    """Every text another; one word decides."""
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


TRAINING = "learning_rate=5e-3 max_passes=4 patience=4"


def test_all_four_are_plain_functions():
    mine = Protocol(pairs, first_word, small_bert, TRAINING, "synthetic_share=1", window=24)
    [row] = mine.verification().itertuples()
    assert (row.dataset, row.shortcut, row.model, row.verified, row.n_cut) == ("pairs", "first_word", "small_bert", True, 0)
    board = mine.leaderboard([earliness, lateness, "gradient_l2"], n=20)
    column = "small bert, first word"
    assert board.loc["earliness", column] == "1.00 [1.00, 1.00] n=20"
    assert board.loc["lateness", column] == "0.00 [0.00, 0.00] n=20"
    assert board.loc["earliness", "false alarm"] > 0.7  # it looks nowhere, so it says the same of a model that does not use the word
    assert list(board["mean"]) == sorted(board["mean"], reverse=True)
    assert {"Random", "Gradient L2"} <= set(board.index)


@pytest.mark.slow
def test_what_was_defined_anew_is_asked_anew_and_another_protocol_of_the_same_names_changes_nothing():
    def build(first):
        def rule(rng, words, label, markers, window):
            marker = (markers.zero, markers.one)[label]
            return Example((marker, *words) if first else (words[0], marker, *words[1:]), label, (0 if first else 1,))

        return rule

    asked = (small_bert, "learning_rate=5e-3 max_passes=9 patience=3 least_gain=0.005", "synthetic_share=1", 24)
    front = Protocol(pairs, build(True), *asked)
    before = front.scores(earliness, 20, "source")
    assert before["precision_at_k"].tolist() == [1.0] * 20
    back = Protocol(pairs, build(False), *asked)
    assert back.scores(earliness, 20, "source")["precision_at_k"].tolist() == [0.0] * 20
    assert back.verification()["verified"].all()
    assert not len(back.needed())  # a rule of one token
    pd.testing.assert_frame_equal(front.scores(earliness, 20, "source"), before)


def test_a_report_gets_one_row_more_on_its_own_models_and_examples(monkeypatch):
    """The table that section 05 makes, and beside it the new method on the same texts."""
    lines = report.declared(report.notebooks(["05"])[0]) | {
        "data": f"name=local_file path={protocol._as_file(pairs).path}",
        "shortcuts": "single_token",
        "models": "lstm",
        "lstm": "weights=random window=24 hidden_size=16 embedding_size=16 dropout=0",
        "lstm_training": "learning_rate=2e-2 max_passes=8 patience=8",
        "lstm_examples": "random:30 gradient:30",
        "lstm_long": "",
        "lstm_control": "random:30 gradient:30",
        "long_on": "",
    }
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
    assert set(figures.overview(theirs)["name"]) < set(board.index)
    more = Protocol.of_report().leaderboard(["gradient_l2;of=probability", "lime;mask=erase;samples=100"], n=10)
    assert {"Gradient L2, probability", "LIME, erase, 100"} <= set(more.index)  # asked for, though the overview has other configurations


def test_pairs_of_text_and_label_are_a_table_of_which_a_tenth_is_test():
    def few():
        return [(f"text {i}", "ab"[i % 2]) for i in range(40)]

    dataset = experiment.texts(Protocol(few, "single_token", small_bert).experiment)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [33, 3, 4]  # a tenth of what is left, each
    assert dataset.label_names == ("a", "b")


def test_a_method_s_scores_of_what_is_not_rankable_do_not_count(tiny_bert):
    enter_method(lateness)
    [explanation] = explain(tiny_bert, "a good film", "lateness")
    assert explanation.scores["lateness"].tolist() == [1, 2, 3]
    together = explain(tiny_bert, ["a good film", "a good and moving film"], "lateness")
    assert [len(e.scores["lateness"]) for e in together] == [3, 5]


def _named(name, function):
    function.__name__ = function.__qualname__ = name
    return function


def _rule(make):
    return lambda: Protocol(pairs, _named("r", lambda rng, words, label, markers, window: make(rng, words, label, markers)), small_bert)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (_rule(lambda rng, words, y, m: ("a", "b")), r"r, label 0: returned \('a', 'b'\), not an Example with that label"),
        (_rule(lambda rng, words, y, m: Example(words, y)), r"its evidence is \[\]; it must be positions of planted markers"),
        (_rule(lambda rng, words, y, m: Example(words, y, (0,))), r"its evidence is \['some'\].* are #0, #1, #c"),
        (_rule(lambda rng, words, y, m: Example((*words, m.zero), y, (len(words),))), "and not the same words, must decide"),
        (_rule(lambda rng, words, y, m: Example((*words, m.zero), y, (-1,))), r"r, label 0: marks the positions \(-1,\) of 16 words"),
        (_rule(lambda rng, words, y, m: Example((m.zero, *np.random.default_rng().permutation(words)), y, (0,))), "r, label 0: plants differently when asked twice"),
        (lambda: Protocol(pairs, models=["gpt"]), "unknown model 'gpt'; choose from: bert, lstm, or give a function"),
        (lambda: Protocol(lambda: pd.DataFrame({"body": ["x"], "label": [0]}), models=small_bert), "data <lambda>: no column 'text'; it has: body, label"),
        (lambda: Protocol(pairs, [first_word, _named("first_word", lambda *given: first_word(*given))], small_bert), "two functions are called 'first_word'"),
        (lambda: Protocol(pairs, _named("ordered_pair", lambda *given: first_word(*given)), small_bert), "shortcut 'ordered_pair' is taken"),
        (lambda: Protocol(pairs, models=_named("lstm", lambda *given: small_bert(*given))), "model family 'lstm' is taken"),
        (lambda: enter_method(_named("lime", lambda *given: None)), "salience family 'lime' is taken"),
        (lambda: enter_method(_named("gradient_l2", lambda *given: None)), "salience method 'gradient_l2' is of the family 'gradient'"),
    ],
)
def test_what_cannot_be_asked_says_why(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Protocol(None, models=small_bert), r"data yours: a NoneType; give a line, a table with text and label, \(text, label\) pairs, or a function"),
        (lambda: Protocol(lambda: [("a", "b", "c")], models=small_bert), "data <lambda>: a list; give a line"),
        (lambda: protocol._listed("shortcuts", [3]), "shortcuts holds 3; give names, or functions"),
        (lambda: enter_method(functools.partial(lateness)), "has no name to appear under; wrap it in a function"),
        (lambda: _build(lambda texts, markers: "bert"), r"m returned a str, not \(a classifier of transformers, its tokenizer\)"),
        (lambda: _build(lambda texts, markers: (OwnBert(BertConfig()), None)), "returned a OwnBert, which Auto.* would load as BertForSequenceClassification"),
    ],
)
def test_what_is_something_else_says_what_it_should_be(ask, message):
    with pytest.raises(TypeError, match=message):
        ask()


class OwnBert(BertForSequenceClassification):
    """Saved, it would be loaded as another class."""


def _build(function):
    return MODELS[enter_model(_named("m", function))](ModelSettings(window=32), [], ["#0", "#1", "#c"])


def test_a_decoder_without_a_padding_token_and_heads_that_decide_otherwise(tiny_gpt2, tiny_roberta):
    built = _build(lambda texts, markers: (tiny_gpt2.model, tiny_gpt2.tokenizer))
    assert built.tokenizer.pad_token_id == built.model.config.pad_token_id is not None
    assert built.model is not tiny_gpt2.model  # one that the function keeps must not be trained twice
    assert tiny_gpt2.tokenizer.pad_token_id is None
    with pytest.raises(ValueError, match="m has 3 outputs"):
        _build(lambda texts, markers: (tiny_roberta.model, tiny_roberta.tokenizer))


def test_a_method_is_asked_a_few_texts_at_a_time_and_leaves_no_gradients(tiny_bert, monkeypatch):
    sizes = []

    def seen(model, batch, target):
        sizes.append((tuple(batch.ids.shape), len(target)))
        model.logits(batch).sum().backward()
        return batch.lengths[:, None] * batch.rankable.cumsum(1).float()

    texts = ["a film"] * 600 + ["a much longer sentence about a great actor in a warm story"] * 300
    enter_method(seen)
    found = explain(tiny_bert, texts, "seen")
    assert len(sizes) > 2
    assert all(rows * width <= 4096 and rows == n for (rows, width), n in sizes)
    assert found[0].scores["seen"].tolist() == [4, 8]
    assert found[-1].scores["seen"].tolist() == [float(14 * i) for i in range(1, 13)]
    assert all(parameter.grad is None for parameter in tiny_bert.model.parameters())


def test_scores_of_another_shape_or_that_are_no_numbers(tiny_bert):
    enter_method(_named("short", lambda model, batch, target: torch.zeros(1, 2)))
    with pytest.raises(ValueError, match=r"short returned scores of shape \(1, 2\); the batch has \(1, 5\), \(text, token\)"):
        explain(tiny_bert, "a good film", "short")
    enter_method(_named("nothing", lambda model, batch, target: batch.rankable / 0.0 * 0))
    with pytest.raises(ValueError, match="nothing returned scores that are not finite"):
        explain(tiny_bert, "a good film", "nothing")
    with pytest.raises(UnknownNameError, match="unknown shortcut 'last'"):
        Protocol(pairs, "last", small_bert)
    with pytest.raises(ValueError, match="two methods are called 'short'"):
        Protocol(pairs, "single_token", small_bert).scores(["short", _named("short", lambda *given: None)])


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
