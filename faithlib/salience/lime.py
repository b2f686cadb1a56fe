"""LIME (Ribeiro, Singh and Guestrin, KDD 2016) over the model's own tokens, with the ``lime`` package's surrogate.

Sample 0 is the whole text; every other masks a number of tokens uniform in 1..n, at random places. Weights: sqrt(exp(-d²/25²)) of
d = 100 x the cosine distance between the sample's mask and the all-ones mask; ridge regression with alpha 1. The explained quantity is the
probability of the target class (the paper leaves that open); for a regression head it is the output. Masked tokens become [UNK] or [MASK], or
are erased; special tokens are left alone. The first 100 samples are a prefix of the 3000; repeated masks are evaluated once.
"""

from __future__ import annotations

import numpy as np
import torch
from lime.lime_base import LimeBase
from sklearn.linear_model import Ridge

from faithlib.data import content_rng
from faithlib.models.classifier import TextClassifier, class_score
from faithlib.models.encoding import Batch
from faithlib.salience import salience, spread

KERNEL_WIDTH = 25.0


def perturbations(n_tokens: int, n_samples: int, seed: int, text: str) -> np.ndarray:
    """Which tokens each sample keeps; (sample, token) of bool. A smaller n_samples gives a prefix of a larger one."""
    keep = np.ones((n_samples, n_tokens), dtype=bool)
    if n_tokens:
        counts = content_rng(seed, "lime counts", text).integers(1, n_tokens + 1, size=n_samples)
        ranks = content_rng(seed, "lime places", text).random((n_samples, n_tokens)).argsort(1).argsort(1)
        keep = ranks >= counts[:, None]
        keep[0] = True
    return keep


def surrogate(keep: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """(weight of every token, weighted R²) of lime's linear model; where the values do not vary, zeros (not rounding error) and NaN."""
    if not np.ptp(values) > 0:
        return np.zeros(keep.shape[1]), float("nan")
    share = keep.mean(1)
    distances = 100 * (1 - np.sqrt(share))  # cosine distance of a 0/1 mask to all ones is 1 - sqrt(share kept)
    base = LimeBase(lambda d: np.sqrt(np.exp(-(d**2) / KERNEL_WIDTH**2)))
    data, labels = keep.astype(np.float64), values.astype(np.float64)[:, None]
    _, weights, r2, _ = base.explain_instance_with_data(data, labels, distances, 0, keep.shape[1], feature_selection="none", model_regressor=Ridge(alpha=1))
    result = np.zeros(keep.shape[1])
    for token, weight in weights:
        result[token] = weight
    return result, float(r2)


@torch.no_grad()
def perturbed_scores(model: TextClassifier, row: Batch, target: int, keep: np.ndarray, mask: str) -> np.ndarray:
    """g of the text under each mask; (sample,)."""
    distinct, place = np.unique(keep, axis=0, return_inverse=True)
    kept = torch.ones(len(distinct), row.ids.shape[1], dtype=torch.bool, device=row.ids.device)
    kept[:, row.rankable[0]] = torch.from_numpy(distinct).to(row.ids.device)
    if mask == "erase":
        inputs = model.rows([row.ids[0][keeps] for keeps in kept])
        if not bool(inputs.mask.any(1).all()):  # no special tokens and everything erased: read as an empty text is
            nothing = model.encode("").ids[0]
            inputs = model.rows([row.ids[0][keeps] if bool(keeps.any()) else nothing for keeps in kept])
    else:
        ids = torch.where(kept, row.ids, model.special_id(mask))
        inputs = Batch(ids, row.mask.expand_as(ids), torch.zeros_like(kept))
    of = "logit" if model.head == "regression" else "probability"
    values = torch.zeros(len(distinct), device=row.ids.device)
    for group in inputs.by_length():
        logits = model.logits(inputs.select(group))
        values[group] = class_score(logits, torch.full((len(group),), target, device=logits.device), of, model.head)
    return values.cpu().numpy()[place.reshape(-1)]


@salience(*[f"lime;mask={mask};samples={samples}" for mask in ("unk", "mask", "erase") for samples in (100, 1000, 3000)])
def lime(model, batch, target, configurations, seed):
    """Scores (batch, token), signed towards the target; units of probability. Note ``r2``: the surrogate's weighted R², NaN where nothing varied."""
    rows: dict = {configuration: [] for configuration in configurations}
    fits: dict = {configuration: [] for configuration in configurations}
    for i in range(len(batch)):
        row = batch.select([i])
        n = int(row.rankable.sum())
        for mask in dict.fromkeys(configuration["mask"] for configuration in configurations):
            mine = [configuration for configuration in configurations if configuration["mask"] == mask]
            keep = perturbations(n, max(c["samples"] for c in mine), seed, batch.texts[i].text)
            values = perturbed_scores(model, row, int(target[i]), keep, mask) if n else np.zeros(len(keep))
            for c in mine:
                weights, r2 = surrogate(keep[: c["samples"]], values[: c["samples"]]) if n else (np.zeros(0), float("nan"))
                rows[c].append(spread(batch, i, torch.from_numpy(weights).float()))
                fits[c].append(r2)
    return {c: (torch.stack(rows[c]), {"r2": torch.tensor(fits[c])}) for c in configurations}
