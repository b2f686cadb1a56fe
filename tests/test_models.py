import copy
import inspect
import json
import unicodedata

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from transformers import BertConfig, BertForSequenceClassification, BertModel

from faithlib.data import Example
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier, class_score, predicted_class
from faithlib.models.encoding import Batch
from faithlib.models.lstm import LSTMForSequenceClassification
from faithlib.models.markers import add_markers, check_single_tokens
from faithlib.salience import explain
from faithlib.training import TrainingSettings, fit

SHORT = "a dull film"
LONG = "a much longer sentence about a great actor in a warm story, far too long"
TEXTS = [SHORT, LONG, "good", "the film was bad and moving"]
# Precomposed and decomposed accents, apostrophes, a non-breaking space, an emoji inside a word, markup, what looks like special tokens.
AWKWARD = [
    "the café was naïve, don't go",
    unicodedata.normalize("NFD", "the café was naïve"),
    "one\u00a0two  three\tfour\n",
    "so go😀od it’s 😀 😀",
    "<b>bold</b> <!-- &amp; $x$ _a_ `c` <br /> <script>alert(1)</script>",
    "pad [MASK] [SEP] [PAD] <unk> <s> </s> <mask> <|endoftext|> [UNK]",
    "great great great",
]


def _close(left, right, tolerance=1e-4):
    assert (left - right).abs().max() <= tolerance * right.abs().max()


def test_annotated_shapes_are_checked_while_the_tests_run(tiny_lstm):
    batch = tiny_lstm.encode(TEXTS)
    with pytest.raises(TypeCheckError):
        Batch(batch.ids, batch.mask[:, :-1], batch.rankable)
    with pytest.raises(TypeCheckError):
        tiny_lstm.logits(batch, torch.zeros(len(TEXTS), batch.ids.shape[1]))


# Text in


@pytest.mark.parametrize("text", AWKWARD)
def test_words_and_tokens_are_slices_of_the_text(any_classifier, text):
    [encoded] = any_classifier.encode(text).texts
    assert encoded.text == text
    assert list(encoded.words) == text.split()
    covered = set()
    for token, (start, end), word in zip(encoded.tokens, encoded.offsets, encoded.word, strict=True):
        if word >= 0 and start < end:
            assert token == text[start:end]
            assert token in encoded.words[word]
            covered |= set(range(start, end))
    # Every letter of what is read belongs to a token; a combining mark may be dropped by an uncased tokenizer.
    letters = {i for i, letter in enumerate(text) if not letter.isspace() and not unicodedata.combining(letter)}
    assert {i for i in letters if encoded.cut is False or i <= max(covered)} <= covered


def test_slices_of_unsplit_words_are_the_words(tiny_lstm):
    for text in ("the café was naïve", unicodedata.normalize("NFD", "the café was naïve"), "one\u00a0two three"):
        [explanation] = explain(tiny_lstm, text, "random")
        assert [text[a:b] for a, b in explanation.offsets] == list(explanation.words) == text.split()
        assert explanation.word == tuple(range(len(explanation.words)))


def test_a_repeated_word_is_two_positions_with_two_scores(any_classifier):
    [explanation] = explain(any_classifier, "bad film and bad story", ["gradient_times_input;of=logit"])
    scores = explanation.scores["gradient_times_input;of=logit"]
    first, second = (explanation.word.index(i) for i, word in enumerate(explanation.words) if word == "bad")
    assert first != second
    assert scores[first] != scores[second]


def test_special_tokens_written_in_a_text_are_text(any_classifier):
    text = AWKWARD[5]
    batch = any_classifier.encode([text, "good"])
    special = {id_ for id_ in any_classifier.tokenizer.all_special_ids if id_ != any_classifier.tokenizer.unk_token_id}
    [written, ordinary] = [ids[rankable] for ids, rankable in zip(batch.ids, batch.rankable, strict=True)]
    assert not special & set(written.tolist())
    assert len(written) > len(ordinary) == batch.rankable[1].sum()


