"""The gradient of the prediction at the word embeddings, and its product with them.

Gradient (Simonyan et al., 2014; Li et al., 2016): s_i = reduce(∇_{x_i} g), reduce = L1 norm, L2 norm (both unsigned) or mean over components.
Gradient x Input (Denil et al., 2014; Shrikumar et al., 2017): s_i = ∇_{x_i} g · x_i. Here g is the logit f_c or the probability p_c of the
target class (Bastings et al., EMNLP 2022, section 2). One backward pass serves every configuration of a quantity g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from faithlib.models.classifier import TextClassifier, class_score
from faithlib.models.encoding import Batch
from faithlib.salience import salience


def gradients(model: TextClassifier, batch: Batch, embeddings: Tensor, target: Tensor, wanted: set[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(values g, gradients of g at the embeddings), each by quantity; shapes (batch,) and (batch, token, component).

    With one logit the probability's gradient is the logit's times p(1-p), so a single backward pass is enough; with several logits the
    other classes enter the probability, which takes a pass of its own.
    """
    with torch.enable_grad():
        leaf = embeddings.detach().requires_grad_()
        logits = model.logits(batch, leaf)
        values = {of: class_score(logits, target, of, model.head) for of in sorted(wanted)}
        if model.head == "binary":
            logit = values.get("logit", class_score(logits, target, "logit", model.head))
            by_logit = torch.autograd.grad(logit.sum(), leaf)[0]
            slope = {"logit": torch.ones_like(logit), "probability": logit.sigmoid() * (1 - logit.sigmoid())}
            found = {of: by_logit if of == "logit" else by_logit * slope[of].detach()[:, None, None] for of in wanted}
        else:
            found = {of: torch.autograd.grad(value.sum(), leaf, retain_graph=i + 1 < len(values))[0] for i, (of, value) in enumerate(values.items())}
    return {of: value.detach() for of, value in values.items()}, found


REDUCE = {
    "gradient_l1": lambda gradient, x: gradient.abs().sum(-1),
    "gradient_l2": lambda gradient, x: gradient.norm(dim=-1),
    "gradient_mean": lambda gradient, x: gradient.mean(-1),
    "gradient_times_input": lambda gradient, x: (gradient * x).sum(-1),
}


@salience(*[f"{method};of={of}" for method in REDUCE for of in ("logit", "probability")])
def gradient(model, batch, target, configurations, seed):
    """All reductions of both quantities; scores (batch, token). Norms are unsigned, mean and product are signed towards the target."""
    scores = {configuration: torch.zeros(batch.ids.shape, device=batch.ids.device) for configuration in configurations}
    wanted = {configuration["of"] for configuration in configurations}
    for rows in batch.by_length():
        part = batch.select(rows)
        embeddings = model.embed(part).detach()
        _, found = gradients(model, part, embeddings, target[rows], wanted)
        for configuration, into in scores.items():
            reduced = REDUCE[configuration.method](found[configuration["of"]].float(), embeddings)
            into[rows, : part.ids.shape[1]] = reduced.masked_fill(~part.rankable, 0)
    return scores
