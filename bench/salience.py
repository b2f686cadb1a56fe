"""Speed and memory of ``faithlib.salience`` beside captum and lime: one process, one model, the same texts, alternating order, equal scores.

Compared per family, with all of the report's configurations:
  faithlib   ``explain(model, texts, family)``, which answers the configurations together and computes BERT's last layer for [CLS] alone.
  peers      captum's Saliency, InputXGradient and IntegratedGradients (right Riemann sum, internal batches of faithlib's token budget), and lime's
             LimeBase on the same perturbations, each called once per configuration on the plain transformers forward pass.
Both sides encode the text and predict its class within the measured time. Derivatives are taken with respect to the embeddings alone, LIME runs
without gradients, and a batch of perturbed texts is padded to the longest in it. L1, L2 and mean are reductions of one and the same gradient: a user
who calls Saliency once for the three halves the peer's time in the gradient family. The models are untrained but for their packaged weights: speed does
not depend on it. The exit code is 1 when the scores of both sides differ by more than ``ALLOWED``. Gradients, a single backward pass with nothing to average
its rounding, are held against captum's in float64 (outside the time): captum's own in float32 are as far from these, as the column ``peer_difference`` shows.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import psutil
import torch
import typer
from captum.attr import InputXGradient, IntegratedGradients, Saliency
from lime.lime_base import LimeBase
from scipy.stats import spearmanr
from sklearn.metrics import pairwise_distances
from torch import Tensor
from torch.utils import flop_counter

from faithlib import data
from faithlib.models import MODELS, ModelSettings
from faithlib.models.classifier import TextClassifier
from faithlib.models.encoding import TOKEN_BUDGET
from faithlib.progress import Meter
from faithlib.salience import Configuration, configurations_of, explain
from faithlib.salience.gradient import gradients
from faithlib.salience.lime import KERNEL_WIDTH, perturbations

FAMILIES = ("gradient", "integrated_gradients", "lime")
MARKERS = ("#0", "#1")
# Peer's time over faithlib's, by family and number of logits: what sharing the work should give.
TARGETS = {("gradient", 1): 7, ("gradient", 2): 5, ("integrated_gradients", 1): 2.2, ("integrated_gradients", 2): 1.6, ("lime", 1): 1.5, ("lime", 2): 1.5}
# Largest difference of a score, in units of ``largest_score``.
ALLOWED = {"gradient": 1e-5, "integrated_gradients": 1e-5, "lime": 1e-4}
EXACT = ("gradient",)  # families whose reference is the peer in float64, which costs the others more than the bench

Scores = list[dict[str, np.ndarray]]  # per text: configuration -> one number per rankable token


@dataclass(frozen=True)
class Round:
    """All sides on the same texts, one after the other. seconds: per text, by side (``faithlib``, ``peer``, perhaps ``bf16``).

    difference: faithlib's from the reference, see ``ALLOWED`` and ``EXACT``. peer_difference: the float32 peer's from it, NaN where it is the reference.
    agreement: Spearman's rank correlation of the bfloat16 and the float32 scores, per text and configuration, by method.
    """

    texts: tuple[str, ...]
    seconds: dict[str, float]
    difference: float
    peer_difference: float
    agreement: dict[str, list[float]]


# The peers


def quantity(logits: Tensor, target: Tensor, of: str) -> Tensor:
    """g per row: the logit or the probability of class ``target``; with one logit f_0 = -f_1."""
    if logits.shape[1] == 1:
        signed = logits[:, 0] * (2 * target - 1)
        return signed if of == "logit" else signed.sigmoid()
    return (logits if of == "logit" else logits.softmax(1)).gather(1, target[:, None])[:, 0]


def forward_function(model: TextClassifier, of: str) -> Callable[[Tensor, Tensor | None, Tensor], Tensor]:
    """g at given word embeddings through the model's own forward pass, as captum wants it."""
    return lambda embeddings, mask, target: quantity(model.model(inputs_embeds=embeddings, attention_mask=mask).logits, target, of)


