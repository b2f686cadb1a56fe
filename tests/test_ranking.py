"""The protocol on a user's own classifier: the budget, the plan, and when a method is recommended."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from faithlib import audit, ranking, training
from faithlib.data import Example
from faithlib.models import MODELS, ModelSettings

WORDS = "a the film movie plot actor scene story joke ending is was feels looks dull bad slow good great warm".split()


def test_lengths_of_time():
    assert [ranking.seconds(text) for text in ("90", "90s", "30m", "1.5h")] == [90, 90, 1800, 5400]
    for wrong in ("", "m", "soon", "-3m", "nan", "inf"):
        with pytest.raises(ValueError, match="is not a length of time; write 90s, 30m or 1.5h"):
            ranking.seconds(wrong)


COSTS = ranking.Costs(step=0.1, gradient=0.01, point=0.001, perturbation=0.001, batch_size=32)


def test_a_plan_spends_the_budget_and_no_more(tiny_bert):
    for budget in (120.0, 1000.0, 30_000.0):
        found = ranking.make_plan(COSTS, budget, 5000, 2, tiny_bert)
        assert sum(found.seconds.values()) <= 0.86 * budget
    small, large = (ranking.make_plan(COSTS, budget, 5000, 2, tiny_bert) for budget in (120.0, 30_000.0))
    assert small.n_source < large.n_source == 5000
    assert large.dropped == ()
    assert small.dropped == ("lime;samples=100", "lime;samples=1000")
    assert large.examples.endswith("lime;samples=1000:300")
    assert "left out, for the budget does not buy 20 examples of it: lime" in small.in_words()[-1]


def test_a_budget_that_is_too_small_says_what_would_do(tiny_bert):
    with pytest.raises(ValueError, match="a budget of 10 s buys 13 steps of training for each of 3 models, 100 are needed: choose at least 2m"):
        ranking.make_plan(COSTS, 10.0, 5000, 2, tiny_bert)
    found = ranking.make_plan(COSTS, 120.0, 5000, 2, tiny_bert)
    assert found.n_source * found.n_passes / COSTS.batch_size >= 100
    few = ranking.make_plan(COSTS, 120.0, 100, 2, tiny_bert)
    assert (few.n_source, few.n_passes) == (100, 12)  # there are no more texts, so more passes


def test_costs_are_measured_and_the_model_is_left_alone(tiny_bert, tiny_gpt2):
    for model in (tiny_bert, tiny_gpt2):
        before = {name: parameter.clone() for name, parameter in model.model.state_dict().items()}
        costs = ranking.calibrate(model, ["a dull film", "good", "a warm story"] * 4, 8)
        assert all(value > 0 for value in (costs.step, costs.gradient, costs.point, costs.perturbation))
        assert all(torch.equal(parameter, before[name]) for name, parameter in model.model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.model.parameters())


def test_a_step_is_measured_as_the_training_makes_it(tiny_gpt2, monkeypatch):
    """With dropout, and for texts of several lengths in one call, where an explanation would ask a decoder once for every length."""
    calls = []
    forward = type(tiny_gpt2.model).forward

    def seen(self, *given, **named):
        if self.training:
            calls.append(len(named["input_ids"]))
        return forward(self, *given, **named)

    monkeypatch.setattr(type(tiny_gpt2.model), "forward", seen)
    ranking.calibrate(tiny_gpt2, ["a dull film", "good", "a warm story of a man and his dog"] * 4, 8)
    assert calls == [8] * 4  # one to warm up, three that are timed
    assert not tiny_gpt2.model.training


def _table(role, methods, shortcut="single_token"):
    """Rankings of texts with 10 tokens and 1 planted each: configuration -> P@k per text."""
    where = {"dataset": "d", "shortcut": shortcut, "model": "yours", "seed": 0, "role": role}
    rows = [
        {
            **where,
            "method": name.partition(";")[0],
            "config": name.partition(";")[2],
            "example": i,
            "precision_at_k": float(value),
            "n_tokens": 10,
            "evidence": [0],
        }
        for name, values in methods.items()
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


ALL, NONE, HALF = np.ones(40), np.zeros(40), np.arange(40) % 2
L2, TWIN, LIME = "gradient_l2;of=logit", "gradient_l2;of=probability", "lime;mask=unk;samples=100"


def test_a_family_that_is_ahead_beyond_its_interval_is_recommended():
    """Its own twin, the probability's gradient of a one-logit head ranks the same, stands in no way."""
    said, recommended, best = ranking.recommend(
        _table("mixed", {L2: ALL, TWIN: ALL, LIME: HALF, "random": NONE}), _table("source", {L2: NONE, TWIN: NONE, LIME: NONE})
    )
    assert (recommended, best) == (L2, L2)
    assert said[0].startswith("Recommended: Gradient L2; P@k 1.00 on n=40 examples, ahead of every other family, of LIME, unk, 100 by 0.50 [")
    assert said[1] == "Of its own family these are as good, as far as can be told: Gradient L2, probability."


