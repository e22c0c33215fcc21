"""Wide & Deep."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from celrec.models.interaction import History
from celrec.models.layers import Tower, TowerInteraction, flat


class WideDeep(TowerInteraction):
    """y = Σ w + MLP(a, b, features): a linear part and a network (Cheng et al., 2016).

    The linear weight w of an id or of a feature's value is the last column of its row.

    >>> import torch
    >>> WideDeep(8)(torch.ones(7, 1, 9), torch.ones(7, 50, 9)).shape
    torch.Size([7, 50])
    """

    extra_columns = 1

    def __init__(self, dim: int, fields: int = 0, *, hidden: Sequence[int] = (16, 8)) -> None:
        super().__init__()
        self.tower = Tower([dim, dim, fields * dim], hidden)

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        wide = user[..., -1] + item[..., -1]
        vectors = None
        if features is not None:
            wide = wide + features[..., -1].sum(-1)
            vectors = features[..., :-1]
        deep: Tensor = self.tower([user[..., :-1], item[..., :-1], flat(vectors, user)])
        return wide + deep
