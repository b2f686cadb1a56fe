import itertools
import json
import math
import os
import subprocess
import sys
import types
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from faithlib import assets, paths
from faithlib.assets import MissingAssetError
from faithlib.attack import ATTACKS, RULES, AttackSettings, Rules, preset
from faithlib.attack import candidates as sources
from faithlib.attack import words as kinds
from faithlib.attack.importance import attackable, by_importance, in_random_order, word_importance
from faithlib.attack.search import _Counted, _share_replaced, attack, budget, largest_cost
from faithlib.registry import UnknownNameError

FREE = Rules(attack_punctuation=True, propose_punctuation=True, attack_function_words=True)
VOCABULARY = "film plot actor scene story joke ending great dull warm cold slow".split()
sentences = st.lists(st.sampled_from([*VOCABULARY, "the", ".", "of"]), min_size=1, max_size=30).map(tuple)


# A small world: what a word is worth, a map in which the words disturb each other, a class that half of the edits change


def worth(word):
    return sum((i + 1) * ord(letter) for i, letter in enumerate(word)) * 7919 % 1000 / 1000 - 0.5


def attribute(batch, target):
    maps = []
    for words in batch:
        values = np.array([worth(word) for word in words])
        maps.append(values * (1 + 0.8 * np.roll(values, 1)) + 0.3 * values.sum() * np.sin(np.arange(len(words)) + target))
    return maps


def predict(batch):
    return np.array([math.floor(5 * sum(map(worth, words))) % 2 for words in batch])


def propose(words, positions):
    """Like a masked language model: what it says depends on the words that are not masked."""
    context = sum(ord(letter) for i, word in enumerate(words) if i not in positions for letter in word)
    return [[VOCABULARY[(context + position + 5 * i) % len(VOCABULARY)] for i in range(6)] for position in positions]


def run(words, chosen=None, **functions):
    chosen = chosen or AttackSettings(rules=FREE)
    return attack(
        words, int(predict([words])[0]), chosen, **{"predict": predict, "attribute": attribute, "propose": propose, "mask_word": "[MASK]", **functions}
    )


def recorded(function):
    def record(*arguments):
        record.calls.append(arguments)
        return function(*arguments)

    record.calls = []
    return record


def from_table(table):
    """attribute: sentence -> map, as written by hand."""
    return lambda batch, target: [np.array(table[" ".join(words)], dtype=float) for words in batch]


# Budget


@given(st.integers(0, 2000), st.integers(1, 100))
def test_the_budget_is_the_floor_of_an_exact_product(n_words, hundredths):
    n_max, b = budget(n_words, AttackSettings(rho_max=hundredths / 100))
    assert n_max == math.floor(n_words * Decimal(hundredths) / 100)
    assert b == min(n_max, max(1, math.floor(n_words * Decimal("0.15"))))


@pytest.mark.parametrize(("n_words", "rho_max", "n_max"), [(100, 0.29, 29), (50, 0.58, 29), (100, 0.07, 7), (10, 0.1, 1), (9, 0.1, 0), (0, 0.3, 0)])
def test_floats_would_lose_a_word(n_words, rho_max, n_max):
    assert budget(n_words, AttackSettings(rho_max=rho_max))[0] == n_max
    if (n_words, rho_max) in ((100, 0.29), (50, 0.58)):
        assert math.floor(n_words * rho_max) < n_max


def test_without_batch_masking_a_batch_is_one_position():
    assert budget(100, AttackSettings(rho_max=0.3, batch_masking=False)) == (30, 1)
    assert budget(100, AttackSettings(rho_max=0.3)) == (30, 15)
    assert budget(100, AttackSettings(rho_max=0.1)) == (10, 10)


# By hand


def test_one_of_ten_words_replaced_is_a_tenth():
    path = run(("film",) * 4 + ("plot",) * 6, AttackSettings(rho_max=0.1, rules=FREE))
    assert [step.rho for step in path.steps] == [0.1]
    assert path.steps[0].old != path.steps[0].new == path.adversarial[path.steps[0].position]


def test_distances_worked_by_hand():
    table = {"a b c d": [1, 2, 3, 4], "x b c d": [4, 3, 2, 1], "y b c d": [1, 1, 1, 1], "z b c d": [3, 1, 4, 2]}  # PCC -1, none, 0
    table |= {"[MASK] b c d": [4, 3, 2, 1], "a [MASK] c d": [1, 2, 3, 4], "a b [MASK] d": [1, 2, 3, 4], "a b c [MASK]": [1, 2, 3, 4]}
    for candidates, new, d, pcc in (("xyz", "x", 1, -1), ("yz", "y", 0.5, np.nan), ("zy", "z", 0.5, 0)):
        path = attack(
            tuple("abcd"),
            0,
            AttackSettings(rho_max=0.25, rules=FREE),
            lambda batch: np.zeros(len(batch), dtype=int),
            from_table(table),
            lambda words, positions, c=candidates: [list(c)] * len(positions),
            "[MASK]",
        )
        [step] = path.steps
        assert (step.new, step.position) == (new, 0)  # the other words do not move the map when masked
        assert step.d == pytest.approx(d)
        assert step.pcc == pytest.approx(pcc, nan_ok=True)


