"""What every interaction model has in common, and the history that some of them read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from celrec.errors import CelrecError


class History(NamedTuple):
    """The vectors of earlier items, oldest first, and which places are filled.

    Where they come from a table, `rows` and `row` may tell so, with the vectors or in their
    place: then what depends on a row alone need not be computed for every place.

    >>> import torch
    >>> filled = torch.ones(2, 20, dtype=torch.bool)
    >>> History(torch.zeros(2, 20, 8), filled).vectors.shape
    torch.Size([2, 20, 8])
    >>> row = torch.zeros(2, 20, dtype=torch.int64)
    >>> History(None, filled, torch.zeros(5, 8), row).vectors.shape
    torch.Size([2, 20, 8])
    """

    given: Tensor | None
    """(..., length, dim); what stands in empty places does not matter, if it is finite."""
    filled: Tensor
    """(..., length), bool; empty places come first."""
    rows: Tensor | None = None
    """(rows, dim)."""
    row: Tensor | None = None
    """(..., length): the vectors are rows[row]."""
    target: Tensor | None = None
    """(...): the targets are rows[target], where they are known to come from the same table."""

    @property
    def vectors(self) -> Tensor:
        """(..., length, dim), gathered anew in every call if they are not given."""
        if self.given is not None:
            return self.given
        if self.rows is None or self.row is None:
            raise CelrecError("history has neither vectors nor rows; give it one of them")
        flat = self.rows.index_select(0, self.row.reshape(-1))
        return flat.view(*self.row.shape, self.rows.shape[-1])

    def gathered(self) -> History:
        """With vectors that are given."""
        return self._replace(given=self.vectors)


class Interaction(nn.Module, ABC):
    """Vectors to a prediction; an interaction model never sees an id.

    The vectors of users, items, history and features all have `dim` numbers, and
    `extra_columns` more for scalars that the model wants of every id: a bias, or
    the weight of a linear part. So nothing that grows with the ids is hidden in the
    model.

    Leading axes are broadcast against each other: users of shape (batch, 1, …) and
    items of shape (batch, candidates, …) give predictions (batch, candidates), and
    what depends on the users alone is computed once.
    """

    extra_columns: ClassVar[int] = 0
    linear: ClassVar[bool] = False
    """Whether the prediction is linear in the user's vector, and in the item's: see `line`."""
    bilinear: ClassVar[bool] = False
    """Whether it is the dot product of the vectors, with their `extra_columns` as biases."""
    uses_history: ClassVar[bool] = False
    wants_negatives: ClassVar[bool] = False
    """Whether there is an `auxiliary` loss."""

    @abstractmethod
    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """The prediction; `features` is (..., fields, dim + extra_columns)."""

    def line(self, partner: Tensor) -> tuple[Tensor, Tensor]:
        """Constants c and slopes s, such that the prediction for a vector v is c + s·v.

        `partner` is the user's vector where v is an item's, and the other way round.
        """
        del partner
        raise CelrecError(f"{type(self).__name__} is not linear; see `linear` before")

    def set_mean(self, mean: float) -> None:
        """Let the predictions of an untrained model be about `mean`; 0 if it has no such place."""
        del mean

    def begin_as_dot_product(self) -> int:
        """Let the prediction be Σ_d user_d·item_d over so many dimensions, the first ones.

        As long as that is positive and all else is 0. So rows that a factorisation has
        learned can be gone on from. 0 if the model cannot do it, and nothing is changed.
        """
        return 0

    def auxiliary(self, history: History, not_next: Tensor) -> Tensor | None:
        """A loss to be added in training, given for each earlier item another in its place.

        The mean of as many terms as `auxiliary_terms` says.
        """
        del history, not_next
        return None

    def auxiliary_terms(self, filled: Tensor) -> Tensor:
        """How many terms the auxiliary loss of histories filled like that has."""
        return filled.sum()
