"""The interface of interaction models, histories, and loss functions with their links."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch.nn.functional as F  # noqa: N812  (its name everywhere)
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


class Loss(NamedTuple):
    """A loss per sample, and the link between model outputs and predictions."""

    of_samples: Callable[[Tensor, Tensor], Tensor]
    """The loss of outputs and targets, with shapes that can be broadcast."""
    prediction: Callable[[Tensor], Tensor]
    """The predictions of outputs, on the scale of the targets."""
    output: Callable[[float], float]
    """The best constant output for targets with the given mean."""
    pairwise: bool = False
    """Whether it compares an interaction with another item, in place of a target."""
    binary: bool = False
    """Whether targets must be 0 or 1."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Loss:
        """Itself: a model that is copied keeps its loss."""
        return self


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """(y − x)² per sample."""
    return (output - target).square()


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """−x·log σ(y) − (1 − x)·log(1 − σ(y)) per sample, for logits y."""
    return F.softplus(output) - target * output


def ranking(margin: Tensor, target: Tensor) -> Tensor:
    """−log σ(y − y′) per pair, for margins y − y′ (BPR)."""
    del target
    return F.softplus(-margin)


def rating_and_conversion(positive: float) -> Loss:
    """Two tasks along the last axis: squared error, plus cross-entropy of x ≥ `positive`.

    The prediction is the first task's, the rating.
    """

    def both(outputs: Tensor, target: Tensor) -> Tensor:
        converted = (target >= positive).to(outputs.dtype)
        return squared_error(outputs[..., 0], target) + cross_entropy(outputs[..., 1], converted)

    return Loss(both, lambda outputs: outputs[..., 0], float)


def _unchanged(output: Tensor) -> Tensor:
    return output


def _logit(mean: float) -> float:
    share = min(max(mean, 1e-6), 1 - 1e-6)
    return math.log(share / (1 - share))


LOSSES = {
    "squared-error": Loss(squared_error, _unchanged, float),
    "cross-entropy": Loss(cross_entropy, Tensor.sigmoid, _logit, binary=True),
    "ranking": Loss(ranking, _unchanged, lambda _: 0.0, pairwise=True),
}
"""Losses by name."""