def test_a_constant_map_of_a_constant_original_is_not_moved():
    path = run(tuple(VOCABULARY), attribute=lambda batch, target: [np.full(len(words), 0.1) for words in batch])
    assert path.steps == ()
    assert (path.reason, path.adversarial) == ("", tuple(VOCABULARY))


@pytest.mark.parametrize("noise", [0, 1e-9])
def test_ties_go_to_the_more_probable_candidate(noise):
    table = {"a b c": [1, 2, 4], "x b c": [4, 1, 3], "y b c": [4, 1, 3 + noise]}
    steps = {
        order: attack(
            tuple("abc"),
            0,
            AttackSettings(rho_max=0.4, importance="random", rules=FREE),
            lambda batch: np.zeros(len(batch), dtype=int),
            lambda batch, target: [np.array(table.get(" ".join(words), [1, 2, 4]), dtype=float) for words in batch],
            lambda words, positions, order=order: [list(order) if position == 0 else [] for position in positions],
            "[MASK]",
        ).steps
        for order in ("xy", "yx")
    }
    assert {order: step.new for order, [step] in steps.items()} == {"xy": "x", "yx": "y"}


# Constraints


def test_the_budget_is_checked_before_every_position_and_the_whole_batch_is_masked():
    words = tuple(VOCABULARY[i % 12] for i in range(20))
    chosen = AttackSettings(rho_max=0.15, batch_share=0.1, choice="random", rules=FREE)  # a random choice is always accepted
    ask = recorded(propose)
    path = attack(words, 0, chosen, lambda batch: np.zeros(len(batch), dtype=int), attribute, ask, "[MASK]")
    assert [step.rho for step in path.steps] == [0.05, 0.1, 0.15]
    assert [len(positions) for _, positions in ask.calls] == [2, 2]
    assert [asked for asked, _ in ask.calls] == [words, path.steps[1].words]  # not refreshed within a batch
    assert len(path.n_kept) == 3


@settings(deadline=None, max_examples=60)
@given(sentences, st.sampled_from(sorted(ATTACKS)), st.sampled_from(sorted(RULES)), st.integers(0, 3))
def test_every_attack_under_any_rules_keeps_its_word(words, name, rules, seed):
    chosen = preset(name, rules=rules, seed=seed)
    path = run(words, chosen)
    n_max, _ = budget(len(words), chosen)
    assert path.counts.n_attributions <= largest_cost(words, chosen) <= 1 + path.n_positions * 16
    assert len(path.steps) <= n_max
    for n, step in enumerate(path.steps, 1):
        changed = [i for i, (new, old) in enumerate(zip(step.words, words, strict=True)) if new != old]
        assert step.rho == n / len(words) <= 0.3
        assert len(changed) == n
        assert set(changed) <= set(attackable(words, chosen.rules))
        assert predict([step.words]) == path.label
        assert " ".join(step.words).split() == list(step.words)
        assert step.n_kept <= step.n_candidates <= 15
    if chosen.choice == "greedy":
        assert all(one.d < other.d for one, other in itertools.pairwise(path.steps))
    assert path.reason == ("too short" if n_max == 0 else "" if path.n_positions else "nothing to attack")


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(VOCABULARY), min_size=3, max_size=5).map(tuple), st.integers(0, 10**6))
def test_an_exhaustive_search_bounds_the_greedy_one(words, seed):
    rng = np.random.default_rng(seed)
    options = [[str(word) for word in rng.choice(VOCABULARY, 2, replace=False)] for _ in words]
    label, [original] = int(predict([words])[0]), attribute([words], int(predict([words])[0]))
    everything = itertools.product(*([word, *extra] for word, extra in zip(words, options, strict=True)))
    feasible = {new for new in everything if 0 < sum(map(str.__ne__, new, words)) <= 0.4 * len(words) and predict([new]) == label}
    path = run(words, AttackSettings(rho_max=0.4, rules=FREE), propose=lambda _, positions: [options[position] for position in positions])
    furthest = max((1 - (1 + np.corrcoef(new, original)[0, 1]) / 2 for new in attribute(sorted(feasible), label)), default=0)
    for step in path.steps:
        assert step.words in feasible
        assert step.d <= furthest + 1e-9


