"""Neural matrix factorisation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from celrec.errors import CelrecError
from celrec.models.interaction import History, Interaction
from celrec.models.layers import JoinedLinear, flat


class NeuMF(Interaction):
    """y = w·[p∘q | MLP(p′, q′)] + c: a weighted dot product and a network (He et al., WWW'17).

    A row is [p | p′]: the first `product_dim` values are p, the others p′.

    >>> NeuMF(24)(torch.ones(7, 1, 24), torch.ones(7, 50, 24)).shape
    torch.Size([7, 50])
    """

    def __init__(
        self, dim: int, fields: int = 0, *, product_dim: int = 8, hidden: Sequence[int] = (16, 8)
    ) -> None:
        super().__init__()
        if not 0 < product_dim < dim:
            raise CelrecError(
                f"product_dim must lie in 1 … {dim - 1}, not {product_dim}; use a higher rank"
            )
        self.product_dim = product_dim
        self.first = JoinedLinear([dim - product_dim] * 2 + [fields * dim], hidden[0])
        self.rest = torch.nn.Sequential(torch.nn.ReLU())
        for width, following in pairwise(hidden):
            self.rest.extend([torch.nn.Linear(width, following), torch.nn.ReLU()])
        self.top = JoinedLinear([product_dim, hidden[-1]], 1)

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        split = self.product_dim
        product = user[..., :split] * item[..., :split]
        deep = self.rest(self.first([user[..., split:], item[..., split:], flat(features, user)]))
        predicted: Tensor = self.top([product, deep])
        return predicted.squeeze(-1)

    @torch.no_grad()
    def set_mean(self, mean: float) -> None:
        self.top.linear.bias.fill_(mean)

    @torch.no_grad()
    def begin_as_dot_product(self) -> int:
        """Start as the dot product over the first `product_dim` dimensions."""
        self.top.linear.weight.zero_()
        self.top.linear.weight[0, : self.product_dim] = 1
        self.top.linear.bias.zero_()
        return self.product_dim
