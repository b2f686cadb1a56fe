import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faithlib import faithfulness as f


@pytest.mark.parametrize(
    ("scores", "evidence", "precision", "rank"),
    [
        ([0.9, 0.1, 0.2], [0], 1.0, 1.0),
        ([0.9, 0.1, 0.2], [1], 0.0, 3.0),
        ([0.9, 0.1, 0.5], [0, 1], 0.5, 3.0),
        ([0.9, 0.5, 0.1], [0, 1], 1.0, 2.0),
        ([-3.0, -1.0, -2.0], [1], 1.0, 1.0),  # the sign is kept: a large negative score is not a large score
        ([1.0, 1.0, 0.0], [0], 0.5, 1.5),
        ([0.0, 0.0, 0.0, 0.0], [2], 0.25, 2.5),
        ([0.0] * 5, [1, 3], 2 / 5, 4.0),
    ],
)
def test_values_worked_by_hand(scores, evidence, precision, rank):
    assert f.precision_at_k(np.array(scores), evidence) == pytest.approx(precision)
    assert f.rank_of_evidence(np.array(scores), evidence) == pytest.approx(rank)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), st.data())
def test_ties_equal_the_mean_over_every_order_of_the_tied(scores, data):
    n = len(scores)
    evidence = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=2)))
    k = len(evidence)
    precisions, ranks = [], []
    for order in itertools.permutations(range(n)):  # every order that sorts the scores downwards is equally likely
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            precisions.append(len(set(order[:k]) & set(evidence)) / k)
            ranks.append(1 + max(order.index(e) for e in evidence))
    assert f.precision_at_k(np.array(scores), evidence) == pytest.approx(np.mean(precisions))
    assert f.rank_of_evidence(np.array(scores), evidence) == pytest.approx(np.mean(ranks))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 1), (2, 2), (9, 2)])
def test_equal_scores_score_like_random(n, k):
    assert f.precision_at_k(np.zeros(n), list(range(k))) == pytest.approx(f.random_precision(n, k))
    assert f.rank_of_evidence(np.zeros(n), list(range(k))) == pytest.approx(f.random_rank(n, k))


def test_fewer_tokens_than_k_divide_by_k():
    assert f.precision_at_k(np.array([1.0, 2.0]), [0, 1]) == 1.0
    assert f.random_precision(1, 2) == 1.0


def test_nothing_to_rank_is_undefined_and_left_out_of_the_mean():
    assert np.isnan(f.precision_at_k(np.zeros(0), [0]))
    table = _table([[0.9, 0.1], []], [[0], [0]])
    [row] = f.summarise(table).to_dict("records")
    assert (row["n"], row["n_undefined"], row["precision_at_k"]) == (1, 1, 1.0)


def test_errors_name_the_place():
    with pytest.raises(ValueError, match="no evidence"):
        f.precision_at_k(np.ones(3), [])
    with pytest.raises(ValueError, match="position 3 is outside the 3"):
        f.rank_of_evidence(np.ones(3), [3])
    with pytest.raises(ValueError, match="NaN at position 1"):
        f.precision_at_k(np.array([1.0, np.nan]), [0])


def _table(scores, evidence, **columns):
    rows = pd.DataFrame(
        {
            "dataset": "d",
            "shortcut": "s",
            "model": "m",
            "role": "mixed",
            "seed": 0,
            "method": "x",
            "config": "",
            "example": range(len(scores)),
            "scores": scores,
            "evidence": evidence,
            "n_tokens": [len(s) for s in scores],
        }
    )
    return f.score(rows.assign(**columns))


def test_all_equal_scores_are_counted():
    assert f.summarise(_table([[0.0, 0.0], [1.0, 0.0]], [[0], [0]]))["n_all_equal"].item() == 1


def test_interval_covers_the_mean_and_narrows_with_n():
    rng = np.random.default_rng(0)
    few, many = rng.random(20), rng.random(2000)
    low, high = f.interval(few)
    assert low < few.mean() < high
    assert high - low > 3 * (f.interval(many)[1] - f.interval(many)[0])
    assert f.interval([1.0, 1.0]) == (1.0, 1.0)


def test_several_seeds_have_an_interval_of_their_own():
    table = pd.concat([_table([[1.0, 0.0]] * 4, [[0]] * 4, seed=0), _table([[0.0, 1.0]] * 4, [[0]] * 4, seed=1)])
    row = f.summarise(table).iloc[0]
    assert (row["precision_seed_low"], row["precision_seed_high"]) == (0.0, 1.0)
    assert "precision_seed_low" not in f.summarise(_table([[1.0, 0.0]], [[0]]))


def test_difference_is_over_the_same_examples():
    one = _table([[1.0, 0.0], [1.0, 0.0]], [[0], [0]], config="a")
    other = _table([[0.0, 1.0]], [[0]], config="b")
    mean, _, _, n = f.difference(pd.concat([one, other]), {"config": "a"}, {"config": "b"})
    assert (mean, n) == (1.0, 1)


def test_difference_names_what_it_can_tell_apart():
    table = _table([[1.0, 0.0]], [[0]])
    with pytest.raises(ValueError, match="both must name the same columns of: dataset, shortcut, model, role, method, config, seed, example"):
        f.difference(table, {"config": "a"}, {"method": "b"})
    with pytest.raises(ValueError, match="name .'conf'"):
        f.difference(table, {"conf": "a"}, {"conf": "b"})


def _shares(n, *rates):
    return [np.arange(n) < round(n * rate) for rate in rates]


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ((0.9, 0.89, 0.995, 0.51), ""),
        ((0.9, 0.89, 0.98, 0.51), "synthetic accuracy 0.980"),
        ((0.9, 0.89, 0.995, 0.6), "not near 0.5"),
        ((0.9, 0.89, 0.995, 0.4), "not near 0.5"),
        ((0.9, 0.85, 0.995, 0.5), "drop 0.050"),
    ],
)
def test_verification_fails_for_each_reason_alone(rates, reason):
    row = f.verification(*_shares(1000, *rates), f.Thresholds())
    assert row["verified"] == (not reason)
    assert reason in row["why_not"]
    assert row["synthetic_accuracy_low"] < rates[2] < row["synthetic_accuracy_high"]


def test_drop_interval_is_paired():
    """Two models that err on the same texts have a certain drop, however hard the texts are."""
    right = np.arange(200) % 2 == 0
    row = f.verification(right, right, np.ones(200, bool), right, f.Thresholds())
    assert (row["drop_low"], row["drop"], row["drop_high"]) == (0, 0, 0)


def test_few_test_texts_add_their_noise_to_what_is_tolerated():
    few = f.THRESHOLDS.for_few(100)
    assert (few.synthetic, round(few.chance, 3), round(few.drop, 3)) == (0.99, 0.148, 0.138)