def test_candidates_that_change_the_class_or_the_number_of_words_are_never_taken():
    words = tuple(VOCABULARY)
    label = int(predict([words])[0])
    offered = ["two words", "", " ", "non\u00a0breaking", *VOCABULARY]
    ask = recorded(predict)
    path = run(words, propose=lambda _, positions: [offered] * len(positions), predict=ask)
    tried = [variant for [batch] in ask.calls[1:] for variant in batch]
    assert tried
    assert all(len(" ".join(variant).split()) == len(words) for variant in tried)
    assert any(predict([variant]) != label for variant in tried)
    assert all(predict([step.words]) == label for step in path.steps)
    none_left = run(words, predict=lambda batch: np.array([label if variant == words else 1 - label for variant in batch]))
    assert none_left.steps == ()
    assert set(none_left.n_kept) == {0} != set(none_left.n_candidates)


def test_a_sentence_outside_the_constraints_would_be_refused():
    with pytest.raises(RuntimeError, match=r"rho=0.5 left the constraints \(rho_max=0.3, 2 words\)"):
        _share_replaced(("a", "b"), ("a", "c"), AttackSettings())


def test_who_is_not_attacked():
    words = tuple(VOCABULARY)
    refused = [
        attack(words, 1 - int(predict([words])[0]), AttackSettings(), predict, attribute, propose, "[MASK]"),
        run(("film", "plot"), AttackSettings(rho_max=0.3)),
        run((), AttackSettings()),
        run(("the", ".", "of", "😀", "\u200b"), AttackSettings()),
    ]
    assert [path.reason for path in refused] == ["misclassified", "too short", "too short", "nothing to attack"]
    for path in refused:
        assert path.steps == path.n_candidates == ()
        assert path.adversarial == path.words
        assert (path.counts.n_predictions, path.counts.n_attributions) == (1, 0)


# Cost


def test_the_bound_is_reached_when_nothing_gains_and_never_passed():
    words = tuple(VOCABULARY)
    flat = run(
        words,
        AttackSettings(n_candidates=3, rules=FREE),
        attribute=lambda batch, target: [np.arange(len(words))] * len(batch),
        predict=lambda batch: np.full(len(batch), predict([words])[0]),
    )
    assert flat.counts.n_attributions == largest_cost(words, flat.settings) == 1 + 12 * (1 + 3)
    assert flat.steps == ()
    assert largest_cost(words, replace(flat.settings, importance="random")) == 1 + 12 * 3
    assert largest_cost(words, replace(flat.settings, choice="random")) == 1 + 12 * 2
    assert largest_cost(("the", "film"), AttackSettings(rho_max=0.5)) == 1 + 16
    assert largest_cost(("film",), AttackSettings()) == largest_cost(("the", "."), AttackSettings(rho_max=0.5)) == 0
    asked = _Counted(predict, attribute, propose, bound=2)
    asked.attribute([words, words], 0)
    with pytest.raises(RuntimeError, match="3 attributions are more than the bound of 2"):
        asked.attribute([words], 0)


def test_what_was_asked_is_counted():
    ask, explain, offer = recorded(predict), recorded(attribute), recorded(propose)
    path = run(tuple(VOCABULARY * 2), predict=ask, attribute=explain, propose=offer)
    assert path.counts.n_predict_calls == len(ask.calls)
    assert path.counts.n_predictions == sum(len(batch) for [batch] in ask.calls)
    assert path.counts.n_attribute_calls == len(explain.calls)
    assert path.counts.n_attributions == sum(len(batch) for batch, _ in explain.calls)
    assert path.counts.n_propose_calls == len(offer.calls)
    assert {target for _, target in explain.calls} == {path.label}
    rows = path.table()
    assert [row["step"] for row in rows] == list(range(1, len(path.steps) + 1))
    assert rows[-1]["n_attributions"] == path.steps[-1].counts.n_attributions
    assert "counts" not in rows[0]


# One attack serves every smaller budget


@settings(deadline=None, max_examples=80)
@given(sentences, st.sampled_from(sorted(ATTACKS)), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2))
def test_a_smaller_budget_is_a_prefix_whenever_the_batches_are_equal(words, name, one, other, seed):
    small, large = sorted((one / 100, other / 100))
    path, alone = (run(words, preset(name, rules=FREE, rho_max=rho_max, seed=seed)) for rho_max in (large, small))
    batches = [budget(len(words), found.settings) for found in (path, alone)]
    if batches[0][1] == batches[1][1] or batches[1][0] == 0:
        assert repr(path.until(small)) == repr(alone)  # the text, for a PCC may be NaN
    else:
        with pytest.raises(ValueError, match="run it by itself"):
            path.until(small)


def test_a_path_cannot_be_made_longer():
    words = tuple(VOCABULARY)
    with pytest.raises(ValueError, match=r"rho_max=0.4 replaces 4 words in batches of 1, this path of rho_max=0.3 3 in batches of 1"):
        run(words).until(0.4)
    wrong = attack(words, 1 - int(predict([words])[0]), AttackSettings(), predict, attribute, propose, "[MASK]")
    assert wrong.until(0.1) == replace(wrong, settings=AttackSettings(rho_max=0.1))
    assert run(("the",) * 10, AttackSettings()).until(0.1).reason == "nothing to attack"