@torch.no_grad()
def encoded(model: TextClassifier, texts: Sequence[str]) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """(ids, attention mask or None where nothing is padded, rankable, predicted class) of the texts as one batch."""
    batch = model.encode(list(texts))
    mask = None if bool(batch.mask.all()) else batch.mask.long()
    logits = model.model(input_ids=batch.ids, attention_mask=mask).logits
    return batch.ids, mask, batch.rankable, (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


REDUCE = {"gradient_l1": lambda g: g.abs().sum(-1), "gradient_l2": lambda g: g.norm(dim=-1), "gradient_mean": lambda g: g.mean(-1)}


def captum_gradient(model: TextClassifier, texts: Sequence[str], configurations: Sequence[Configuration]) -> Scores:
    """Saliency and InputXGradient, one call per configuration on all texts in one padded batch."""
    ids, mask, rankable, target = encoded(model, texts)
    embeddings = model.model.get_input_embeddings()(ids).detach().requires_grad_()
    found: Scores = [{} for _ in texts]
    for c in configurations:
        forward = forward_function(model, c["of"])
        if c.method == "gradient_times_input":
            scores = InputXGradient(forward).attribute(embeddings, additional_forward_args=(mask, target)).sum(-1)
        else:
            scores = REDUCE[c.method](Saliency(forward).attribute(embeddings, abs=False, additional_forward_args=(mask, target)))
        for row, into in enumerate(found):
            into[str(c)] = scores[row][rankable[row]].detach().numpy()
    return found


def captum_integrated_gradients(model: TextClassifier, texts: Sequence[str], configurations: Sequence[Configuration]) -> Scores:
    """IntegratedGradients, one call per text and configuration."""
    found: Scores = []
    embed = model.model.get_input_embeddings()
    for text in texts:
        ids, mask, rankable, target = encoded(model, [text])
        into = {}
        for c in configurations:
            with torch.no_grad():
                x = embed(ids)
                changed = torch.zeros_like(x) if c["baseline"] == "zero" else embed(torch.full_like(ids, model.special_id(c["baseline"])))
                baseline = torch.where(rankable[..., None], changed, x)
            scores = IntegratedGradients(forward_function(model, c["of"])).attribute(
                x,
                baseline,
                additional_forward_args=(mask, target),
                n_steps=c["steps"],
                method="riemann_right",
                internal_batch_size=max(1, TOKEN_BUDGET // ids.shape[1]),
            )
            into[str(c)] = scores.sum(-1)[rankable].detach().numpy()
        found.append(into)
    return found


@torch.no_grad()
def perturbed_probabilities(model: TextClassifier, ids: Tensor, rankable: Tensor, target: Tensor, keep: np.ndarray, mask: str) -> np.ndarray:
    """p_c of every perturbed text of ``keep`` (sample, token), in sampling order, in batches padded to the longest in them."""
    kept = torch.ones(len(keep), len(ids), dtype=torch.bool)
    kept[:, rankable] = torch.from_numpy(keep)
    size = max(1, TOKEN_BUDGET // len(ids))
    values = []
    for part in kept.split(size):
        attention = None
        if mask == "erase":
            rows = [ids[row] for row in part]
            inputs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.tokenizer.pad_token_id)
            attention = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        else:
            inputs = torch.where(part, ids, model.special_id(mask))
        logits = model.model(input_ids=inputs, attention_mask=attention).logits
        values.append(quantity(logits, target.expand(len(logits)), "probability"))
    return torch.cat(values).numpy()


def lime_lime(model: TextClassifier, texts: Sequence[str], configurations: Sequence[Configuration]) -> Scores:
    """LimeBase, one set of evaluated perturbations per text and configuration."""
    found: Scores = []
    surrogate = LimeBase(lambda d: np.sqrt(np.exp(-(d**2) / KERNEL_WIDTH**2)))
    for text in texts:
        ids, _, rankable, target = encoded(model, [text])
        into = {}
        for c in configurations:
            keep = perturbations(int(rankable.sum()), c["samples"], 0, text)
            values = perturbed_probabilities(model, ids[0], rankable[0], target, keep, c["mask"])
            samples = keep.astype(float)
            distances = 100 * pairwise_distances(samples, samples[:1], metric="cosine").ravel()
            _, weights, _, _ = surrogate.explain_instance_with_data(samples, values[:, None], distances, 0, keep.shape[1], feature_selection="none")
            into[str(c)] = np.array([weight for _, weight in sorted(weights)])
        found.append(into)
    return found


PEERS = {"gradient": captum_gradient, "integrated_gradients": captum_integrated_gradients, "lime": lime_lime}


# What is measured


def build(family: str, n_logits: int, texts: Sequence[str]) -> TextClassifier:
    """A classifier in evaluation mode with the packaged weights and a seeded, untrained head."""
    torch.manual_seed(0)
    model = MODELS[family](ModelSettings(family), texts, MARKERS, n_logits=n_logits)
    model.model.eval()
    return model


def scaled(model: TextClassifier, family: str, scale: float) -> list[Configuration]:
    """The family's configurations that the model can answer, with ``scale`` times their steps or samples (at least 2)."""
    found = {}
    for c in configurations_of(model, family)[family]:
        options = tuple((name, max(2, round(value * scale)) if name in ("steps", "samples") else value) for name, value in c.options)
        found[Configuration(c.method, options)] = None
    return list(found)


def ours(model: TextClassifier, texts: Sequence[str], configurations: Sequence[Configuration]) -> Scores:
    return [explanation.scores for explanation in explain(model, list(texts), [str(c) for c in configurations])]


def timed(function: Callable[..., Scores], *arguments: object) -> tuple[float, Scores]:
    """(wall-clock seconds, result)."""
    gc.collect()
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def largest_score(scores: dict[str, np.ndarray], configuration: str, n_components: int) -> float:
    """The unit of a difference: the text's largest absolute score, and for a mean over components the largest mean of their absolute values.

    Such a mean is zero but for rounding where a layer norm follows the embeddings, as in BERT: its input's gradient sums to zero over the components.
    """
    if configuration.startswith("gradient_mean"):
        configuration, n = configuration.replace("gradient_mean", "gradient_l1"), n_components
    else:
        n = 1
    return max(float(np.abs(scores[configuration]).max()) / n, float(np.finfo(np.float32).tiny))


def largest_difference(a: Scores, b: Scores, n_components: int) -> float:
    """Largest difference of two scores of a token, in units of :func:`largest_score`; NaN where a score is."""
    if [list(text) for text in a] != [list(text) for text in b]:
        raise ValueError("the two sides answered different configurations")
    return float(np.max([np.abs(one[c] - other[c]).max() / largest_score(one, c, n_components) for one, other in zip(a, b, strict=True) for c in one]))


def rank_agreement(a: Scores, b: Scores) -> dict[str, list[float]]:
    """Spearman's rank correlation per text and configuration, by method; NaN where all scores of a text are equal."""
    found: dict[str, list[float]] = {}
    for one, other in zip(a, b, strict=True):
        for c in one:
            varied = np.ptp(one[c]) and np.ptp(other[c])
            found.setdefault(c.partition(";")[0], []).append(float(spearmanr(one[c], other[c]).statistic) if varied else float("nan"))
    return found


def rounds(model: TextClassifier, family: str, groups: Sequence[Sequence[str]], scale: float, seconds: float) -> list[Round]:
    """All sides on every group of texts, again and again until ``seconds`` have passed (every group at least once); the side that starts takes turns."""
    sides = {"faithlib": (ours, model), "peer": (PEERS[family], model)}
    if has_bf16():
        sides["bf16"] = (ours, type(model)(model.model, model.tokenizer, window=model.window, precision="bf16"))
    for function, classifier in sides.values():
        function(classifier, groups[0], scaled(model, family, 0.01))
    configurations = scaled(model, family, scale)
    exact = type(model)(copy.deepcopy(model.model).double(), model.tokenizer, window=model.window)
    n_components = model.model.get_input_embeddings().embedding_dim
    found: list[Round] = []
    start = time.perf_counter()
    while len(found) < len(groups) or time.perf_counter() - start < seconds:
        texts, first = groups[len(found) % len(groups)], len(found) % len(sides)
        order = [*sides][first:] + [*sides][:first]
        results = {name: timed(sides[name][0], sides[name][1], texts, configurations) for name in order}
        scores = {name: result for name, (_, result) in results.items()}
        agreement = rank_agreement(scores["faithlib"], scores["bf16"]) if "bf16" in scores else {}
        elapsed = {name: duration / len(texts) for name, (duration, _) in results.items()}
        reference = PEERS[family](exact, texts, configurations) if family in EXACT else scores["peer"]
        ours_off, peer_off = (largest_difference(scores[side], reference, n_components) for side in ("faithlib", "peer"))
        found.append(Round(tuple(texts), elapsed, ours_off, peer_off if family in EXACT else float("nan"), agreement))
    return found


def comparison_row(found: Sequence[Round], family: str, n_logits: int) -> dict[str, object]:
    """Medians over the rounds: seconds per text, and the peer's time over faithlib's within a round."""
    time_of = {side: [r.seconds[side] for r in found] for side in found[0].seconds}
    difference = float(np.max([r.difference for r in found]))
    return {
        "rounds": len(found),
        "texts": len({text for r in found for text in r.texts}),
        "faithlib_s": np.median(time_of["faithlib"]),
        "peer_s": np.median(time_of["peer"]),
        "ratio": np.median(np.divide(time_of["peer"], time_of["faithlib"])),
        "target": TARGETS[family, n_logits],
        "difference": difference,
        "peer_difference": float(np.max([r.peer_difference for r in found])),
        "equal": difference <= ALLOWED[family],
    }


def bf16_rows(found: Sequence[Round]) -> list[dict[str, object]]:
    """A row per method: medians over the rounds of seconds per text of the whole family in both precisions, float32's time over bfloat16's, and
    the rank agreement over texts and configurations (median and lowest)."""
    fp32, bf16 = ([r.seconds[side] for r in found] for side in ("faithlib", "bf16"))
    times = {"fp32_s": np.median(fp32), "bf16_s": np.median(bf16), "gain": np.median(np.divide(fp32, bf16))}
    rows = []
    for method in found[0].agreement:
        values = [value for r in found for value in r.agreement[method]]
        rows.append({"method": method, **times, "spearman_median": np.nanmedian(values), "spearman_lowest": np.nanmin(values)})
    return rows


def share_row(model: TextClassifier, found: Sequence[Round], scale: float, machine: float) -> dict[str, object]:
    """GFLOP/s that faithlib's integrated gradients reach (median over the rounds), and their share of the machine's own matrix product."""
    reached = float(np.median([integration_flops(model, r.texts[0], scale) / r.seconds["faithlib"] / 1e9 for r in found]))
    return {"grid_GFLOP/s": reached, "matmul_GFLOP/s": machine, "share": reached / machine}


def integration_flops(model: TextClassifier, text: str, scale: float) -> float:
    """Floating point operations of faithlib's integrated gradients grid on one text: those of one batch (forward and backward), times batches.

    Counted: matrix products and attention, a multiply-add being two. Only the longest path of each baseline is computed; the others are parts of it.
    """
    row = model.encode([text])
    n = max(1, TOKEN_BUDGET // row.ids.shape[1])
    embeddings = model.embed(row).detach().repeat(n, 1, 1)
    counts = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: flop_counter.sdpa_flop_count(q, k, v),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: flop_counter.sdpa_backward_flop_count(g, q, k, v),
    }
    with flop_counter.FlopCounterMode(display=False, custom_mapping=counts) as counter:
        gradients(model, row.repeat(n), embeddings, torch.zeros(n, dtype=torch.long), {"logit", "probability"})
    configurations = scaled(model, "integrated_gradients", scale)
    points = len({c["baseline"] for c in configurations}) * max(c["steps"] for c in configurations)
    return counter.get_total_flops() / n * points


def matmul_speed(n: int = 2048, repeats: int = 15) -> float:
    """The machine's own GFLOP/s: median of ``torch.matmul`` of two float32 matrices of n x n."""
    a, b = torch.randn(2, n, n).unbind()
    into = torch.empty(n, n)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.matmul(a, b, out=into)
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / float(np.median(seconds)) / 1e9


class PeakGrowth:
    """Growth of the process's resident memory while the block runs, at its peak, in MiB: ``growth``. Sampled every 2 ms in a thread."""

    def __enter__(self) -> PeakGrowth:
        gc.collect()
        if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)  # or freed memory of an earlier call would hide the growth
        self.process, self.stop = psutil.Process(), threading.Event()
        self.before = self.peak = self.process.memory_info().rss
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()
        return self

    def _sample(self) -> None:
        while not self.stop.wait(0.002):
            self.peak = max(self.peak, self.process.memory_info().rss)

    def __exit__(self, *_exception: object) -> None:
        self.stop.set()
        self.thread.join()
        self.growth = (self.peak - self.before) / 2**20


def memory_table(model: TextClassifier, text: str, scale: float) -> pd.DataFrame:
    """Peak growth of resident memory (MiB) during faithlib's call, for few and many steps or samples of one configuration."""
    grid = {"integrated_gradients;baseline=unk;of=logit;steps": (100, 1000), "lime;mask=unk;samples": (100, 3000)}
    ours(model, [text], [Configuration.parse(f"{name}={numbers[0]}") for name, numbers in grid.items()])
    rows = []
    for name, numbers in grid.items():
        for number in numbers:
            configuration = Configuration.parse(f"{name}={max(2, round(number * scale))}")
            with PeakGrowth() as memory:
                ours(model, [text], [configuration])
            rows.append({"configuration": str(configuration), "peak_growth_MiB": memory.growth})
    return pd.DataFrame(rows)


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself (Linux on x86)."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and any(flag in info.read_text().split() for flag in ("avx512_bf16", "amx_bf16"))


def spread_by_length(texts: Sequence[str], n: int) -> list[str]:
    """``n`` texts at evenly spaced quantiles of the number of words, the median among them for an odd n."""
    ordered = sorted(texts, key=lambda text: len(text.split()))
    return [ordered[int((i + 0.5) / n * len(ordered))] for i in range(n)]


def grids(
    models: Sequence[str], texts: Sequence[str], known: Sequence[str], sentences: dict[str, int], scale: float, seconds: float
) -> dict[str, pd.DataFrame]:
    """The tables: comparison, bf16 (where the processor has it), share (of the machine's matrix product), memory."""
    tables: dict[str, list[dict]] = {"comparison": [], "bf16": [], "share": []}
    cells = [(name, n_logits) for name in models for n_logits in (1, 2)]
    with Meter(len(cells) * len(FAMILIES) + 1, "benchmark") as meter:
        for name, n_logits in cells:
            model = build(name, n_logits, known)
            for family in FAMILIES:
                chosen = spread_by_length(texts, sentences[family])
                found = rounds(model, family, [chosen] if family == "gradient" else [[text] for text in chosen], scale, seconds)
                which = {"family": family, "model": name, "n_logits": n_logits}
                tables["comparison"].append({**which, **comparison_row(found, family, n_logits)})
                if "bf16" in found[0].seconds:
                    tables["bf16"] += [{**which, **row} for row in bf16_rows(found)]
                if family == "integrated_gradients" and name == "bert":
                    tables["share"].append({**which, **share_row(model, found, scale, matmul_speed())})
                meter.update()
        memory = memory_table(build(models[0], 1, known), max(texts, key=lambda text: len(text.split())), scale)
        meter.update()
    return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows} | {"memory": memory}


