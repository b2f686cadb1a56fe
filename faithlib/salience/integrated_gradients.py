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
from faithlib.salience import salience, spread
from faithlib.salience.gradient import gradients


def baseline_embeddings(model: TextClassifier, row: Batch, x: Tensor, baseline: str) -> Tensor:
    """b: every rankable token replaced by zeros, or by the embedding of the unk, pad or mask token. Specials keep theirs (the paper leaves that open)."""
    if baseline == "zero":
        value = torch.zeros_like(x[:, :1])
    else:
        token = torch.full_like(row.ids[:, :1], model.special_id(baseline))
        value = model.embed(Batch(token, row.mask[:, :1], row.rankable[:, :1])).detach()
    return torch.where(row.rankable[..., None], value, x)


def path_contributions(model: TextClassifier, row: Batch, x: Tensor, b: Tensor, target: Tensor, points: list[Fraction], wanted: set[str]) -> dict[str, Tensor]:
    """∇g(b + a(x - b)) · (x - b) per point a of the path and token; (point, token) in float64, by quantity. Memory does not grow with the points."""
    difference = x - b
    found: dict[str, list[Tensor]] = {of: [] for of in wanted}
    size = max(1, TOKEN_BUDGET // x.shape[1])
    for start in range(0, len(points), size):
        a = torch.tensor([float(point) for point in points[start : start + size]], device=x.device, dtype=x.dtype)
        _, slopes = gradients(model, row.repeat(len(a)), b + a[:, None, None] * difference, target.expand(len(a)), wanted)
        for of, slope in slopes.items():
            found[of].append(torch.einsum("ptc,tc->pt", slope.float(), difference[0]).double())
    return {of: torch.cat(parts) for of, parts in found.items()}


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
    rows: dict = {configuration: [] for configuration in configurations}
    gaps: dict = {configuration: [] for configuration in configurations}
    for i in range(len(batch)):
        row = batch.select([i])
        x = model.embed(row).detach()
        for baseline in dict.fromkeys(configuration["baseline"] for configuration in configurations):
            mine = [configuration for configuration in configurations if configuration["baseline"] == baseline]
            wanted = {configuration["of"] for configuration in mine}
            points = sorted({Fraction(q, c["steps"]) for c in mine for q in range(1, c["steps"] + 1)})
            place = {point: at for at, point in enumerate(points)}
            b = baseline_embeddings(model, row, x, baseline)
            if not bool(row.rankable.any()):
                parts = {of: torch.zeros(len(points), row.ids.shape[1], dtype=torch.float64, device=x.device) for of in wanted}
            else:
                parts = path_contributions(model, row, x, b, target[i : i + 1], points, wanted)
            with torch.no_grad():
                ends = model.logits(row.repeat(2), torch.cat([x, b]))
            for c in mine:
                at = [place[Fraction(q, c["steps"])] for q in range(1, c["steps"] + 1)]
                scores = parts[c["of"]][at].mean(0)
                g = class_score(ends, target[i].expand(2), c["of"], model.head)
                rows[c].append(spread(batch, i, scores[row.rankable[0]].float()))
                gaps[c].append(scores[row.rankable[0]].sum() - (g[0] - g[1]))
    return {c: (torch.stack(rows[c]), {"completeness_gap": torch.stack(gaps[c])}) for c in configurations}
