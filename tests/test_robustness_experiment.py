"""Attacks on trained classifiers, end to end on a tiny experiment, and what is kept of them."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from faithlib import robustness_experiment as attacks
from faithlib import settings
from faithlib.attack.candidates import vector_neighbours
from faithlib.data import DataSettings
from faithlib.models import ModelSettings
from faithlib.training import TrainingSettings

WORDS = "good great warm bad dull cold film story actor plot scene script long short new old".split()
NEIGHBOURS = {word: [other for other in WORDS if other != word][:6] for word in WORDS}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An LSTM and a CNN on invented sentences, and a table of neighbours."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(6, 13))) for _ in range(500)]
    folder = tmp_path_factory.mktemp("attack data")
    pd.DataFrame({"text": texts, "label": [int("good" in t or "great" in t) for t in texts]}).to_csv(folder / "texts.csv", index=False)
    (folder / "neighbours.json").write_text(json.dumps(NEIGHBOURS))
    training = TrainingSettings(learning_rate=1e-2, batch_size=32, max_passes=6)
    sizes = (("embedding_size", 16), ("hidden_size", 16)), (("embedding_size", 16), ("n_filters", 8))
    lstm, cnn = (ModelSettings(name, "random", 24, 0.0, options) for name, options in zip(("lstm", "cnn"), sizes, strict=True))
    data = DataSettings("local_file", path=str(folder / "texts.csv"), n_validation=60, n_test=60)
    return settings.Experiment(data, (), models=(("lstm", lstm, training), ("cnn", cnn, training))), str(folder / "neighbours.json")


def test_sentences_are_attacked_measured_and_kept(run, monkeypatch):
    where, table = run
    trial = attacks.Trial("tef", "tef", table, rho_max=0.4)
    found = attacks.attacked(where, "lstm", "saliency", trial, 12)
    assert len(found.samples) == 12
    assert set(found.samples["reason"]) <= {"", "misclassified", "too short", "nothing to attack"}
    assert len(found.steps) == found.samples["n_steps"].sum() > 0
    assert (found.steps["rho"] <= 0.4).all()
    assert attacks.keep_their_class([where], found.steps)
    flipped = found.steps.assign(text=[" ".join(w for w in text.split() if w not in ("good", "great")) for text in found.steps["original"]])
    assert not attacks.keep_their_class([where], flipped)
    assert (found.samples["candidates"] == "counter-fitted neighbours").all()
    monkeypatch.setattr(attacks, "attack", lambda *_: pytest.fail("computed again"))
    pd.testing.assert_frame_equal(attacks.attacked(where, "lstm", "saliency", trial, 12).steps, found.steps)
    with pytest.raises(BaseException, match="computed again"):
        attacks.attacked(where, "lstm", "saliency", dataclasses.replace(trial, rho_max=0.3), 12)


def test_neighbours_in_glove_are_looked_up_before_the_attack_and_its_clock(run, monkeypatch):
    where, _ = run
    asked, search = [], attacks.attack
    source = vector_neighbours(WORDS, np.eye(len(WORDS), dtype=np.float32))
    kept = dataclasses.replace(source, nearest=lambda words, positions, n: asked.append((words, tuple(positions))) or source.nearest(words, positions, n))
    monkeypatch.setattr(attacks, "_glove", lambda: kept)
    monkeypatch.setattr(attacks, "attack", lambda words, *rest: asked.append(("attack", words)) or search(words, *rest))
    attacks.attacked(where, "lstm", "saliency", attacks.Trial("tef", "tef", "glove"), 3)
    starts = [i for i, (what, _) in enumerate(asked) if what == "attack"]
    assert len(starts) == 3
    for i in starts:
        words = asked[i][1]
        assert asked[i - 1] == (words, tuple(range(len(words))))


def test_a_changed_table_of_neighbours_is_another_attack(run, tmp_path):
    where, _ = run
    table = tmp_path / "neighbours.json"
    table.write_text(json.dumps({word: [] for word in WORDS}))
    trial = attacks.Trial("tef", "tef", str(table))
    assert not len(attacks.attacked(where, "lstm", "saliency", trial, 5).steps)
    table.write_text(json.dumps(NEIGHBOURS))
    assert len(attacks.attacked(where, "lstm", "saliency", trial, 5).steps)


def test_every_metric_is_measured_on_the_sentences_of_the_bins(run):
    where, table = run
    steps = attacks.attacked(where, "cnn", "integrated_gradients", attacks.Trial("tef", "tef", table, rho_max=0.4), 10).steps
    measured, backends = attacks.measured(steps, ("minilm", "grammar"))
    assert len(measured) <= len(steps)
    assert {"minilm", "k_minilm", "clamped_minilm", "grammar"} <= set(measured)
    assert "k_grammar" not in measured
    assert "MiniLM" in backends["minilm"]
    assert np.allclose(measured["k_minilm"], measured["d"] / np.maximum(measured["minilm"], 0.001))


def test_attention_is_not_asked_of_a_model_without(run):
    where, table = run
    with pytest.raises(ValueError, match="'attention' names 0 configurations .none that CNNForSequenceClassification can answer"):
        attacks.attacked(where, "cnn", "attention", attacks.Trial("tef", "tef", table), 5)


def test_a_trial_names_the_choices():
    for line, message in (
        ("attack=tee", "unknown attack 'tee'; choose from: tea"),
        ("rules=fair", "unknown rules of the game 'fair'; choose from: default"),
        ("rho_max=2", "rho_max=2.0 is not a share of the words"),
        ("batch_masking=maybe", "batch_masking='maybe'; choose from: own, yes, no"),
    ):
        with pytest.raises((KeyError, ValueError), match=message):
            settings.parse(attacks.Trial, line).settings(0)
    with pytest.raises(ValueError, match="Trial has no setting 'budget=3'"):
        settings.parse(attacks.Trial, "budget=3")


def test_every_trial_runs_on_every_pair_there_is_within_the_bound(run):
    where, table = run
    trials = {"tef": attacks.Trial("tef", "tef", table, rho_max=0.4), "random": attacks.Trial("random", "tef", table, rho_max=0.4)}
    both = attacks.AttackRun((where, dataclasses.replace(where, seed=1)), (("lstm", 6), ("cnn", 4)), ("saliency", "attention"), trials)
    found = attacks.everything(both)
    counts = found.samples.groupby(["seed", "model", "attribution", "trial"]).size()
    assert counts.to_dict() == {
        (seed, *pair, trial): n
        for seed in (0, 1)
        for pair, n in {("lstm", "saliency"): 6, ("lstm", "attention"): 6, ("cnn", "saliency"): 4}.items()
        for trial in trials
    }
    assert (found.steps["trial"] == found.steps["attack"]).all()
    one = dataclasses.replace(both, runs=(where,))
    mine = found.samples[found.samples["seed"] == 0]
    assert 0 < mine["n_attributions"].sum() <= attacks.bound(one)
    parts = [dataclasses.replace(one, trials={name: trial}) for name, trial in trials.items()]
    assert attacks.bound(one) == sum(map(attacks.bound, parts))
    saliency = dataclasses.replace(parts[0], plan=one.plan[:1], attributions=("saliency",))
    cnn = dataclasses.replace(parts[0], plan=one.plan[1:])
    assert attacks.bound(parts[0]) == 2 * attacks.bound(saliency) + attacks.bound(cnn)


def test_no_model_with_the_attribution_is_an_error_that_names_both(run):
    where, table = run
    nobody = attacks.AttackRun((where,), (("cnn", 2),), ("attention",), {"tef": attacks.Trial("tef", "tef", table)})
    with pytest.raises(ValueError, match="none of the models cnn has one of the attributions attention"):
        attacks.everything(nobody)


def test_a_notebook_says_what_is_attacked():
    values = {"data": "", "shortcuts": "", "shortcut": "", "seed": 3, "samples": "lstm:4 cnn:2", "lstm": "", "lstm_training": "", "cnn": "", "cnn_training": ""}
    values |= {
        "attributions": "saliency",
        "masked": "n_steps=7",
        "tea": "attack=tea rules=literal_tea rho_max=0.2",
        "tef": "attack=tef rules=tef candidates=glove",
    }
    found = attacks.from_notebook(values)
    assert (found.plan, found.attributions, found.masked.n_steps) == ((("lstm", 4), ("cnn", 2)), ("saliency",), 7)
    assert [run.seed for run in found.runs] == [3]
    assert found.trials["tea_equal"] == dataclasses.replace(found.trials["tea"], rules="tef")
    own = attacks.from_notebook({**values, "tef": "attack=tef candidates=glove"})  # the attack's own rules are named, not copied as "own"
    assert own.trials["tea_equal"].rules == "tef"
    same = dataclasses.replace(found, trials={"one": attacks.Trial("tea"), "other": attacks.Trial("tea", "literal_tea")})
    with pytest.raises(ValueError, match="two of the trials one, other are the same attack under the same rules: tea literal_tea, tea literal_tea"):
        attacks.everything(same)
    several = attacks.from_notebook({**values, "also": "name=bbc_news n_test=200 | name=imdb_reviews", "n_seeds": 2})
    assert [(run.data.name, run.seed) for run in several.runs] == [(name, seed) for name in ("rotten_tomatoes", "bbc_news", "imdb_reviews") for seed in (3, 4)]
    assert [run.data.n_test for run in several.runs[2:]] == [200, 200, 1000, 1000]
    drawn = attacks.ablations(found)
    assert drawn.plan == (("lstm", 4),)
    assert {name: (trial.attack, trial.rho_max) for name, trial in drawn.trials.items()} == {
        n: (n, 0.2) for n in ("random_importance", "random_candidate", "random")
    }


def test_run_times_of_each_variant_on_short_and_long_texts(run, tmp_path):
    where, table = run
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, size=40)) for _ in range(80)]
    pd.DataFrame({"text": texts, "label": [int("good" in t) for t in texts]}).to_csv(tmp_path / "long.csv", index=False)
    variants = {name: (attacks.Trial("tef", "tef", table, batch_masking=name), attacks.TRAINED_HERE) for name in ("yes", "no")}
    long = f"name=local_file path={tmp_path / 'long.csv'} n_validation=10 n_test=10"
    times = attacks.run_times(where, "cnn", 4, variants, (0.1, 0.25), long, n_long=3)
    assert set(times["dataset"]) == {"texts", "long"}
    assert (times["seconds"] > 0).all()
    assert set(times["variant"]) == {"yes", "no"}
    assert (times.loc[times["dataset"] == "long", "n_words"] == 40).all()  # read to the end: the window is wider there
    calls = times[(times["dataset"] == "long") & (times["rho_max"] == 0.25)].groupby("variant")["n_propose_calls"].sum()
    assert calls["yes"] < calls["no"]
    assert set(attacks.run_times(where, "cnn", 4, variants, (0.1,))["dataset"]) == {"texts"}