# Nothing but the sentence and the seed decides


def in_single_precision(batch, target, size):
    """The same maps as a model's batches would give them: in single precision, ``size`` at a time, with the rounding of another order of summing."""
    maps = []
    for start in range(0, len(batch), size):
        for words, scores in zip(batch[start : start + size], attribute(batch[start : start + size], target), strict=True):
            maps.append((scores * (1 + 1e-7 * (len(maps) % size) * np.cos(np.arange(len(words))))).astype(np.float32))
    return maps


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_another_batch_size_finds_the_same_sentences(name):
    words = tuple(VOCABULARY[i * i % 12] for i in range(25))
    found = [run(words, preset(name, rules=FREE), attribute=lambda batch, target, size=size: in_single_precision(batch, target, size)) for size in (1, 4, 64)]
    assert found[0].steps
    assert [[step.words for step in path.steps] for path in found] == [[step.words for step in found[0].steps]] * 3


def found_by_every_attack():
    table = {word: VOCABULARY for word in VOCABULARY}
    return [repr(run(tuple(VOCABULARY * 2), preset(name, rules=FREE), propose=sources.neighbours(table, preset(name)))) for name in sorted(ATTACKS)]


def test_another_hash_seed_finds_the_same_sentences():
    script = "import sys; sys.path.insert(0, sys.argv[1]); import test_attack; print(*test_attack.found_by_every_attack(), sep='\\n')"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(paths.ROOT)}
    done = subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__)], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == found_by_every_attack()
    assert done.stdout.count("Step(") > 20


def test_random_order_and_choice_depend_on_the_seed_and_the_sentence_alone():
    words, other = tuple(VOCABULARY), tuple(reversed(VOCABULARY))
    orders = [in_random_order(w, range(12), preset("random", seed=seed)) for w, seed in ((words, 0), (words, 0), (words, 1), (other, 0))]
    assert orders[0] == orders[1]
    assert len(set(map(tuple, orders))) == 3
    assert sorted(orders[0]) == list(range(12))
    paths_of = [run(words * 2, preset("random", rules=FREE, seed=seed)).adversarial for seed in (0, 0, 1)]
    assert paths_of[0] == paths_of[1] != paths_of[2]


def test_a_random_choice_is_taken_whatever_it_does():
    falls = 0
    for seed in range(5):
        path = run(tuple(VOCABULARY * 2), preset("random_candidate", rules=FREE, seed=seed))
        assert path.counts.n_attributions == 1 + 24 + len(path.steps)
        falls += any(one.d > other.d for one, other in itertools.pairwise(path.steps))
    assert falls


# Importance


def test_importance_is_the_distance_to_the_map_with_the_word_masked():
    words, original = ("a", "b", "c"), np.array([1.0, 2, 4])
    table = {"_ b c": [1, 2, 4], "a _ c": [-1, -2, -4], "a b _": [5, 5, 5]}
    importance = word_importance(words, [0, 1, 2], original, 0, from_table(table), "_")
    assert importance == pytest.approx([0, 1, 0.5])
    assert by_importance([0, 1, 2], importance) == [1, 2, 0]
    assert by_importance([4, 7, 9], np.array([0.5, 0.5 + 1e-9, 0.5])) == [4, 7, 9]


def test_masked_words_are_explained_for_the_class_of_the_sentence():
    explain = recorded(attribute)
    path = run(tuple(VOCABULARY), AttackSettings(), attribute=explain)
    masked, target = explain.calls[1]
    assert target == path.label
    assert [[i for i, word in enumerate(words) if word == "[MASK]"] for words in masked] == [[i] for i in range(12)]


# Objective k


def test_objective_k_divides_by_the_sentence_distance():
    words = tuple(VOCABULARY)
    chosen = AttackSettings(objective="k", rules=FREE)

    def near(variants, original):
        return np.array([0.1 + abs(sum(map(worth, variant)) - sum(map(worth, original))) for variant in variants])

    path = run(words, chosen, sentence_distance=near)
    for step in path.steps:
        assert step.objective == pytest.approx(step.d / near([step.words], words)[0])
    assert all(one.objective < other.objective for one, other in itertools.pairwise(path.steps))
    assert run(words, chosen, sentence_distance=lambda variants, original: np.ones(len(variants))).adversarial == run(words).adversarial
    with pytest.raises(ValueError, match="objective='k' divides by a distance between sentences; give sentence_distance"):
        run(words, chosen)
    with pytest.raises(ValueError, match=r"sentence_distance returned 0.0; it must be above 0"):
        run(words, chosen, sentence_distance=lambda variants, original: np.zeros(len(variants)))


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"importance": "gradient"}, "unknown importance 'gradient'; choose from: masking, random"),
        ({"choice": "beam"}, "unknown choice 'beam'; choose from: greedy, random"),
        ({"objective": "pcc"}, "unknown objective 'pcc'; choose from: d, k"),
        ({"rho_max": 0.0}, "rho_max=0.0 is not a share of the words"),
        ({"rho_max": 15.0}, "rho_max=15.0 is not a share of the words"),
        ({"rho_max": float("nan")}, "rho_max=nan is not a share of the words"),
        ({"batch_share": 0.0}, "batch_share=0.0 is not a share of the words"),
        ({"n_candidates": 0}, "n_candidates=0 must be at least 1 and at most n_taken=75"),
        ({"n_candidates": 80}, "n_candidates=80 must be at least 1 and at most n_taken=75"),
        ({"rho": 0.1}, "an attack has no setting 'rho'; choose from: rho_max, batch_share"),
    ],
)
def test_wrong_settings_name_the_value_and_the_choices(change, message):
    with pytest.raises(ValueError, match=message):
        preset("tea", **change)


