import json

import numpy as np
import pandas as pd
import pytest

from faithlib import assets
from faithlib.data import DATASETS, DataSettings, Example, as_texts, content_rng, cut, load

PAIR = ["a good film", "a dull film"]


# Texts as people hold them


@pytest.mark.parametrize(
    "texts",
    [
        PAIR,
        tuple(PAIR),
        np.array(PAIR),
        np.array(PAIR, dtype=object),
        pd.Series(PAIR, index=[7, 3]),
        pd.Series(PAIR, dtype="string"),
        pd.Series(PAIR, dtype="category"),
        (text for text in PAIR),
        dict.fromkeys(PAIR).keys(),
        [Example(tuple(text.split()), 0) for text in PAIR],
    ],
    ids=["list", "tuple", "array", "object array", "series", "string series", "categories", "generator", "keys", "examples"],
)
def test_texts_are_taken_from_whatever_holds_them(texts):
    found = as_texts(texts)
    assert found == PAIR
    assert {type(text) for text in found} == {str}


def test_one_text_is_not_a_sequence_of_letters():
    assert as_texts("ab") == ["ab"]
    assert as_texts(Example(("a", "b"), 1)) == ["a b"]
    assert as_texts("") == [""]
    assert as_texts([]) == []


def test_a_data_set_column_is_taken():
    import datasets

    table = datasets.Dataset.from_dict({"text": PAIR, "label": [1, 0]})
    assert as_texts(table["text"]) == PAIR
    assert as_texts(table.with_format("numpy")["text"]) == PAIR
    with pytest.raises(TypeError, match=r"texts row 0: \{'text': 'a good film', 'label': 1\} is a dict, not a text"):
        as_texts(table)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "texts row 1: missing value, not a text"),
        (["a", "b", float("nan")], "texts row 2: missing value, not a text"),
        (pd.Series(["a", np.nan], index=[5, 9]), "texts row 1: missing value"),
        (pd.Series(["a", None], dtype="string"), "texts row 1: missing value"),
        (np.array([np.nan], dtype=np.float32), "texts row 0: missing value"),
        (np.array([1, 2]), "texts row 0: .*1.* is a int64, not a text"),
        (["a", b"b"], "texts row 1: b'b' is a bytes, not a text"),
        ([["a", "b"]], r"texts row 0: \['a', 'b'\] is a list, not a text"),
        (5, "texts must be a string or a sequence of strings, not int"),
        (None, "texts must be a string or a sequence of strings, not NoneType"),
        (b"abc", "texts must be a string or a sequence of strings, not bytes"),
        ({"text": "a"}, "texts must be a string or a sequence of strings, not dict"),
        (pd.DataFrame({"text": PAIR}), "texts must be a string or a sequence of strings, not DataFrame"),
    ],
)
def test_what_is_not_a_text_names_its_row(texts, message):
    with pytest.raises(TypeError, match=message):
        as_texts(texts)


def test_an_example_shows_its_words_as_written():
    example = Example(tuple("Don't  go,\u00a0 <b>naïve</b>\n".split()), 0)
    assert example.words == ("Don't", "go,", "<b>naïve</b>")
    assert example.text == "Don't go, <b>naïve</b>"


def test_a_content_generator_depends_on_seed_and_parts_alone():
    def draw(*parts):
        return content_rng(*parts).integers(2**60)

    assert draw(0, "a", "b") == draw(0, "a", "b")
    assert len({draw(0, "a", "b"), draw(1, "a", "b"), draw(0, "ab"), draw(0, "a", "b", ""), draw(0, "b", "a")}) == 5
    assert draw(0, "\ud800") != draw(0, "a")  # half a surrogate pair, as broken emoji leave it


# Loading


def _table(n=40):
    words = ["film", "plot", "actor", "scene", "story"]
    return pd.DataFrame({"text": [f"the {words[i % 5]} number {i} was {('bad', 'good')[i % 2]}" for i in range(n)], "label": [i % 2 for i in range(n)]})


def _settings(path, **rest):
    return DataSettings("local_file", path=str(path), **{"n_validation": 8, "n_test": 10, **rest})


def _csv(tmp_path, table, **rest):
    path = tmp_path / "my texts.csv"
    table.to_csv(path, index=False)
    return _settings(path, **rest)


