"""Target attention over histories, with a fused CPU implementation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from string import ascii_uppercase
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor, nn

from celrec.models.attention_kernels import attention_backward, attention_forward
from celrec.models.interaction import History

_FEW_THREADS = 2  # the kernels run on one thread; with more, tensor operations are faster


class Layers(NamedTuple):
    """The parameters of an attention network with two hidden layers, for `fused_attention`."""

    scale: Tensor
    """W, (width, dim)."""
    shift: Tensor
    """V, (width, dim)."""
    first_slope: Tensor
    second: Tensor
    """(upper, width)."""
    second_bias: Tensor
    second_slope: Tensor
    last: Tensor
    """(upper,)"""
    last_bias: Tensor


def fused_attention(
    row: Tensor, filled: Tensor, target: Tensor, alone: Tensor, rows: Tensor, layers: Layers
) -> tuple[Tensor, Tensor] | None:
    """Interests Σ_k α_k·k and weights α of targets q over histories of rows k, by a fused kernel.

    α is the softmax over the filled places of MLP((W∘q + V)·k + `alone`) / √dim. The kernel needs
    dense float tensors on the CPU; otherwise the result is None.

    Args:
        row: The rows of each history, (samples, length).
        filled: Which places of the histories are filled, (samples, length).
        target: The targets, (samples, dim).
        alone: The target's own contribution to the first layer, (samples, width).
        rows: The table of rows, (rows, dim).
        layers: The parameters of the network.

    >>> row, filled = torch.tensor([[0, 2], [1, 1]]), torch.tensor([[True, True], [False, True]])
    >>> learned = [(5, 8), (5, 8), (1,), (3, 5), (3,), (1,), (3,), (1,)]
    >>> layers = Layers(*map(torch.ones, learned))
    >>> target, alone, rows = torch.ones(2, 8), torch.ones(2, 5), torch.ones(3, 8)
    >>> found = fused_attention(row, filled, target, alone, rows, layers)
    >>> [tuple(one.shape) for one in found or ()]
    [(2, 8), (2, 2)]

    """
    if torch.compiler.is_compiling():  # checked first, since lengths are symbolic in exports
        return None
    if not _fit(row, filled, target, alone, rows, layers):
        return None
    found: tuple[Tensor, Tensor] = _FusedAttention.apply(row, filled, target, alone, rows, *layers)  # type: ignore[no-untyped-call]
    return found


def _fit(
    row: Tensor, filled: Tensor, target: Tensor, alone: Tensor, rows: Tensor, layers: Layers
) -> bool:
    """Whether the kernel supports the inputs; it does not check bounds itself."""
    numbers = (target, alone, rows, *layers)
    if rows.ndim != 2 or layers.scale.ndim != 2 or row.ndim != 2 or not row.numel():
        return False
    samples, (width, dim), upper = len(row), layers.scale.shape, layers.last.numel()
    learned = ((width, dim), (width, dim), (1,), (upper, width), (upper,), (1,), (upper,), (1,))
    shapes = ((samples, dim), (samples, width), (len(rows), dim), *learned)
    return (
        rows.dtype in (torch.float32, torch.float64)
        and all(one.dtype == rows.dtype for one in numbers)
        and all(one.device.type == "cpu" for one in (row, filled, *numbers))
        and all(tuple(one.shape) == shape for one, shape in zip(numbers, shapes, strict=True))
        and (row.dtype, filled.dtype) == (torch.int64, torch.bool)
        and filled.shape == row.shape
        and torch.get_num_threads() <= _FEW_THREADS
        and not torch._C._are_functorch_transforms_active()
        and int(row.min()) >= 0
        and int(row.max()) < len(rows)
    )


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        interest, weights, *sums = map(torch.from_numpy, attention_forward(*map(_array, inputs)))
        ctx.save_for_backward(*inputs, weights, *sums)
        return interest, weights

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for second derivatives
            return None, None, *_tensor_gradients(ctx.saved_tensors[:-3], slopes)
        found = attention_backward(*map(_array, (*ctx.saved_tensors, *slopes)))
        return None, None, *map(torch.from_numpy, found)


def _tensor_gradients(inputs: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> list[Tensor]:
    row, filled, *numbers = inputs
    # Views, so that gradients stop at each of the inputs.
    own = [one.view_as(one) if one.requires_grad else one.detach() for one in numbers]
    wanted = [one for one in own if one.requires_grad]
    target, alone, rows, *layers = own
    found = tensor_attention(row, filled, target, alone, rows, Layers(*layers))
    slope = iter(torch.autograd.grad(found, wanted, slopes, create_graph=True))
    return [next(slope) if one.requires_grad else torch.zeros_like(one) for one in own]


def tensor_attention(
    row: Tensor, filled: Tensor, target: Tensor, alone: Tensor, rows: Tensor, layers: Layers
) -> tuple[Tensor, Tensor]:
    """The same as `fused_attention`, with tensor operations."""
    keys = rows[row]
    first = keys @ (target.unsqueeze(-2) * layers.scale + layers.shift).mT + alone.unsqueeze(-2)
    units = F.prelu(first, layers.first_slope)
    upper = F.prelu(F.linear(units, layers.second, layers.second_bias), layers.second_slope)
    scores = (upper @ layers.last + layers.last_bias) / rows.shape[-1] ** 0.5
    weights = masked_softmax(scores, filled)
    return (weights.unsqueeze(-1) * keys).sum(-2), weights


def masked_softmax(scores: Tensor, filled: Tensor) -> Tensor:
    """The softmax over the filled places; all weights are 0 if there is none."""
    scores = scores.masked_fill(~filled, -torch.inf)
    # An empty history would give NaN.
    empty = ~filled.any(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1) * filled


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def broadcast_einsum(left: Tensor, right: Tensor, ends: str) -> Tensor:
    """`torch.einsum` over the last axes, with the equation `ends`, and leading axes broadcast.

    If `right` has size 1 along a leading axis of `left`, the result is one large matrix product
    instead of many small ones on copies.

    >>> weights, history = torch.rand(7, 50, 20), torch.rand(7, 1, 20, 8)
    >>> broadcast_einsum(weights, history, "l,ld->d").shape
    torch.Size([7, 50, 8])
    """
    inputs, end = ends.split("->")
    first, second = inputs.split(",")
    lead = left.shape[: left.ndim - len(first)]
    lead_right = right.shape[: right.ndim - len(second)]
    axes = max(len(lead), len(lead_right))
    letters = ascii_uppercase[:axes]  # `ends` is in lower case
    names = []
    for tensor_lead in (lead, lead_right):
        own = letters[axes - len(tensor_lead) :]
        names.append("".join(n for n, size in zip(own, tensor_lead, strict=True) if size != 1))
    present = "".join(n for n in letters if n in names[0] + names[1])
    a = left.reshape(*(size for size in lead if size != 1), *left.shape[len(lead) :])
    b = right.reshape(*(size for size in lead_right if size != 1), *right.shape[len(lead_right) :])
    product = torch.einsum(f"{names[0]}{first},{names[1]}{second}->{present}{end}", a, b)
    # torch.broadcast_shapes takes 100 µs; numpy's would make sizes constants in exports.
    sizes = zip_longest(reversed(lead), reversed(lead_right), fillvalue=1)
    whole = reversed([b if a == 1 else a for a, b in sizes])
    return product.view(*whole, *product.shape[len(present) :])


def dot(left: Tensor, right: Tensor) -> Tensor:
    """Σ_d left_d·right_d with leading axes broadcast, without copies.

    >>> dot(torch.ones(50, 1, 8), torch.ones(7, 8)).shape
    torch.Size([50, 7])
    """
    if left.shape == right.shape:
        return (left * right).sum(-1)
    # The common case: all samples have the same candidates.
    if left.ndim == 3 and left.shape[1] == 1 and right.ndim == 2:
        return left.squeeze(1) @ right.T
    if right.ndim == 3 and right.shape[1] == 1 and left.ndim == 2:
        return right.squeeze(1) @ left.T
    return broadcast_einsum(left, right, "d,d->")


_MATRIX = 2  # axes
_FEWER = 3  # attention by rows is faster with this many times fewer pairs of rows than places
_TWO_HIDDEN = 4  # modules above the first layer: PReLU, linear, PReLU, linear


class TargetAttention(nn.Module):
    """Weights of a history's items k for target q: softmax of MLP([q, k, q − k, q∘k]) / √dim.

    The first layer is linear in its four inputs, so it is computed as
    (W₁ + W₃)·q + (W₂ − W₃ + W₄·diag(q))·k: one product of size hidden × dim per pair of target
    and item, instead of four. The weights of an empty history are 0.

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
        """The weights (..., length) for targets (..., dim)."""
        fused = self._fused(target, history)
        if fused is not None:
            return fused[1]
        scores = self._scores_by_row(target, history)
        if scores is None:
            scores = self.scores(target, history.vectors)
        return masked_softmax(scores, history.filled)

    def interest(self, target: Tensor, history: History) -> Tensor:
        """The weighted sum of the history, Σ_k α_k·k, (..., dim)."""
        by_rows = self._interest_by_rows(history)
        if by_rows is not None:
            return by_rows
        fused = self._fused(target, history)
        if fused is not None:
            return fused[0]
        history = history.gathered()
        return broadcast_einsum(self(target, history), history.vectors, "l,ld->d")

    def _fused(self, target: Tensor, history: History) -> tuple[Tensor, Tensor] | None:
        """Interest and weights by the fused kernel, if each target has its own history."""
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
        return fused_attention(row, history.filled, target, alone, rows, layers)

    def _first(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The first layer: the target's own contribution, and W and V of (W∘q + V)·k."""
        of_target, of_item, of_difference, of_product = self.first.weight.chunk(4, 1)
        alone = target @ (of_target + of_difference).T + self.first.bias
        return alone, of_product, of_item - of_difference

    def scores(self, target: Tensor, keys: Tensor) -> Tensor:
        """The scores (..., length) of targets (..., dim) for keys (..., length, dim)."""
        alone, scale, shift = self._first(target)
        pairs = broadcast_einsum(target.unsqueeze(-2) * scale + shift, keys, "hd,ld->lh")
        hidden = pairs + alone.unsqueeze(-2)
        scores: Tensor = self.rest(hidden).squeeze(-1) / self.dim**0.5
        return scores

    def _scores_by_row(self, target: Tensor, history: History) -> Tensor | None:
        """The scores via rows, if all histories have the same targets.

        A score depends on target and row only, and there are fewer rows than places.
        """
        if history.rows is None or history.row is None or target.ndim < 2:
            return None
        candidates, *others = target.shape[:-1]
        shared = len(others) == history.row.ndim - 1 and all(size == 1 for size in others)
        if not shared or len(history.rows) >= history.row.numel():
            return None
        of_rows = self.scores(target.view(candidates, -1), history.rows)
        return of_rows[:, history.row]

    def _interest_by_rows(self, history: History) -> Tensor | None:
        """Σ_k α_k·k as a sum over rows, if targets are rows of the same small table.

        A score then depends on two rows. A row that fills c places counts like one place whose
        score is higher by log c.
        """
        rows, row, target = history.rows, history.row, history.target
        if rows is None or row is None or target is None:
            return None
        if row.ndim != _MATRIX or target.shape != row.shape[:1]:  # several targets per history
            return None
        if _FEWER * len(rows) ** 2 > row.numel():
            return None
        places = torch.zeros((len(row), len(rows)), dtype=rows.dtype, device=rows.device)
        places.scatter_add_(1, row, history.filled.to(rows))
        scores = self.scores(rows, rows).index_select(0, target)
        return masked_softmax(scores + places.clamp(min=1).log(), places > 0) @ rows