def test_unknown_names_list_the_choices():
    with pytest.raises(UnknownNameError, match="unknown attack 'bert'; choose from: tea, tea_one_mask, tef, random_importance"):
        preset("bert")
    with pytest.raises(UnknownNameError, match="unknown rules of the game 'fair'; choose from: default, literal_tea, tef, equal"):
        preset("tea", rules="fair")
    with pytest.raises(UnknownNameError, match="unknown part-of-speech tagger 'nltk'; choose from: pattern, spacy"):
        Rules(tagger="nltk")


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"predict": lambda batch: np.zeros((len(batch), 2))}, r"predict returned shape \(1, 2\) for 1 sentences; one class index each is needed"),
        ({"attribute": lambda batch, target: []}, "attribute returned 0 maps for 1 sentences"),
        ({"attribute": lambda batch, target: [np.ones(5)] * len(batch)}, "attribute returned .* for the 12 words 'film plot"),
        ({"attribute": lambda batch, target: [np.full(12, np.nan)] * len(batch)}, "one finite score per word is needed"),
        ({"propose": lambda words, positions: []}, "propose returned 0 lists for 1 positions"),
        ({"mask_word": "a b"}, "mask_word of the attack is 'a b'; it must be one word"),
    ],
)
def test_answers_of_the_wrong_size_are_refused(functions, message):
    with pytest.raises(ValueError, match=message):
        run(tuple(VOCABULARY), AttackSettings(), **functions)


def test_a_word_with_white_space_is_refused():
    with pytest.raises(ValueError, match="word 1 of the attack is 'a b'"):
        run(("film", "a b"))


# Rules


def test_presets_are_what_the_papers_say():
    assert ATTACKS["tea"].rules == Rules(attack_punctuation=True, propose_punctuation=True)
    assert ATTACKS["tef"] == AttackSettings(batch_masking=False, rules=Rules(propose_function_words=False, same_part_of_speech=True))
    assert (ATTACKS["tea"].batch_share, ATTACKS["tea"].n_candidates, ATTACKS["tea"].n_taken) == (0.15, 15, 75)
    assert RULES["default"] == Rules() == AttackSettings().rules
    assert preset("tea", rules="equal", rho_max=0.1).rules == preset("tef", rules="equal").rules
    assert {name: (a.importance, a.choice) for name, a in ATTACKS.items() if "random" in name} == {
        "random_importance": ("random", "greedy"),
        "random_candidate": ("masking", "random"),
        "random": ("random", "random"),
    }


SENTENCE = ("the", "film", ",", "a", "good", "story", ".")
OFFER = {"good": ["!", "the", "bad", "story", "😀", "of", "nice", "quickly"], ".": ["!", "the", "film"], "the": ["a", "film"]}


def offered(rules, word="good", n_candidates=15):
    [found] = sources.neighbours(OFFER, AttackSettings(rules=rules, n_candidates=n_candidates))(SENTENCE, [SENTENCE.index(word)])
    return found


def test_each_rule_changes_what_it_says_and_nothing_else():
    base, everything = Rules(), ["!", "the", "bad", "story", "😀", "of", "nice", "quickly"]
    where = {name: (attackable(SENTENCE, rules), offered(rules)) for name, rules in {
        "base": base,
        "attack_punctuation": replace(base, attack_punctuation=True),
        "propose_punctuation": replace(base, propose_punctuation=True),
        "attack_function_words": replace(base, attack_function_words=True),
        "propose_function_words": replace(base, propose_function_words=False),
        "same_part_of_speech": replace(base, same_part_of_speech=True),
    }.items()}  # fmt: skip
    words = [word for word in everything if word not in "!😀"]
    assert where == {
        "base": ([1, 4, 5], words),
        "attack_punctuation": ([1, 2, 4, 5, 6], words),
        "propose_punctuation": ([1, 4, 5], everything),
        "attack_function_words": ([0, 1, 3, 4, 5], words),
        "propose_function_words": ([1, 4, 5], ["bad", "story", "nice", "quickly"]),
        "same_part_of_speech": ([1, 4, 5], ["bad", "nice"]),
    }
    assert offered(base, n_candidates=2) == ["the", "bad"]
    assert offered(replace(base, same_part_of_speech=True, propose_punctuation=True), ".") == ["!"]