def _all(dataset):
    return [*dataset.train, *dataset.validation, *dataset.test]


WRITERS = {
    "csv": lambda table, path: table.to_csv(path, index=False),
    "tsv": lambda table, path: table.to_csv(path, sep="\t", index=False),
    "jsonl": lambda table, path: table.to_json(path, orient="records", lines=True),
    "parquet": lambda table, path: table.to_parquet(path, index=False),
}


@pytest.mark.parametrize("kind", [*WRITERS, "CSV"])
def test_every_file_type_gives_the_same_data_set(tmp_path, kind):
    table = _table().rename(columns={"text": "review, long", "label": "stars"})
    path = tmp_path / f"my texts.{kind}"
    WRITERS[kind.lower()](table, path)
    dataset = load(_settings(path, text_column="review, long", label_column="stars"))
    assert (dataset.name, dataset.label_names) == ("my texts", ("0", "1"))
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [22, 8, 10]
    assert {(example.text, example.label) for example in _all(dataset)} == set(zip(table["review, long"], table["stars"], strict=True))


def test_the_same_settings_give_the_same_splits_and_another_split_seed_others(tmp_path):
    settings = _csv(tmp_path, _table())
    assert load(settings) == load(settings)
    other = load(_csv(tmp_path, _table(), split_seed=1))
    assert {e.text for e in other.test} != {e.text for e in load(settings).test}
    assert sorted(e.text for e in _all(other)) == sorted(e.text for e in _all(load(settings)))


def test_sizes_of_the_splits(tmp_path):
    dataset = load(_csv(tmp_path, _table(), n_train=6))
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [6, 8, 10]
    assert set(dataset.train) <= set(load(_csv(tmp_path, _table())).train)


