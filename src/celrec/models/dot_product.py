"""The dot product, with and without biases: the interaction of matrix factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from celrec.models.attention import dot
from celrec.models.interaction import History, Interaction


class DotProduct(Interaction):
    """y = a·b; with non-negative vectors this is NMF.

    >>> import torch
    >>> DotProduct()(torch.ones(5, 1, 3), torch.ones(4, 3)).shape
    torch.Size([5, 4])
    """

    linear = bilinear = True

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        return dot(user, item)

    def line(self, partner: Tensor) -> tuple[Tensor, Tensor]:
        """Constant 0 and slope `partner`."""
        return partner.new_zeros(partner.shape[:-1]), partner


class BiasedDotProduct(Interaction):
    """y = μ + b_user + b_item + a·b; the biases are the last column of the vectors.

    >>> model = BiasedDotProduct(mean=3.5)
    >>> model(torch.tensor([1.0, 0.25]), torch.tensor([2.0, 0.5])).item()
    6.25
    """

    extra_columns = 1
    linear = bilinear = True
    mean: Tensor

    def __init__(self, mean: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(float(mean)))

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        factors = dot(user[..., :-1], item[..., :-1])
        return self.mean + user[..., -1] + item[..., -1] + factors

    def line(self, partner: Tensor) -> tuple[Tensor, Tensor]:
        """Constant μ + the partner's bias; slope `partner`, and 1 for the own bias."""
        slope = partner.clone()
        slope[..., -1] = 1
        return self.mean + partner[..., -1], slope

    @torch.no_grad()
    def set_mean(self, mean: float) -> None:
        self.mean.fill_(mean)
