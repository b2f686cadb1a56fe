"""Attention as an explanation: what it must be before anyone reads it."""

import copy

import pytest
import torch

from faithlib.models.classifier import TextClassifier
from faithlib.salience import explain

TEXTS = ["a good film", "bad", "a much longer sentence about a great actor"]
WITH = ["tiny_lstm", "tiny_lstm_two", "tiny_bert", "tiny_bert_two", "tiny_gpt2", "tiny_roberta", "tiny_xlnet"]
WITHOUT = ["tiny_plain_lstm", "tiny_cnn"]


@pytest.mark.parametrize("name", WITH)
def test_rows_sum_to_one_and_are_zero_on_padding_whatever_the_company(name, request):
    model = request.getfixturevalue(name)
    batch = model.encode(TEXTS)
    weights = model.attention(batch)
    torch.testing.assert_close(weights.sum(1), torch.ones(3), atol=1e-5, rtol=0)
    assert (weights[~batch.mask] == 0).all()
    assert (weights[batch.mask] >= 0).all()
    for row, text in enumerate(TEXTS):
        alone = model.attention(model.encode(text))[0]
        torch.testing.assert_close(weights[row, : len(alone)], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", WITH)
def test_asking_changes_no_logits_and_no_settings(name, request):
    model = request.getfixturevalue(name)
    config, before = model.model.config.to_dict(), model.predict_logits(TEXTS)
    implementation = model.model.config._attn_implementation
    model.attention(model.encode(TEXTS))
    assert torch.equal(model.predict_logits(TEXTS), before)
    assert (model.model.config.to_dict(), model.model.config._attn_implementation) == (config, implementation)


def test_the_row_is_the_one_that_is_classified(tiny_bert, tiny_gpt2):
    for model, place in ((tiny_bert, 0), (tiny_gpt2, -1)):
        eager = copy.deepcopy(model.model)
        eager.set_attn_implementation("eager")
        batch = model.encode(TEXTS[0])
        with torch.no_grad():
            layers = eager(input_ids=batch.ids, attention_mask=batch.mask.long(), output_attentions=True).attentions
        torch.testing.assert_close(model.attention(batch), layers[-1][:, :, place].mean(1))
        torch.testing.assert_close(model.attention(batch, layer=0, head=1), layers[0][:, 1, place])


def test_the_lstms_weights_are_those_of_its_context(tiny_lstm):
    batch = tiny_lstm.encode(TEXTS[2])
    model = tiny_lstm.model
    with torch.no_grad():
        states = model._states(tiny_lstm.embed(batch), batch.mask.long())
        context = (tiny_lstm.attention(batch)[..., None] * states).sum(1)
        logits = model.out(torch.tanh(model.dense(context)))
    torch.testing.assert_close(logits, tiny_lstm.predict_logits(TEXTS[2]))


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_attention_says_so_and_is_not_asked(name, request):
    model = request.getfixturevalue(name)
    with pytest.raises(ValueError, match="has no attention"):
        model.attention(model.encode(TEXTS))
    assert explain(model, "a film", ["attention"])[0].scores == {}


def test_an_architecture_whose_reading_place_is_unknown_is_refused(tiny_bert):
    general = TextClassifier(tiny_bert.model, tiny_bert.tokenizer, window=32)
    with pytest.raises(ValueError, match="BertForSequenceClassification has no attention that is known"):
        general.attention(general.encode("a film"))


def test_layers_and_heads_that_there_are(tiny_bert):
    batch = tiny_bert.encode("a good film")
    with pytest.raises(ValueError, match="layer 2 is not one of the 2"):
        tiny_bert.attention(batch, layer=2)
    with pytest.raises(ValueError, match="head 2 is not one of the 2"):
        tiny_bert.attention(batch, head=2)
    [found] = explain(tiny_bert, "a good film", ["attention;head=0;layer=0", "attention"])
    assert set(found.scores) == {"attention;head=0;layer=0", "attention;head=mean;layer=last"}
    assert not (found.scores["attention;head=0;layer=0"] == found.scores["attention;head=mean;layer=last"]).all()
