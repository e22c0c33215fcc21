"""Attention of a target to a history."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from celrec.models._attended import Layers, attended, masked_softmax
from celrec.models._paired import paired
from celrec.models.history import History

_MATRIX = 2  # axes
_FEWER = 3  # times as many places as pairs of rows, and attention by rows takes less time
_TWO_HIDDEN = 4  # what is above the first layer: PReLU, linear, PReLU, linear


class TargetAttention(nn.Module):
    """How much each earlier item k matters for target q: softmax of MLP([q, k, q − k, q∘k]) / √dim.

    The first layer is linear in its four inputs, so it is computed as
    (W₁ + W₃)·q + (W₂ − W₃ + W₄·diag(q))·k: one product of hidden × dim numbers for every
    pair of a target and an earlier item, instead of four. An empty history has weights 0.

    >>> history = History(torch.ones(7, 1, 20, 8), torch.ones(7, 1, 20, dtype=torch.bool))
    >>> TargetAttention(8)(torch.ones(7, 50, 8), history).shape
    torch.Size([7, 50, 20])
    """

    def __init__(self, dim: int, hidden: Sequence[int] = (16, 8)) -> None:
        super().__init__()
        self.dim = dim
        self.first = nn.Linear(4 * dim, hidden[0])
        layers: list[nn.Module] = [nn.PReLU()]
        for width, following in zip(hidden, (*hidden[1:], 1), strict=True):
            layers += [nn.Linear(width, following), nn.PReLU()]
        self.rest = nn.Sequential(*layers[:-1])

    def forward(self, target: Tensor, history: History) -> Tensor:
        """The weights, (..., length), given targets (..., dim)."""
        at_once = self._at_once(target, history)
        if at_once is not None:
            return at_once[1]
        scores = self._scores_by_row(target, history)
        if scores is None:
            scores = self._scores(target, history.vectors)
        return masked_softmax(scores, history.filled)

    def interest(self, target: Tensor, history: History) -> Tensor:
        """The history, summed up with the weights: Σ_k α_k·k, (..., dim)."""
        by_rows = self._interest_by_rows(history)
        if by_rows is not None:
            return by_rows
        at_once = self._at_once(target, history)
        if at_once is not None:
            return at_once[0]
        history = history.gathered()
        return paired(self(target, history), history.vectors, "l,ld->d")

    def _at_once(self, target: Tensor, history: History) -> tuple[Tensor, Tensor] | None:
        """Interest and weights, where each target has a history of its own."""
        if target.ndim != _MATRIX or history.filled.ndim != _MATRIX:
            return None
        if len(self.rest) != _TWO_HIDDEN or torch.compiler.is_compiling():
            return None
        rows, row = history.rows, history.row
        if rows is None or row is None:
            rows = history.vectors.flatten(0, -2)
            row = torch.arange(len(rows)).view(history.vectors.shape[:-1])
        alone, scale, shift = self._first(target)
        slope, second, second_bias, second_slope, last, last_bias = self.rest.parameters()
        layers = Layers(
            *(scale, shift, slope, second, second_bias, second_slope, last.view(-1), last_bias)
        )
        return attended(row, history.filled, target, alone, rows, layers)

    def _first(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the first layer has of a target alone; W and V of (W∘q + V)·k."""
        of_target, of_item, of_difference, of_product = self.first.weight.chunk(4, 1)
        alone = target @ (of_target + of_difference).T + self.first.bias
        return alone, of_product, of_item - of_difference

    def _scores(self, target: Tensor, keys: Tensor) -> Tensor:
        alone, scale, shift = self._first(target)
        pairs = paired(target.unsqueeze(-2) * scale + shift, keys, "hd,ld->lh")
        hidden = pairs + alone.unsqueeze(-2)
        scores: Tensor = self.rest(hidden).squeeze(-1) / self.dim**0.5
        return scores

    def _scores_by_row(self, target: Tensor, history: History) -> Tensor | None:
        """The same by way of the rows, where the targets are the same for all histories.

        Then a score is that of a target and a row, and there are fewer of these.
        """
        if history.rows is None or history.row is None or target.ndim < 2:
            return None
        candidates, *others = target.shape[:-1]
        shared = len(others) == history.row.ndim - 1 and all(size == 1 for size in others)
        if not shared or len(history.rows) >= history.row.numel():
            return None
        of_rows = self._scores(target.view(candidates, -1), history.rows)
        return of_rows[:, history.row]

    def _interest_by_rows(self, history: History) -> Tensor | None:
        """Σ_k α_k·k as a sum over rows, where targets are rows of the same table, which are few.

        A place's score is that of two rows then, and places with the same row weigh alike: a row
        that fills c places weighs as much as one place whose score is higher by log c.
        """
        rows, row, target = history.rows, history.row, history.target
        if rows is None or row is None or target is None:
            return None
        if row.ndim != _MATRIX or target.shape != row.shape[:1]:  # candidates share histories
            return None
        if _FEWER * len(rows) ** 2 > row.numel():
            return None
        places = torch.zeros((len(row), len(rows)), dtype=rows.dtype, device=rows.device)
        places.scatter_add_(1, row, history.filled.to(rows))
        scores = self._scores(rows, rows).index_select(0, target)
        return masked_softmax(scores + places.clamp(min=1).log(), places > 0) @ rows
