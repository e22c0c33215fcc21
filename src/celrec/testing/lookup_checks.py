"""Checks of lookups: shapes, dtypes, unseen ids and seeds."""

from __future__ import annotations

import torch

from celrec.embeddings.embedding import Embedding
from celrec.testing.tables import FLOATS, Factory, finite, known_ids, probe_ids, require, same

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
