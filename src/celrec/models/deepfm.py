"""DeepFM: a factorisation machine and a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from celrec.models.attention import dot
from celrec.models.interaction import History
from celrec.models.layers import Tower, TowerInteraction, flat


class DeepFM(TowerInteraction):
    """y = Σ w_f + ½·Σ_r [(Σ_f v_fr)² − Σ_f v_fr²] + MLP(v₁, v₂, …) (Guo et al., IJCAI'17).

    The fields f are the user, the item and all features; the weight w of a field's
    value is the last column of its row.

    >>> DeepFM(8)(torch.ones(7, 1, 9), torch.ones(7, 50, 9)).shape
    torch.Size([7, 50])
    """

    extra_columns = 1

    def __init__(self, dim: int, fields: int = 0, *, hidden: Sequence[int] = (16, 8)) -> None:
        super().__init__()
        self.dim = dim
        self.tower = Tower([dim, dim, fields * dim], hidden)

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        a, b = user[..., :-1], item[..., :-1]
        linear = user[..., -1] + item[..., -1]
        others, vectors = a, None
        pairs: Tensor | float = 0.0
        if features is not None:
            vectors = features[..., :-1]
            linear = linear + features[..., -1].sum(-1)
            others = a + vectors.sum(-2)
            squares = a.square().sum(-1) + vectors.square().sum((-1, -2))
            pairs = (others.square().sum(-1) - squares) / 2
        # The item's pairs separately, since all other pairs are the same for every candidate.
        pairs = pairs + dot(b, others)
        deep: Tensor = self.tower([a, b, flat(vectors, user)])
        return linear + pairs + deep

    @torch.no_grad()
    def begin_as_dot_product(self) -> int:
        """Set the network's output to 0; the pairs contain the dot product of user and item."""
        self.tower.begin_at_zero()
        return self.dim
