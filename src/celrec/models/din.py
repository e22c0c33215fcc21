"""Deep Interest Network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from celrec.errors import CelrecError
from celrec.models.attention import TargetAttention
from celrec.models.interaction import History, Interaction
from celrec.models.layers import Tower, flat


class DIN(Interaction):
    """y = MLP(user, target, interest, user∘target, interest∘target, features).

    The Deep Interest Network (Zhou et al., KDD'18). The interest Σ_k α_k·k is the sum of the
    history, weighted by target attention. The products help a small network to match users and
    items; the authors' later code has interest∘target too.

    >>> history = History(torch.ones(7, 1, 20, 8), torch.ones(7, 1, 20, dtype=torch.bool))
    >>> DIN(8)(torch.ones(7, 1, 8), torch.ones(7, 50, 8), history).shape
    torch.Size([7, 50])
    """

    uses_history = True

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
        """The prediction; DIN needs a history."""
        if history is None:
            raise CelrecError("history is missing: DIN needs the users' earlier items; pass it")
        interest = self.attention.interest(item, history)
        products = (user, item), (interest, item)
        inputs = [user, item, interest, *products, flat(features, user)]
        predicted: Tensor = self.tower(inputs)
        return predicted

    @torch.no_grad()
    def set_mean(self, mean: float) -> None:
        self.tower.bias.fill_(mean)

    def begin_as_dot_product(self) -> int:
        """Start the network as the sum of user∘target."""
        self.tower.begin_as_sum(3)
        return self.dim