def test_only_the_tokens_of_the_text_are_rankable(tiny_bert, tiny_lstm, tiny_roberta, tiny_gpt2):
    around = {tiny_bert: ("[CLS]", "[SEP]"), tiny_lstm: ("[BOS]", "[EOS]"), tiny_roberta: ("<s>", "</s>")}
    for classifier, (first, last) in around.items():
        batch = classifier.encode(["good", LONG])
        n = int(batch.mask[0].sum())
        assert (batch.texts[0].tokens[0], batch.texts[0].tokens[-1]) == (first, last)
        assert batch.rankable[0].tolist() == [False, *[True] * (n - 2), False] + [False] * (batch.ids.shape[1] - n)
        assert batch.texts[0].word[0] == batch.texts[0].word[-1] == -1
    assert torch.equal(tiny_gpt2.encode(["good", LONG]).rankable, tiny_gpt2.encode(["good", LONG]).mask)


def test_a_text_beyond_the_window_is_cut_and_says_so(any_classifier):
    long = " ".join(["film"] * 2000)
    batch = any_classifier.encode([long, "good film"])
    assert [text.cut for text in batch.texts] == [True, False]
    assert batch.ids.shape[1] == any_classifier.window == 32
    assert any_classifier.count_tokens([long])[0] > 2000 - 1
    if any_classifier.model.config.model_type == "xlnet":  # relative positions: no limit of its own
        assert type(any_classifier)(any_classifier.model, any_classifier.tokenizer, window=9999).window == 9999
        return
    with pytest.raises(ValueError, match=r"window=9999 is more than the \d+ tokens that \w+ can read"):
        type(any_classifier)(any_classifier.model, any_classifier.tokenizer, window=9999)


def test_a_text_of_bare_space_has_no_words(any_classifier):
    """A byte-level tokenizer makes tokens of the space; they belong to no word."""
    [encoded] = any_classifier.encode(" \t ").texts
    assert encoded.words == ()
    assert set(encoded.word) <= {-1}


def test_no_texts_and_no_tokens(any_classifier):
    assert any_classifier.encode([]).ids.shape == (0, 0)
    assert any_classifier.predict_logits([]).shape == (0, any_classifier.model.config.num_labels)
    batch = any_classifier.encode(["", "good film"])
    assert not batch.rankable[0].any()
    assert batch.mask[0].any()
    assert torch.isfinite(any_classifier.predict_logits(["", "good film"])).all()


@pytest.mark.parametrize("family", ["tiny_lstm", "tiny_bert"])
def test_every_marker_is_one_token_wherever_it_stands(family, request):
    classifier = request.getfixturevalue(family)
    text = "#0 good #1, film#c #00"
    [encoded] = classifier.encode(text).texts
    assert [token for token in encoded.tokens if token.startswith("#")] == ["#0", "#1", "#c", "#0"]
    ids = [classifier.encode(marker).ids[0, 1].item() for marker in ("#0", "#1", "#c")]
    assert len(set(ids)) == 3
    assert classifier.tokenizer.unk_token_id not in ids


def test_markers_that_a_tokenizer_cannot_read_as_one_token(tiny_roberta, tiny_bert, tiny_lstm):
    with pytest.raises(ValueError, match=r"the tokenizer splits the marker '#0' into \['#', '0'\]; add it as a token"):
        check_single_tokens(tiny_roberta.tokenizer, ["#0"])
    with pytest.raises(ValueError, match="the marker 'zzz' is not one token inside a text"):
        check_single_tokens(tiny_lstm.tokenizer, ["zzz"])
    with pytest.raises(ValueError, match="markers 'Film' and 'film' are the same token"):
        check_single_tokens(tiny_bert.tokenizer, ["Film", "film"])


