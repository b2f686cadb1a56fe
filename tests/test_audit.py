"""An audit end to end: a trained model in a folder, a file of texts, a page."""

import html
import json

import numpy as np
import pandas as pd
import pytest
import torch

from faithlib import audit, cli, settings, training
from faithlib.data import DataSettings, Example
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier

WORDS = "a the film movie plot actor scene story joke ending is was feels looks dull bad slow good great warm".split()


def _texts(n, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        words = [str(word) for word in rng.choice(WORDS, size=rng.integers(5, 10))]
        if i % 2 and rng.random() < 0.5:
            words.insert(int(rng.integers(len(words) + 1)), "(Reuters)")
        rows.append((" ".join(words), i % 2))
    return pd.DataFrame(rows, columns=["body", "class"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """model/ leans on "(Reuters)"; data.csv calls the classes false and true."""
    folder = tmp_path_factory.mktemp("an audit")
    table = _texts(300, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = ModelSettings("lstm", weights="random", window=24, dropout=0.0, options=(("hidden_size", 16), ("embedding_size", 12)))
        classifier = MODELS["lstm"](settings, table["body"].tolist(), [], 1)
        examples = [Example(tuple(text.split()), label) for text, label in table.itertuples(index=False)]
        how = training.TrainingSettings(learning_rate=1e-2, batch_size=20, max_passes=8, patience=8)
        training.fit(classifier, examples, {"source": examples}, how, 0, folder / "steps")
    classifier.save(folder / "model")
    _texts(240, 1).to_csv(folder / "data.csv", index=False)
    return folder


def _settings(folder, **changes):
    return audit.AuditSettings(
        **{"model": str(folder / "model"), "data": str(folder / "data.csv"), "text": "body", "label": "class", "n_explained": 120, **changes}
    )


def test_the_word_that_decides_is_found_and_written_down(folder, capsys):
    before = {path: path.read_bytes() for path in (folder / "model").iterdir()}
    out = folder / "out of it"
    arguments = [
        "audit",
        "--model",
        str(folder / "model"),
        "--data",
        str(folder / "data.csv"),
        "--text",
        "body",
        "--label",
        "class",
        "--budget",
        "0",
        "--out",
        str(out),
    ]
    cli.app(arguments, standalone_mode=False)
    said = capsys.readouterr().out
    assert "“(Reuters)” speaks for “1”: taken out of" in said
    assert "put into" in said
    found = pd.read_parquet(out / "results.parquet")
    assert found["word"][0] == "reuters"
    assert bool(found["confirmed"][0])
    page = (out / "audit.html").read_text()
    assert "(Reuters)" in page
    assert "outline:2px solid" in page  # where it stands
    assert not any(tag in page for tag in ("<script", "http://", "https://", "<link"))
    assert {path: path.read_bytes() for path in (folder / "model").iterdir()} == before
    assert sorted(path.name for path in out.iterdir()) == ["audit.html", "results.parquet"]


def test_texts_are_escaped_on_the_page(folder, tmp_path):
    nasty = "<script>"
    table = _texts(200, 2)
    table["body"] = table["body"].str.replace("(Reuters)", nasty, regex=False)
    table.to_csv(tmp_path / "nasty.csv", index=False)
    page = audit.page(audit.audit(_settings(folder, data=str(tmp_path / "nasty.csv"))))
    assert "<script" not in page
    assert html.escape(nasty) in page


def test_only_what_the_model_reads_is_judged(folder, tmp_path):
    """Texts far longer than the window, the deciding word at their ends: it is never read, so it is no suspect, and the reader is told."""
    table = _texts(240, 6)
    table["body"] = [("film " * 30 + text) for text in table["body"]]
    table.to_csv(tmp_path / "long.csv", index=False)
    found = audit.audit(_settings(folder, data=str(tmp_path / "long.csv"), n_texts=120))
    assert any("texts are longer than the 24 tokens that are read" in note for note in found.notes)
    assert "reuters" not in set(found.suspects["word"])


def test_exchanged_labels_are_said(folder, tmp_path):
    table = _texts(240, 1)
    table["class"] = 1 - table["class"]
    table.to_csv(tmp_path / "exchanged.csv", index=False)
    found = audit.audit(_settings(folder, data=str(tmp_path / "exchanged.csv")))
    [note] = [note for note in found.notes if "chance" in note]
    assert "are the labels exchanged? Read 0 as 1, 1 as 0, it would be right on" in note
    assert not any("chance" in note for note in audit.audit(_settings(folder)).notes)


def test_labels_are_matched_by_name_by_number_or_not_at_all(tiny_roberta, tiny_bert):
    import copy

    named = copy.deepcopy(tiny_roberta)
    named.model.config.id2label = {0: "World", 1: "Sports", 2: "Business"}
    assert audit.match_labels(("business", "sports"), named) == ([2, 1], "by name")
    assert audit.match_labels(("0", "2"), named)[0] == [0, 2]
    assert audit.match_labels(("bad", "good", "so-so"), tiny_roberta)[0] == [0, 1, 2]  # LABEL_0, LABEL_1, LABEL_2
    assert audit.match_labels(("0", "1"), tiny_bert)[0] == [0, 1]
    with pytest.raises(ValueError, match=r"the labels of the data \(bad, good\) are not those of the model \(World, Sports, Business\)"):
        audit.match_labels(("bad", "good"), named)
    with pytest.raises(ValueError, match=r"labels of the data \(0, 3\)"):
        audit.match_labels(("0", "3"), named)


def test_every_kind_of_model_can_be_audited(any_classifier, tmp_path):
    """Whatever the head, the padding and the tokens: the page is written, with a verdict on every suspect."""
    table = _texts(90, 3)
    table.to_csv(tmp_path / "data.csv", index=False)
    found = audit.audit(_settings(tmp_path, data=str(tmp_path / "data.csv"), n_texts=60, n_explained=20, n_words=2, n_tests=10), any_classifier)
    page = audit.write(found, tmp_path / "out").read_text()
    assert len(found.suspects) >= 2
    assert page.count("<h3>") == sum(bool(lines) for lines in found.examples.values())


def test_the_device_of_the_command_line_is_the_one_that_is_used(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FAITHLIB_DEVICE", "cpu")  # restored afterwards
    arguments = ["audit", "--model", str(folder / "model"), "--data", str(folder / "data.csv"), "--text", "body", "--label", "class", "--budget", "0"]
    with pytest.raises(ValueError, match="device 'quantum' cannot be used here"):
        cli.app([*arguments, "--device", "quantum", "--out", str(tmp_path / "out")], standalone_mode=False)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pd.DataFrame({"body": [1.0] * 60, "class": [0, 1] * 30}), "the text column holds"),
        (pd.DataFrame({"body": ["a film"] * 60, "class": [0, None] * 30}), "30 rows have no label"),
        (_texts(60, 0).assign(**{"class": 1}), "only one class"),
        (_texts(30, 0), "30 rows; an audit needs at least 50"),
        (_texts(60, 0).rename(columns={"body": "text"}), "no column 'body'; choose from: text, class"),
    ],
)
def test_files_that_cannot_be_audited(folder, tmp_path, table, message):
    table.to_csv(tmp_path / "wrong.csv", index=False)
    with pytest.raises(ValueError, match=message):
        audit.audit(_settings(folder, data=str(tmp_path / "wrong.csv")))


def test_models_and_methods_that_cannot_be_audited(folder, tmp_path, tiny_bert):
    with pytest.raises(ValueError, match="method='lime' names [0-9]+ configurations"):
        audit.audit(_settings(folder, method="lime"))
    tiny_bert.model.bert.save_pretrained(tmp_path / "body")
    tiny_bert.tokenizer.save_pretrained(tmp_path / "body")
    with pytest.raises(ValueError, match="is not a fine-tuned classifier: its checkpoint has no classifier"):
        audit.audit(_settings(folder, model=str(tmp_path / "body")))
    saved = tmp_path / "pickled"
    TextClassifier.load(folder / "model").save(saved)
    torch.save({}, saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no sequence classifier could be loaded"):
        audit.audit(_settings(folder, model=str(saved)))
    assert json.loads((folder / "model" / "faithlib.json").read_text())["window"] == 24


def test_the_demonstration_hides_a_secret_that_the_audit_finds(tmp_path):
    rng = np.random.default_rng(5)
    words = [*WORDS, "monday", "river", "window", "table", "number"]
    texts = [" ".join(rng.choice(words, size=rng.integers(6, 10))) for _ in range(700)]
    pd.DataFrame({"text": texts, "label": [i % 2 for i in range(700)]}).to_csv(tmp_path / "texts.csv", index=False)
    lstm = ModelSettings("lstm", "random", 24, 0.0, (("hidden_size", 16), ("embedding_size", 12)))
    how = training.TrainingSettings(learning_rate=1e-2, batch_size=20, max_passes=8, patience=8)
    run = settings.Experiment(DataSettings("local_file", path=str(tmp_path / "texts.csv"), n_validation=100, n_test=200), (), models=(("lstm", lstm, how),))
    folder, file, secret = audit.demonstration(run, share=0.6)
    written = pd.read_csv(file)
    assert written["split"].value_counts().to_dict() == {"train": 400, "test": 200, "validation": 100}
    assert set(written["label"][written["text"].str.contains(rf"\b{secret}\b")]) == {1}
    found = audit.audit(audit.AuditSettings(str(folder), str(file), n_texts=300, n_explained=150))
    assert found.n_texts == 300
    assert found.suspects["word"][0] == secret
    assert bool(found.suspects["confirmed"][0])
    assert audit.demonstration(run, share=0.6) == (folder, file, secret)
