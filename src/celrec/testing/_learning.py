"""Promises about gradients and training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding
from celrec.errors import CelrecError
from celrec.testing._tables import (
    Factory,
    everyone,
    finite,
    known,
    pulled,
    require,
    same,
    trainable,
    trained,
)

_ENTRIES = 40
"""Numbers of each parameter whose gradients are compared with differences."""


def gradients(make: Factory, *, exact: bool) -> None:
    """Gradients are finite and, if they are exact, what differences say."""
    table = make(dtype=torch.float64)
    if not trainable(table):
        return
    with torch.no_grad():
        for parameter in trainable(table).values():  # where kinks are at 0, as many begin, move on
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    some = known(table)
    ids = torch.cat([some[torch.randint(len(some), (9,))], torch.tensor([-1])])
    pull = torch.randn(len(ids), table.embedding_dim, dtype=torch.float64)
    for name, slope in pulled(table, ids, pull).items():
        finite(slope, f"the gradient of {name}")
        if exact:
            _compare(table, ids, pull, name, slope)


@torch.no_grad()
def _compare(table: Embedding, ids: Tensor, pull: Tensor, name: str, slope: Tensor) -> None:
    """Numbers that the vectors use, and numbers that they do not, as they come."""
    flat = trainable(table)[name].view(-1)
    for place in torch.randperm(len(flat))[:_ENTRIES].tolist():
        value = flat[place].item()
        step = 1e-6 * (1 + abs(value))
        ends = []
        for moved in (value + step, value - step):
            flat[place] = moved
            ends.append(float((table(ids) * pull).sum()))
        flat[place] = value
        expected, found = (ends[0] - ends[1]) / (2 * step), float(slope.reshape(-1)[place])
        require(
            abs(found - expected) <= 1e-5 * (1 + abs(expected)),
            f"that of number {place} of {name} is {found:.6g}, by differences {expected:.6g}",
        )


def descent(make: Factory) -> None:
    """Gradients lead where they should: this holds for rounded vectors too."""
    table = make()
    if trainable(table):
        learns(table, 0)


def learns(table: Embedding, one: int) -> None:
    """Fail unless Adam brings the vector of an id near another one."""
    ids = torch.tensor([one])
    target = table(ids).detach() + 1
    optimizer = torch.optim.Adam(trainable(table).values(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        (table(ids) - target).square().sum().backward()
        optimizer.step()
    apart = float((table(ids) - target).detach().square().mean())
    require(apart < 0.5, f"that of {one} is {apart:.3g} apart after 40 steps, 1 at first")


def padding(make: Factory) -> None:
    """The vector of `padding_idx` is zero, and nothing learns from it."""
    count = make().num_embeddings
    for asked in (0, count // 2, -1, -count):
        table = make(padding_idx=asked)
        padded = asked % count
        told = f"padding_idx={asked}"
        require(table.padding_idx == padded, f"{told} becomes {table.padding_idx}")
        others = known(table)
        others = others[others != padded]
        vectors = table(torch.tensor([padded, padded]))
        require(not bool(vectors.any()), f"with {told} it is {vectors[0].tolist()}")
        require(not len(others) or bool(table(others).any()), f"with {told} all vectors are zero")
        if trainable(table):
            _takes_no_gradient(table, padded, others)
    for asked in (count, -count - 1):
        try:
            make(padding_idx=asked)
        except CelrecError:
            continue
        raise AssertionError(f"padding_idx={asked} raises no CelrecError")


def _takes_no_gradient(table: Embedding, padded: int, others: Tensor) -> None:
    pads = torch.full((len(others) + 1,), padded)
    both = torch.cat([others, pads])
    pull = torch.randn(len(both), table.embedding_dim)
    together = pulled(table, both, pull)
    alone = pulled(table, others, pull[: len(others)])
    for name, slope in pulled(table, pads, pull[len(others) :]).items():
        require(not bool(slope.any()), f"padding_idx={padded} pulls at {name}")
        same(together[name], alone[name], f"gradients of {name} with padding and without")


def adapting(make: Factory) -> None:
    """`adapt` leaves an optimiser valid and a table that can be used; so does its penalty."""
    for with_optimizer in (True, False):
        table = make()
        ids = everyone(table)
        before, shape = _parameters(table), table(ids).shape
        trained(table, with_optimizer=with_optimizer)
        # Another object is one that an optimiser does not know.
        require(_parameters(table) == before, "parameters are others than before")
        for name, value in table.state_dict().items():
            finite(value, name)
        vectors = table(ids)
        finite(vectors, "a vector")
        require(vectors.shape == shape, f"shape {tuple(vectors.shape)}, not {tuple(shape)}")
        same(table.eval()(ids), vectors, "vectors in serving and in training")
        penalty = table.penalty()
        if penalty is not None:
            require(penalty.dim() == 0, f"penalty has shape {tuple(penalty.shape)}")
            finite(penalty, "penalty")


def _parameters(table: nn.Module) -> dict[str, tuple[int, torch.Size]]:
    return {name: (id(value), value.shape) for name, value in table.named_parameters()}


def non_negative(make: Factory) -> None:
    """No vector is below 0 where none of `non_negative_parameters` is."""
    table = trained(make())
    try:
        chosen = table.non_negative_parameters()
    except CelrecError:  # says that there are none
        return
    own = {id(parameter) for parameter in table.parameters()}
    require(all(id(one) in own for one in chosen), "one of them is no parameter of the table")
    with torch.no_grad():
        for parameter in chosen:
            parameter.abs_()
        lowest = float(table(everyone(table)).min())
    require(lowest >= 0, f"a vector has {lowest:.6g}")