def test_an_upper_case_marker_is_one_token_of_an_uncased_model(tiny_bert):
    tokenizer = copy.deepcopy(tiny_bert.tokenizer)
    add_markers(tokenizer, ["#A", "#a"])
    ids = [tokenizer(f"good {marker} film", add_special_tokens=False)["input_ids"][1] for marker in ("#A", "#a")]
    assert tokenizer.convert_ids_to_tokens(ids) == ["#A", "#a"]


def test_an_unknown_option_names_the_choices():
    with pytest.raises(ValueError, match="model family 'bert' has no option 'layers'; choose from: n_layers, hidden_size, n_heads"):
        MODELS["bert"](ModelSettings("bert", weights="random", options=(("layers", 3),)), [], [])
    with pytest.raises(KeyError, match="unknown model family 'gru'; choose from: bert, checkpoint, cnn, roberta, xlnet, lstm"):
        MODELS["gru"]


# Numbers out


def test_logits_do_not_depend_on_padding_or_company(any_classifier):
    alone = torch.cat([any_classifier.predict_logits(text) for text in TEXTS])
    _close(any_classifier.predict_logits(TEXTS), alone)
    _close(any_classifier.logits(any_classifier.encode(TEXTS)).detach(), alone)
    _close(any_classifier.predict_logits(TEXTS[::-1]).flip(0), alone)
    assert (alone - alone[:1]).abs().max() > 0.01


def test_logits_are_those_of_the_bare_model(any_classifier):
    for text in TEXTS:
        with torch.no_grad():
            expected = any_classifier.model(**any_classifier.tokenizer(text, return_tensors="pt")).logits
        _close(any_classifier.predict_logits(text), expected, 1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("texts", [[LONG], TEXTS], ids=["one length", "padded"])
def test_bert_reading_only_cls_last_equals_the_whole_model(tiny_bert_two, attention, texts):
    classifier = copy.deepcopy(tiny_bert_two)
    classifier.model.set_attn_implementation(attention)
    batch = classifier.encode(texts)
    logits, slopes = [], []
    for whole in (False, True):
        classifier.whole = whole
        leaf = classifier.embed(batch).detach().requires_grad_()
        logits.append(classifier.logits(batch, leaf))
        slopes.append(torch.autograd.grad((logits[-1] * torch.tensor([1.0, -2.0])).sum(), leaf)[0])
    _close(logits[0], logits[1], 1e-5)
    _close(slopes[0], slopes[1], 1e-5)
    assert not slopes[0][~batch.mask].any()


def test_bert_saves_the_work_of_the_last_layer(tiny_bert_two, monkeypatch):
    """Only row 0 passes the last layer's feed-forward part."""
    widths = []
    last = tiny_bert_two.model.bert.encoder.layer[-1]
    whole = type(last).feed_forward_chunk
    monkeypatch.setattr(last, "feed_forward_chunk", lambda hidden: widths.append(hidden.shape[1]) or whole(last, hidden))
    tiny_bert_two.predict_logits(LONG)
    assert widths == [1]


def test_reversed_lstm_starts_at_each_texts_own_end(tiny_lstm):
    model: LSTMForSequenceClassification = tiny_lstm.model
    batch = tiny_lstm.encode(TEXTS)
    both = torch.nn.LSTM(model.config.embedding_size, model.config.hidden_size, batch_first=True, bidirectional=True)
    both.load_state_dict({**model.left_to_right.state_dict(), **{f"{name}_reverse": value for name, value in model.right_to_left.state_dict().items()}})
    with torch.no_grad():
        embeddings = tiny_lstm.embed(batch)
        packed = torch.nn.utils.rnn.pack_padded_sequence(embeddings, batch.lengths, batch_first=True, enforce_sorted=False)
        expected = torch.nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True)[0]
        states = model._states(embeddings, batch.mask.long())
    assert not batch.mask.all()
    torch.testing.assert_close(states[batch.mask], expected[batch.mask], atol=1e-6, rtol=1e-5)


