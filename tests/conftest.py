"""Tiny random models of every kind. The package is imported with its annotations checked, so a wrong shape fails here."""
# ruff: noqa: E402

import os

from jaxtyping import install_import_hook

install_import_hook("faithlib", "beartype.beartype")  # before anything imports the package
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer, processors
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
    XLNetTokenizer,
)

from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier

torch.set_num_threads(1)  # on tensors this small a second thread only waits

VOCABULARY = ["a good and moving film", "the film was dull, bad and far too long", "a much longer sentence about a great actor in a warm story"]
MARKERS = ["#0", "#1", "#c"]
LSTM = ModelSettings("lstm", weights="random", window=32, dropout=0.3, options=(("hidden_size", 12), ("embedding_size", 10)))
PLAIN_LSTM = ModelSettings("lstm", weights="random", window=32, dropout=0.3, options=(("hidden_size", 12), ("embedding_size", 10), ("pooling", "ends")))
CNN = ModelSettings("cnn", weights="random", window=32, dropout=0.3, options=(("n_filters", 6), ("embedding_size", 10)))
BERT = ModelSettings("bert", weights="random", window=32, dropout=0.3, options=(("hidden_size", 16), ("n_layers", 2), ("n_heads", 2)))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No test reads or writes the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAITHLIB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def _lively(build):
    """``build()`` with one seed, weights large enough that the logits differ between texts, and nothing at zero that training would move from it.

    An LSTM without biases, say, stays at zero while it reads padding of zeros, and a reading from the wrong end would go unseen.
    """
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        classifier = build()
        for module in classifier.model.modules():
            if type(module).__name__ in ("Linear", "Conv1D"):
                module.weight.mul_(1.5 / module.weight.std() / module.weight.shape[-1] ** 0.5)
        for name, parameter in classifier.model.named_parameters():
            if "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        words = classifier.model.get_input_embeddings().weight
        words[~words.any(1)] = words.std()
    classifier.model.eval()
    return classifier


def _family(settings, n_logits):
    return _lively(lambda: MODELS[settings.family](settings, VOCABULARY, MARKERS, n_logits))


@pytest.fixture(scope="session")
def tiny_lstm():
    return _family(LSTM, 1)


@pytest.fixture(scope="session")
def tiny_lstm_two():
    return _family(LSTM, 2)


@pytest.fixture(scope="session")
def tiny_plain_lstm():
    """Without attention."""
    return _family(PLAIN_LSTM, 1)


@pytest.fixture(scope="session")
def tiny_cnn():
    return _family(CNN, 3)


@pytest.fixture(scope="session")
def tiny_bert():
    return _family(BERT, 1)


@pytest.fixture(scope="session")
def tiny_bert_two():
    return _family(BERT, 2)


def _byte_level(specials):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(VOCABULARY, vocab_size=330, min_frequency=1, special_tokens=specials)
    return tokenizer._tokenizer


@pytest.fixture(scope="session")
def tiny_gpt2():
    """A decoder: no padding token, no mask token, nothing around the text, two logits."""
    end = "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_byte_level([end]), bos_token=end, eos_token=end, unk_token=end)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=40, num_labels=2, bos_token_id=0, eos_token_id=0)
    return _lively(lambda: TextClassifier.wrap(GPT2ForSequenceClassification(config), tokenizer, window=32))


@pytest.fixture(scope="session")
def tiny_roberta():
    """Three classes, a padding id of 1, positions counted from it, a mask token."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend = _byte_level(specials)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), specials, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<s>", sep_token="</s>", **names)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 42}
    config = RobertaConfig(vocab_size=len(tokenizer), pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1, num_labels=3, **sizes)
    return _lively(lambda: TextClassifier.wrap(RobertaForSequenceClassification(config), tokenizer, window=32))


@pytest.fixture(scope="session")
def tiny_xlnet():
    """[CLS] at the end, padding on the left, relative positions, pieces that begin with the space in front of them."""
    specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    words = sorted({f"▁{word}" for text in VOCABULARY for word in text.replace(",", " ,").split()} | {"▁", *map(chr, range(33, 127))})
    # Scores as sentencepiece has them: its control symbols are never the best reading of a text.
    vocabulary = [(token, -99.0) for token in specials] + [(word, -1.0 / len(word)) for word in words]
    tokenizer = XLNetTokenizer(vocab=vocabulary, unk_id=0, keep_accents=True)
    sizes = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "initializer_range": 0.4}
    config = XLNetConfig(vocab_size=len(tokenizer), num_labels=2, pad_token_id=tokenizer.pad_token_id, **sizes)
    return _lively(lambda: TextClassifier.wrap(XLNetForSequenceClassification(config), tokenizer, window=32))


EVERY = ["tiny_lstm", "tiny_lstm_two", "tiny_plain_lstm", "tiny_cnn", "tiny_bert", "tiny_bert_two", "tiny_gpt2", "tiny_roberta", "tiny_xlnet"]


@pytest.fixture(params=EVERY)
def any_classifier(request):
    """Every tiny classifier in turn; do not change it."""
    return request.getfixturevalue(request.param)
