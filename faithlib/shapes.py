"""Tensor shapes, named once. The tests run with jaxtyping and beartype, so a wrong shape fails there (see ``tests/conftest.py``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int64
from torch import Tensor

Ids = Int64[Tensor, "batch token"]
Mask = Bool[Tensor, "batch token"]
Embeddings = Float[Tensor, "batch token component"]
Logits = Float[Tensor, "batch logit"]
Target = Int64[Tensor, " batch"]
Scores = Float[Tensor, "batch token"]
Numbers = Sequence[float] | Sequence[int] | np.ndarray  # one per token
Positions = Sequence[int] | np.ndarray  # token positions
