import copy
import gc
import inspect

import captum.attr
import numpy as np
import pandas as pd
import pytest
import torch
from lime.lime_base import LimeBase
from sklearn.linear_model import Ridge
from sklearn.metrics import pairwise_distances
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from faithlib.faithfulness import precision_at_k, rank_of_evidence
from faithlib.models.classifier import TextClassifier, class_score
from faithlib.models.encoding import Batch
from faithlib.registry import UnknownNameError
from faithlib.salience import SALIENCE, Configuration, _targets, explain, salience
from faithlib.salience.lime import perturbations, perturbed_scores, surrogate

TEXTS = ["a good and moving film", "the film was dull , bad and far too long", "the #0 actor in a #1 story"]
BINARY = ["tiny_lstm", "tiny_lstm_two", "tiny_bert", "tiny_bert_two"]


@pytest.fixture(params=BINARY)
def classifier(request):
    return request.getfixturevalue(request.param)


def _captum(classifier, text, of, attribute):
    """attribute(function of embeddings, embeddings, batch) on one text; its rankable tokens' rows."""
    batch = classifier.encode(text)
    target = classifier.predict(batch)
    embeddings = classifier.embed(batch).detach().requires_grad_()

    def score(e):
        repeated = Batch(*(t.expand(len(e), -1) for t in (batch.ids, batch.mask, batch.rankable)))
        return class_score(classifier.logits(repeated, e), target.expand(len(e)), of, classifier.head)

    return attribute(score, embeddings, batch)[0][batch.rankable[0]].detach().numpy()


def _close(ours, theirs):
    assert np.abs(theirs).max() > 0
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("of", ["logit", "probability"])
def test_gradients_equal_captums(classifier, of):
    for text, found in zip(TEXTS, explain(classifier, TEXTS, "gradient"), strict=True):
        gradient = _captum(classifier, text, of, lambda f, e, b: captum.attr.Saliency(f).attribute(e, abs=False))
        _close(found.scores[f"gradient_l1;of={of}"], np.abs(gradient).sum(1))
        _close(found.scores[f"gradient_l2;of={of}"], np.sqrt((gradient**2).sum(1)))
        if "bert" in classifier.model.config.model_type:
            # The layer norm after BERT's embeddings does not see a constant: its gradient sums to zero, and the mean is rounding error.
            assert np.abs(found.scores[f"gradient_mean;of={of}"]).max() < 1e-5 * np.abs(gradient).max()
            assert np.abs(gradient.mean(1)).max() < 1e-5 * np.abs(gradient).max()
        else:
            _close(found.scores[f"gradient_mean;of={of}"], gradient.mean(1))
        product = _captum(classifier, text, of, lambda f, e, b: captum.attr.InputXGradient(f).attribute(e))
        _close(found.scores[f"gradient_times_input;of={of}"], product.sum(1))


def _baseline(classifier, embeddings, batch, name):
    value = torch.zeros(embeddings.shape[-1]) if name == "zero" else classifier.model.get_input_embeddings().weight[classifier.special_id(name)]
    return torch.where(batch.rankable[..., None], value, embeddings).detach()


@pytest.mark.parametrize("of", ["logit", "probability"])
@pytest.mark.parametrize("baseline", ["zero", "unk", "pad", "mask"])
def test_integrated_gradients_equal_captums(classifier, baseline, of):
    names = [f"integrated_gradients;baseline={baseline};of={of};steps={steps}" for steps in (20, 100)]
    if baseline not in ("zero", *classifier.special_ids):
        with pytest.raises(ValueError, match=f"has no {baseline} token; choose from: unk, pad"):
            explain(classifier, TEXTS[1], names)
        return
    [found] = explain(classifier, TEXTS[1], names)
    for name, steps in zip(names, (20, 100), strict=True):
        theirs = _captum(
            classifier,
            TEXTS[1],
            of,
            lambda f, e, b, n=steps: captum.attr.IntegratedGradients(f).attribute(e, _baseline(classifier, e, b, baseline), n_steps=n, method="riemann_right"),
        )
        _close(found.scores[name], theirs.sum(1))


def test_nested_steps_are_the_same_alone_and_together(tiny_lstm):
    names = [f"integrated_gradients;baseline=zero;of=logit;steps={steps}" for steps in (3, 4, 100)]
    [together] = explain(tiny_lstm, TEXTS[0], names)
    for name in names:
        [alone] = explain(tiny_lstm, TEXTS[0], name)
        np.testing.assert_allclose(together.scores[name], alone.scores[name], rtol=1e-5, atol=1e-7)


