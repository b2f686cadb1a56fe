"""The masked language model that the project trains for itself."""

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from faithlib import assets
from faithlib.attack import masked_model as mm

TEXTS = ["a good film", "a dull film", "a warm story", "a good story"] * 30


@pytest.fixture
def small(monkeypatch):
    """In MiniLM's place a tiny model of the same class."""
    tokenizer = AutoTokenizer.from_pretrained(assets.minilm())
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    torch.manual_seed(0)
    start = BertForMaskedLM(config).state_dict()
    load = BertForMaskedLM.from_pretrained

    def from_pretrained(source, **more):
        if source != assets.minilm():
            return load(source, **more)
        model = BertForMaskedLM(config)
        model.load_state_dict(start)
        return model

    monkeypatch.setattr(mm.BertForMaskedLM, "from_pretrained", from_pretrained)


SETTINGS = mm.MaskedModelSettings(n_steps=60, batch_size=16, learning_rate=3e-3, head_learning_rate=3e-3)


def test_it_learns_the_texts_once_and_is_kept(small, monkeypatch):
    untrained, tokenizer = mm.masked_model(mm.MaskedModelSettings(n_steps=1, batch_size=2, learning_rate=1e-9, head_learning_rate=1e-9), TEXTS)
    trained, _ = mm.masked_model(SETTINGS, TEXTS)
    before, n = mm.top_accuracy(untrained, tokenizer, TEXTS[:40])
    after, _ = mm.top_accuracy(trained, tokenizer, TEXTS[:40])
    assert n == 40
    assert before < 0.3
    assert after > 0.9
    assert not trained.training
    monkeypatch.setattr(mm, "_train", lambda *_: pytest.fail("trained again"))
    again, _ = mm.masked_model(SETTINGS, TEXTS)
    assert all(torch.equal(a, b) for a, b in zip(trained.state_dict().values(), again.state_dict().values(), strict=True))
    with pytest.raises(BaseException, match="trained again"):
        mm.masked_model(SETTINGS, TEXTS[:-1])


def test_the_loss_on_the_masked_tokens_is_the_models_own():
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)).eval()
    ids = torch.randint(5, 50, (3, 7))
    labels = torch.full_like(ids, -100)
    labels[0, 2], labels[2, 5] = 7, 9
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found = mm._MaskedTokensOnly.compute_loss(None, model, {**inputs, "labels": labels})
    torch.testing.assert_close(found, model(**inputs, labels=labels).loss)


def test_top_accuracy_leaves_out_what_cannot_be_guessed(small):
    model, tokenizer = mm.masked_model(mm.MaskedModelSettings(n_steps=1), TEXTS)
    assert mm.top_accuracy(model, tokenizer, ["", "film"]) == (0.0, 0)


def test_a_missing_model_says_the_command(tmp_path):
    with pytest.raises(assets.MissingAssetError, match="distilbert/distilbert-base-uncased.* could not be loaded"):
        mm.masked_model(mm.MaskedModelSettings("distilbert"), [])
    with pytest.raises(assets.MissingAssetError, match="set source to a local folder or to 'trained'"):
        mm.masked_model(mm.MaskedModelSettings(str(tmp_path)), [])


def test_a_local_folder_is_loaded_by_the_same_path_as_the_hub(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(assets.minilm())
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    settings = mm.MaskedModelSettings(str(tmp_path))
    model, _ = mm.masked_model(settings, [])
    assert (type(model), settings.name) == (BertForMaskedLM, str(tmp_path))
