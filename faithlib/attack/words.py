"""What kind of word is it: punctuation, function word, part of speech."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from faithlib import assets
from faithlib.registry import Registry

# scikit-learn's list, with what its own documentation warns of put right: words that carry content leave it (a film review turns on "serious", "sincere",
# "thin"), and auxiliaries, "just" and what stands behind an apostrophe come in. Every other form of "not" is known by its ending.
_CONTENT = """amoungst amount bill bottom call con cry de describe detail empty fill find fire found front full give interest keep made mill mine move name
part put see serious show side sincere system take thick thin top un well""".split()
_MISSING = "did does doing having just theirs s t d ll m ve".split()
FUNCTION_WORDS = (ENGLISH_STOP_WORDS - set(_CONTENT)) | set(_MISSING)

TAGGERS: Registry = Registry("part-of-speech tagger")
SPACY_MODEL = "en_core_web_sm"
# Penn Treebank tags as the universal tag set has them (Petrov, Das and McDonald 2012); punctuation has tags without letters.
_UNIVERSAL = {
    penn: universal
    for universal, tags in {
        "NOUN": "NN NNS NNP NNPS",
        "VERB": "MD VB VBD VBG VBN VBP VBZ",
        "ADJ": "JJ JJR JJS",
        "ADV": "RB RBR RBS WRB",
        "PRON": "PRP PRP$ WP WP$",
        "DET": "DT EX PDT WDT",
        "ADP": "IN",
        "NUM": "CD",
        "CONJ": "CC",
        "PRT": "POS RP TO",
    }.items()
    for penn in tags.split()
}


def is_punctuation(word: str) -> bool:
    """True where no character is a letter or a digit: punctuation, symbols, emoji, invisible characters."""
    return not any(character.isalnum() for character in word)


def core(word: str) -> tuple[str, str, str]:
    """(what stands before, the word itself, what stands after): ``"(great)."`` is ``"("``, ``"great"``, ``")."``.

    Words here are chunks between white space, so in a text that was not tokenised punctuation sticks to them; it is no part of the word that is looked
    up, masked or tagged, and stays where it is [OPEN]. A word of nothing but punctuation is itself.
    """
    inside = [i for i, character in enumerate(word) if character.isalnum() or unicodedata.category(character).startswith("M")]
    if is_punctuation(word):
        return "", word, ""
    return word[: inside[0]], word[inside[0] : inside[-1] + 1], word[inside[-1] + 1 :]


def is_function_word(word: str) -> bool:
    """True for stop words in any case, with or without punctuation around them, contracted or not (``it's``, ``Don't``, ``n't``)."""
    word = core(word)[1].casefold().replace("’", "'")
    head, apostrophe, _ = word.partition("'")
    return word in FUNCTION_WORDS or word.endswith("n't") or bool(apostrophe and head in FUNCTION_WORDS)


@TAGGERS.register("pattern")
def pattern(words: Sequence[str], position: int, candidates: Sequence[str]) -> list[str]:
    """Coarse part of speech (universal tag set: NOUN, VERB, ADJ, ...) of each candidate at ``position``, by TextBlob's copy of the Pattern lexicon.

    It needs no download and reads every word alone, so ``love`` is a noun wherever it stands.
    """
    return [_pattern_tag(candidate) for candidate in candidates]


@functools.lru_cache(maxsize=100_000)
def _pattern_tag(word: str) -> str:
    try:
        from textblob.en import parser
    except ImportError as error:
        raise assets.MissingAssetError("the tagger 'pattern' needs textblob, which is not installed; get it with: pip install textblob") from error
    [[_, tag]] = parser.find_tags([word])
    return _UNIVERSAL.get(tag, "X" if tag.isalpha() else ".")


@TAGGERS.register("spacy")
def spacy(words: Sequence[str], position: int, candidates: Sequence[str]) -> list[str]:
    """Coarse part of speech of each candidate in the sentence, by spaCy where it is installed; costs one pass over the sentence per candidate."""
    pipeline, document = _spacy()
    before, _, after = core(words[position])
    cores = [[word] if is_punctuation(word) else [part for part in core(word) if part] for word in words]
    left = [part for word in cores[:position] for part in word] + [before] * bool(before)
    right = [after] * bool(after) + [part for word in cores[position + 1 :] for part in word]
    sentences = [document(pipeline.vocab, words=[*left, candidate, *right]) for candidate in candidates]
    return [tagged[len(left)].pos_ for tagged in pipeline.pipe(sentences)]


@functools.lru_cache(maxsize=1)
def _spacy():
    try:
        import spacy
        from spacy.tokens import Doc

        return spacy.load(SPACY_MODEL, exclude=["parser", "ner", "lemmatizer"]), Doc
    except (ImportError, OSError) as error:
        raise assets.MissingAssetError(
            f"the tagger 'spacy' needs spaCy and its model {SPACY_MODEL}; get them with: pip install spacy && python -m spacy download {SPACY_MODEL}"
        ) from error