def test_completeness_gap_is_what_is_missing_and_closes_with_steps(tiny_lstm_two):
    names = [f"integrated_gradients;baseline=unk;of=probability;steps={steps}" for steps in (5, 300)]
    [found] = explain(tiny_lstm_two, TEXTS[0], names)
    batch = tiny_lstm_two.encode(TEXTS[0])
    masked = Batch(torch.where(batch.rankable, tiny_lstm_two.special_id("unk"), batch.ids), batch.mask, batch.rankable)
    x, b = (tiny_lstm_two.logits(inputs).softmax(1)[0, found.target].item() for inputs in (batch, masked))
    for name in names:
        assert found.notes[name]["completeness_gap"] == pytest.approx(found.scores[name].sum() - (x - b), abs=1e-6)
    assert abs(found.notes[names[1]]["completeness_gap"]) < abs(found.notes[names[0]]["completeness_gap"]) / 5


@pytest.mark.parametrize("mask", ["unk", "mask", "erase"])
def test_lime_equals_limes_own_surrogate_on_plainly_built_perturbations(tiny_bert_two, mask):
    name = f"lime;mask={mask};samples=60"
    [found] = explain(tiny_bert_two, TEXTS[1], name, seed=3)
    keep = perturbations(len(found.tokens), 60, 3, TEXTS[1])
    batch = tiny_bert_two.encode(TEXTS[1])
    ids, first = batch.ids[0].tolist(), batch.rankable[0].nonzero()[0].item()
    rows = []
    for sample in keep:
        row = []
        for position, token in enumerate(ids):
            rankable = bool(batch.rankable[0, position])
            if not rankable or sample[position - first]:
                row.append(token)
            elif mask != "erase":
                row.append(tiny_bert_two.special_id(mask))
        logits = tiny_bert_two.model(input_ids=torch.tensor([row])).logits
        rows.append(logits.softmax(1)[0].tolist())
    data = keep.astype(float)
    distances = pairwise_distances(data, data[:1], metric="cosine").ravel() * 100
    base = LimeBase(lambda d: np.sqrt(np.exp(-(d**2) / 25**2)), random_state=0)
    _, weights, r2, _ = base.explain_instance_with_data(
        data, np.array(rows), distances, found.target, data.shape[1], feature_selection="none", model_regressor=Ridge(alpha=1)
    )
    theirs = np.array([weight for _, weight in sorted(weights)])
    np.testing.assert_allclose(found.scores[name], theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
    assert found.notes[name]["r2"] == pytest.approx(r2, abs=1e-3)


def test_perturbations_are_a_prefix_and_mask_at_least_one_token():
    many = perturbations(7, 3000, 0, "text")
    assert (many[:100] == perturbations(7, 100, 0, "text")).all()
    assert many[0].all()
    masked = (~many[1:]).sum(1)
    assert set(masked) == set(range(1, 8))
    assert np.abs(np.bincount(masked)[1:] / 2999 - 1 / 7).max() < 0.03  # uniform in 1..7
    assert np.abs((~many[1:]).mean(0) - 4 / 7).max() < 0.04  # at random places
    assert (many != perturbations(7, 3000, 1, "text")).any()
    assert (many != perturbations(7, 3000, 0, "another")).any()


def test_repeated_masks_are_evaluated_once(tiny_lstm, monkeypatch):
    row = tiny_lstm.encode("good film")
    seen = []
    logits = tiny_lstm.logits
    monkeypatch.setattr(tiny_lstm, "logits", lambda batch, *rest: seen.append(len(batch)) or logits(batch, *rest))
    values = perturbed_scores(tiny_lstm, row, 1, perturbations(2, 500, 0, "good film"), "unk")
    assert sum(seen) == 4
    assert len(values) == 500


def test_kernel_is_not_flat():
    keep = perturbations(10, 200, 0, "t")
    values = keep[:, 0] * np.where(keep.mean(1) > 0.5, 1.0, 0.0)  # the token matters near the text only
    assert surrogate(keep, values)[0][0] > 0.5


def test_the_score_of_a_text_depends_on_nothing_else(any_classifier):
    """Alone, in company, in another order. The gradient's mean is rounding error where a layer norm comes first, so it is asked of the LSTM only."""
    gradients = ["gradient_l1", "gradient_l2", "gradient_times_input"] + (["gradient_mean"] if "lstm" in any_classifier.model.config.model_type else [])
    methods = ["random", *gradients, "integrated_gradients;steps=10;baseline=zero", "lime;samples=40;mask=erase"]
    together = explain(any_classifier, TEXTS, methods, seed=5)
    turned = explain(any_classifier, TEXTS[::-1], methods, seed=5)[::-1]
    for text, one, other in zip(TEXTS, together, turned, strict=True):
        [alone] = explain(any_classifier, text, methods, seed=5)
        for name, scores in alone.scores.items():
            # In a BERT the mean is rounding error of the gradient, whose size decides.
            top = np.abs(alone.scores[name.replace("gradient_mean", "gradient_l2")]).max()
            np.testing.assert_allclose(one.scores[name], scores, rtol=0, atol=1e-4 * top)
            np.testing.assert_allclose(other.scores[name], scores, rtol=0, atol=1e-4 * top)
    assert (explain(any_classifier, TEXTS[0], "random", seed=6)[0].scores["random"] != together[0].scores["random"]).all()


class _LinearModel(PreTrainedModel):
    """f(x) = Σ w·x_i over all positions: every method's answer is known."""

    config_class = PreTrainedConfig

    def __init__(self, config, embedding, weight):
        super().__init__(config)
        self.embedding, self.weight = embedding, torch.nn.Parameter(weight)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, inputs_embeds, attention_mask):
        return SequenceClassifierOutput(logits=((inputs_embeds @ self.weight) * attention_mask).sum(1, keepdim=True))