def test_taken_then_filtered_then_cut():
    table = {"film": [f"w{i}" for i in range(100)]}
    found = {n: sources.neighbours(table, AttackSettings(n_candidates=5, n_taken=n))(("film",), [0])[0] for n in (5, 60)}
    assert found == {5: table["film"][:5], 60: table["film"][:5]}
    table = {"film": ["the"] * 70 + ["of"] + ["plot", "story"]}  # repeats count as taken
    rules = Rules(propose_function_words=False)
    assert [sources.neighbours(table, AttackSettings(n_taken=n, rules=rules))(("film",), [0]) for n in (71, 72, 75)] == [[[]], [["plot"]], [["plot", "story"]]]


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("great", ("", "great", "")),
        ('"(great).', ('"(', "great", ").")),
        ("don't", ("", "don't", "")),
        ("U.S.", ("", "U.S", ".")),
        ("...", ("", "...", "")),
        ("😀", ("", "😀", "")),
        ("cafe\u0301", ("", "cafe\u0301", "")),
        ("", ("", "", "")),
        ("_a_", ("_", "a", "_")),
    ],
)
def test_the_word_inside_its_punctuation(word, parts):
    assert kinds.core(word) == parts
    assert "".join(parts) == word


def test_function_words():
    for word in "the The THE, it's It’s don't n't 's doesn't can't won't did and not".split():
        assert kinds.is_function_word(word), word
    for word in "film serious sincere thin well men's movie's great won AI . 😀 wo".split():
        assert not kinds.is_function_word(word), word


def test_part_of_speech_is_coarse_and_read_word_by_word():
    tags = kinds.pattern((), 0, "film films good worst loved quickly the . 3 Paris zyxing 😀 \u200b a/b".split(" "))
    assert tags == ["NOUN", "NOUN", "ADJ", "ADJ", "VERB", "ADV", "DET", ".", "NUM", "NOUN", "VERB", "NOUN", "NOUN", "NOUN"]


def test_spacy_reads_the_sentence_with_the_candidate_in_place(monkeypatch):
    seen = []

    class Pipeline:
        vocab = None

        def pipe(self, documents):
            for document in documents:
                seen.append(document)
                yield [types.SimpleNamespace(pos_="VERB" if i and document[i - 1] == "to" else "NOUN") for i in range(len(document))]

    monkeypatch.setattr(kinds, "_spacy", lambda: (Pipeline(), lambda vocab, words: words))
    words = ("I", "want", "to", '"love".', "...")
    assert kinds.spacy(words, 3, ["love", "run"]) == ["NOUN", "NOUN"]
    assert seen == [["I", "want", "to", '"', word, '".', "..."] for word in ("love", "run")]
    assert kinds.spacy(("to", "love"), 1, ["run"]) == ["VERB"]


def test_a_tagger_that_is_not_installed_says_how_to_get_it(monkeypatch):
    kinds._spacy.cache_clear()
    kinds._pattern_tag.cache_clear()
    monkeypatch.setitem(sys.modules, "spacy", None)
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    with pytest.raises(MissingAssetError, match="python -m spacy download en_core_web_sm"):
        kinds.spacy(("a",), 0, ["b"])
    with pytest.raises(MissingAssetError, match="pip install textblob"):
        kinds.pattern(("a",), 0, ["b"])


# Neighbours


def test_neighbours_keep_the_punctuation_that_sticks_to_a_word():
    found = sources.neighbours({"good": ["fine", "GOOD", "bad"]}, name="a table")
    assert found.name == "a table"
    assert found(("(Good).", "unseen", "GOOD"), [0, 1, 2]) == [["(fine).", "(bad)."], [], ["fine", "bad"]]
    assert found.under(AttackSettings(n_candidates=1))(("good",), [0]) == [["fine"]]