def describe(models: Sequence[str], texts: Sequence[str], known: Sequence[str], sentences: dict[str, int], scale: float) -> str:
    """What ran where: versions, threads, number and length of the texts."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "captum", "lime", "scikit-learn"))
    lines = [f"Python {platform.python_version()}, {libraries}", f"{torch.get_num_threads()} threads of PyTorch, {psutil.cpu_count()} processors, no GPU used"]
    for name in models:
        counts = {family: build(name, 1, known).count_tokens(spread_by_length(texts, n)) for family, n in sentences.items()}
        lines.append(f"{name}: " + "; ".join(f"{family} {len(n)} texts of {min(n)} to {max(n)} tokens" for family, n in counts.items()))
    lines.append(f"Rotten Tomatoes, test split; packaged weights under an untrained, seeded head; steps and samples times {scale:g}")
    return "\n".join(lines)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TITLES = {
    "comparison": "Seconds per text, medians of rounds; ratio = peer / faithlib (target beside it); difference = largest, as a share of the text's largest score",
    "bf16": "faithlib in bfloat16 beside float32: seconds per text, gain = fp32 / bf16, rank agreement of the scores",
    "share": "Integrated gradients against the machine's own float32 matrix product",
    "memory": "Peak growth of resident memory during faithlib's call on the longest text",
}
FORMATS = {"faithlib_s": ".4f", "peer_s": ".4f", "fp32_s": ".4f", "bf16_s": ".4f", "difference": ".1e", "peer_difference": ".1e", "spearman_median": ".4f", "spearman_lowest": ".4f"}
FORMATS |= {"ratio": ".2f", "target": ".1f", "gain": ".2f", "share": ".0%", "grid_GFLOP/s": ".0f", "matmul_GFLOP/s": ".0f", "peak_growth_MiB": ".0f"}


def show(table: pd.DataFrame) -> str:
    """The table as aligned text."""
    formatters = {column: f"{{:{FORMATS[column]}}}".format for column in table if column in FORMATS}
    return table.to_string(index=False, formatters=formatters)


@app.command()
def main(
    sentences: Annotated[int, typer.Option(min=1, help="texts for integrated gradients and LIME")] = 2,
    gradient_sentences: Annotated[int, typer.Option(min=1, help="texts for the gradient family, explained together")] = 20,
    seconds: Annotated[float, typer.Option(min=0, help="repeat a comparison until it took so long (each text at least once)")] = 8,
    steps_scale: Annotated[float, typer.Option(min=0.001, help="multiplies steps and samples; 1 is the report's grid")] = 1.0,
    model: Annotated[list[str] | None, typer.Option(help="bert or lstm; may be repeated; both by default")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file for all the tables")] = None,
) -> None:
    """Print speed and memory of faithlib's salience beside captum's and lime's; exit code 1 if their scores differ."""
    models = model or ["bert", "lstm"]
    dataset = data.load(data.DataSettings())
    known, texts = data.as_texts(dataset.train), data.as_texts(dataset.test)
    numbers = {family: gradient_sentences if family == "gradient" else sentences for family in FAMILIES}
    print(describe(models, texts, known, numbers, steps_scale), flush=True)
    tables = grids(models, texts, known, numbers, steps_scale, seconds)
    for name, table in tables.items():
        print(f"\n{TITLES[name]}\n{show(table)}")
    if not has_bf16():
        print("\nbfloat16: not measured, the processor has no avx512_bf16 or amx_bf16")
    if out:
        pd.concat([table.assign(table=name) for name, table in tables.items()]).to_csv(out, index=False)
    if not tables["comparison"]["equal"].all():
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