@pytest.fixture
def linear(tiny_lstm):
    """linear(sign, problem_type) -> a classifier of one logit that is linear in its embeddings."""

    def build(sign=1, problem_type=None):
        embedding = tiny_lstm.model.get_input_embeddings()
        weight = sign * torch.linspace(-1, 0.8, embedding.embedding_dim)
        model = _LinearModel(PreTrainedConfig(num_labels=1, problem_type=problem_type), embedding, weight)
        return TextClassifier.wrap(model, tiny_lstm.tokenizer, window=32)

    return build


def _products(model, text):
    """w·x_i of the rankable tokens, and w·u of the unknown token."""
    batch = model.encode(text)
    x = model.embed(batch)[0][batch.rankable[0]].detach()
    unknown = model.model.embedding.weight[model.special_id("unk")].detach()
    return (x @ model.model.weight.detach()).numpy(), float(unknown @ model.model.weight.detach())


@pytest.mark.parametrize("turned", [1, -1])
def test_closed_form_on_a_linear_model(linear, turned):
    model = linear(turned)
    integrated = [f"integrated_gradients;baseline={baseline};of=logit;steps=7" for baseline in ("zero", "unk")]
    found = explain(model, TEXTS, ["gradient", *integrated])
    assert [e.predicted for e in found] == [1 - e.predicted for e in explain(linear(-turned), TEXTS, "random")], "both signs are tested"
    for text, e in zip(TEXTS, found, strict=True):
        sign = 1 if e.predicted else -1  # towards the predicted class
        products, unknown = _products(model, text)
        weight = model.model.weight.detach()
        n = len(products)
        np.testing.assert_allclose(e.scores["gradient_times_input;of=logit"], sign * products, atol=1e-5)
        np.testing.assert_allclose(e.scores[integrated[0]], sign * products, atol=1e-5)
        np.testing.assert_allclose(e.scores[integrated[1]], sign * (products - unknown), atol=1e-5)
        np.testing.assert_allclose(e.scores["gradient_l1;of=logit"], np.full(n, float(weight.abs().sum())), rtol=1e-5)
        np.testing.assert_allclose(e.scores["gradient_l2;of=logit"], np.full(n, float(weight.norm())), rtol=1e-5)
        np.testing.assert_allclose(e.scores["gradient_mean;of=logit"], np.full(n, sign * float(weight.mean())), atol=1e-6)
        assert all(abs(e.notes[name]["completeness_gap"]) < 1e-5 for name in integrated)