def test_counter_fitted_neighbours_come_from_a_file(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"film": ["movie", "kino"], "they": []}))
    found = sources.counter_fitted(path)
    assert found.name == "counter-fitted neighbours"
    assert found(("they", "film"), [1, 0]) == [["movie", "kino"], []]
    for text, message in (
        ("[1]", "holds a list"),
        ('{"film": "movie"}', "the neighbours of 'film' are not a list of words: movie"),
        ("{", "cannot be read as JSON"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            sources.counter_fitted(path)
    with pytest.raises(MissingAssetError, match="table of counter-fitted neighbours not found"):
        sources.counter_fitted(tmp_path / "none.json")


def test_vector_neighbours_are_nearest_by_cosine(tmp_path, monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    vectors[7] = 0
    words = [f"w{i}" for i in range(40)]
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    found = sources.vector_neighbours(words, vectors, AttackSettings(n_candidates=6))
    assert found.name == "GloVe neighbours"
    expected = [[words[i] for i in np.argsort(-(unit @ unit[row]), kind="stable") if i != row][:6] for row in (3, 11)]
    assert found(("W3", "w11,", "none", "w3"), [0, 1, 2, 3]) == [expected[0], [word + "," for word in expected[1]], [], expected[0]]
    assert len(sources.vector_neighbours(words, vectors, AttackSettings(n_candidates=75))(("w0",), [0])[0]) == 39
    with pytest.raises(ValueError, match="39 words for 40 vectors"):
        sources.vector_neighbours(words[1:], vectors)

    import pandas as pd

    np.save(tmp_path / "v.npy", vectors)
    pd.DataFrame({"index": words}).to_parquet(tmp_path / "w.parquet")
    monkeypatch.setattr(assets, "glove_50d", lambda: (tmp_path / "v.npy", tmp_path / "w.parquet"))
    packaged = sources.glove(AttackSettings(n_candidates=6))
    assert (packaged.name, packaged(("w3",), [0])) == ("GloVe neighbours", [expected[0]])


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 70))
def test_the_largest_values_come_first_and_equal_ones_in_their_order(values, n):
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:n]
    assert sources._largest(np.array(values, dtype=np.float32), n) == expected


# Masked language model

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a film great good bad the . , ! un ##believ ##able ##ing [unused7] movie in café ##s".split()


def word_piece(pieces=PIECES):
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **names)


class Stub(torch.nn.Module):
    """A masked language model that says ``liked`` in this order, at every place, and remembers what it read."""

    def __init__(self, tokenizer, liked, limit=64, model_type="bert"):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = types.SimpleNamespace(vocab_size=len(tokenizer), max_position_embeddings=limit, model_type=model_type)
        self.scores = torch.full((len(tokenizer),), -1.0)
        for i, token in enumerate(liked):
            self.scores[tokenizer.convert_tokens_to_ids(token)] = 100.0 - i
        self.tokenizer, self.read = tokenizer, []

    def forward(self, input_ids, attention_mask):
        self.read.append([self.tokenizer.convert_ids_to_tokens(row[keep.bool()].tolist()) for row, keep in zip(input_ids, attention_mask, strict=True)])
        return types.SimpleNamespace(logits=self.scores.expand(*input_ids.shape, -1))


LIKED = ["##ing", "[SEP]", ".", "good", "[unused7]", "the", "[UNK]", "bad", "great", "café", "[MASK]", "in"]


def masked_model(rules=FREE, n_candidates=15, n_taken=75, limit=64, tokenizer=None, liked=LIKED):
    tokenizer = tokenizer or word_piece()
    model = Stub(tokenizer, liked, limit)
    return model, sources.masked_language_model(model, tokenizer, AttackSettings(rules=rules, n_candidates=n_candidates, n_taken=n_taken))


def test_a_masked_language_model_proposes_whole_words_in_its_order():
    model, ask = masked_model(n_candidates=6)
    assert ask(("A", "great", "film", "."), [2, 1]) == [[".", "good", "the", "bad", "great", "café"], [".", "good", "the", "bad", "café", "in"]]
    assert model.read == [[["[CLS]", "a", "[MASK]", "[MASK]", ".", "[SEP]"]]]  # one pass for both
    assert ask.name == "Stub (masked language model)"
    assert ask(("a",), []) == []
    _, ask = masked_model(Rules(propose_function_words=False), n_candidates=3)
    assert ask(("a", "film"), [1]) == [["good", "bad", "great"]]
    assert masked_model(n_candidates=2, n_taken=3)[1](("a", "film"), [1]) == [[".", "good"]]


@pytest.mark.parametrize(
    ("words", "position", "read", "wrapped"),
    [
        (("a", "(great),", "film"), 1, ["a", "[UNK]", "[MASK]", "[UNK]", ",", "film"], ["(good),"]),  # brackets are not in the vocabulary
        (("unbelievableingings", "film"), 1, ["un", "##believ", "##able", "##ing", "##ing", "##s", "[MASK]"], ["good"]),
        (("unbelievableingings", "film"), 0, ["[MASK]", "film"], ["good"]),
        (("a", "😀", "film"), 2, ["a", "[UNK]", "[MASK]"], ["good"]),
        (("a", "😀", "film"), 1, ["a", "[MASK]", "film"], ["good"]),
        (("a", "\u200b", "film"), 2, ["a", "[UNK]", "[MASK]"], ["good"]),
        (("\u200b", "film"), 0, ["[MASK]", "film"], ["good"]),
        (("\u200b",), 0, ["[MASK]"], ["good"]),
        (("a", "[MASK]", "film"), 2, ["a", "[UNK]", "[UNK]", "[UNK]", "[MASK]"], ["good"]),  # text, not a mask
    ],
)
def test_words_of_any_kind_are_one_position(words, position, read, wrapped):
    model, ask = masked_model(n_candidates=1, liked=["good"])
    assert ask(words, [position]) == [wrapped]
    assert model.read == [[["[CLS]", *read, "[SEP]"]]]


