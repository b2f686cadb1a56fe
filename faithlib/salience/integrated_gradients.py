"""Integrated gradients (Sundararajan, Taly and Yan, ICML 2017).

    s_i = (1/m) Σ_{q=1..m} ∇_{x_i} g(b + (q/m)(x - b)) · (x_i - b_i)          (a right Riemann sum, their equation 3)

at the word embeddings, the target class fixed along the path. The m = 100 points are a tenth of the m = 1000 points, and the probability's
gradient follows from the logit's, so a baseline's configurations cost what its longest needs.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from faithlib.models.classifier import TextClassifier, class_score
from faithlib.models.encoding import TOKEN_BUDGET, Batch
from faithlib.salience import salience
from faithlib.salience.gradient import gradients


def baseline_embeddings(model: TextClassifier, batch: Batch, x: Tensor, baseline: str) -> Tensor:
    """b: every rankable token replaced by zeros, or by the embedding of the unk, pad or mask token. Specials keep theirs (the paper leaves that open)."""
    if baseline == "zero":
        value = torch.zeros_like(x[:, :1])
    else:
        token = torch.full_like(batch.ids[:, :1], model.special_id(baseline))
        value = model.embed(Batch(token, batch.mask[:, :1], batch.rankable[:, :1])).detach()
    return torch.where(batch.rankable[..., None], value, x)


def sums_over_paths(
    model: TextClassifier, batch: Batch, target: Tensor, baseline: str, points: list[Fraction], wanted: set[str], weights: Tensor
) -> dict[str, Tensor]:
    """Σ_a w_a ∇g(b + a(x - b)) · (x - b) over the points a of each text's path; (weighting, text, token) in float64, by quantity.

    weights: (weighting, point). Points of several texts share a forward pass, so short paths fill it too; memory grows with neither texts nor points.
    """
    a = torch.tensor([float(point) for point in points], device=batch.ids.device)
    lengths = batch.lengths
    longest_first = lengths.argsort(descending=True, stable=True)
    texts, places = longest_first.repeat_interleave(len(points)), torch.arange(len(points), device=a.device).repeat(len(batch))
    sums = {of: torch.zeros(len(weights), *batch.ids.shape, dtype=torch.float64, device=a.device) for of in wanted}
    start = 0
    while start < len(texts):
        width = int(lengths[texts[start]])
        end = start + max(1, TOKEN_BUDGET // width)
        rows, at = texts[start:end], places[start:end]
        part = Batch(batch.ids[rows, :width], batch.mask[rows, :width], batch.rankable[rows, :width])
        x = model.embed(part).detach()
        b = baseline_embeddings(model, part, x, baseline)
        _, slopes = gradients(model, part, b + a[at].to(x.dtype)[:, None, None] * (x - b), target[rows], wanted)
        for of, slope in slopes.items():
            products = torch.einsum("ptc,ptc->pt", slope.float(), (x - b).float()).double()
            for into, weight in zip(sums[of], weights, strict=True):
                into[:, :width].index_add_(0, rows, products * weight[at, None])
        start = end
    return sums


def end_values(model: TextClassifier, batch: Batch, target: Tensor, baseline: str, wanted: set[str]) -> dict[str, Tensor]:
    """g(x) - g(b) of each text, by quantity; (text,)."""
    result = {of: torch.zeros(len(batch), device=batch.ids.device) for of in wanted}
    for rows in batch.by_length(TOKEN_BUDGET):
        part = batch.select(rows)
        with torch.no_grad():
            x = model.embed(part)
            ends = [model.logits(part, embeddings) for embeddings in (x, baseline_embeddings(model, part, x, baseline))]
        for of, into in result.items():
            at_x, at_b = (class_score(logits, target[rows], of, model.head) for logits in ends)
            into[rows] = at_x - at_b
    return result


@salience(
    *[
        f"integrated_gradients;baseline={baseline};of={of};steps={steps}"
        for baseline in ("zero", "unk", "pad", "mask")
        for of in ("logit", "probability")
        for steps in (100, 1000)
    ]
)
def integrated_gradients(model, batch, target, configurations, seed):
    """Scores (batch, token), signed towards the target. Note ``completeness_gap``: Σ s_i - (g(x) - g(b)), 0 for an exact integral."""
    answers = {}
    for baseline in dict.fromkeys(configuration["baseline"] for configuration in configurations):
        mine = [configuration for configuration in configurations if configuration["baseline"] == baseline]
        wanted = {configuration["of"] for configuration in mine}
        lengths = list(dict.fromkeys(configuration["steps"] for configuration in mine))
        points = sorted({Fraction(q, steps) for steps in lengths for q in range(1, steps + 1)})
        grids = [{Fraction(q, steps) for q in range(1, steps + 1)} for steps in lengths]
        weights = torch.tensor([[(point in grid) / len(grid) for point in points] for grid in grids], dtype=torch.float64, device=batch.ids.device)
        sums = sums_over_paths(model, batch, target, baseline, points, wanted, weights)
        ends = end_values(model, batch, target, baseline, wanted)
        for c in mine:
            scores = sums[c["of"]][lengths.index(c["steps"])].masked_fill(~batch.rankable, 0)
            answers[c] = scores.float(), {"completeness_gap": scores.sum(1) - ends[c["of"]]}
    return {c: answers[c] for c in configurations}