def test_lime_on_a_linear_model_is_a_ridge_regression_of_known_values(linear):
    """f falls by w·x_i - w·u with each masked token; the weighted ridge by its normal equations."""
    model = linear(problem_type="regression")
    [found] = explain(model, TEXTS[1], "lime;mask=unk;samples=800")
    products, unknown = _products(model, TEXTS[1])
    keep = perturbations(len(products), 800, 0, TEXTS[1])
    values = keep @ (products - unknown)
    distance = 100 * (1 - np.sqrt(keep.mean(1)))
    weight = np.sqrt(np.exp(-((distance / 25) ** 2)))
    data = keep - np.average(keep, axis=0, weights=weight)
    expected = np.linalg.solve(data.T @ (data * weight[:, None]) + np.eye(len(products)), data.T @ (weight * (values - np.average(values, weights=weight))))
    np.testing.assert_allclose(found.scores["lime;mask=unk;samples=800"], expected, atol=1e-4 * np.abs(expected).max())
    assert found.notes["lime;mask=unk;samples=800"]["r2"] > 0.95
    assert np.corrcoef(expected, products - unknown)[0, 1] > 0.98


@pytest.mark.parametrize("name", BINARY)
def test_lime_scores_turn_with_the_target_of_two_classes(name, request):
    """p_0 = 1 - p_1, so the same samples give the opposite weights."""
    model = request.getfixturevalue(name)
    one, zero = (explain(model, TEXTS[1], "lime;samples=50", target=target)[0].scores["lime;mask=unk;samples=50"] for target in (1, 0))
    assert np.abs(one).max() > 1e-3
    np.testing.assert_allclose(one, -zero, atol=1e-5 * np.abs(one).max())


def test_a_target_of_its_own_for_every_text(tiny_bert_two):
    whole = explain(tiny_bert_two, TEXTS, "gradient_times_input;of=logit", target=[0, 1, 0])
    assert [e.target for e in whole] == [0, 1, 0]
    for text, target, e in zip(TEXTS, (0, 1, 0), whole, strict=True):
        [alone] = explain(tiny_bert_two, text, "gradient_times_input;of=logit", target=target)
        _close(e.scores["gradient_times_input;of=logit"], alone.scores["gradient_times_input;of=logit"])
    [other] = explain(tiny_bert_two, TEXTS[0], "gradient_times_input;of=logit", target=1)
    assert not np.allclose(other.scores["gradient_times_input;of=logit"], whole[0].scores["gradient_times_input;of=logit"], atol=1e-3)


def test_without_a_target_the_prediction_is_explained(tiny_lstm, tiny_roberta):
    for model in (tiny_lstm, tiny_roberta):
        for e in explain(model, TEXTS, "gradient_times_input;of=logit"):
            assert e.target == e.predicted == int(model.predict(e.text)[0])
            [named] = explain(model, e.text, "gradient_times_input;of=logit", target=e.predicted)
            _close(e.scores["gradient_times_input;of=logit"], named.scores["gradient_times_input;of=logit"])


@pytest.mark.parametrize("name", ["tiny_lstm", "tiny_bert"])
def test_one_logit_signs_turn_with_the_target_and_rank_alike_for_the_probability(name, request):
    model = request.getfixturevalue(name)
    [one], [zero] = (explain(model, TEXTS[1], ["gradient"], target=target) for target in (1, 0))
    for method in ("gradient_mean", "gradient_times_input"):
        np.testing.assert_allclose(one.scores[f"{method};of=logit"], -zero.scores[f"{method};of=logit"])
    for method in ("gradient_l1", "gradient_l2", "gradient_times_input", *(["gradient_mean"] if name == "tiny_lstm" else [])):
        logit, probability = (one.scores[f"{method};of={of}"] for of in ("logit", "probability"))
        assert (np.argsort(logit) == np.argsort(probability)).all()
        assert not np.allclose(logit, probability)


@pytest.mark.parametrize("text", ["", "   ", "!!! ???", "😀 😀", "film", "x", "<br />", "caf\u00e9 cafe\u0301"])
def test_every_method_answers_any_text(any_classifier, text):
    methods = ["random", "gradient", "integrated_gradients;steps=3;baseline=zero", "lime;samples=12;mask=erase"]
    [found] = explain(any_classifier, text, methods)
    for scores in found.scores.values():
        assert scores.shape == (len(found.tokens),)
        assert np.isfinite(scores).all()
    assert [found.text[a:b] for a, b in found.offsets if a < b] == [token for token, (a, b) in zip(found.tokens, found.offsets, strict=True) if a < b]
    assert all(0 <= word < len(found.words) for word in found.word) or not found.words