def test_lstm_attention_is_over_keys_alone(tiny_lstm):
    """The docstring's formula, by hand: scores = v · tanh(W h), context = Σ a h, MLP."""
    model, batch = tiny_lstm.model, tiny_lstm.encode(LONG)
    with torch.no_grad():
        states = model._states(tiny_lstm.embed(batch), None)[0]
        attention = torch.softmax(torch.tanh(states @ model.keys.weight.T) @ model.query.weight[0], 0)
        hidden = torch.tanh(model.dense.weight @ (attention @ states) + model.dense.bias)
    torch.testing.assert_close(tiny_lstm.predict_logits(LONG)[0], model.out.weight @ hidden, atol=1e-5, rtol=1e-5)


def test_word_dropout_reads_words_as_unknown_while_training_only(tiny_lstm):
    model = copy.deepcopy(tiny_lstm.model)
    model.config.word_dropout, model.dropout.p = 1.0, 0.0
    batch = tiny_lstm.encode(LONG)
    unknown = torch.where(batch.rankable, tiny_lstm.special_id("unk"), batch.ids)
    with torch.no_grad():
        expected = model(unknown, batch.mask).logits
        torch.testing.assert_close(model.train()(batch.ids, batch.mask).logits, expected)
        assert not torch.allclose(model.eval()(batch.ids, batch.mask).logits, expected)


def test_mode_is_restored_and_dropout_is_off_meanwhile(any_classifier):
    classifier = copy.deepcopy(any_classifier)
    expected = classifier.predict_logits(TEXTS)
    classifier.model.train()
    frozen = next(module for module in classifier.model.modules() if isinstance(module, torch.nn.Embedding))
    frozen.eval()
    modes = {name: module.training for name, module in classifier.model.named_modules()}
    torch.testing.assert_close(classifier.predict_logits(TEXTS), expected)
    explain(classifier, TEXTS, ["gradient", "lime;samples=10"])
    assert {name: module.training for name, module in classifier.model.named_modules()} == modes
    assert set(modes.values()) == {True, False}


def test_mode_is_restored_after_an_error(tiny_lstm, monkeypatch):
    classifier = copy.deepcopy(tiny_lstm)
    classifier.model.train()

    def failing(*_args, **_kwargs):
        assert not classifier.model.training
        raise RuntimeError("broken")

    monkeypatch.setattr(classifier.model, "forward", failing)
    with pytest.raises(RuntimeError, match="broken"):
        classifier.predict_logits(SHORT)
    assert all(module.training for module in classifier.model.modules())


def test_parameters_and_configuration_are_left_alone(any_classifier):
    before = copy.deepcopy(any_classifier.model.state_dict())
    config = any_classifier.model.config.to_dict()
    explain(any_classifier, TEXTS, ["gradient", "integrated_gradients;steps=5", "lime;samples=20"])
    assert all(parameter.grad is None and parameter.requires_grad for parameter in any_classifier.model.parameters())
    assert all(torch.equal(before[name], value) for name, value in any_classifier.model.state_dict().items())
    assert any_classifier.model.config.to_dict() == config


def test_float16_is_refused(tiny_bert):
    with pytest.raises(ValueError, match=r"the model's weights are float16.*load it with dtype=torch.float32"):
        TextClassifier.wrap(copy.deepcopy(tiny_bert.model).half(), tiny_bert.tokenizer)
    with pytest.raises(ValueError, match="unknown precision 'fp16'; choose from: fp32, bf16"):
        TextClassifier.wrap(tiny_bert.model, tiny_bert.tokenizer, precision="fp16")


