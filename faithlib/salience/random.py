"""The control: uniform random scores."""

from __future__ import annotations

import torch

from faithlib.data import content_rng
from faithlib.salience import salience, spread


@salience("random")
def random(model, batch, target, configurations, seed):
    """Scores uniform in [0, 1), drawn from the seed and the text. Expected P@k = k/n; mean rank (n+1)/2 for one token, 2(n+1)/3 for both of two."""
    rows = [
        spread(batch, i, torch.from_numpy(content_rng(seed, "random", batch.texts[i].text).random(int(batch.rankable[i].sum())))) for i in range(len(batch))
    ]
    return {configuration: torch.stack(rows).float() for configuration in configurations}
