"""Multi-gate mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from celrec.models.interaction import History, Interaction
from celrec.models.layers import JoinedLinear, Tower, flat


class MMoE(Interaction):
    """y_t = tower_t(Σ_i g_ti·ReLU(W_i·x)), g_t = softmax(G_t·x): tasks share experts.

    x is the concatenation of all vectors. The last axis of predictions runs over the tasks
    (Ma et al., KDD'18).

    >>> MMoE(8, tasks=2)(torch.ones(7, 1, 8), torch.ones(7, 50, 8)).shape
    torch.Size([7, 50, 2])
    """

    predicts_conversions = True

    def __init__(
        self,
        dim: int,
        fields: int = 0,
        *,
        tasks: int = 2,
        experts: int = 4,
        width: int = 16,
        hidden: Sequence[int] = (8,),
    ) -> None:
        super().__init__()
        self.experts, self.tasks = experts, tasks
        sizes = [dim, dim, fields * dim]
        self.expert = JoinedLinear(sizes, experts * width)
        self.gate = JoinedLinear(sizes, tasks * experts)
        self.towers = nn.ModuleList(Tower([width], hidden) for _ in range(tasks))

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        inputs = [user, item, flat(features, user)]
        experts = self.expert(inputs).relu().unflatten(-1, (self.experts, -1))
        gates = self.gate(inputs).unflatten(-1, (self.tasks, self.experts)).softmax(-1)
        mixed = gates @ experts
        return torch.stack([t([mixed[..., n, :]]) for n, t in enumerate(self.towers)], -1)

    @torch.no_grad()
    def set_mean(self, mean: float) -> None:
        """Set the output bias of the first task, the rating, to `mean`."""
        self.towers[0].bias.fill_(mean)  # type: ignore[operator]
