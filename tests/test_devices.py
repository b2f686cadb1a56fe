"""Where models live is asked in one place."""

import re

import pytest
import torch

from faithlib import cache, devices
from faithlib import robustness_experiment as attacks
from faithlib.data import DataSettings
from faithlib.distances import sentences
from faithlib.settings import Experiment


def test_the_device_is_the_one_that_was_asked_for_and_another_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("FAITHLIB_DEVICE", "cpu")
    assert devices.chosen() == torch.device("cpu")
    for wrong in ("cuda:99", "quantum", "meta"):
        monkeypatch.setenv("FAITHLIB_DEVICE", wrong)
        with pytest.raises(ValueError, match=rf"device '{wrong}' cannot be used here \(.+\); choose from: cpu"):
            devices.chosen()


def test_nobody_else_asks_for_a_gpu():
    askers = {name for name, source in cache.SOURCES.items() if re.search(r"torch\.(cuda|accelerator|backends\.mps)|\.cuda\(", source)}
    assert askers == {"faithlib.devices"}


def test_models_of_language_live_there_too(monkeypatch, tiny_bert, tmp_path):
    """A device that no machine has stands for a GPU: the meta device has shapes and no numbers."""
    monkeypatch.setattr(devices, "chosen", lambda: torch.device("meta"))
    tiny_bert.model.save_pretrained(tmp_path)
    tiny_bert.tokenizer.save_pretrained(tmp_path)
    model, _ = sentences._load(type(tiny_bert.model), str(tmp_path), "")
    assert model.device.type == "meta"
    language_model, nobody = torch.nn.Linear(2, 2), attacks.counter_fitted(_no_neighbours(tmp_path))
    monkeypatch.setattr(attacks, "_masked_model", lambda *_: (language_model, None))
    monkeypatch.setattr(attacks, "masked_language_model", lambda *_, **__: nobody)
    monkeypatch.setattr(attacks.experiment, "texts", lambda _run: type("Texts", (), {"train": ()}))
    attacks.proposer(attacks.Trial(), Experiment(DataSettings(), ()), attacks.TRAINED_HERE, 0)
    assert language_model.weight.device.type == "meta"


def _no_neighbours(folder):
    (folder / "table.json").write_text("{}")
    return str(folder / "table.json")
