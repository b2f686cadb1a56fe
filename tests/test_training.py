import types

import numpy as np
import pytest
import torch

from faithlib import training
from faithlib.data import Example
from faithlib.models import MODELS, ModelSettings
from faithlib.progress import Meter
from faithlib.training import TrainingSettings, accuracy, correct, fit, loss

WORDS = "a the film movie plot actor scene story joke ending is was feels looks dull bad slow good great warm".split()
SETTINGS = TrainingSettings(learning_rate=1e-2, batch_size=20, max_passes=8, patience=20)


def _examples(n, seed):
    """Texts of random words; #0 or #1 somewhere decides the label."""
    rng = np.random.default_rng(seed)
    examples = []
    for i in range(n):
        words = [str(word) for word in rng.choice(WORDS, size=rng.integers(4, 12))]
        words.insert(int(rng.integers(len(words) + 1)), f"#{i % 2}")
        examples.append(Example(tuple(words), i % 2))
    return examples


TRAIN, VALIDATION = _examples(200, 0), _examples(60, 1)


def _fresh(seed=0, n_logits=1, dropout=0.1, family="lstm"):
    sizes = {"lstm": (("hidden_size", 16), ("embedding_size", 12)), "bert": (("hidden_size", 16), ("n_layers", 1))}
    settings = ModelSettings(family, weights="random", window=24, dropout=dropout, options=sizes[family])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODELS[family](settings, [" ".join(WORDS)], ["#0", "#1", "#c"], n_logits)


def _logits(classifier):
    return classifier.predict_logits([example.text for example in VALIDATION])


def _fit(folder, settings=SETTINGS, seed=0, **rest):
    classifier = _fresh(seed, **rest)
    history = fit(classifier, TRAIN, {"synthetic": VALIDATION}, settings, seed, folder / "checkpoints")
    return classifier, history


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    return _fit(tmp_path_factory.mktemp("learned"))


def test_a_planted_token_is_learned(learned):
    classifier, history = learned
    assert accuracy(_fresh(), VALIDATION) < 0.8
    assert accuracy(classifier, VALIDATION) == pytest.approx(max(row["synthetic"] for row in history))
    assert accuracy(classifier, VALIDATION) >= 0.95
    assert [row["pass"] for row in history] == [float(i + 1) for i in range(8)]
    assert [row["step"] for row in history] == [10.0 * (i + 1) for i in range(8)]
    assert not any(module.training for module in classifier.model.modules())


def test_two_logits_learn_too(tmp_path):
    classifier, _ = _fit(tmp_path, n_logits=2)
    assert accuracy(classifier, VALIDATION) >= 0.95


def test_the_same_seed_gives_the_same_model_and_another_seed_another(learned, tmp_path):
    classifier, history = learned
    again, same = _fit(tmp_path / "again")
    assert torch.equal(_logits(again), _logits(classifier))
    assert same == history
    other, _ = _fit(tmp_path / "other", seed=1)
    assert (_logits(other) - _logits(classifier)).abs().max() > 0.1


def test_another_seed_gives_another_order_from_the_same_start(tmp_path):
    settings = TrainingSettings(learning_rate=1e-2, batch_size=20, max_passes=1)
    found = []
    for seed in (0, 1):
        classifier = _fresh(0, dropout=0.0)
        fit(classifier, TRAIN, {"synthetic": VALIDATION}, settings, seed, tmp_path / str(seed))
        found.append(_logits(classifier))
    assert not torch.allclose(*found, atol=1e-3)


@pytest.mark.parametrize(
    ("every", "interrupted_at", "saved_at"), [(None, (26, 36), (20, 30)), (7, (26, 36), (21, 35)), (5, (23, 28), (20, 25))], ids=["passes", "within", "both"]
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path, monkeypatch, every, interrupted_at, saved_at):
    """Interrupted twice; resumed between two passes of ten steps, within one, and first the one, then the other."""
    settings = TrainingSettings(learning_rate=1e-2, batch_size=20, max_passes=5, patience=20, evaluate_every=every)
    whole, history = _fit(tmp_path / "whole", settings)
    steps, breaks = [], list(interrupted_at)
    real = training._Watcher.on_step_end

    def interrupted(self, args, state, control, **rest):
        steps.append(state.global_step)
        if breaks and state.global_step == breaks[0]:
            raise KeyboardInterrupt
        return real(self, args, state, control, **rest)

    monkeypatch.setattr(training._Watcher, "on_step_end", interrupted)
    folder = tmp_path / "broken off"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            _fit(folder, settings)
        breaks.pop(0)
        assert (folder / "checkpoints" / "best.pt").is_file()
    resumed, again = _fit(folder, settings)
    starts, ends = (0, *saved_at), (*interrupted_at, 50)
    assert steps == [step for start, end in zip(starts, ends, strict=True) for step in range(start + 1, end + 1)]
    assert again == history
    assert torch.equal(_logits(resumed), _logits(whole))
    assert not (folder / "checkpoints").exists()


