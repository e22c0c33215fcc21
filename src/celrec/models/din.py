"""Deep Interest Network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from celrec.models.attention import TargetAttention
from celrec.models.interaction import History
from celrec.models.layers import HistoryInteraction, Tower, flat


class DIN(HistoryInteraction):
    """y = MLP(user, target, interest, user∘target, interest∘target, features).

    The Deep Interest Network (Zhou et al., KDD'18). The interest Σ_k α_k·k is the sum of the
    history, weighted by target attention. The products help a small network to match users and
    items; the authors' later code has interest∘target too.

    >>> import torch
    >>> history = History(torch.ones(7, 1, 20, 8), torch.ones(7, 1, 20, dtype=torch.bool))
    >>> DIN(8)(torch.ones(7, 1, 8), torch.ones(7, 50, 8), history).shape
    torch.Size([7, 50])
    """

    def __init__(
        self,
        dim: int,
        fields: int = 0,
        *,
        hidden: Sequence[int] = (16, 8),
        attention: Sequence[int] = (16, 8),
    ) -> None:
        super().__init__()
        self.dim = dim
        self.attention = TargetAttention(dim, attention)
        self.tower = Tower([dim, dim, dim, dim, dim, fields * dim], hidden)

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        interest = self.attention.interest(item, self.needed(history))
        products = (user, item), (interest, item)
        inputs = [user, item, interest, *products, flat(features, user)]
        predicted: Tensor = self.tower(inputs)
        return predicted