def test_repeats_are_found_across_splits_and_the_test_split_keeps_them(tmp_path):
    table = _table(32).assign(split=["train", "train", "validation", "validation", "test", "test", "train", "train"] * 4)
    once = table[table["split"] == "train"].iloc[:3].assign(split="test", text=lambda t: t["text"].str.upper().str.replace(" ", "  "))
    between = table[table["split"] == "validation"].iloc[:1].assign(split="train")
    within = table[table["split"] == "train"].iloc[-1:]
    blank = pd.DataFrame({"text": ["", " \u00a0 "], "label": [0, 1], "split": "train"}).iloc[1:]
    dataset = load(_csv(tmp_path, pd.concat([table, once, between, within, blank]), n_test=None))
    parts = {name: {e.text.casefold() for e in getattr(dataset, name)} for name in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 32
    assert {" ".join(text.split()).casefold() for text in once["text"]} <= parts["test"]
    assert between["text"].iloc[0].casefold() in parts["validation"]
    assert dataset.notes == {"empty": 1, "repeated": 5}


def test_an_official_split_is_kept_and_cut_to_size(tmp_path):
    table = _table(60).assign(split=["train"] * 30 + ["validation"] * 14 + ["test"] * 16)
    official = load(_csv(tmp_path, table))
    texts = {name: set(table["text"][table["split"] == name]) for name in ("train", "validation", "test")}
    assert [len(part) for part in (official.train, official.validation, official.test)] == [30, 8, 10]
    for name in texts:
        assert {e.text for e in getattr(official, name)} <= texts[name]
    assert len(load(_csv(tmp_path, table, n_test=None)).test) == 16


@pytest.mark.parametrize("words", ["null", "NA", "None", "nan", "pad [MASK] [SEP] <unk>"])
def test_words_that_look_missing_or_special_are_texts(tmp_path, words):
    table = pd.concat([_table(), pd.DataFrame({"text": [words], "label": [1]})])
    assert words in [e.text for e in _all(load(_csv(tmp_path, table, n_test=None)))]


def test_class_names_are_sorted_and_kept(tmp_path):
    names = load(_csv(tmp_path, _table().assign(label=["None", "positive"] * 20))).label_names
    assert names == ("None", "positive")
    dataset = load(_csv(tmp_path, _table().assign(label=[10, 9] * 20)))
    assert dataset.label_names == ("9", "10")
    assert {(e.words[-1], e.label) for e in _all(dataset)} == {("good", 0), ("bad", 1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.assign(text=t["text"].where(t.index != 3)), "my texts.csv: 1 rows have no text; the first is row 3"),
        (lambda t: t.assign(label=t["label"].where(~t.index.isin([5, 7]))), "my texts.csv: 2 rows have no label; the first is row 5"),
        (lambda t: t.assign(text=range(100, 140)), r"my texts.csv: the text column holds int64 in row 0 \(.*100.*\), not texts"),
        (lambda t: t.assign(label="good"), "my texts.csv: only one class, 'good'; a classifier needs at least two"),
        (lambda t: pd.concat([t] * 3).assign(label=range(120)), r"my texts.csv: 120 distinct labels in 120 rows; is the label column right\?"),
        (lambda t: t.iloc[:0], "my texts.csv: no rows"),
        (lambda t: t.iloc[:9], r"my texts.csv: the \w+ split has \d+ texts and \d class\(es\); 9 texts are too few for n_validation=8, n_test=10"),
        (lambda t: t.rename(columns={"text": "review"}), "my texts.csv: no column 'text'; choose from: review, label"),
        (lambda t: t.rename(columns={"label": "stars"}), "my texts.csv: no column 'label'; choose from: text, stars"),
        (lambda t: t.assign(split=["train", "dev"] * 20), "my texts.csv: unknown split 'dev'; choose from: test, validation, train"),
    ],
)
def test_a_table_that_cannot_be_used_says_why_and_where(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load(_csv(tmp_path, change(_table())))


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "texts.xlsx").write_text("")
    with pytest.raises(ValueError, match=r"unknown file type '.xlsx'; choose from: .csv, .tsv, .jsonl, .parquet"):
        load(_settings(tmp_path / "texts.xlsx"))
    with pytest.raises(assets.MissingAssetError, match=r"data file not found: .*nowhere.csv \(looked from "):
        load(_settings(tmp_path / "nowhere.csv"))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then the download stopped")
    with pytest.raises(ValueError, match=r"broken.parquet: cannot be read as .parquet: "):
        load(_settings(tmp_path / "broken.parquet"))
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match=r"empty.csv: cannot be read as .csv: "):
        load(_settings(tmp_path / "empty.csv"))
    with pytest.raises(ValueError, match="data set 'local_file' needs a path to a .csv, .tsv, .jsonl or .parquet file"):
        load(DataSettings("local_file"))
    with pytest.raises(
        KeyError,
        match="unknown data set 'sst3'; choose from: rotten_tomatoes, imdb_reviews, bbc_news, sst2, imdb, toxicity, mr, ag_news, yelp, fake_news, local_file",
    ):
        load(DataSettings("sst3"))


def test_a_changed_file_has_another_fingerprint(tmp_path):
    settings = _csv(tmp_path, _table())
    before = settings.fingerprint()
    assert settings.fingerprint() == before
    _csv(tmp_path, _table(42))
    after = settings.fingerprint()
    assert after != before
    _csv(tmp_path, _table())
    assert settings.fingerprint() == before
    assert DataSettings("sst2").fingerprint() == ""


def test_the_packaged_sets_hold_two_classes():
    for name, longer in (("rotten_tomatoes", False), ("imdb_reviews", True)):
        table = DATASETS[name](DataSettings(name))
        assert set(table["label"]) == {0, 1}
        assert len(table) > 8000
        assert (table["text"].str.split().map(len).median() > 100) == longer
        mood = table.groupby("label")["text"].apply(lambda texts: texts.str.contains("terrible|awful|worst").mean())
        assert mood[0] > 2 * mood[1]  # 0 is negative


def test_news_of_five_topics():
    dataset = load(DataSettings("bbc_news", n_validation=100, n_test=100))
    assert dataset.label_names == ("business", "entertainment", "politics", "sports", "tech")
    assert len(dataset.train) + 200 + dataset.notes["repeated"] == 2225


# The hub's own format, in a local folder


