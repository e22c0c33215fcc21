"""Checks of lookups, gradients, training, torch.export and torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding
from celrec.errors import CelrecError
from celrec.testing.tables import (
    FLOATS,
    Factory,
    finite,
    gradients_of,
    known_ids,
    probe_ids,
    require,
    same,
    trainable,
    trained,
)

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SHAPES = ((), (0,), (1,), (5,), (2, 3), (2, 0, 3), (2, 1, 2, 2))


def shapes(make: Factory) -> None:
    """Ids of any shape and integer type give vectors along one more axis."""
    table = make()
    require(isinstance(table, Embedding), "it is not a subclass of Embedding")
    count = min(table.num_embeddings, 128)  # the range of int8
    for shape in _SHAPES:
        ids = torch.randint(count, shape)
        # One by one, since a vector must not depend on the other ids of a batch.
        alone = [table(one) for one in ids.flatten()]
        for vector in alone:
            found = tuple(vector.shape)
            require(found == (table.embedding_dim,), f"shape {found} for one id")
        slow = torch.cat([torch.empty(0), *alone]).view(*shape, table.embedding_dim)
        for kind in _INTEGERS:
            same(table(ids.to(kind)), slow, f"vectors of {kind} ids of shape {shape}")


def float_types(make: Factory) -> None:
    """The dtype is the requested one, by default torch's."""
    default = make()(torch.tensor(0)).dtype
    require(default == torch.get_default_dtype(), f"{default} by default")
    for dtype in FLOATS:
        table = make(dtype=dtype)
        found = table(known_ids(table))
        require(found.dtype == dtype, f"{found.dtype} instead of {dtype}")
        finite(found, f"a vector of {dtype}")


def unseen(make: Factory) -> None:
    """Unseen ids have finite vectors, the same in training and in serving."""
    table = make()
    ids = probe_ids(table)
    training = table.train()(ids)
    for one, vector in zip(ids.tolist(), training, strict=True):
        finite(vector, f"the vector of {one}")
    same(table.eval()(ids), training, "vectors in serving and in training")


def seed(make: Factory) -> None:
    """`torch.manual_seed` determines the initial vectors."""
    found = []
    for number in (3, 3, 4):
        torch.manual_seed(number)
        table = make()
        found.append(table(known_ids(table)))
    same(found[1], found[0], "vectors of two tables made with one seed")
    require(not torch.equal(found[2], found[0]), "another seed gives the same vectors")


def exported(make: Factory) -> None:
    """Exported programs give the same vectors for any batch size, in both modes."""
    table = make(padding_idx=0)
    size = ({0: torch.export.Dim("size")},)
    for mode in ("train", "eval"):
        table.train(mode == "train")
        program = torch.export.export(table, (torch.arange(4),), dynamic_shapes=size).module()
        for ids in (torch.tensor([-1]), torch.arange(7) - 2, probe_ids(table)):
            same(program(ids), table(ids), f"vectors of {len(ids)} ids after {mode}()")


def compiled(make: Factory) -> None:
    """The table compiles without graph breaks (with `aot_eager`, which skips code generation)."""
    table = make(padding_idx=0)
    ids = probe_ids(table)
    # All tables share one `forward`, and the compiler stops after a few recompilations.
    torch.compiler.reset()
    code = torch.compile(table, backend="aot_eager", fullgraph=True)
    same(code(ids), table(ids), "vectors")
    if trainable(table):
        weights = torch.randn(len(ids), table.embedding_dim)
        expected, found = gradients_of(table, ids, weights), gradients_of(table, ids, weights, code)
        for name, gradient in expected.items():
            same(found[name], gradient, f"gradients of {name}")


_ENTRIES = 40
"""Values of each parameter whose gradients are compared with differences."""