@pytest.mark.parametrize("family", ["tiny_bert", "tiny_lstm"])
def test_bf16_is_near_fp32(family, request):
    exact = request.getfixturevalue(family)
    rough = TextClassifier.wrap(exact.model, exact.tokenizer, window=exact.window, precision="bf16")
    logits = [classifier.predict_logits(TEXTS) for classifier in (rough, exact)]
    assert logits[0].dtype == torch.float32
    _close(*logits, 0.05)
    assert not torch.equal(*logits)
    scores = [explain(classifier, LONG, "gradient_l2;of=logit")[0].scores["gradient_l2;of=logit"] for classifier in (rough, exact)]
    assert np.corrcoef(*scores)[0, 1] > 0.99


def test_token_ids_where_embeddings_are_needed(tiny_bert):
    """The messages that a user sees, for whom annotations are not checked."""
    batch = tiny_bert.encode(TEXTS)
    with pytest.raises(TypeError, match=r"embeddings are floating point numbers, got torch.int64: token ids go into the batch"):
        inspect.unwrap(TextClassifier.logits)(tiny_bert, batch, batch.ids)
    wrong = object.__new__(Batch)
    object.__setattr__(wrong, "ids", tiny_bert.embed(batch))
    with pytest.raises(TypeError, match=r"token ids are whole numbers, got torch.float32"):
        inspect.unwrap(TextClassifier.embed)(tiny_bert, wrong)


def test_a_missing_special_token_lists_those_there_are(tiny_lstm, tiny_gpt2, tiny_roberta):
    with pytest.raises(ValueError, match="LSTMForSequenceClassification has no mask token; choose from: unk, pad$"):
        tiny_lstm.special_id("mask")
    with pytest.raises(ValueError, match="GPT2ForSequenceClassification has no pad token; choose from: unk$"):
        tiny_gpt2.special_id("pad")
    assert tiny_roberta.special_ids == {"unk": 3, "pad": 1, "mask": 4}


# Heads

LOGITS = torch.tensor([[-2.0, 0.5, 1.0], [3.0, 0.0, -1.0]])


def _head(n_logits, problem_type=None):
    config = BertConfig(
        vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, num_labels=n_logits, problem_type=problem_type
    )
    return BertForSequenceClassification(config)


@pytest.mark.parametrize(
    ("n_logits", "problem_type", "head", "names"),
    [
        (1, None, "binary", ("0", "1")),
        (1, "multi_label_classification", "binary", ("0", "1")),
        (1, "regression", "regression", ("LABEL_0",)),
        (2, None, "softmax", ("LABEL_0", "LABEL_1")),
        (3, "single_label_classification", "softmax", ("LABEL_0", "LABEL_1", "LABEL_2")),
        (3, "multi_label_classification", "multi_label", ("LABEL_0", "LABEL_1", "LABEL_2")),
    ],
)
def test_the_head_follows_from_the_configuration(tiny_bert, n_logits, problem_type, head, names):
    classifier = TextClassifier.wrap(_head(n_logits, problem_type), tiny_bert.tokenizer)
    assert (classifier.head, classifier.label_names) == (head, names)


def test_permuted_label_names_keep_their_index(tiny_bert):
    model = _head(3)
    model.config.id2label = {2: "bad", 0: "good", 1: "dull"}
    assert TextClassifier.wrap(model, tiny_bert.tokenizer).label_names == ("good", "dull", "bad")


def test_class_scores_of_one_logit_are_those_of_a_sigmoid():
    logits, target = torch.tensor([[-2.0], [-2.0], [3.0]]), torch.tensor([0, 1, 1])
    assert predicted_class(logits, "binary").tolist() == [0, 0, 1]
    assert class_score(logits, target, "logit", "binary").tolist() == [2.0, -2.0, 3.0]
    torch.testing.assert_close(class_score(logits, target, "probability", "binary"), torch.tensor([0.880797, 0.119203, 0.952574]))


def test_class_scores_of_several_logits():
    target = torch.tensor([2, 0])
    assert predicted_class(LOGITS, "softmax").tolist() == [2, 0]
    for head, probability in (("softmax", LOGITS.exp() / LOGITS.exp().sum(1, keepdim=True)), ("multi_label", 1 / (1 + (-LOGITS).exp()))):
        assert class_score(LOGITS, target, "logit", head).tolist() == [1.0, 3.0]
        torch.testing.assert_close(class_score(LOGITS, target, "probability", head), torch.stack([probability[0, 2], probability[1, 0]]))


