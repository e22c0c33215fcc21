"""Checks of lookups, torch.export and torch.compile."""

from __future__ import annotations

import torch

from celrec.embeddings.embedding import Embedding
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