def gradients(make: Factory, *, exact: bool) -> None:
    """Gradients are finite and, if `exact`, equal to central differences."""
    table = make(dtype=torch.float64)
    if not trainable(table):
        return
    with torch.no_grad():
        for parameter in trainable(table).values():  # move away from kinks at 0
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    some = known_ids(table)
    ids = torch.cat([some[torch.randint(len(some), (9,))], torch.tensor([-1])])
    weights = torch.randn(len(ids), table.embedding_dim, dtype=torch.float64)
    for name, gradient in gradients_of(table, ids, weights).items():
        finite(gradient, f"the gradient of {name}")
        if exact:
            _compare(table, ids, weights, name, gradient)


@torch.no_grad()
def _compare(table: Embedding, ids: Tensor, weights: Tensor, name: str, gradient: Tensor) -> None:
    """Compare the gradient of random values of a parameter with central differences."""
    flat = trainable(table)[name].view(-1)
    for place in torch.randperm(len(flat))[:_ENTRIES].tolist():
        value = flat[place].item()
        step = 1e-6 * (1 + abs(value))
        ends = []
        for moved in (value + step, value - step):
            flat[place] = moved
            ends.append(float((table(ids) * weights).sum()))
        flat[place] = value
        expected, found = (ends[0] - ends[1]) / (2 * step), float(gradient.reshape(-1)[place])
        require(
            abs(found - expected) <= 1e-5 * (1 + abs(expected)),
            f"that of number {place} of {name} is {found:.6g}, by differences {expected:.6g}",
        )


def descent(make: Factory) -> None:
    """Gradient steps reduce a loss, also for rounded vectors."""
    table = make()
    if trainable(table):
        learns(table, 0)


def learns(table: Embedding, one: int) -> None:
    """Fail unless Adam moves the vector of an id near a target."""
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
    """The vector of `padding_idx` is zero and has no gradient."""
    count = make().num_embeddings
    for requested in (0, count // 2, -1, -count):
        table = make(padding_idx=requested)
        padded = requested % count
        option = f"padding_idx={requested}"
        require(table.padding_idx == padded, f"{option} becomes {table.padding_idx}")
        others = known_ids(table)
        others = others[others != padded]
        vectors = table(torch.tensor([padded, padded]))
        require(not bool(vectors.any()), f"with {option} it is {vectors[0].tolist()}")
        require(not len(others) or bool(table(others).any()), f"with {option} all vectors are zero")
        if trainable(table):
            _takes_no_gradient(table, padded, others)
    for requested in (count, -count - 1):
        try:
            make(padding_idx=requested)
        except CelrecError:
            continue
        raise AssertionError(f"padding_idx={requested} raises no CelrecError")


def _takes_no_gradient(table: Embedding, padded: int, others: Tensor) -> None:
    pads = torch.full((len(others) + 1,), padded)
    both = torch.cat([others, pads])
    weights = torch.randn(len(both), table.embedding_dim)
    together = gradients_of(table, both, weights)
    alone = gradients_of(table, others, weights[: len(others)])
    for name, gradient in gradients_of(table, pads, weights[len(others) :]).items():
        require(not bool(gradient.any()), f"padding_idx={padded} has a gradient at {name}")
        same(together[name], alone[name], f"gradients of {name} with padding and without")


def adapting(make: Factory) -> None:
    """`adapt` keeps the optimiser valid and the table finite; the penalty is a finite scalar."""
    for with_optimizer in (True, False):
        table = make()
        ids = probe_ids(table)
        before, shape = _parameters(table), table(ids).shape
        trained(table, with_optimizer=with_optimizer)
        # An optimiser would not update a new parameter object.
        require(_parameters(table) == before, "parameters have been replaced")
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
    """Vectors are non-negative if `non_negative_parameters` are."""
    table = trained(make())
    try:
        chosen = table.non_negative_parameters()
    except CelrecError:  # not supported by the method
        return
    own = {id(parameter) for parameter in table.parameters()}
    require(all(id(one) in own for one in chosen), "one of them is not a parameter of the table")
    with torch.no_grad():
        for parameter in chosen:
            parameter.abs_()
        lowest = float(table(probe_ids(table)).min())
    require(lowest >= 0, f"a vector has {lowest:.6g}")