def test_what_cannot_be_told_is_said_and_what_it_would_take():
    close = HALF.copy()
    close[[0, 2, 4]] = 1
    close[[1, 3]] = 0  # better on three texts, worse on two
    said, recommended, best = ranking.recommend(_table("mixed", {LIME: HALF, L2: close}), _table("source", {LIME: NONE, L2: NONE}))
    assert (recommended, best) == (None, L2)
    assert said[0].startswith("Best here is Gradient L2, P@k 0.53 on n=40 examples, but it cannot be told whether it is better than LIME, unk, 100: ")
    assert ": from LIME, unk, 100 it differs by 0.03 [" in said[0]
    needed = int(said[1].split("about ")[1].split()[0])
    assert needed > 1000


def test_a_method_that_raises_false_alarms_is_not_recommended_however_good():
    said, recommended, _ = ranking.recommend(_table("mixed", {L2: ALL, LIME: HALF}), _table("source", {L2: HALF, LIME: NONE}))
    assert recommended == LIME
    assert "Gradient L2 finds most, P@k 1.00, but is not recommended: on the model that does not use the tokens it puts them on top as well." in said
    said, recommended, best = ranking.recommend(_table("mixed", {L2: ALL}), _table("source", {L2: HALF}))
    assert (recommended, best) == (None, None)
    assert "none is known to pass the control" in said[-1]
    # An alarm on one shortcut is not made good by silence on another.
    both = pd.concat([_table("source", {L2: HALF}), _table("source", {L2: NONE}, "ordered_pair")])
    assert ranking.recommend(_table("mixed", {L2: ALL}), both)[1] is None


def test_too_few_texts_are_no_false_alarm():
    few = np.array([1, 1, 1, 1, *np.zeros(16)])
    said, recommended, _ = ranking.recommend(_table("mixed", {L2: ALL}), _table("source", {L2: few}))
    assert recommended is None
    assert "too few texts were asked to tell whether it passes the control" in said[0]
    assert ranking.recommend(_table("mixed", {"random": NONE}), _table("source", {"random": NONE}))[0] == (
        "It cannot be told which method to trust: none was asked.",
    )


@pytest.fixture(scope="module")
def yours(tmp_path_factory):
    """A fine-tuned classifier of three classes in a folder, and its texts: the words sunny, rainy and windy decide."""
    folder = tmp_path_factory.mktemp("yours")
    rng = np.random.default_rng(0)
    names, rows = ("wind", "sun", "rain"), []
    for i in range(900):
        words = [str(word) for word in rng.choice(WORDS, size=rng.integers(5, 10))]
        words.insert(int(rng.integers(len(words) + 1)), ("windy", "sunny", "rainy")[i % 3])
        rows.append((" ".join(words), names[i % 3]))
    table = pd.DataFrame(rows, columns=["text", "label"])
    table[:860].to_csv(folder / "texts.csv", index=False)  # rain is the rarest
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = ModelSettings("lstm", weights="random", window=24, dropout=0.0, options=(("hidden_size", 24), ("embedding_size", 16)))
        classifier = MODELS["lstm"](settings, table["text"].tolist(), [], 3)
        classifier.model.config.id2label = dict(enumerate(names))
        examples = [Example(tuple(text.split()), names.index(label)) for text, label in rows]
        how = training.TrainingSettings(learning_rate=1e-2, batch_size=20, max_passes=3)
        training.fit(classifier, examples, {"source": examples[:200]}, how, 0, folder / "steps")
    classifier.save(folder / "model")
    return folder