def test_a_text_longer_than_the_window_is_read_around_its_masks_in_one_pass():
    names = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(100)]
    model, ask = masked_model(limit=12, tokenizer=word_piece([*PIECES, *names]), liked=["good", "bad"], n_candidates=1)
    assert ask(tuple(names), [99, 50, 0, 52]) == [["good"]] * 4
    [rows] = model.read
    assert [len(row) for row in rows] == [12, 12, 12]
    for row, positions in zip(rows, ([0], [50, 52], [99]), strict=True):
        start = 0 if positions == [0] else 90 if positions == [99] else names.index(row[1])
        assert row[1:-1] == ["[MASK]" if i in positions else names[i] for i in range(start, start + 10)]
    assert 43 <= names.index(rows[1][1]) <= 48  # masks in the middle
    with pytest.raises(ValueError, match="window=2: Stub reads 3 to 64 tokens"):
        sources.masked_language_model(Stub(word_piece(), []), word_piece(), window=2)


@given(st.sets(st.integers(0, 199), min_size=1), st.integers(1, 30))
def test_every_mask_is_in_one_window(places, room):
    windows = sources._windows(sorted(places), 200, room)
    assert sorted(place for _, _, inside in windows for place in inside) == sorted(places)
    for start, end, inside in windows:
        assert 0 <= start < end <= 200
        assert end - start == room
        assert all(start <= place < end for place in inside)


def byte_level():
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(
        ["a good and moving film . a good film in a café , a good café ."] * 3, vocab_size=420, min_frequency=1, special_tokens=specials
    )
    trainer._tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), specials, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=trainer._tokenizer, cls_token="<s>", sep_token="</s>", **names)


def test_a_byte_level_vocabulary_marks_what_begins_a_word():
    tokenizer = byte_level()
    liked = ["</s>", "Ġ", "Ġgood", ".", "Ġ.", "ĠcafÃ©", "Ġfilm"]
    assert set(liked) <= set(tokenizer.get_vocab())
    model = Stub(tokenizer, liked, model_type="roberta")
    ask = sources.masked_language_model(model, tokenizer, AttackSettings(rules=FREE, n_candidates=4))
    assert ask(("A", "(moving).", "good"), [1, 0]) == [["(good).", "(.).", "(café).", "(film)."], ["good", ".", "café", "film"]]
    [[row]] = model.read
    assert row[:2] == ["<s>", "<mask>"]
    assert row.count("<mask>") == 2
    assert row[-2:] == ["Ġgood", "</s>"]  # words do not stick together
    assert row[-3] == "."


def test_a_model_without_a_mask_token_is_refused(tiny_gpt2):
    with pytest.raises(ValueError, match="has no mask token; candidates need a masked language model"):
        sources.masked_language_model(tiny_gpt2.model, tiny_gpt2.tokenizer)


def test_a_real_masked_language_model_keeps_its_mode_and_does_not_drop_out():
    tokenizer = word_piece()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40}
        model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), hidden_dropout_prob=0.5, initializer_range=1.0, **sizes)).train()
    model.bert.encoder.layer[0].eval()
    before = [module.training for module in model.modules()]
    ask = sources.masked_language_model(model, tokenizer, AttackSettings(rules=FREE))
    found = ask(("a", "great", "film", "."), [1, 3])
    assert found == ask(("a", "great", "film", "."), [1, 3])
    assert ask.name == "BertForMaskedLM (masked language model)"
    assert [module.training for module in model.modules()] == before
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(["[CLS]", "a", "[MASK]", "film", "[MASK]", "[SEP]"])])
    order = tokenizer.convert_ids_to_tokens(model(input_ids=ids).logits[0, 2].argsort(descending=True).tolist())
    assert found[0] == [token for token in order if not token.startswith(("[", "##")) and token != "great"]


def test_a_whole_attack_with_a_masked_language_model():
    model, ask = masked_model(Rules(), n_candidates=3, liked=["good", "bad", "movie", "great"])
    words = ("A", "great", "film", ",", "a", "good", "movie", "in", "the", "café", ".", "😀", "\u200b")
    path = run(words, AttackSettings(rho_max=0.4), propose=ask)
    assert path.n_positions == 5
    assert path.counts.n_propose_calls == len(model.read)
    for step in path.steps:
        assert step.position in (1, 2, 5, 6, 9)
        assert step.new in ("good", "bad", "movie", "great")