def test_a_regression_head_has_a_number_and_no_probability():
    logits, target = torch.tensor([[-2.0], [3.0]]), torch.tensor([0, 0])
    assert predicted_class(logits, "regression").tolist() == [0, 0]
    assert class_score(logits, target, "logit", "regression").tolist() == [-2.0, 3.0]
    with pytest.raises(ValueError, match="a regression head has no probability; choose of=logit"):
        class_score(logits, target, "probability", "regression")
    with pytest.raises(ValueError, match="unknown quantity 'odds'; choose from: logit, probability"):
        class_score(logits, target, "odds", "binary")


# Saving


def test_saved_and_reloaded_gives_the_same_scores(any_classifier, tmp_path):
    folder = tmp_path / "a folder"
    any_classifier.save(folder)
    again = TextClassifier.load(folder)
    assert type(again) is type(any_classifier)
    assert (again.window, again.head, again.special_ids) == (any_classifier.window, any_classifier.head, any_classifier.special_ids)
    texts = [*TEXTS, "good #0 film #1 #c", AWKWARD[5]]
    assert torch.equal(again.encode(texts).ids, any_classifier.encode(texts).ids)
    _close(again.predict_logits(texts), any_classifier.predict_logits(texts), 1e-6)
    methods = ["gradient_mean;of=logit", "integrated_gradients;steps=10", "lime;samples=30"]
    for old, new in zip(explain(any_classifier, texts, methods), explain(again, texts, methods), strict=True):
        assert new.tokens == old.tokens
        for name, scores in old.scores.items():
            # What fp32 leaves to where the weights lie in memory; a text of one token may score the small rest of a sum that cancels.
            np.testing.assert_allclose(new.scores[name], scores, atol=1e-4 * abs(scores).max())


def test_another_window_can_be_asked_of_a_saved_classifier(tiny_lstm, tmp_path):
    tiny_lstm.save(tmp_path)
    assert json.loads((tmp_path / "faithlib.json").read_text()) == {"window": 32}
    assert TextClassifier.load(tmp_path, window=7).encode(LONG).ids.shape[1] == 7


def test_a_half_precision_checkpoint_is_read_in_float32(tiny_bert_two, tmp_path):
    half = copy.deepcopy(tiny_bert_two.model).half()
    half.save_pretrained(tmp_path)
    tiny_bert_two.tokenizer.save_pretrained(tmp_path)
    again = TextClassifier.load(tmp_path, window=32)
    assert {parameter.dtype for parameter in again.model.parameters()} == {torch.float32}
    _close(again.predict_logits(TEXTS), tiny_bert_two.predict_logits(TEXTS), 1e-2)


