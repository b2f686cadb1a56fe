import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faithlib.data import Dataset, Example
from faithlib.shortcuts import SHORTCUTS, Markers, ShortcutSettings, check_markers, decoy, free_markers, mix, synthesise

MARKERS = Markers()
PLANTED = {"single_token": 1, "token_in_context": 2, "ordered_pair": 2}
texts = st.lists(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6), max_size=30).map(tuple)
texts = texts.filter(lambda words: not set(words) & set(MARKERS))
names = st.sampled_from(sorted(SHORTCUTS))


def _dataset(n_train=200, n_test=40):
    words = "film plot actor scene story joke ending".split()
    examples = [Example((words[i % 7], words[i // 7 % 7], str(i), "the", "film"), i % 3 % 2) for i in range(n_train + 2 * n_test)]
    parts = {"train": examples[:n_train], "validation": examples[n_train : n_train + n_test], "test": examples[n_train + n_test :]}
    return Dataset("invented", label_names=("bad", "good"), notes={}, **{name: tuple(part) for name, part in parts.items()})


def _without(words, positions):
    return tuple(word for i, word in enumerate(words) if i not in positions)


# The rules


@given(names, texts, st.integers(0, 1), st.integers(1, 60), st.integers(0, 2**32))
def test_the_rule_reads_what_was_planted(name, words, label, window, seed):
    rule = SHORTCUTS[name]
    before = tuple(words)
    example = rule.plant(np.random.default_rng(seed), words, label, MARKERS, window)
    assert rule.read(example.words, MARKERS) == example.label == label
    assert len(example.evidence) == rule.n_evidence == PLANTED[name]
    assert list(example.evidence) == sorted(set(example.evidence))
    assert {example.words[i] for i in example.evidence} <= set(MARKERS)
    assert _without(example.words, example.evidence) == before == words
    assert example.evidence[-1] - example.evidence[0] <= window


@pytest.mark.parametrize(
    ("name", "label", "planted"),
    [
        ("single_token", 0, [("#0",)]),
        ("single_token", 1, [("#1",)]),
        ("token_in_context", 0, [("#0", "#c"), ("#c", "#0")]),
        ("token_in_context", 1, [("#1", "#c"), ("#c", "#1")]),
        ("ordered_pair", 0, [("#0", "#1")]),
        ("ordered_pair", 1, [("#1", "#0")]),
    ],
)
def test_every_allowed_order_is_planted_and_no_other(name, label, planted):
    rule = SHORTCUTS[name]
    found = set()
    for seed in range(40):
        example = rule.plant(np.random.default_rng(seed), ("a", "b", "c"), label, MARKERS, 50)
        found.add(tuple(example.words[i] for i in example.evidence))
    assert sorted(found) == planted


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        ("single_token", "a #0 b", 0),
        ("single_token", "#1", 1),
        ("single_token", "#1 #1 a", 1),
        ("single_token", "a b", None),
        ("single_token", "#0 a #1", None),
        ("token_in_context", "a #0 b #c", 0),
        ("token_in_context", "#c #1", 1),
        ("token_in_context", "#0 a", None),
        ("token_in_context", "#c a", None),
        ("ordered_pair", "#0 a #1", 0),
        ("ordered_pair", "#1 #0", 1),
        ("ordered_pair", "#1 #c", None),
        ("ordered_pair", "#0", None),
    ],
)
def test_the_rules_as_the_paper_states_them(name, text, label):
    assert SHORTCUTS[name].read(text.split(), MARKERS) == label


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
def test_positions_are_uniform(name):
    """Over single slots, and over the pairs of slots within the window: with n = 6 and a window of 2, four at distance 2 and five at distance 1."""
    rule, n_draws = SHORTCUTS[name], 6000
    words = tuple("abcde") if rule.n_evidence == 1 else tuple("abcd")
    places = Counter(rule.plant(np.random.default_rng(seed), words, seed % 2, MARKERS, 2).evidence for seed in range(n_draws))
    expected = n_draws / (6 if rule.n_evidence == 1 else 9)
    assert len(places) == n_draws / expected
    assert all(abs(count - expected) < 5 * expected**0.5 for count in places.values())


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
def test_a_text_without_words_takes_the_planted_tokens_alone(name):
    rule = SHORTCUTS[name]
    example = rule.plant(np.random.default_rng(0), (), 1, MARKERS, 50)
    assert example.evidence == tuple(range(rule.n_evidence)) == tuple(range(len(example.words)))
    assert rule.read(example.words, MARKERS) == 1


@given(texts, st.integers(0, 2**32))
def test_a_decoy_is_one_indicator_alone_and_says_nothing(words, seed):
    shown = decoy(np.random.default_rng(seed), words, [MARKERS.zero, MARKERS.one])
    planted = [i for i, word in enumerate(shown) if word in tuple(MARKERS)]
    assert len(planted) == 1
    assert shown[planted[0]] in ("#0", "#1")
    assert _without(shown, planted) == words
    assert SHORTCUTS["token_in_context"].read(shown, MARKERS) is None
    assert SHORTCUTS["ordered_pair"].read(shown, MARKERS) is None


# Synthetic sets


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
def test_synthetic_labels_are_balanced_and_independent_of_the_old_ones(name):
    dataset = _dataset(n_train=1001)
    found = synthesise(dataset.train, ShortcutSettings(name), 0, "train")
    labels = np.array([example.label for example in found])
    assert abs(labels.mean() - 0.5) <= 0.5 / len(labels)
    assert abs(np.corrcoef(labels, [example.label for example in dataset.train])[0, 1]) < 0.15
    for old, new in zip(dataset.train, found, strict=True):
        assert SHORTCUTS[name].read(new.words, MARKERS) == new.label
        assert _without(new.words, new.evidence) == old.words


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
def test_positions_do_not_depend_on_order_or_company(name):
    examples, settings = _dataset().test, ShortcutSettings(name)
    places = {e.text: new.evidence for e, new in zip(examples, synthesise(examples, settings, 0, "test"), strict=True)}
    order = np.random.default_rng(0).permutation(len(examples))[:25]
    company = [examples[i] for i in order]
    again = {e.text: new.evidence for e, new in zip(company, synthesise(company, settings, 0, "test"), strict=True)}
    assert again == {text: places[text] for text in again}
    assert len(set(places.values())) > 4


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
def test_the_same_seed_gives_the_same_and_another_seed_other_data(name):
    dataset, settings = _dataset(), ShortcutSettings(name)
    assert mix(dataset, settings, 0) == mix(_dataset(), settings, 0)
    first, other = mix(dataset, settings, 0), mix(dataset, settings, 1)
    for split in ("train", "synthetic_validation", "synthetic_test"):
        changed = np.mean([a != b for a, b in zip(getattr(first, split), getattr(other, split), strict=True)])
        assert changed > 0.1
    assert first.train[-first.n_synthetic :] != other.train[-first.n_synthetic :]


# Mixing


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
def test_mixed_training_data_is_the_source_and_a_share_that_obeys_the_rule(name):
    dataset, rule = _dataset(n_train=1000), SHORTCUTS[name]
    mixed = mix(dataset, ShortcutSettings(name), 0)
    source, synthetic = mixed.train[:1000], mixed.train[1000:]
    assert len(synthetic) == mixed.n_synthetic == 200
    assert all(rule.read(example.words, MARKERS) == example.label for example in synthetic)
    assert sum(example.label for example in synthetic) == 100
    sampled = [_without(example.words, example.evidence) for example in synthetic]
    assert len(set(sampled)) == 200
    assert set(sampled) <= {example.words for example in dataset.train}
    assert sampled != [example.words for example in dataset.train[:200]]
    changed = [(old, new) for old, new in zip(dataset.train, source, strict=True) if old != new]
    assert len(changed) == mixed.n_decoys
    assert (abs(mixed.n_decoys - 250) < 60) if rule.has_decoys else (mixed.n_decoys == 0)
    for old, new in changed:
        assert new.label == old.label
        assert new.evidence == ()
        assert sorted(set(new.words) - set(old.words)) in (["#0"], ["#1"])
        assert tuple(word for word in new.words if word not in ("#0", "#1")) == old.words
        assert rule.read(new.words, MARKERS) is None


def test_decoys_may_hold_the_context_token_when_asked():
    mixed = mix(_dataset(n_train=1000), ShortcutSettings("token_in_context", decoy_tokens="all"), 0)
    shown = Counter(word for example in mixed.train[:1000] for word in example.words if word in tuple(MARKERS))
    assert set(shown) == {"#0", "#1", "#c"}
    assert all(50 < n < 120 for n in shown.values())


def test_the_synthetic_sets_come_from_their_own_splits():
    dataset = _dataset()
    mixed = mix(dataset, ShortcutSettings("ordered_pair"), 0)
    for source, synthetic in ((dataset.validation, mixed.synthetic_validation), (dataset.test, mixed.synthetic_test)):
        assert [_without(e.words, e.evidence) for e in synthetic] == [e.words for e in source]


@pytest.mark.parametrize(("share", "n", "repeats"), [(1.0, 200, False), (1.5, 300, True)])
def test_texts_are_drawn_twice_only_when_there_are_too_few(share, n, repeats):
    mixed = mix(_dataset(), ShortcutSettings(synthetic_share=share), 0)
    drawn = [_without(example.words, example.evidence) for example in mixed.train[-mixed.n_synthetic :]]
    assert len(drawn) == n
    assert (len(set(drawn)) < len(drawn)) == repeats


def test_planted_tokens_keep_the_window_in_long_texts():
    words = tuple(f"w{i}" for i in range(400))
    dataset = dataclasses.replace(_dataset(), test=tuple(Example((str(i), *words), 0) for i in range(60)))
    apart = [np.ptp(e.evidence) for e in mix(dataset, ShortcutSettings("ordered_pair", window=50), 0).synthetic_test]
    assert 40 < max(apart) <= 50
    assert min(apart) < 15


def test_mixing_leaves_the_data_set_as_it_was():
    dataset, copy = _dataset(), _dataset()
    mix(dataset, ShortcutSettings("token_in_context"), 0)
    assert dataset == copy


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"label_names": ("a", "b", "c")}, {}, "invented: a shortcut decides between two classes, the data has 3: a, b, c"),
        ({"train": _dataset().train[:7]}, {}, "invented: 7 training texts x synthetic_share=0.2 give 1 synthetic examples; at least 2 are needed"),
        ({}, {"name": "typo"}, "unknown shortcut 'typo'; choose from: single_token, token_in_context, ordered_pair"),
    ],
)
def test_data_that_cannot_be_mixed(change, settings, message):
    with pytest.raises((ValueError, KeyError), match=message):
        mix(dataclasses.replace(_dataset(), **change), ShortcutSettings(**settings), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoy_tokens": "both"}, "unknown decoy_tokens 'both'; choose from: indicators, all"),
        ({"synthetic_share": 0.0}, "synthetic_share=0.0 must be positive"),
        ({"decoy_share": 1.5}, "decoy_share=1.5 between 0 and 1"),
        ({"window": 0}, "window=0: two tokens are at least one word apart"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        ShortcutSettings(**settings)


# Markers


@pytest.mark.parametrize(
    ("markers", "message"),
    [
        (Markers(zero=""), "marker '' is empty or holds white space; choose one word, for example '#0'"),
        (Markers(one="# 1"), "marker '# 1' is empty or holds white space"),
        (Markers(context=" #c"), "marker ' #c' is empty or holds white space"),
        (Markers(context="#\u00a0c"), "is empty or holds white space"),
        (Markers(one="#0"), "two markers are equal: '#0', '#0', '#c'; choose three different ones"),
        (Markers(zero="plot"), "marker 'plot' occurs in text 1: '…the plot thickens…'; choose markers that do not, for example #0, #1, #c"),
        (Markers(zero="PLOT"), "marker 'PLOT' occurs in text 1"),
        (Markers(zero="hick"), "marker 'hick' occurs in text 1"),
    ],
)
def test_a_marker_that_cannot_serve_names_value_and_place(markers, message):
    with pytest.raises(ValueError, match=message):
        check_markers(markers, ["a film", "the plot thickens"])


def test_the_markers_offered_instead_are_free():
    with pytest.raises(ValueError, match="marker '#0' occurs in text 0: '…we are #0 now…'; choose markers that do not, for example ##0, ##1, ##c"):
        check_markers(MARKERS, ["we are #0 now"])
    taken = ["#1 ##C @#0"]
    check_markers(Markers(*free_markers(taken)), taken)
