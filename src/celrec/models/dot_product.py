"""The dot product: the interaction of matrix factorisation."""

from __future__ import annotations

from torch import Tensor

from celrec.models._paired import dot
from celrec.models.history import History
from celrec.models.interaction import Interaction


class DotProduct(Interaction):
    """y = a·b. With vectors that are kept non-negative it is NMF.

    >>> import torch
    >>> DotProduct()(torch.ones(5, 1, 3), torch.ones(4, 3)).shape
    torch.Size([5, 4])
    """

    linear = True

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """The prediction for vectors of users and items, over all leading axes."""
        del history, features
        return dot(user, item)

    def line(self, partner: Tensor) -> tuple[Tensor, Tensor]:
        """See `Interaction`."""
        return partner.new_zeros(partner.shape[:-1]), partner