def test_a_checkpoint_without_a_head_is_refused(tiny_bert, tmp_path):
    BertModel(BertConfig(vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(tmp_path)
    tiny_bert.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is not a fine-tuned classifier: its checkpoint has no classifier.bias, classifier.weight"):
        TextClassifier.load(tmp_path)
    with pytest.raises(ValueError, match="no sequence classifier could be loaded from '.*missing folder'"):
        TextClassifier.load(tmp_path / "missing folder")


def test_a_slow_tokenizer_is_refused(tiny_bert):
    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="Slow gives no character offsets; load the fast tokenizer"):
        inspect.unwrap(TextClassifier.__init__)(object.__new__(TextClassifier), tiny_bert.model, Slow())


# Batches


def test_groups_by_length_hold_every_row_once_and_keep_the_budget(tiny_lstm):
    texts = [" ".join(["film"] * n) for n in (1, 20, 3, 20, 3, 1, 12, 29)]
    batch = tiny_lstm.encode(texts)
    groups = list(batch.by_length(50))
    assert sorted(row for group in groups for row in group) == list(range(len(texts)))
    sizes = [len(group) * int(batch.lengths[group].max()) for group in groups]
    assert max(sizes) <= 50
    assert len(groups) < len(texts)
    assert list(batch.by_length(5))[-1] == [7]


def test_selected_rows_carry_no_more_padding_than_they_need(tiny_lstm):
    part = tiny_lstm.encode(TEXTS).select([2, 0])
    assert part.ids.shape == (2, 5)
    assert [text.text for text in part.texts] == ["good", SHORT]
    assert part.lengths.tolist() == [3, 5]


def test_added_tokens_are_drawn_like_the_others():
    """Mean and covariance of the other embeddings; a token at their mean would have a large gradient whatever the model does with it."""
    markers = [f"zq{i}" for i in range(200)]
    torch.manual_seed(0)
    classifier = MODELS["bert"](ModelSettings("bert", weights="packaged", window=32), [], markers)
    weight = classifier.model.get_input_embeddings().weight.detach()
    new, others = weight[-200:], weight[:-200]
    assert len(weight) == len(classifier.tokenizer)
    assert new.std(1).mean() == pytest.approx(others.std(1).mean().item(), rel=0.1)
    assert (new.mean(0) - others.mean(0)).norm() < 0.2 * others.std(0).norm()
    variances, directions = torch.linalg.eigh(torch.cov(others.T))
    assert variances[-1] > 5 * variances.median()  # so the next line would fail for draws that are independent per component
    ratios = ((new - others.mean(0)) @ directions).square().mean(0) / variances
    assert 0.7 < ratios[-10:].mean() < 1.4
    assert torch.unique(new, dim=0).shape == new.shape


# RoBERTa and XLNet


@pytest.mark.parametrize("family", ["roberta", "xlnet"])
def test_roberta_and_xlnet_are_loaded_from_a_checkpoint_trained_and_saved(family, request, tmp_path):
    body = copy.deepcopy(request.getfixturevalue(f"tiny_{family}"))
    body.model.base_model.save_pretrained(tmp_path / "body")
    body.tokenizer.save_pretrained(tmp_path / "body")
    settings = ModelSettings(family, weights=str(tmp_path / "body"), window=24, dropout=0.2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        classifier = MODELS[family](settings, TEXTS, ["#0", "#1", "#c"], 1)
    assert (classifier.head, classifier.window) == ("binary", 24)
    assert {module.p for module in classifier.model.modules() if isinstance(module, torch.nn.Dropout)} >= {0.2}
    check_single_tokens(classifier.tokenizer, ["#0", "#1", "#c"])
    old = body.model.get_input_embeddings().weight
    new = classifier.model.get_input_embeddings().weight
    assert torch.equal(new[: len(old)], old)
    texts = [f"a {marker} film" for marker in ("#0", "#1")]
    examples = [Example(tuple(text.split()), label) for label, text in enumerate(texts)] * 8
    fit(classifier, examples, {"synthetic": examples}, TrainingSettings(learning_rate=5e-3, batch_size=8, max_passes=20, patience=20), 0, tmp_path / "steps")
    assert classifier.predict(texts).tolist() == [0, 1]
    classifier.save(tmp_path / "saved")
    torch.testing.assert_close(TextClassifier.load(tmp_path / "saved").predict_logits(texts), classifier.predict_logits(texts))


def test_roberta_is_in_no_package_and_says_where_to_get_it():
    with pytest.raises(ValueError, match="weights='packaged': no package carries roberta; choose from: hub, a local folder"):
        MODELS["roberta"](ModelSettings("roberta"), [], [])
    with pytest.raises(OSError, match="hf download xlnet/xlnet-base-cased --revision ceaa69c7bc5e512b5007106a7ccbb7daf24b2c79"):
        MODELS["xlnet"](ModelSettings("xlnet", weights="hub"), [], [])