def test_a_saturated_model_gives_ties_and_a_constant_one_gives_zeros(tiny_lstm, monkeypatch):
    logits = tiny_lstm.logits
    monkeypatch.setattr(tiny_lstm, "logits", lambda batch, e=None: logits(batch, e) * 0 + 200 + logits(batch, e))
    [found] = explain(tiny_lstm, TEXTS[0], ["gradient_l2", "lime;samples=30"])
    assert (found.scores["gradient_l2;of=probability"] == 0).all()
    assert np.ptp(found.scores["gradient_l2;of=logit"]) > 0
    assert (found.scores["lime;mask=unk;samples=30"] == 0).all()
    assert np.isnan(found.notes["lime;mask=unk;samples=30"]["r2"])


@pytest.mark.parametrize("name", ["tiny_lstm", "tiny_bert_two"])
def test_a_constant_model_gives_all_tokens_the_same_score(name, request, monkeypatch):
    """Zero everywhere, so they score like a random order; LIME says that nothing varied."""
    model = copy.deepcopy(request.getfixturevalue(name))
    torch.nn.init.zeros_(model.model.out.weight if name == "tiny_lstm" else model.model.classifier.weight)
    [found] = explain(model, TEXTS[0], ["gradient", "integrated_gradients;steps=5", "lime;samples=30"])
    for scores in found.scores.values():
        assert not scores.any()
        assert precision_at_k(scores, [1]) == pytest.approx(1 / len(found.tokens))
        assert rank_of_evidence(scores, [1]) == pytest.approx((len(found.tokens) + 1) / 2)
    assert np.isnan(found.notes["lime;mask=unk;samples=30"]["r2"])


def test_random_scores_are_uniform_and_know_nothing_of_the_model(tiny_lstm, tiny_lstm_two):
    texts = [f"film {i} was good and bad" for i in range(300)]
    scores = np.stack([e.scores["random"] for e in explain(tiny_lstm, texts, "random")])
    assert (scores.min() >= 0) & (scores.max() < 1)
    assert np.abs(np.quantile(scores, [0.25, 0.5, 0.75]) - [0.25, 0.5, 0.75]).max() < 0.04
    assert np.abs(np.bincount(scores.argmax(1)) / 300 - 1 / scores.shape[1]).max() < 0.08
    np.testing.assert_array_equal(scores, np.stack([e.scores["random"] for e in explain(tiny_lstm_two, texts, "random")]))


def test_the_model_is_left_as_it_was(tiny_bert):
    tiny_bert.model.train()
    try:
        found = explain(tiny_bert, TEXTS, ["gradient", "integrated_gradients;steps=4", "lime;samples=10"])
        assert tiny_bert.model.training
        assert all(p.grad is None for p in tiny_bert.model.parameters())
        assert all(isinstance(s, np.ndarray) for e in found for s in e.scores.values())
    finally:
        tiny_bert.model.eval()


def test_the_scores_of_every_family_hold_no_graph(any_classifier):
    batch = any_classifier.encode(TEXTS)
    for family in SALIENCE.values():
        small = [c for c in family.available(any_classifier) if c.get("steps", 100) == 100 and c.get("samples", 100) == 100]
        for answer in family.function(any_classifier, batch, any_classifier.predict(batch), small, 0).values():
            tensors = [answer[0], *answer[1].values()] if isinstance(answer, tuple) else [answer]
            assert not any(tensor.requires_grad for tensor in tensors)


def test_many_explanations_leave_memory_flat(tiny_lstm):
    def living():
        gc.collect()
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    def work():
        explain(tiny_lstm, TEXTS, ["gradient", "integrated_gradients;steps=5", "lime;samples=20"])

    work()
    before = living()
    for _ in range(10):
        work()
    assert living() == before


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_lstm"])
def test_erasing_everything_leaves_what_an_empty_text_has(name, request):
    model = request.getfixturevalue(name)
    text = "film"
    batch = model.encode(text)
    keep = np.stack([np.ones(int(batch.rankable.sum()), bool), np.zeros(int(batch.rankable.sum()), bool)])
    values = perturbed_scores(model, batch, 1, keep, "erase")
    expected = class_score(model.predict_logits([text, ""]), torch.tensor([1, 1]), "probability", model.head)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert abs(values[0] - values[1]) > 1e-4


