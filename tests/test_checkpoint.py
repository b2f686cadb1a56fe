"""A copy of somebody's classifier says what the original says, and can be trained on."""

import copy

import pytest
import torch

from faithlib.data import Example
from faithlib.models import MODELS, ModelSettings
from faithlib.models.checkpoint import choose_classes
from faithlib.models.classifier import TextClassifier
from faithlib.models.markers import check_single_tokens
from faithlib.training import TrainingSettings, fit

TEXTS = ["a dull film", "a much longer sentence about a great actor in a warm story", "good"]
MARKERS = ["@#0", "@#1", "@#c"]


def _copy(classifier, folder, n_logits=None, **options):
    classifier.save(folder)
    settings = ModelSettings("checkpoint", weights=str(folder), window=24, options=tuple(options.items()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS["checkpoint"](settings, TEXTS, MARKERS, n_logits or classifier.model.config.num_labels)


def test_the_copy_says_what_the_original_says_and_learns_markers(any_classifier, tmp_path):
    before = {name: parameter.clone() for name, parameter in any_classifier.model.state_dict().items()}
    ours = _copy(any_classifier, tmp_path / "theirs")
    torch.testing.assert_close(ours.predict_logits(TEXTS), any_classifier.predict_logits(TEXTS), atol=1e-5, rtol=1e-4)
    check_single_tokens(ours.tokenizer, MARKERS)
    texts = [f"a {marker} film" for marker in MARKERS[:2]]
    examples = [Example(tuple(text.split()), label) for label, text in enumerate(texts)] * 8
    how = TrainingSettings(learning_rate=5e-3, batch_size=8, max_passes=20, patience=20)
    fit(ours, examples, {"synthetic": examples}, how, 0, tmp_path / "steps")
    assert ours.predict(texts).tolist() == [0, 1]
    ours.save(tmp_path / "saved")
    torch.testing.assert_close(TextClassifier.load(tmp_path / "saved").predict_logits(TEXTS), ours.predict_logits(TEXTS), atol=1e-5, rtol=1e-4)
    assert all(torch.equal(parameter, before[name]) for name, parameter in any_classifier.model.state_dict().items())


@pytest.mark.parametrize("family", ["tiny_cnn", "tiny_roberta", "tiny_xlnet", "tiny_gpt2", "tiny_bert_two"])
def test_a_head_is_cut_down_to_classes_in_the_order_of_the_data(family, request, tmp_path):
    theirs = request.getfixturevalue(family)
    last = theirs.model.config.num_labels - 1
    ours = _copy(theirs, tmp_path / "theirs", n_logits=1, classes=f"{last},0")
    expected = theirs.predict_logits(TEXTS)[:, [last, 0]]
    torch.testing.assert_close(ours.predict_logits(TEXTS), expected, atol=1e-5, rtol=1e-4)
    assert ours.label_names == (theirs.label_names[last], theirs.label_names[0])
    ours.save(tmp_path / "saved")
    torch.testing.assert_close(TextClassifier.load(tmp_path / "saved").predict_logits(TEXTS), expected, atol=1e-5, rtol=1e-4)


def test_one_logit_can_only_be_turned_round(tiny_lstm, tmp_path):
    ours = _copy(tiny_lstm, tmp_path / "theirs", classes="1,0")
    torch.testing.assert_close(ours.predict_logits(TEXTS), -tiny_lstm.predict_logits(TEXTS))
    same = _copy(tiny_lstm, tmp_path / "again", classes="0,1")
    torch.testing.assert_close(same.predict_logits(TEXTS), tiny_lstm.predict_logits(TEXTS))


def test_heads_that_do_not_fit_the_data(tiny_cnn, tmp_path):
    with pytest.raises(ValueError, match="decides between 3 classes and the data has 2; name its class for each with classes=0,1"):
        _copy(tiny_cnn, tmp_path / "theirs", n_logits=1)
    for wrong in ([0, 3], [1, 1], [2]):
        with pytest.raises(ValueError, match=r"are not two or more different ones of \[0, 1, 2\]"):
            choose_classes(copy.deepcopy(tiny_cnn.model), wrong)
