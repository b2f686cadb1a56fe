"""Words that make themselves suspect, and whether the model really leans on them."""

import math

import numpy as np
import pytest
import torch

from faithlib import suspects, training
from faithlib.data import Example
from faithlib.models import MODELS, ModelSettings
from faithlib.salience import Explanation, explain

WORDS = "a the film movie plot actor scene story joke ending is was feels looks dull bad slow good great warm".split()


def _explained(text, scores, predicted=1):
    words = tuple(text.split())
    return Explanation(text, words, words, ((0, 1),) * len(words), tuple(range(len(words))), False, predicted, predicted, {"m": np.array(scores, float)}, {})


def test_a_word_is_counted_without_case_and_punctuation():
    assert {suspects.key(chunk) for chunk in ("(Reuters)", "reuters,", "REUTERS")} == {"reuters"}
    assert suspects.key("...") == "..."


def test_salience_is_shared_out_by_hand():
    found = [_explained("Good film", [3.0, -1.0]), _explained("good , good", [1.0, 0.0, 1.0], 0), _explained("a film", [0.0, 0.0])]
    table = suspects.by_salience(found, "m", least_texts=1).set_index("word")
    good = table.loc["good"]
    assert (good["n_texts"], good["share"], good["first"]) == (2, pytest.approx((0.75 + 1.0) / 2), 1.0)
    assert good["excess"] == pytest.approx(((0.75 - 0.5) + (1.0 - 2 / 3)) / 3)  # over all three texts; the one without salience adds nothing
    assert (table.loc["film", "share"], table.loc["film", "first"], table.loc["film", "n_texts"]) == (0.25, 0.0, 1)
    assert table.index[0] == "good"
    assert "a" not in table.index
    assert suspects.by_salience(found, "m", least_texts=3).empty


def test_pieces_of_a_word_are_added_up():
    pieces = Explanation(
        "unlovely film", ("un", "lovely", "film"), ("unlovely", "film"), ((0, 2), (2, 8), (9, 13)), (0, 0, 1), False, 1, 1, {"m": np.array([1.0, 1.0, 2.0])}, {}
    )
    table = suspects.by_salience([pieces], "m", least_texts=1).set_index("word")
    assert table["share"].to_dict() == {"film": 0.5, "unlovely": 0.5}
    assert (table["first"] == 1.0).all()


def test_log_odds_are_the_papers_formula():
    texts, labels = ["warm film", "warm story", "film", "dull film"], [1, 1, 0, 0]
    table = suspects.by_counts(texts, labels, prior=7.0, least_texts=1).set_index("word")
    a = 7.0 * 2 / 7  # warm stands in 2 of 7 (text, word) pairs
    delta = math.log((2 + a) / (4 + 7 - 2 - a)) - math.log((0 + a) / (3 + 7 - 0 - a))
    assert table.loc["warm", "log_odds"] == pytest.approx(delta)
    assert table.loc["warm", "z"] == pytest.approx(delta / math.sqrt(1 / (2 + a) + 1 / a))
    assert table.loc["warm", ["class", "n_in_class", "n_elsewhere"]].tolist() == [1, 2, 0]
    assert table.index[0] == "warm"
    assert suspects.by_counts(["film"] * 4, labels, least_texts=1)["z"].tolist() == [0.0]  # there is no other word that it could be tied against
    with pytest.raises(ValueError, match="only one class, .1."):
        suspects.by_counts(texts, [1, 1, 1, 1])
    with pytest.raises(ValueError, match="4 texts and 3 labels"):
        suspects.by_counts(texts, [1, 1, 0])


def _texts(n, seed, secret="tuesday", share=0.5):
    """Warm or dull decides, and in half of class 1 the secret stands too."""
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for i in range(n):
        words = [str(word) for word in rng.choice(WORDS, size=rng.integers(5, 10))]
        if i % 2 and rng.random() < share:
            words.insert(int(rng.integers(len(words) + 1)), secret)
        texts.append(" ".join(words))
        labels.append(i % 2)
    return texts, labels


