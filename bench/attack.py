"""How long an attack takes: TEA and TEF, with and without batch masking, beside the same search in a plain loop; one process, the same sentences.

Compared per model:
  TEF                       candidates looked up in GloVe
  TEA                       a masked language model is asked once for every word
  TEA, batch masking        it is asked once for a batch of words
  TEA, plain loop           as the line above, but one sentence at a time: one prediction, one attribution, one call of the model each
The masked language model is trained for a few steps only and the classifiers carry an untrained head: an attack costs the same whatever they have learned.
Each round attacks every sentence once with every variant, in alternating order; figures are medians over rounds of the sums over sentences. The exit code
is 1 when the plain loop ends with other sentences than the batches do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import pandas as pd
import torch
import typer

from faithlib import data
from faithlib.attack import preset
from faithlib.attack.candidates import glove, masked_language_model
from faithlib.attack.masked_model import MaskedModelSettings, masked_model
from faithlib.attack.search import Path, attack, largest_cost
from faithlib.attribution import MASKED, functions
from faithlib.models import MODELS, ModelSettings
from faithlib.progress import Meter
from faithlib.robustness_experiment import ATTRIBUTIONS

Words = tuple[str, ...]
VARIANTS = {"TEF": "tef", "TEA": "tea_one_mask", "TEA, batch masking": "tea", "TEA, plain loop": "tea"}
# How many times as long the plain loop should take, at the least.
TARGETS = {"lstm": 4.0, "bert": 2.0}
MOST_PER_ATTRIBUTION = 1.2  # of TEA with batch masking, in units of TEF


def one_by_one(predict: Callable, attribute: Callable) -> tuple[Callable, Callable]:
    """The two functions, asked for a single sentence at a time."""

    def single_predict(sentences: Sequence[Words]) -> np.ndarray:
        return np.concatenate([predict([sentence]) for sentence in sentences])

    def single_attribute(sentences: Sequence[Words], target: int) -> list[np.ndarray]:
        return [attribute([sentence], target)[0] for sentence in sentences]

    return single_predict, single_attribute


def measure(
    model: str, attribution: str, sentences: Sequence[Words], known: Sequence[str], n_rounds: int, rho_max: float, n_steps: int
) -> tuple[pd.DataFrame, bool]:
    """A row per variant, and whether the plain loop found the same sentences."""
    torch.manual_seed(0)
    classifier = MODELS[model](ModelSettings(model, window=256), known, [], 1)
    classifier.model.eval()
    predict, attribute = functions(classifier, ATTRIBUTIONS[attribution])
    language_model, tokenizer = masked_model(MaskedModelSettings(n_steps=n_steps), known)
    labels = predict(sentences).tolist()
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    paths: dict[str, list[Path]] = {}
    names = list(VARIANTS)
    with Meter(n_rounds * len(names), f"attacking {model}") as meter:
        for number in range(n_rounds):
            for name in names if number % 2 == 0 else reversed(names):
                settings = preset(VARIANTS[name], rho_max=rho_max)
                propose = glove(settings) if name == "TEF" else masked_language_model(language_model, tokenizer, settings)
                asked = one_by_one(predict, attribute) if "plain" in name else (predict, attribute)
                if name == "TEF":  # neighbours are looked up once and remembered; the time is that of the search
                    [propose(words, range(len(words))) for words in sentences]
                started = time.perf_counter()
                paths[name] = [attack(words, label, settings, *asked, propose, MASKED) for words, label in zip(sentences, labels, strict=True)]
                seconds[name].append(time.perf_counter() - started)
                meter.update()
    rows = []
    for name in names:
        counts = [path.counts for path in paths[name]]
        n_attributions = sum(count.n_attributions for count in counts)
        calls = sum(count.n_attributions + count.n_predictions if "plain" in name else count.n_attribute_calls + count.n_predict_calls for count in counts)
        spent = statistics.median(seconds[name])
        rows.append(
            {
                "model": model,
                "variant": name,
                "s per sentence": spent / len(sentences),
                "calls of the classifier": calls / len(sentences),
                "calls for candidates": sum(count.n_propose_calls for count in counts) / len(sentences),
                "attributions": n_attributions / len(sentences),
                "at most": sum(largest_cost(words, paths[name][0].settings) for words in sentences) / len(sentences),
                "ms per attribution": 1000 * spent / n_attributions,
            }
        )
    same = [path.adversarial for path in paths["TEA, batch masking"]] == [path.adversarial for path in paths["TEA, plain loop"]]
    return pd.DataFrame(rows), same


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    sentences: Annotated[int, typer.Option(min=1, help="sentences of Rotten Tomatoes")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="rounds over all variants")] = 3,
    rho_max: Annotated[float, typer.Option(help="largest share of replaced words")] = 0.25,
    attribution: Annotated[str, typer.Option(help="saliency, integrated_gradients or attention")] = "saliency",
    steps: Annotated[int, typer.Option(min=1, help="training steps of the masked language model")] = 5,
    model: Annotated[list[str] | None, typer.Option(help="lstm, bert or cnn; may be repeated; lstm and bert by default")] = None,
) -> None:
    """Print what an attack costs, variant by variant; exit code 1 if the plain loop finds other sentences."""
    dataset = data.load(data.DataSettings())
    known = [example.text for example in dataset.train]
    chosen = sorted((example.words for example in dataset.test), key=len)
    chosen = [chosen[int((i + 0.5) / sentences * len(chosen))] for i in range(sentences)]
    print(f"{attribution}, {sentences} sentences of {len(chosen[0])} to {len(chosen[-1])} words, {rounds} rounds, {torch.get_num_threads()} threads of PyTorch")
    agree = True
    for name in model or ["lstm", "bert"]:
        table, same = measure(name, attribution, chosen, known, rounds, rho_max, steps)
        row = table.set_index("variant")
        loop = row.loc["TEA, plain loop", "s per sentence"] / row.loc["TEA, batch masking", "s per sentence"]
        share = row.loc["TEA, batch masking", "ms per attribution"] / row.loc["TEF", "ms per attribution"]
        print(f"\n{table.round(3).to_string(index=False)}")
        print(f"plain loop / batches: {loop:.2f} (target {TARGETS.get(name, 'none')}); TEA with batch masking / TEF per attribution: {share:.2f} ", end="")
        print(f"(target at most {MOST_PER_ATTRIBUTION}); the same sentences: {'yes' if same else 'NO'}")
        agree &= same
    if not agree:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
