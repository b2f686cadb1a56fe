import pandas as pd
import pytest

from faithlib import claims


def _seen(low, high, n=300):
    return claims.Seen("bert ordered pair", (low + high) / 2, low, high, n)


@pytest.mark.parametrize(
    ("seen", "expected", "tested", "verdict"),
    [
        ([_seen(0.96, 0.98), _seen(1.0, 1.0)], 2, True, "holds"),
        ([_seen(0.96, 0.98), _seen(0.80, 0.94)], 2, True, "does not"),
        ([_seen(0.96, 0.98), _seen(0.94, 0.96)], 2, True, "not tested: an interval allows both"),
        ([_seen(0.90, 0.96), _seen(0.80, 0.94)], 2, True, "does not"),  # one is refuted, whatever the other may be
        ([_seen(0.96, 0.98)], 2, True, "not tested"),  # a pair failed verification
        ([_seen(0.96, 0.98), _seen(0.96, 0.98, n=6)], 2, True, "not tested: too few examples"),
        ([_seen(0.10, 0.20, n=6)], 1, True, "not tested: too few examples"),
        ([_seen(0.96, 0.98)], 1, False, "not tested at this size"),
        ([], 1, True, "not tested"),
    ],
)
def test_a_claim_is_judged_by_its_intervals_and_never_holds_for_want_of_data(seen, expected, tested, verdict):
    assert claims.judge("c", seen, (0.95, 1.0), expected, tested).verdict == verdict


def test_a_claim_about_nothing_says_so_and_a_reason_is_given():
    empty = claims.Seen("difference", float("nan"), float("nan"), float("nan"), 0)
    assert (claims.judge("c", [empty], (0.0, 1.0), 1, True).saw, str(_seen(0.5, 0.7))) == ("difference nothing", "bert ordered pair 0.60 [0.50, 0.70] n=300")
    assert claims.judge("c", [_seen(0.5, 0.7)], (0.0, 1.0), 1, False, "with GloVe").verdict == "not tested with GloVe"


def _ranked(model, shortcut, method, values):
    where = {"dataset": "d", "seed": 0, "role": "mixed", "config": "", "shortcut": shortcut, "model": model, "method": method}
    return pd.DataFrame([{**where, "example": i, "precision_at_k": value} for i, value in enumerate(values)])


def test_a_gain_is_paired_by_example_and_split_by_the_columns_asked_for():
    table = pd.concat(
        [
            _ranked("bert", "ordered_pair", "lime", [1.0, 0.5, 1.0]),
            _ranked("bert", "ordered_pair", "random", [0.0, 0.5]),
            _ranked("bert", "single_token", "lime", [1.0]),
            _ranked("bert", "single_token", "random", [1.0]),
            _ranked("lstm", "single_token", "lime", [0.0]),
        ]
    )
    found = claims.gain(table[table["model"] == "bert"], {"method": "lime"}, {"method": "random"}, ["model", "shortcut"])
    assert [(seen.name, seen.mean, seen.n) for seen in found] == [("bert ordered pair difference", 0.5, 2), ("bert single token difference", 0.0, 1)]
    across = claims.gain(table[table["method"] == "lime"], {"model": "bert"}, {"model": "lstm"})
    assert [(seen.name, seen.mean, seen.n) for seen in across] == [("difference", 1.0, 1)]


def test_paper_values_find_their_configuration():
    summary = pd.DataFrame(
        [
            {
                "method": m,
                "config": c,
                "role": "mixed",
                "shortcut": "token_in_context",
                "model": "bert",
                "precision_at_k": p,
                "precision_at_k_low": p,
                "precision_at_k_high": p,
                "n": 9,
            }
            for m, c, p in (("gradient_l2", "of=logit", 0.5), ("lime", "mask=unk;samples=1000", 0.6))
        ]
    )
    from faithlib import paths

    found = claims.beside_the_paper(summary, pd.read_csv(paths.ROOT / "faithlib" / "paper_values.csv"), "sst2")
    assert {(r["method"], r["paper (sst2)"], r["this run"]) for _, r in found.iterrows()} == {("gradient_l2", 0.99, 0.5), ("lime", 0.87, 0.6)}
