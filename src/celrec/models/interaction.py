"""The interface of interaction models, and the histories that some of them use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from celrec.errors import CelrecError


class History(NamedTuple):
    """The vectors of a user's earlier items, oldest first, and a mask of the filled places.

    If the vectors are rows of a table, `rows` and `row` can be given, with the vectors or instead
    of them: then values that depend on the row alone are computed once per row.

    >>> import torch
    >>> filled = torch.ones(2, 20, dtype=torch.bool)
    >>> History(torch.zeros(2, 20, 8), filled).vectors.shape
    torch.Size([2, 20, 8])
    >>> row = torch.zeros(2, 20, dtype=torch.int64)
    >>> History(None, filled, torch.zeros(5, 8), row).vectors.shape
    torch.Size([2, 20, 8])
    """

    given: Tensor | None
    """(..., length, dim); values in empty places are ignored, but must be finite."""
    filled: Tensor
    """(..., length), bool; empty places come first."""
    rows: Tensor | None = None
    """(rows, dim)."""
    row: Tensor | None = None
    """(..., length): the vectors are rows[row]."""
    target: Tensor | None = None
    """(...): the targets are rows[target], if they come from the same table."""

    @property
    def vectors(self) -> Tensor:
        """(..., length, dim); gathered at every access if only rows are given."""
        if self.given is not None:
            return self.given
        if self.rows is None or self.row is None:
            raise CelrecError("history has neither vectors nor rows; pass one of them")
        flat = self.rows.index_select(0, self.row.reshape(-1))
        return flat.view(*self.row.shape, self.rows.shape[-1])

    def gathered(self) -> History:
        """The same history with gathered vectors."""
        return self._replace(given=self.vectors)


class Interaction(nn.Module, ABC):
    """Maps vectors to a prediction; an interaction model never sees an id.

    The vectors of users, items, history and features have `dim` values, followed by
    `extra_columns` scalars per id, such as a bias or the weight of a linear part. So all
    parameters that grow with the number of ids are in the tables.

    Leading axes are broadcast: users of shape (batch, 1, …) and items of shape
    (batch, candidates, …) give predictions (batch, candidates), and terms that depend on the
    users alone are computed once.
    """

    extra_columns: ClassVar[int] = 0
    linear: ClassVar[bool] = False
    """Whether the prediction is linear in each of the user's and item's vectors (has `line`)."""
    bilinear: ClassVar[bool] = False
    """Whether it is the dot product of the vectors, with their `extra_columns` as biases."""
    uses_history: ClassVar[bool] = False
    """Whether `forward` needs a history."""
    predicts_conversions: ClassVar[bool] = False
    """Whether the last axis of predictions has two tasks: a rating, and a conversion."""
    wants_negatives: ClassVar[bool] = False
    """Whether the model has an `auxiliary` loss, which needs negative samples."""

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
        """Constants c and slopes s such that the prediction for a vector v is c + s·v.

        Args:
            partner: The user's vector if v is an item's, and vice versa.

        """
        raise CelrecError(f"{type(self).__name__} is not linear; check `linear` first")

    def set_mean(self, mean: float) -> None:
        """Initialise the output bias so that predictions are about `mean`; by default nothing."""

    def begin_as_dot_product(self) -> int:
        """Initialise the model as the dot product over the first dimensions; return their number.

        Then the prediction is Σ_d user_d·item_d wherever that is positive and all other inputs
        are 0, so training can start from the rows of a factorisation. Models that cannot do this
        return 0 and do not change.
        """
        return 0

    def auxiliary(self, history: History, not_next: Tensor) -> Tensor | None:
        """An additional loss in training; by default None.

        It is the mean of `auxiliary_terms` terms.

        Args:
            history: The histories.
            not_next: The vectors of a negative sample for each place of the histories.

        """
        return None

    def auxiliary_terms(self, filled: Tensor) -> Tensor:
        """The number of terms of the auxiliary loss, for histories with this mask."""
        return filled.sum()
