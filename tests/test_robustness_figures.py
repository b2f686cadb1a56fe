"""Every figure shows the numbers that are saved beside it."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from faithlib import robustness_figures as figures
from faithlib.robustness import with_k


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def _table(attacks=("tea", "tef"), datasets=("x",)):
    rng = np.random.default_rng(0)
    rows = [
        {"dataset": dataset, "model": model, "attribution": attribution, "attack": attack, "rules": "own", "seed": 0, "sample": sample, "step": step}
        | {"rho": 0.05 * step, "d": 0.1 * step + 0.1 * (attack == "tea"), "pcc": 0.5, "minilm": 0.1, "grammar": float(rng.integers(3))}
        for dataset in datasets
        for model in ("lstm", "bert")
        for attribution in ("saliency", "attention")
        for attack in attacks
        for sample in range(4)
        for step in range(1, 5)
    ]
    return with_k(pd.DataFrame(rows))


def _drawn(axis):
    """Line colour and style -> its points, of the lines that have several."""
    return {(bar[0].get_color(), bar[0].get_linestyle()): list(map(float, bar[0].get_ydata())) for bar in axis.containers if len(bar[0].get_ydata()) > 1}


def test_curves_draw_what_they_return():
    figure, numbers = figures.curves(_table())
    axes = np.array(figure.axes).reshape(-1, 2)
    assert [row[0].get_ylabel() for row in axes] == ["PCC of the explanations", "GE, grammatical errors", "k, MiniLM (median)"]
    assert [axis.get_title() for axis in axes[0]] == ["LSTM\nn = 4", "BERT\nn = 4"]
    k = numbers[(numbers["metric"] == "k_minilm") & (numbers["model"] == "bert")]
    expected = {(a, t): rows["median"].tolist() for (a, t), rows in k.groupby(["attribution", "attack"])}
    drawn = _drawn(axes[2][1])
    assert sorted(drawn.values()) == sorted(expected.values())
    assert {style for _, style in drawn} == {"-", "--"}
    assert drawn[figures.OTHERS[0], "--"] == pytest.approx(expected["saliency", "tef"])


def test_several_data_sets_stand_side_by_side_and_are_named():
    figure, _ = figures.curves(_table(datasets=("x", "bbc_news")), {"pcc": figures.METRICS["pcc"]})
    assert [axis.get_title().split("\n")[0] for axis in figure.axes] == ["x, LSTM", "x, BERT", "bbc news, LSTM", "bbc news, BERT"]


def test_tef_is_called_by_its_words_where_they_are_not_the_papers():
    table = _table()
    for words, name in (("GloVe neighbours", "TEF with GloVe neighbours"), ("counter-fitted neighbours", "TEF")):
        figure, _ = figures.curves(table.assign(candidates=words), {"pcc": figures.METRICS["pcc"]})
        assert [text.get_text() for text in figure.legends[0].get_texts()][-2:] == ["TEA", name]


def test_several_seeds_are_a_band_around_the_line():
    """The two seeds' means of PCC are .4 and .6 in every bin."""
    table = pd.concat([_table().assign(seed=seed, pcc=pcc) for seed, pcc in ((0, 0.4), (1, 0.6))], ignore_index=True)
    figure, numbers = figures.curves(table, {"pcc": figures.METRICS["pcc"]})
    assert figure.axes[0].get_title() == "LSTM\nn = 4, 2 seeds"
    bands = [band.get_paths()[0].vertices[:, 1] for axis in figure.axes for band in axis.collections if band.get_alpha() == 0.12]
    assert len(bands) == 8  # two models, two attributions, two attacks
    assert all((band.min(), band.max()) == (pytest.approx(0.4), pytest.approx(0.6)) for band in bands)
    np.testing.assert_allclose(numbers["mean"], 0.5)


def test_ablations_have_a_panel_per_attribution_and_a_line_per_attack():
    table = _table(("tea", "random", "random_importance"))
    figure, numbers = figures.ablations(table[table["model"] == "lstm"], "k_minilm")
    assert [axis.get_title() for axis in figure.axes] == ["LSTM, Saliency\nn = 4", "LSTM, Attention\nn = 4"]
    assert len(_drawn(figure.axes[0])) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["TEA", "TEA, both random", "TEA, positions in random order"]
    assert set(numbers["attack"]) == {"tea", "random", "random_importance"}


def test_gains_stand_in_the_row_of_their_pair():
    rows = [
        {"dataset": "x", "model": model, "attribution": "saliency", "rules": rules, "metric": "k_use", "gain": gain, "low": gain - 0.1, "high": gain + 0.2}
        | {"n": n, "n_seeds": 1, "lowest_seed": np.nan, "highest_seed": np.nan}
        for model, rules, gain, n in (("lstm", "literal_tea", 1.0, 31), ("lstm", "tef", 0.1, 30), ("bert", "literal_tea", 0.4, 9))
    ]
    [axis] = figures.gains(pd.DataFrame(rows), "TEF with GloVe neighbours").axes
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["LSTM, Saliency (n = 31)", "BERT, Saliency (n = 9)"]
    assert axis.get_xlabel() == "relative gain of TEA over TEF with GloVe neighbours"
    published, equal = (container[0] for container in axis.containers)
    assert [(round(y), x) for x, y in zip(published.get_xdata(), published.get_ydata(), strict=True)] == [(0, 1.0), (1, 0.4)]
    assert [(round(y), x) for x, y in zip(equal.get_xdata(), equal.get_ydata(), strict=True)] == [(0, 0.1)]
    assert [text.get_text() for text in axis.figure.legends[0].get_texts()] == ["TEA's rules as published", "TEF's rules for both"]
    wide = pd.DataFrame(rows).assign(high=8.0, n_seeds=3, lowest_seed=0.05, highest_seed=1.5)
    [axis] = figures.gains(wide).axes
    assert (axis.get_xscale(), [tick for tick in axis.get_xticks()]) == ("symlog", [-1, 0, 1, 2, 5])
    assert axis.get_xlabel() == "relative gain of TEA over TEF (logarithmic beyond 1)"
    assert sum(line.get_marker() == "|" and list(line.get_xdata()) == [0.05, 0.05] for line in axis.lines) == 1  # of the rules that two pairs were asked under


def test_run_times_are_medians_under_their_variant():
    times = pd.DataFrame(
        [
            {"dataset": "x", "variant": variant, "rho_max": rho_max, "seconds": seconds}
            for variant, rho_max, seconds in (
                ("TEF", 0.1, 1.0),
                ("TEF", 0.1, 2.0),
                ("TEF", 0.1, 9.0),
                ("TEA", 0.1, 4.0),
                ("TEF", 0.25, 6.0),
                ("TEA", 0.25, 8.0),
            )
        ]
    )
    [axis] = figures.run_times(times).axes
    assert [[bar.get_height() for bar in bars] for bars in axis.containers] == [[2.0, 4.0], [6.0, 8.0]]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["TEF", "TEA"]
    assert axis.get_title() == "x, n = 1 to 3"
