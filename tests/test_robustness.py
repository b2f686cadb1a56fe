"""k, its curves and their areas, on tables small enough to work out by hand; what an attack sees of a classifier."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from faithlib import attribution, robustness
from faithlib.attribution import MASKED, UNREAD, by_word, encode, functions
from faithlib.salience import explain


def _steps(rows, attack="tea", **more):
    """rows: (sample, rho, value) in the order of the path."""
    table = pd.DataFrame(rows, columns=["sample", "rho", "d"])
    where = {"dataset": "x", "model": "m", "attribution": "a", "attack": attack, "rules": "own", "seed": 0}
    return pd.DataFrame({**{name: [value] * len(table) for name, value in where.items()}, **table, "step": table.groupby("sample").cumcount() + 1, **more})


def test_k_is_the_ratio_of_the_distances_and_says_where_the_smallest_one_acted():
    table = _steps([(0, 0.1, 0.4), (0, 0.2, 0.0), (1, 0.1, 0.3), (2, 0.1, 0.2)], minilm=[0.2, 0.0, 0.0001, np.nan], perplexity=[0.5, 0.0, -0.3, 1.0])
    found = robustness.with_k(table)
    np.testing.assert_allclose(found["k_minilm"], [2.0, 0.0, 300.0, np.nan])
    np.testing.assert_array_equal(found["clamped_minilm"], [0, 1, 1, np.nan])
    np.testing.assert_allclose(found["k_perplexity"], [0.8, 0.0, 3.0, 0.2])
    assert "k_use" not in found
    assert robustness.with_k(table, {"minilm": 0.1})["k_minilm"].iloc[2] == pytest.approx(3.0)
    with pytest.raises(ValueError, match="eps=0.0 is not above 0"):
        robustness.with_k(table, {"minilm": 0.0})


def test_a_bin_holds_its_upper_edge_and_the_last_sentence_of_each_sample():
    table = _steps([(0, 0.05, 0.1), (0, 0.1, 0.2), (0, 0.1001, 0.3), (0, 0.14, 0.4), (1, 0.4, 0.5), (2, 0.41, 0.6)])
    found = robustness.at_each_share(table)
    assert list(zip(found["sample"], found["bin"], found["d"], strict=True)) == [(0, 0, 0.1), (0, 1, 0.2), (0, 2, 0.4), (1, 6, 0.5)]
    np.testing.assert_allclose(found["rho_bin"], [0.025, 0.075, 0.125, 0.35])


def test_a_curve_has_means_medians_and_n():
    found = robustness.curve(_steps([(0, 0.1, 0.2), (1, 0.1, 0.4), (2, 0.1, 0.9), (2, 0.2, 1.0)]), "d")
    assert found[["mean", "median", "n"]].values.tolist() == [[0.5, 0.4, 3], [1.0, 1.0, 1]]
    assert found["mean_low"].iloc[0] < 0.5 < found["mean_high"].iloc[0]
    assert found[["mean_low", "mean_high", "median_low", "median_high"]].iloc[1].isna().all()  # a single sentence has no interval


def test_the_gain_is_over_the_bins_that_both_fill():
    tea = _steps([(0, 0.1, 0.4), (0, 0.15, 0.4), (0, 0.2, 9.0), (1, 0.1, 0.8), (1, 0.15, 0.8)])
    tef = _steps([(0, 0.1, 0.3), (0, 0.15, 0.3), (1, 0.1, 0.3), (1, 0.15, 0.3)], attack="tef")
    found = robustness.relative_gain(pd.concat([tea, tef]), "d", {"attack": "tea"}, {"attack": "tef"})
    assert found["gain"] == pytest.approx(1.0)  # 0.6 against 0.3; the bin that only TEA fills is left out
    assert (found["auc_one"], found["auc_other"]) == (pytest.approx(0.03), pytest.approx(0.015))
    assert (found["bins"], found["n"]) == ("0.075 0.125", 2)
    assert found["low"] == pytest.approx(1 / 3)
    assert found["high"] == pytest.approx(5 / 3)
    with pytest.raises(ValueError, match="unknown statistic 'mode'; choose from: mean, median"):
        robustness.relative_gain(tea, "d", {}, {}, statistic="mode")


def test_a_gain_without_common_bins_is_undefined_and_no_error():
    table = pd.concat([_steps([(0, 0.1, 0.4)]), _steps([(0, 0.3, 0.4)], attack="tef")])
    found = robustness.relative_gain(table, "d", {"attack": "tea"}, {"attack": "tef"})
    assert np.isnan(found["gain"])
    assert (found["bins"], found["n"]) == ("", 1)


def test_a_paired_difference_counts_samples_once_however_many_bins_they_fill():
    one = _steps([(0, 0.1, 0.5), (0, 0.2, 0.7), (1, 0.1, 0.6)])
    other = _steps([(0, 0.1, 0.1), (0, 0.2, 0.1), (1, 0.1, 0.1), (2, 0.1, 0.1)], attack="tef")
    found = robustness.paired(pd.concat([one, other]), "d", {"attack": "tea"}, {"attack": "tef"})
    assert (found["mean"], found["n"]) == (pytest.approx(0.5), 2)


# What an attack sees


SENTENCES = [("a", "good", "film"), ("dull,", "bad", "story", "about", "a", "great", "actor")]


def test_word_scores_are_means_over_their_pieces(any_classifier):
    predict, attribute = functions(any_classifier, "gradient_l2;of=logit")
    assert predict(SENTENCES).tolist() == any_classifier.predict([" ".join(words) for words in SENTENCES]).tolist()
    for words, scores in zip(SENTENCES, attribute(SENTENCES, 0), strict=True):
        [found] = explain(any_classifier, " ".join(words), "gradient_l2;of=logit", target=0)
        by_hand = [np.mean([s for s, w in zip(found.scores["gradient_l2;of=logit"], found.word, strict=True) if w == i]) for i in range(len(words))]
        np.testing.assert_allclose(scores, by_hand, rtol=1e-3)


def test_a_masked_word_is_read_as_the_models_mask_or_unknown_token(tiny_bert, tiny_lstm):
    for model, name in ((tiny_bert, "mask"), (tiny_lstm, "unk")):
        batch = encode(model, [("a", MASKED, "film"), ("a", "good", "film")])
        places = [i for i, word in enumerate(batch.texts[0].word) if word == 1]
        assert [int(batch.ids[0, i]) for i in places] == [model.special_ids[name]] * len(places)
        assert model.special_ids[name] not in batch.ids[1].tolist()


def test_a_sentence_that_is_not_read_to_its_end_has_no_class(tiny_lstm):
    predict, _ = functions(tiny_lstm, "gradient_l2;of=logit")  # the window holds 30
    whole = predict([tuple(["film"] * 30), tuple(["film"] * 31), ("film",)])
    assert whole[1] == UNREAD
    assert (whole[[0, 2]] == tiny_lstm.predict([" ".join(["film"] * 30), "film"]).numpy()).all()


def test_what_was_predicted_is_not_encoded_again_and_explained_as_ever(tiny_bert, monkeypatch):
    calls = []
    whole = attribution.encode
    monkeypatch.setattr(attribution, "encode", lambda *given: calls.append(len(given[1])) or whole(*given))
    predict, attribute = functions(tiny_bert, "gradient_l2;of=logit")
    predict(SENTENCES)
    kept = attribute(SENTENCES[:1], 1)
    assert calls == [0, 2]
    for one, other in zip(kept, functions(tiny_bert, "gradient_l2;of=logit")[1](SENTENCES[:1], 1), strict=True):
        np.testing.assert_array_equal(one, other)
    attribute([("a", "film"), SENTENCES[0]], 1)  # one that was not predicted: all are encoded
    assert calls[-1] == 2


def test_a_word_that_is_not_read_scores_zero(tiny_lstm):
    words = tuple(["film"] * 40)  # the window holds 30
    _, attribute = functions(tiny_lstm, "gradient_l2;of=logit")
    [scores] = attribute([words], 0)
    assert (scores[:30] > 0).all()
    assert (scores[30:] == 0).all()


def test_an_attack_moves_one_explanation(tiny_lstm, tiny_cnn):
    with pytest.raises(ValueError, match="'gradient' names 8 configurations"):
        functions(tiny_lstm, "gradient")
    with pytest.raises(ValueError, match="'attention' names 0 configurations .none that CNNForSequenceClassification can answer"):
        functions(tiny_cnn, "attention")


def test_pieces_of_a_word_are_averaged_by_hand(tiny_bert):
    batch = tiny_bert.encode("good film")
    n = batch.ids.shape[1]
    scores = np.arange(float(n))
    expected = [np.mean([scores[i] for i in range(n) if batch.texts[0].word[i] == w]) for w in range(2)]
    assert by_word(scores, batch, 0, 2).tolist() == expected
    assert by_word(scores, dataclasses.replace(batch, rankable=batch.rankable & False), 0, 2).tolist() == [0.0, 0.0]


def test_the_largest_k_of_a_path_so_far():
    table = _steps([(0, 0.1, 0.4), (0, 0.2, 0.2), (1, 0.1, 0.3), (0, 0.3, 0.9)], minilm=[0.1, 0.1, 0.1, 0.1])
    found = robustness.with_largest_k(robustness.with_k(table).sample(frac=1, random_state=0)).sort_index()
    np.testing.assert_allclose(found["largest_k_minilm"], [4.0, 4.0, 3.0, 9.0])
    assert "largest_clamped_minilm" not in found


def test_a_curve_takes_seeds_together_and_says_how_far_they_lie_apart():
    one = _steps([(0, 0.1, 0.2), (1, 0.1, 0.4)])
    other = _steps([(0, 0.1, 0.7), (1, 0.1, 0.7)]).assign(seed=1)
    [row] = robustness.curve(pd.concat([one, other]), "d").to_dict("records")
    assert (row["mean"], row["n"], row["n_seeds"]) == (pytest.approx(0.5), 2, 2)  # two sentences, each attacked under two seeds
    assert (row["mean_lowest_seed"], row["mean_highest_seed"]) == (pytest.approx(0.3), pytest.approx(0.7))
    assert row["median_low"] < row["median"] < row["median_high"]
    gain = robustness.relative_gain(
        pd.concat(
            [_steps([(s, r, v) for s in (0, 1) for r in (0.1, 0.15)], attack=a).assign(seed=seed) for a, v in (("tea", 0.4), ("tef", 0.2)) for seed in (0, 1)]
        ),
        *("d", {"attack": "tea"}, {"attack": "tef"}),
    )
    assert (gain["gain"], gain["n"]) == (pytest.approx(1.0), 2)
    assert (gain["n_seeds"], gain["lowest_seed"], gain["highest_seed"]) == (2, pytest.approx(1.0), pytest.approx(1.0))


def test_one_outlying_seed_carries_a_mean_and_no_median():
    """Sentence 0 has a k of 90 under one of three seeds."""
    values = {"tea": (2.0, 2.0, 90.0), "tef": (1.0, 1.0, 1.0)}
    table = pd.concat(
        _steps([(0, rho, value) for rho in (0.1, 0.15)], attack=attack).assign(seed=seed) for attack, of_seeds in values.items() for seed, value in enumerate(of_seeds)
    )
    found = {name: robustness.relative_gain(table, "d", {"attack": "tea"}, {"attack": "tef"}, name) for name in ("mean", "median")}
    assert found["mean"]["gain"] == pytest.approx(94 / 3 - 1)
    assert found["median"]["gain"] == pytest.approx(1.0)
    assert (found["median"]["lowest_seed"], found["median"]["highest_seed"]) == (pytest.approx(1.0), pytest.approx(89.0))
    curve = robustness.curve(table[table["attack"] == "tea"], "d")
    np.testing.assert_allclose(curve[["mean", "median", "median_lowest_seed", "median_highest_seed"]], [[94 / 3, 2, 2, 90]] * 2)