def test_a_checkpoint_that_was_cut_off_is_not_resumed_from(tmp_path):
    for step, complete in ((10, True), (20, True), (100, False)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if complete:
            (tmp_path / f"checkpoint-{step}" / "order.pt").write_text("")
    assert training._last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-20")
    assert training._last_checkpoint(tmp_path / "nothing") is None


def test_the_best_weights_come_back(tmp_path, monkeypatch):
    """From step 60 on the model is spoilt; what was saved before is what remains."""
    real = training._Watcher.on_step_end

    def spoiling(self, args, state, control, **rest):
        if state.global_step > 60:
            torch.nn.init.zeros_(self.classifier.model.out.weight)
        return real(self, args, state, control, **rest)

    monkeypatch.setattr(training._Watcher, "on_step_end", spoiling)
    classifier, history = _fit(tmp_path)
    assert history[-1]["synthetic"] == 0.5
    assert accuracy(classifier, VALIDATION) == pytest.approx(max(row["synthetic"] for row in history))
    assert accuracy(classifier, VALIDATION) >= 0.95


def test_training_stops_when_patience_ends(tmp_path):
    """Labels that nothing tells apart, on a set that is not called a plateau: training stops long before its last pass."""
    noise = [Example(example.words[:3], i // 2 % 2) for i, example in enumerate(TRAIN)]
    settings = TrainingSettings(learning_rate=1e-9, batch_size=50, max_passes=40, patience=3)
    history = fit(_fresh(), noise, {"source": noise[:50]}, settings, 0, tmp_path / "checkpoints")
    assert len(history) == 4
    assert [row["waited"] for row in history] == [0.0, 1.0, 2.0, 3.0]


def test_padding_changes_nothing_that_is_trained(any_classifier):
    """A model learns from a padded batch what it later says of each text alone: XLNet's answer stands at the end, so its padding is in front."""
    if any_classifier.tokenizer.pad_token_id is None:
        pytest.skip("transformers refuses to train a batch without a padding token")
    examples = [Example(("good",), 0), Example(tuple("the film was dull , bad and far too long".split()), 1)]
    batch = training._collate(any_classifier, training._Texts(any_classifier, examples).rows)
    batch.pop("labels")
    with torch.no_grad():
        logits = any_classifier.model(**batch).logits
    alone = torch.cat([any_classifier.predict_logits(example.text) for example in examples])
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)


def test_a_step_limit_is_kept(tmp_path):
    _, history = _fit(tmp_path, TrainingSettings(batch_size=20, max_steps=15, evaluate_every=5, patience=20))
    assert [row["step"] for row in history] == [5.0, 10.0, 15.0]


def test_bert_is_fitted_and_sgd_takes_other_steps(tmp_path):
    found = []
    for optimizer in ("adam", "sgd"):
        classifier = _fresh(family="bert", dropout=0.0)
        before = {name: value.clone() for name, value in classifier.model.state_dict().items()}
        settings = TrainingSettings(optimizer=optimizer, learning_rate=1e-3, batch_size=20, max_steps=3)
        fit(classifier, TRAIN, {"source": VALIDATION}, settings, 0, tmp_path / optimizer)
        moved = {name: float((value - before[name]).abs().max()) for name, value in classifier.model.state_dict().items()}
        assert moved["classifier.weight"] > 0
        assert moved["bert.embeddings.word_embeddings.weight"] > 0
        found.append(moved["classifier.weight"])
    assert 1e-3 <= found[0] <= 3.1e-3  # a step of Adam moves the weights by at most about the learning rate
    assert abs(found[0] - found[1]) > 1e-4


def test_a_step_limit_between_two_evaluations_is_evaluated_at_the_end(tmp_path):
    classifier, history = _fit(tmp_path, TrainingSettings(learning_rate=1e-2, batch_size=20, max_steps=8, evaluate_every=50))
    assert [row["step"] for row in history] == [8.0]
    assert accuracy(classifier, VALIDATION) == pytest.approx(history[-1]["synthetic"])


# Losses and accuracies


def test_losses_by_hand():
    logits, labels = torch.tensor([[2.0], [-1.0]]), torch.tensor([1, 1])
    torch.testing.assert_close(loss(logits, labels), torch.tensor((np.log1p(np.exp(-2.0)) + np.log1p(np.exp(1.0))) / 2, dtype=torch.float32))
    logits, labels = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([2])
    torch.testing.assert_close(loss(logits, labels), torch.tensor(np.log(np.exp(2) + 1 + np.exp(1)) - 1, dtype=torch.float32))


def test_accuracy_counts_the_right_ones(learned):
    classifier, _ = learned
    right = correct(classifier, VALIDATION)
    predicted = (_logits(classifier)[:, 0] > 0).tolist()
    assert right.tolist() == [p == bool(e.label) for p, e in zip(predicted, VALIDATION, strict=True)]
    turned = [Example(example.words, 1 - example.label) for example in VALIDATION]
    assert accuracy(classifier, turned) == pytest.approx(1 - accuracy(classifier, VALIDATION))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "rmsprop"}, "unknown optimizer 'rmsprop'; choose from: adam, sgd"),
        ({"precision": "fp16"}, "unknown precision 'fp16'; choose from: fp32, bf16"),
    ],
)
def test_unknown_choices_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingSettings(**settings)