def test_a_text_without_a_rankable_token_has_no_scores_and_says_what_it_was(tiny_bert):
    [found] = explain(tiny_bert, " \n", list(SALIENCE))
    assert (found.text, found.tokens, found.words) == (" \n", (), ())
    assert len(found.scores) == sum(len(family.configurations) for family in SALIENCE.values())
    assert all(scores.shape == (0,) for scores in found.scores.values())
    assert all(np.isnan(found.notes[f"lime;mask={mask};samples=100"]["r2"]) for mask in ("unk", "mask", "erase"))
    assert found.notes["integrated_gradients;baseline=zero;of=logit;steps=100"]["completeness_gap"] == 0


def test_batches_stay_within_the_token_budget(tiny_lstm, monkeypatch):
    from faithlib.salience import integrated_gradients

    monkeypatch.setattr(integrated_gradients, "TOKEN_BUDGET", 40)
    sizes = []
    logits = tiny_lstm.logits
    monkeypatch.setattr(tiny_lstm, "logits", lambda batch, e=None: sizes.append(batch.ids.numel()) or logits(batch, e))
    explain(tiny_lstm, TEXTS[0], "integrated_gradients;baseline=zero;of=logit;steps=50")
    assert max(sizes) <= 40


def test_short_paths_share_a_forward_pass(tiny_lstm, monkeypatch):
    from faithlib.salience import integrated_gradients

    shapes = []
    gradients = integrated_gradients.gradients
    monkeypatch.setattr(integrated_gradients, "gradients", lambda model, batch, *rest: shapes.append(tuple(batch.ids.shape)) or gradients(model, batch, *rest))
    lengths = [len(e.tokens) + 2 for e in explain(tiny_lstm, TEXTS, "integrated_gradients;baseline=zero;of=logit;steps=5")]
    assert shapes == [(5 * len(TEXTS), max(lengths))]


def test_texts_come_in_many_shapes(tiny_lstm):
    scores = [e.scores["gradient_l2;of=logit"] for e in explain(tiny_lstm, TEXTS, "gradient_l2;of=logit")]
    for shape in (tuple(TEXTS), np.array(TEXTS), pd.Series(TEXTS, index=[7, 8, 9])):
        for ours, theirs in zip(explain(tiny_lstm, shape, "gradient_l2;of=logit"), scores, strict=True):
            np.testing.assert_array_equal(ours.scores["gradient_l2;of=logit"], theirs)
    assert explain(tiny_lstm, []) == []
    with pytest.raises(TypeError, match="texts row 1: missing value"):
        explain(tiny_lstm, ["a", None])


def test_a_cut_text_says_so_and_scores_what_was_read(tiny_lstm):
    [found] = explain(tiny_lstm, "film " * 100, "gradient_l2")
    assert found.cut
    assert len(found.tokens) == tiny_lstm.window - 2
    assert len(found.words) == 100


# Names


def test_names_of_families_methods_and_configurations(tiny_lstm, tiny_bert):
    def names(model, methods):
        return list(explain(model, "a film", methods)[0].scores)

    assert names(tiny_lstm, "gradient_l2") == ["gradient_l2;of=logit", "gradient_l2;of=probability"]
    assert names(tiny_lstm, "integrated_gradients;steps=2") == ["integrated_gradients;baseline=zero;of=logit;steps=2"]
    assert names(tiny_lstm, ["random", "random"]) == ["random"]
    n = {model: len(SALIENCE["integrated_gradients"].available(model)) for model in (tiny_lstm, tiny_bert)}
    assert (n[tiny_lstm], n[tiny_bert]) == (12, 16)


