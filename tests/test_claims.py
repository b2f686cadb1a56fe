import pandas as pd
import pytest

from faithlib import claims


def _rows(*n):
    return pd.DataFrame({"shortcut": "ordered_pair", "model": "bert", "precision_at_k": 0.9, "precision_at_k_low": 0.8, "precision_at_k_high": 1.0, "n": n})


@pytest.mark.parametrize(
    ("n", "holds", "expected", "tested", "verdict"),
    [
        ([300, 300], [True, True], 2, True, "holds"),
        ([300, 300], [True, False], 2, True, "does not"),
        ([300], [True], 2, True, "not tested"),  # a pair failed verification
        ([300, 6], [True, True], 2, True, "not tested: too few examples"),
        ([300, 300], [True, True], 2, False, "not tested at this size"),
        ([], [], 1, True, "not tested"),
    ],
)
def test_a_claim_never_holds_for_want_of_data(n, holds, expected, tested, verdict):
    assert claims.judge("c", _rows(*n), holds, expected, tested).verdict == verdict


def test_a_difference_over_few_examples_is_not_tested():
    nan = float("nan")
    assert claims.compare("c", (nan, nan, nan, 0), True, True).verdict == "not tested: too few examples"
    assert claims.compare("c", (0.1, 0.05, 0.2, 40), True, True).verdict == "holds"
    assert claims.compare("c", (0.1, -0.05, 0.2, 40), False, True).verdict == "does not"


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