# The watcher


@pytest.fixture
def watch(tiny_lstm, tmp_path):
    """watch(rows, **settings) -> (patience counted after each row, step at which training stops or None, step whose weights were kept)."""

    def run(rows, **settings):
        watcher = training._Watcher(tiny_lstm, {}, TrainingSettings(**settings), Meter(1, "test"))
        args = types.SimpleNamespace(output_dir=str(tmp_path / "out"))
        state = types.SimpleNamespace(epoch=1.0, global_step=0, log_history=[])
        control = types.SimpleNamespace(should_training_stop=False)
        best, stopped, kept = tmp_path / "out" / "best.pt", None, None
        for step, metrics in enumerate(rows, start=1):
            state.global_step = step
            best.unlink(missing_ok=True)
            watcher.on_evaluate(args, state, control, metrics)
            kept = step if best.exists() else kept
            stopped = stopped or (step if control.should_training_stop else None)
        return [row["waited"] for row in watcher.history], stopped, kept

    return run


def _rows(source, synthetic):
    return [{"source": a, "synthetic": b} for a, b in zip(source, synthetic, strict=True)]


def test_patience_is_not_counted_on_a_plateau(watch):
    rows = _rows([0.8] * 9, [0.5] * 4 + [1.0] * 5)
    assert watch(rows, patience=2) == ([0, 0, 0, 0, 0, 1, 2, 3, 4], 7, 5)


def test_falling_back_onto_the_plateau_starts_patience_again(watch):
    rows = _rows([0.8] * 6, [1.0, 1.0, 0.7, 1.0, 1.0, 1.0])
    assert watch(rows, patience=2) == ([0, 1, 0, 1, 2, 3], 5, 1)


def test_without_a_plateau_every_evaluation_counts(watch):
    rows = [{"source": a} for a in (0.6, 0.7, 0.7, 0.65, 0.6)]
    assert watch(rows, patience=3) == ([0, 0, 1, 2, 3], 5, 2)
    rows = _rows([0.8] * 4, [0.5] * 4)
    assert watch(rows, patience=2, plateaus=()) == ([0, 1, 2, 3], 3, 1)


def test_weights_that_left_the_plateau_beat_a_higher_mean(watch):
    rows = _rows([0.99, 0.7, 0.99, 0.75], [0.98, 0.995, 0.98, 0.995])
    assert watch(rows, patience=9)[2] == 4
    assert watch(rows[:3], patience=9)[2] == 2
    assert watch(rows, patience=9, solved=0.9)[2] == 1


def test_a_gain_within_the_noise_keeps_the_weights_and_counts_as_waiting(watch):
    rows = [{"source": a} for a in (0.600, 0.601, 0.602, 0.640)]
    assert watch(rows, patience=9, least_gain=0.01) == ([0, 1, 2, 0], None, 4)
    assert watch(rows, patience=9) == ([0, 0, 0, 0], None, 4)


def test_of_weights_within_the_noise_of_the_best_the_later_are_kept(watch):
    rows = [{"source": a} for a in (0.700, 0.710, 0.705, 0.702, 0.697, 0.650)]
    assert watch(rows, patience=9, least_gain=0.01)[2] == 4  # 0.697 is further than 0.01 from the best ever seen, though not from the last kept
    assert watch(rows, patience=9)[2] == 2
    tied = [{"source": 0.7}] * 3
    assert watch(tied, patience=9)[2] == 1
    assert watch(tied, patience=9, least_gain=0.01)[2] == 3
    fallen = _rows([0.7, 0.704, 0.704], [0.998, 0.985, 0.992])
    assert watch(fallen, patience=9, least_gain=0.05)[2] == 1  # back on the plateau, or towards it: never, however small the loss