@pytest.mark.parametrize(
    ("methods", "error", "message"),
    [
        ("lrp", UnknownNameError, "unknown salience method 'lrp'; choose from: .*gradient.*lime"),
        ("lime;sample=5", ValueError, "salience method 'lime' has no option 'sample'; choose from: mask, samples"),
        ("lime;samples", ValueError, "cannot read configuration 'lime;samples'"),
        ("integrated_gradients;baseline=mask", ValueError, "LSTMForSequenceClassification has no mask token; choose from: unk, pad"),
        ("integrated_gradients;steps=0", ValueError, "integrated_gradients;steps=0: steps=0 is not a whole number above 0"),
        ("lime;samples=many", ValueError, "lime;samples=many: samples=many is not a whole number above 0"),
        ("lime;samples=1e3", ValueError, "samples=1e3 is not a whole number above 0"),
        ("gradient_l2;of=odds", ValueError, "unknown quantity 'odds'; choose from: logit, probability"),
    ],
)
def test_a_wrong_name_lists_the_choices(tiny_lstm, methods, error, message):
    with pytest.raises(error, match=message):
        explain(tiny_lstm, "a film", methods)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (2, r"target \[2\] holds a class outside 0..1: 0, 1"),
        ([0, -1], r"target \[0, -1\] holds a class outside 0..1: 0, 1"),
        ([0, 1, 0], "3 targets for 2 texts; give one for all or one per text"),
        ([0], "1 targets for 2 texts"),
    ],
)
def test_a_wrong_target_names_the_classes(tiny_lstm, target, message):
    with pytest.raises(ValueError, match=message):
        explain(tiny_lstm, ["a film", "a story"], target=target)


def test_a_target_may_be_the_models_own_name_for_a_class(tiny_roberta):
    model = copy.deepcopy(tiny_roberta)
    model.model.config.id2label = {0: "good", 1: "dull", 2: "bad"}
    found = explain(model, ["a film", "a story"], "gradient_l2;of=logit", target=["bad", 1])
    assert [e.target for e in found] == [2, 1]
    assert explain(model, "a film", "gradient_l2;of=logit", target="good")[0].target == 0
    with pytest.raises(ValueError, match="target 'ugly' is not the name of one class in 0..2: good, dull, bad"):
        explain(model, "a film", target="ugly")


def test_a_target_that_is_no_index_is_refused(tiny_lstm):
    """Without the annotations, which already refuse it here."""
    with pytest.raises(ValueError, match=r"target 0.5 is not a class index in 0..1: 0, 1"):
        inspect.unwrap(_targets)(tiny_lstm, 0.5, tiny_lstm.predict("a film"))


def test_a_regression_head_is_explained_by_its_output_alone(tiny_bert, monkeypatch):
    monkeypatch.setattr(tiny_bert.model.config, "problem_type", "regression")
    found = explain(tiny_bert, TEXTS[0], ["gradient", "lime"])[0]
    assert not any("probability" in name for name in found.scores)
    assert np.ptp(found.scores["lime;mask=unk;samples=100"]) > 0
    with pytest.raises(ValueError, match="a regression head has no probability; choose of=logit"):
        explain(tiny_bert, TEXTS[0], "gradient_l2;of=probability")


def test_a_new_family_is_one_function(tiny_lstm):
    @salience("token_place;per=character")
    def token_place(model, batch, target, configurations, seed):
        places = torch.arange(batch.ids.shape[1]).float().requires_grad_()  # a graph that explain has to cut off
        return {c: (batch.rankable * places, {"longest": torch.tensor([5.0])}) for c in configurations}

    try:
        [found] = explain(tiny_lstm, "a good film", "token_place")
        assert found.scores["token_place;per=character"].tolist() == [1, 2, 3]
        assert found.notes["token_place;per=character"] == {"longest": 5.0}
    finally:
        SALIENCE.remove("token_place")


def test_a_family_of_the_wrong_shape_is_named(tiny_lstm):
    @salience("flat")
    def flat(model, batch, target, configurations, seed):
        return {c: torch.zeros(len(batch), 1) for c in configurations}

    try:
        with pytest.raises(ValueError, match=r"salience family 'flat' returned scores of shape \(1, 1\) for flat; the batch has \(1, 5\)"):
            explain(tiny_lstm, "a good film", "flat")
    finally:
        SALIENCE.remove("flat")


@pytest.mark.parametrize("family", list(SALIENCE))
def test_every_registered_family_answers_all_of_its_configurations(family, tiny_bert):
    batch = tiny_bert.encode(["a film", "a much longer and moving story"])
    small = [c for c in SALIENCE[family].available(tiny_bert) if c.get("steps", 100) == 100 and c.get("samples", 100) == 100]
    answers = SALIENCE[family].function(tiny_bert, batch, tiny_bert.predict(batch), small, 0)
    for c in small:
        scores = answers[c][0] if isinstance(answers[c], tuple) else answers[c]
        assert (scores[~batch.rankable] == 0).all()
        assert scores.shape == batch.ids.shape
        assert Configuration.parse(str(c)) == c