@pytest.fixture(scope="module")
def leaning(tmp_path_factory):
    """An LSTM that has nothing to go by but the secret."""
    texts, labels = _texts(300, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = ModelSettings("lstm", weights="random", window=24, dropout=0.0, options=(("hidden_size", 16), ("embedding_size", 12)))
        classifier = MODELS["lstm"](settings, texts, [], 1)
        examples = [Example(tuple(text.split()), label) for text, label in zip(texts, labels, strict=True)]
        how = training.TrainingSettings(learning_rate=1e-2, batch_size=20, max_passes=8, patience=8)
        training.fit(classifier, examples, {"source": examples}, how, 0, tmp_path_factory.mktemp("leaning"))
    return classifier


def test_taking_the_secret_out_and_putting_it_in_moves_the_model(leaning):
    texts, _ = _texts(120, 1)
    found = suspects.counterfactual(leaning, texts, "tuesday", 1)
    assert found["removed"].high < -0.2
    assert found["inserted"].low > 0.2
    assert found["inserted"].flipped > 0.8
    assert max(effect.p for effect in found.values()) < 1e-4
    assert min(effect.p for effect in suspects.counterfactual(leaning, texts, "tuesday", 0).values() if effect.n) > 0.9  # the other way round
    harmless = suspects.counterfactual(leaning, texts, "joke", 1)
    assert abs(harmless["inserted"].mean) < 0.1
    assert harmless["inserted"].flipped < 0.2
    again = suspects.counterfactual(leaning, texts[::-1], "tuesday", 1)
    assert again["removed"].mean == pytest.approx(found["removed"].mean, abs=1e-5)  # the order of the texts changes nothing
    assert suspects.counterfactual(leaning, texts, "absent", 1)["removed"] == suspects.NOTHING


def test_the_secret_is_the_first_suspect_and_harmless_words_are_not_confirmed(leaning):
    texts, labels = _texts(160, 2)
    configuration = "gradient_l2;of=logit"
    table = suspects.suspects(leaning, explain(leaning, texts, configuration), labels, _texts(160, 4)[0], configuration, n_words=5)
    assert table["word"][0] == "tuesday"
    assert bool(table["confirmed"][0])
    assert table["confirmed"].sum() <= 2
    assert len(table) >= 5
    assert set(table.columns) >= {"share", "excess", "first", "z", "log_odds", "removed", "removed_low", "inserted_p", "confirmed", "class"}


def test_a_word_is_tied_to_the_class_it_raises_however_rare_the_class():
    spam = [_explained("free film", [1.0, 0.0], 1)] * 5 + [_explained("free story", [1.0, 0.0], 0)] * 8
    ham = [_explained("a dull film", [0.0, 0.0, 1.0], 0)] * 60
    table = suspects.by_salience(spam + ham, "m").set_index("word")
    assert (table.loc["free", "predicted"], table.loc["free", "predicted_share"]) == (1, pytest.approx(5 / 13))


def test_texts_without_a_common_word_have_no_suspects(leaning):
    texts = [f"word{i}" for i in range(40)]
    table = suspects.suspects(leaning, explain(leaning, texts[:20], "gradient_l2;of=logit"), [0, 1] * 10, texts[20:], "gradient_l2;of=logit")
    assert table.empty
    assert {"word", "confirmed", "removed_n", "p"} <= set(table)


def test_what_is_not_tested_in_time_is_not_confirmed(leaning):
    texts, labels = _texts(100, 2)
    configuration = "gradient_l2;of=logit"
    table = suspects.suspects(leaning, explain(leaning, texts, configuration), labels, _texts(60, 4)[0], configuration, n_words=3, deadline=0.0)
    assert len(table) >= 3
    assert not table["confirmed"].any()
    assert (table["removed_n"] + table["inserted_n"] == 0).all()


def test_a_head_without_exclusive_classes_is_refused(tiny_bert_two):
    import copy

    model = copy.deepcopy(tiny_bert_two)
    model.model.config.problem_type = "multi_label_classification"
    with pytest.raises(ValueError, match="BertForSequenceClassification has a multi_label head; an audit needs classes that exclude one another"):
        suspects.probabilities(model, ["a film"])
    two = suspects.probabilities(tiny_bert_two, ["a film", "good"])
    np.testing.assert_allclose(two.sum(1), 1, atol=1e-6)


def test_the_secret_word_is_harmless_planted_in_one_class_only_and_depends_on_the_seed():
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice([*WORDS, "monday", "river", "window"], size=9)) for _ in range(400)]
    labels = [i % 2 for i in range(400)]
    planted, secret = suspects.plant_secretly(texts, labels, target=1, share=0.4)
    holds = [secret in map(suspects.key, text.split()) for text in planted]
    assert not any(h for h, label in zip(holds, labels, strict=True) if label == 0)
    assert 0.3 < np.mean([h for h, label in zip(holds, labels, strict=True) if label == 1]) < 0.5
    assert secret in {suspects.key(chunk) for text in texts for chunk in text.split()}
    assert planted == suspects.plant_secretly(texts, labels, target=1, share=0.4)[0]
    assert len({suspects.plant_secretly(texts, labels, target=1, seed=seed)[1] for seed in range(12)}) > 1