@pytest.fixture
def hub_copy(tmp_path, monkeypatch):
    """Writes a data set as hub repositories hold it: ``data/<split>-00000-of-00001.parquet``."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets cache")
    (tmp_path / "a copy" / "data").mkdir(parents=True)

    def write(columns, **splits):
        start = 0
        for split, n in splits.items():
            _table(start + n).iloc[start:].rename(columns=columns).to_parquet(tmp_path / "a copy" / "data" / f"{split}-00000-of-00001.parquet", index=False)
            start += n
        return str(tmp_path / "a copy")

    return write


def _range(table_from, table_to):
    return set(_table(table_to)["text"].iloc[table_from:])


def test_sst2_takes_the_validation_split_as_test(hub_copy):
    folder = hub_copy({"text": "sentence"}, train=40, validation=12, test=6)
    dataset = load(DataSettings("sst2", path=folder, n_validation=8))
    assert {e.text for e in dataset.test} == _range(40, 52)
    assert len(dataset.validation) == 8
    assert {e.text for e in (*dataset.train, *dataset.validation)} == _range(0, 40)


@pytest.mark.parametrize("name", ["imdb", "ag_news", "yelp"])
def test_sets_with_a_train_and_a_test_split(hub_copy, name):
    folder = hub_copy({}, train=30, test=12, unsupervised=4)
    dataset = load(DataSettings(name, path=folder, n_validation=8))
    assert {e.text for e in dataset.test} == _range(30, 42)
    assert {e.text for e in (*dataset.train, *dataset.validation)} == _range(0, 30)


@pytest.mark.parametrize(("name", "column"), [("toxicity", "comment_text"), ("mr", "text"), ("fake_news", "text")])
def test_sets_that_bring_all_three_splits(hub_copy, name, column):
    folder = hub_copy({"text": column}, train=20, validation=10, test=12)
    dataset = load(DataSettings(name, path=folder))
    assert [{e.text for e in part} for part in (dataset.train, dataset.validation, dataset.test)] == [_range(0, 20), _range(20, 30), _range(30, 42)]


def test_a_missing_hub_set_says_what_was_looked_for_and_the_command(hub_copy, tmp_path):
    folder = hub_copy({"text": "comment_text"}, train=20, test=12)
    with pytest.raises(assets.MissingAssetError, match=r"a copy' \(split 'validation', revision None\) could not be loaded: [\s\S]*set path to a local copy"):
        load(DataSettings("toxicity", path=folder))
    with pytest.raises(assets.MissingAssetError, match="data set folder not found: .*elsewhere"):
        load(DataSettings("imdb", path=str(tmp_path / "elsewhere")))
    with pytest.raises(
        assets.MissingAssetError, match=r"'stanfordnlp/sst2' \(split 'train', revision 8d51e[\s\S]*datasets.load_dataset\('stanfordnlp/sst2', revision='8d51e"
    ):
        load(DataSettings("sst2"))


# Cutting


def _two_per_word(texts):
    return [2 + 2 * len(text.split()) for text in texts]


def test_long_texts_are_cut_at_the_end_to_what_fits():
    examples = [Example(("a",) * n, n % 2) for n in (0, 1, 4, 5, 300)]
    short, n_cut = cut(examples, 10, _two_per_word)
    assert [len(example.words) for example in short] == [0, 1, 4, 4, 4]
    assert [example.label for example in short] == [example.label for example in examples]
    assert n_cut == 2
    words = tuple(map(str, range(30)))
    assert cut([Example(words, 0)], 10, _two_per_word)[0][0].words == words[:4]


def test_cutting_counts_with_the_tokens_of_the_model(tiny_bert):
    examples = [Example(tuple("film extraordinarily-unbelievable 😀 #0 good".split() * 20), 1), Example(("good", "film"), 0)]
    short, n_cut = cut(examples, 20, tiny_bert.count_tokens)
    assert n_cut == 1
    assert tiny_bert.count_tokens([short[0].text])[0] <= 20
    assert tiny_bert.count_tokens([" ".join(examples[0].words[: len(short[0].words) + 4])])[0] > 20
    assert short[1] == examples[1]


def test_cutting_stops_where_nothing_fits():
    [short], n_cut = cut([Example(("a", "b"), 0)], 1, _two_per_word)
    assert (short.words, n_cut) == ((), 1)


def test_jsonl_with_a_missing_text_names_the_row(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "label": i % 2}) for i, text in enumerate(["a", "b", None, "d"])))
    with pytest.raises(ValueError, match="texts.jsonl: 1 rows have no text; the first is row 2"):
        load(_settings(path))
