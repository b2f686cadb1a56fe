import dataclasses
import functools
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from faithlib import cache, experiment, paths, settings
from faithlib.data import DataSettings
from faithlib.models import ModelSettings
from faithlib.salience import Configuration
from faithlib.shortcuts import SHORTCUTS, Markers, ShortcutSettings
from faithlib.training import TrainingSettings, accuracy

WORDS = "a the film movie plot actor scene story joke ending is was feels looks dull bad slow good great warm funny sad long short".split()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A single-token experiment with a tiny LSTM on 700 invented sentences in a CSV."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(5, 12))) for _ in range(700)]
    path = tmp_path_factory.mktemp("data folder") / "texts.csv"
    pd.DataFrame({"text": texts, "label": ["good" in t or "great" in t or "warm" in t for t in texts]}).astype({"label": int}).to_csv(path, index=False)
    model = ModelSettings("lstm", weights="random", window=24, dropout=0.0, options=(("hidden_size", 32), ("embedding_size", 16)))
    training = TrainingSettings(learning_rate=1e-2, batch_size=32, max_passes=30)
    data = DataSettings("local_file", path=str(path), n_validation=60, n_test=60)
    return settings.Experiment(data, ("single_token",), ShortcutSettings(), (("lstm", model, training),), 0)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered in the process."""
    monkeypatch.setenv("FAITHLIB_CACHE", str(tmp_path / "cache"))
    _forget()
    yield tmp_path / "cache"
    _forget()


def _forget():
    for function in (experiment.texts, experiment._content, experiment.mixed, experiment.classifier, experiment._right, experiment._right_without):
        function.cache_clear()


def test_a_pair_is_trained_verified_and_scored(small):
    [row] = experiment.verify(small).to_dict("records")
    assert row["synthetic_accuracy"] >= 0.97
    assert abs(row["source_on_synthetic"] - 0.5) < 0.2
    table = experiment.scores(small, "single_token", "lstm", settings.plan("random:20 gradient_times_input:20 lime;mask=unk;samples=100:5"))
    means = table.groupby("method")["precision_at_k"].mean()
    assert means["gradient_times_input"] > 0.8 > 0.4 > means["random"]
    assert table.groupby("method")["example"].nunique().to_dict() == {"random": 20, "gradient_times_input": 20, "lime": 5}
    for row in table.itertuples():
        assert [row.tokens[i] for i in row.evidence] in (["#0"], ["#1"])
        assert len(row.scores) == row.n_tokens == len(row.tokens)


def test_a_model_that_reads_less_than_the_rule_is_right_without_the_rest(small, fresh, monkeypatch):
    """Stand-ins for trained models: one that reads the whole rule and else says class 0, one that reads an indicator alone, one that reads the first marker alone."""
    rules = ("single_token", "token_in_context", "ordered_pair")
    where = dataclasses.replace(small, shortcuts=rules)
    monkeypatch.setattr(experiment, "verified_pairs", lambda *_: [(rule, "lstm") for rule in rules])
    monkeypatch.setattr(experiment, "classifier", functools.cache(lambda _where, _model, rule: rule))
    markers = Markers()

    def whole(rule, words):
        return SHORTCUTS[rule].read(words, markers) or 0

    def first(_rule, words):
        return next((int(word == markers.one) for word in words if word in (markers.zero, markers.one)), 0)

    for reads, known in (
        (whole, {"#c": 0.5, "the indicator": 0.5, "planted token 1": 0.5, "planted token 2": 0.5}),
        (first, {"#c": 1.0, "the indicator": 0.5, "planted token 1": 0.0, "planted token 2": 1.0}),
    ):
        _forget_what_was_asked(fresh)
        monkeypatch.setattr(experiment, "correct", lambda rule, examples, r=reads: np.array([r(rule, e.words) == e.label for e in examples]))
        table = experiment.needed(where)
        assert dict(zip(table["without"], table["still_right"], strict=True)) == known
        assert (table["shortcut"] == ["token_in_context"] * 2 + ["ordered_pair"] * 2).all()  # nothing is left of a rule of one token
        assert (table["n"] == 60).all()
        assert ((table["low"] <= table["still_right"]) & (table["still_right"] <= table["high"])).all()
    monkeypatch.setattr(experiment, "verified_pairs", lambda *_: [])
    assert list(experiment.needed(where).columns) == list(table.columns)


def _forget_what_was_asked(folder):
    experiment._right_without.cache_clear()
    for path in folder.glob("right-without-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_the_control_explains_the_model_that_never_saw_the_rule(small):
    wanted = settings.plan("gradient_times_input;of=logit:60")
    mixed, source = (experiment.scores(small, "single_token", "lstm", wanted, role) for role in ("mixed", "source"))
    assert source["precision_at_k"].mean() < mixed["precision_at_k"].mean() - 0.2
    assert list(source["tokens"].map(tuple)) == list(mixed["tokens"].map(tuple))
    with pytest.raises(ValueError, match="unknown role 'both'; choose from: mixed, source"):
        experiment.scores(small, "single_token", "lstm", wanted, "both")


def test_more_examples_and_more_steps_reuse_the_finished_parts(small, monkeypatch):
    asked = []
    whole = experiment.explain

    def counting(model, texts, methods, **rest):
        asked.append((len(texts), tuple(methods)))
        return whole(model, texts, methods, **rest)

    monkeypatch.setattr(experiment, "explain", counting)
    monkeypatch.setattr(experiment, "PASSES_PER_PART", 5)
    line = "gradient_mean;of=logit"
    first = experiment.scores(small, "single_token", "lstm", settings.plan(f"{line}:10"))
    n_calls = len(asked)
    assert n_calls == 2
    again = experiment.scores(small, "single_token", "lstm", settings.plan(f"{line}:10"))
    assert len(asked) == n_calls
    pd.testing.assert_frame_equal(first, again)
    experiment.scores(small, "single_token", "lstm", settings.plan(f"{line}:15"))
    assert len(asked) == n_calls + 1


def test_a_killed_run_keeps_what_was_finished(small, monkeypatch):
    whole, calls = experiment.explain, []

    def killed(model, texts, methods, **rest):
        calls.append(len(texts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(model, texts, methods, **rest)

    monkeypatch.setattr(experiment, "PASSES_PER_PART", 4)
    monkeypatch.setattr(experiment, "explain", killed)
    wanted = settings.plan("gradient_l1;of=logit:8")
    with pytest.raises(KeyboardInterrupt):
        experiment.scores(small, "single_token", "lstm", wanted)
    table = experiment.scores(small, "single_token", "lstm", wanted)
    assert calls == [4, 4, 4]
    assert sorted(table["example"]) == list(range(8))


def test_nothing_is_served_for_other_settings(small):
    key = experiment.classifier_key(small, "lstm", "single_token")
    model, training = small.model("lstm")
    changed = [
        dataclasses.replace(small, seed=1),
        dataclasses.replace(small, data=dataclasses.replace(small.data, n_test=61)),
        dataclasses.replace(small, shortcut=ShortcutSettings(window=49)),
        dataclasses.replace(small, shortcut=ShortcutSettings(markers=Markers("#0", "#1", "#d"))),
        dataclasses.replace(small, models=(("lstm", dataclasses.replace(model, dropout=0.1), training),)),
        dataclasses.replace(small, models=(("lstm", model, dataclasses.replace(training, learning_rate=2e-2)),)),
    ]
    keys = {key, *(experiment.classifier_key(other, "lstm", "single_token") for other in changed)}
    assert len(keys) == 7
    assert experiment.classifier_key(small, "lstm", None) not in keys


def test_history_is_read_from_where_the_classifier_was_trained_and_never_from_an_empty_folder(small, tmp_path, monkeypatch):
    experiment.classifier(small, "lstm", None)  # remembered in the process
    assert experiment.history(small, "lstm", None)["source"].between(0, 1).all()
    trained = []
    monkeypatch.setenv("FAITHLIB_CACHE", str(tmp_path))
    monkeypatch.setattr(experiment, "fit", lambda *args: trained.append(args) or [{"pass": 1.0, "source": 0.5}])
    assert experiment.history(small, "lstm", None)["source"].tolist() == [0.5]
    assert len(trained) == 1


def test_a_changed_data_file_is_another_experiment(small, tmp_path):
    copy = tmp_path / "texts.csv"
    copy.write_text(Path(small.data.path).read_text())
    before = dataclasses.replace(small, data=dataclasses.replace(small.data, path=str(copy)))
    key = experiment.classifier_key(before, "lstm", None)
    copy.write_text(copy.read_text().replace("dull", "bleak"))
    assert experiment.classifier_key(before, "lstm", None) != key
    assert not any("dull" in example.words for example in experiment.texts(before).train)  # in the same process too


def test_another_model_beside_it_retrains_nothing(small):
    model, training = small.model("lstm")
    beside = dataclasses.replace(small, models=(*small.models, ("other", dataclasses.replace(model, dropout=0.3), training)))
    assert experiment.classifier_key(beside, "lstm", "single_token") == experiment.classifier_key(small, "lstm", "single_token")


def test_a_source_model_does_not_depend_on_the_shortcut(small):
    other = dataclasses.replace(small, shortcut=dataclasses.replace(small.shortcut, synthetic_share=0.5))
    assert experiment.classifier_key(other, "lstm", None) == experiment.classifier_key(small, "lstm", None)
    assert experiment.classifier_key(other, "lstm", "single_token") != experiment.classifier_key(small, "lstm", "single_token")


def test_texts_fit_the_shortest_window_with_room_for_what_is_planted(small, fresh):
    model, training = small.model("lstm")
    narrow = dataclasses.replace(model, window=9)
    both = dataclasses.replace(small, models=(("lstm", model, training), ("narrow", narrow, training)))
    dataset = experiment.texts(both)
    longest = max(len(e.words) for e in dataset.test)
    assert longest == 9 - 2 - 1  # [BOS], [EOS] and one planted token
    assert dataset.notes["cut"] > 0
    classifier = experiment._build(both, "narrow", dataset)
    for example in experiment.mixed(both, "single_token", "narrow").synthetic_test:
        assert not classifier.encode(example).texts[0].cut


def test_without_shortcuts_nothing_is_planted_and_every_class_has_a_logit(small, fresh, tmp_path):
    words = {"bad": "dull", "fair": "plain", "good": "warm"}
    rows = [{"text": f"a {words[label]} film number {i}", "label": label} for i in range(90) for label in words]
    pd.DataFrame(rows).to_csv(tmp_path / "three.csv", index=False)
    plain = dataclasses.replace(small, data=DataSettings("local_file", path=str(tmp_path / "three.csv"), n_validation=45, n_test=45), shortcuts=())
    assert experiment.texts(plain).label_names == ("bad", "fair", "good")
    classifier = experiment.classifier(plain, "lstm", None)
    assert (classifier.model.config.num_labels, classifier.head) == (3, "softmax")
    assert len(classifier.tokenizer("#0 #1", add_special_tokens=False)["input_ids"]) > 2  # no markers were added
    assert accuracy(classifier, experiment.texts(plain).test) > 0.6


def test_a_marker_in_the_data_stops_before_training(small, fresh):
    with pytest.raises(ValueError, match="marker 'film' occurs in text"):
        experiment.texts(dataclasses.replace(small, shortcut=ShortcutSettings(markers=Markers("#0", "#1", "film"))))
    assert not list(fresh.glob("model-*"))


def test_a_failed_pair_is_left_out(small, monkeypatch):
    verify = experiment.verify
    monkeypatch.setattr(experiment, "verify", lambda *given: verify(*given).assign(verified=False))
    with pytest.raises(ValueError, match="no pair of models passed verification"):
        experiment.all_scores(small, {"lstm": "gradient:5"})


def test_settings_from_a_line_of_text():
    read = settings.parse(DataSettings, "name=local_file path='my texts.csv' n_test=all n_validation=20")
    assert (read.path, read.n_test, read.n_validation) == ("my texts.csv", None, 20)
    read = settings.parse(TrainingSettings, "learning_rate=1e-3 plateaus=synthetic,other")
    assert (read.learning_rate, read.plateaus) == (1e-3, ("synthetic", "other"))
    assert settings.parse(ModelSettings, "family=lstm hidden_size=64").option("hidden_size", 0) == 64


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        (DataSettings, "n_tests=5", "no setting 'n_tests=5'; write name=value with a name of: .*n_test,"),
        (DataSettings, "n_test=many", "DataSettings n_test='many' is not int, or all"),
        (DataSettings, "split_seed=01", "split_seed='01' is not int"),
        (DataSettings, "rotten_tomatoes", "no setting 'rotten_tomatoes'"),
        (TrainingSettings, "optimizer=rmsprop", "unknown optimizer 'rmsprop'; choose from: adam, sgd"),
        (ShortcutSettings, "markers=#0", "write three markers"),
    ],
)
def test_a_wrong_setting_names_the_value_and_the_choices(kind, line, message):
    with pytest.raises(ValueError, match=message):
        settings.parse(kind, line)


def test_unknown_models_options_and_shortcuts(small):
    with pytest.raises(ValueError, match="unknown model 'gru'; choose from: lstm"):
        settings.from_parameters("", "single_token", "", "gru", 0, {"lstm": ("", "")})
    with pytest.raises(KeyError, match="unknown shortcut 'typo'; choose from: single_token"):
        settings.from_parameters("", "typo", "", "lstm", 0, {"lstm": ("", "")})
    wrong = dataclasses.replace(small, models=(("lstm", ModelSettings("lstm", options=(("hiden_size", 3),)), TrainingSettings()),))
    with pytest.raises(ValueError, match="has no option 'hiden_size'; choose from: embedding_size"):
        experiment._build(wrong, "lstm", experiment.texts(small))
    with pytest.raises(ValueError, match="seed=True is not a whole number"):
        settings.from_parameters("", "single_token", "", "lstm", True, {"lstm": ("", "")})


def test_models_are_named_with_or_without_a_number():
    values = {"data": "", "shortcuts": "", "shortcut": "", "seed": 0, "samples": "cnn:40 lstm:5", "models": "lstm", "lstm": "", "lstm_training": ""}
    values |= {"cnn": "window=32", "cnn_training": "patience=7"}
    run = settings.from_lines(values, "samples")
    assert (run.model_names, run.model("cnn")[0].window, run.model("cnn")[1].patience) == (("cnn", "lstm"), 32, 7)
    assert settings.from_lines(values).model_names == ("lstm",)
    assert settings.counts("cnn:40 lstm:5") == (("cnn", 40), ("lstm", 5))
    with pytest.raises(ValueError, match="cannot read ':5'; write name:n"):
        settings.counts("cnn:40 :5")
    with pytest.raises(ValueError, match="names cnn, lstm but the parameters do not declare 'cnn_training'"):
        settings.from_lines({name: value for name, value in values.items() if name != "cnn_training"}, "samples")


def test_plan_gives_the_last_matching_number(tiny_lstm):
    found = experiment.examples_per_configuration(tiny_lstm, settings.plan("lime:5 lime;samples=100:50 lime;mask=mask:9 gradient_l2:0"))
    assert found["lime"][Configuration.parse("lime;mask=unk;samples=100")] == 50
    assert found["lime"][Configuration.parse("lime;mask=unk;samples=3000")] == 5
    assert not any(c["mask"] == "mask" for c in found["lime"])  # the LSTM has none, which is no error in a plan for both models
    assert found["gradient"] == {}
    with pytest.raises(ValueError, match="no configuration matches 'lime;samples=7'"):
        experiment.examples_per_configuration(tiny_lstm, settings.plan("lime;samples=7:5"))
    with pytest.raises(ValueError, match="cannot read 'lime'"):
        settings.plan("lime")


def test_passes_counts_what_is_not_shared():
    parse = Configuration.parse
    assert experiment.passes([parse("gradient_l2;of=logit"), parse("gradient_l2;of=probability")]) == 1
    ig = [parse(f"integrated_gradients;baseline={b};of={of};steps={s}") for b in ("zero", "pad") for of in ("logit", "probability") for s in (100, 1000)]
    assert experiment.passes(ig) == 2000


def test_read_only_cache_is_a_clear_error(small, fresh, monkeypatch):
    fresh.parent.joinpath("file").write_text("")
    monkeypatch.setenv("FAITHLIB_CACHE", str(fresh.parent / "file" / "below"))
    with pytest.raises(cache.CacheError, match="set FAITHLIB_CACHE"):
        experiment.texts(small)
    assert paths.cache_root() == fresh.parent / "file" / "below"