def _asked(folder, settings):
    """The arguments of ``rank`` that the audit gives it."""
    from faithlib.data import DataSettings, load
    from faithlib.models.classifier import TextClassifier

    third = min(settings.n_texts, 860 // 3)
    dataset = load(DataSettings("local_file", path=settings.data, n_validation=third, n_test=third))
    classes, _ = audit.match_labels(dataset.label_names, TextClassifier.load(settings.model))
    two, chosen = audit._two_classes(dataset, classes)
    return settings.model, two, chosen, ranking.seconds(settings.budget), settings.shortcuts, settings.methods, settings.learning_rate


def test_the_methods_are_ranked_on_a_copy_within_the_budget(yours, tmp_path):
    before = {path: path.read_bytes() for path in (yours / "model").iterdir()}
    said = []
    settings = audit.AuditSettings(
        *(str(yours / "model"), str(yours / "texts.csv")),
        budget="60s",
        shortcuts=("single_token",),
        methods=("random", "gradient", "integrated_gradients;steps=100"),
        learning_rate=1e-2,
        n_texts=200,
        n_explained=100,
        n_words=3,
    )
    found = audit.audit(settings, say=said.append)
    assert sum(found.ranking.plan.seconds.values()) < 60
    assert 0 < sum(found.ranking.taken.values()) <= found.seconds
    assert re.match(r"It took: training \d+ s \(planned: \d+ s\), ranking \d+ s \(planned: \d+ s\)", found.ranking.took())
    assert ranking.rank(*_asked(yours, settings), say=said.append).plan == found.ranking.plan  # taken up again, whatever the clock says now
    assert "training on" in said[0]
    assert found.ranking.verification["verified"].all(), found.ranking.verification["why_not"].tolist()
    assert set(found.ranking.summary["role"]) == {"mixed", "source"}
    assert any("two most frequent classes, wind and sun" in note or "two most frequent classes, sun and wind" in note for note in found.notes)
    assert found.settings.method == (found.ranking.recommended or found.ranking.best or audit.DEFAULT_METHOD)
    assert found.ranking.best
    page = audit.write(found, tmp_path / "out").read_text()
    assert "Which method can be trusted here?" in page
    assert found.ranking.took() in page
    shown = audit.ranked_methods(found.ranking)
    assert list(shown.columns) == ["method", "config", "single token", "single token, not used"]
    assert shown[shown["method"] == "gradient_l2"]["single token"].str.fullmatch(r"[01]\.\d\d \[.*\] n=\d+").all()
    assert {path: path.read_bytes() for path in (yours / "model").iterdir()} == before
    assert {"sunny", "rainy", "windy"} <= set(found.suspects["word"][found.suspects["confirmed"]])


def test_what_cannot_be_ranked(yours):
    settings = audit.AuditSettings(str(yours / "model"), str(yours / "texts.csv"), budget="1s")
    with pytest.raises(ValueError, match="a budget of 1 s buys"):
        audit.audit(settings)
    from faithlib.models.classifier import TextClassifier

    for changes, message in (
        ({"method": "gradeint"}, "unknown salience method 'gradeint'"),
        ({"shortcuts": ("singletoken",)}, "unknown shortcut 'singletoken'"),
        ({"shortcuts": ()}, "no shortcut to plant; choose from: single_token"),
        ({"methods": ("random",)}, "methods 'random' name nothing to rank; choose from: attention"),
        ({"methods": ("lime;samples=200",)}, "no configuration matches 'lime;samples=200'"),
    ):
        with pytest.raises((ValueError, KeyError), match=message):
            audit.audit(audit.AuditSettings(str(yours / "model"), str(yours / "texts.csv"), **{"budget": "1h", **changes}), say=lambda _: None)
    with pytest.raises(ValueError, match="save yours and name it as model"):
        audit.audit(settings, TextClassifier.load(yours / "model"))


@pytest.mark.parametrize(("family", "asked", "expected"), [("tiny_lstm_two", None, 1e-3), ("tiny_gpt2", None, 5e-5), ("tiny_gpt2", 0.1, 0.1)])
def test_the_copies_learn_at_a_rate_that_suits_them(family, asked, expected, request, tmp_path, monkeypatch):
    """What suits a fine-tuned transformer teaches an LSTM nothing."""
    from faithlib import experiment
    from faithlib.data import DataSettings

    request.getfixturevalue(family).save(tmp_path / "model")
    pd.DataFrame({"text": [f"a {WORDS[i % 20]} film {i}" for i in range(300)], "label": [i % 2 for i in range(300)]}).to_csv(tmp_path / "t.csv", index=False)
    rates = []

    def seen(run, _thresholds):
        rates.append(run.models[0][2].learning_rate)
        raise InterruptedError

    monkeypatch.setattr(experiment, "verify", seen)
    data = DataSettings("local_file", path=str(tmp_path / "t.csv"), n_validation=50, n_test=100)
    with pytest.raises(InterruptedError):
        ranking.rank(str(tmp_path / "model"), data, [0, 1], 600.0, methods=("gradient",), learning_rate=asked, say=lambda _: None)
    assert rates == [expected]


def test_only_what_the_users_own_model_can_answer_is_ranked(tiny_gpt2, tmp_path, monkeypatch):
    """The copies of a decoder get a padding token to be trained with; recommended must be what the model itself can be asked."""
    from faithlib import experiment
    from faithlib.data import DataSettings

    tiny_gpt2.save(tmp_path / "model")
    pd.DataFrame({"text": [f"a {WORDS[i % 20]} film {i}" for i in range(300)], "label": [i % 2 for i in range(300)]}).to_csv(tmp_path / "t.csv", index=False)
    asked = []

    def scores(_run, _shortcut, _model, wanted, *_role):
        asked.append(wanted)
        if len(asked) == 2:
            raise InterruptedError
        return pd.DataFrame()

    monkeypatch.setattr(experiment, "verify", lambda *_: pd.DataFrame({"shortcut": ["single_token"], "verified": [True]}))
    monkeypatch.setattr(experiment, "scores", scores)
    data = DataSettings("local_file", path=str(tmp_path / "t.csv"), n_validation=50, n_test=100)
    with pytest.raises(InterruptedError):
        ranking.rank(str(tmp_path / "model"), data, [0, 1], 600.0, ("single_token",), ("random", "integrated_gradients;steps=100"), say=lambda _: None)
    for wanted in asked:
        configurations = [name for name, n in wanted if n >= ranking.LEAST_EXAMPLES]
        assert "integrated_gradients;baseline=unk;of=logit;steps=100" in configurations
        assert not [name for name in configurations if "pad" in name or "mask" in name or "steps=1000" in name]
