"""Promises about ids and the vectors that they have."""

from __future__ import annotations

import torch

from celrec.embeddings.embedding import Embedding
from celrec.testing._tables import FLOATS, Factory, everyone, finite, known, require, same

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SHAPES = ((), (0,), (1,), (5,), (2, 3), (2, 0, 3), (2, 1, 2, 2))


def shapes(make: Factory) -> None:
    """Ids of any shape and integer type give vectors, one more axis."""
    table = make()
    require(isinstance(table, Embedding), "it is no subclass of Embedding")
    count = min(table.num_embeddings, 128)  # what the narrowest integers can say
    for shape in _SHAPES:
        ids = torch.randint(count, shape)
        # One by one: a vector must not depend on what it is looked up with.
        alone = [table(one) for one in ids.flatten()]
        for vector in alone:
            found = tuple(vector.shape)
            require(found == (table.embedding_dim,), f"shape {found} for one id")
        slow = torch.cat([torch.empty(0), *alone]).view(*shape, table.embedding_dim)
        for kind in _INTEGERS:
            same(table(ids.to(kind)), slow, f"vectors of {kind} ids of shape {shape}")


def float_types(make: Factory) -> None:
    """The float type is torch's default, or the one that is asked for."""
    kind = make()(torch.tensor(0)).dtype
    require(kind == torch.get_default_dtype(), f"{kind} where none is asked for")
    for asked in FLOATS:
        table = make(dtype=asked)
        found = table(known(table))
        require(found.dtype == asked, f"{found.dtype} where {asked} is asked for")
        finite(found, f"a vector of {asked}")


def unseen(make: Factory) -> None:
    """Ids out of range have finite vectors, the same in training and in serving."""
    table = make()
    ids = everyone(table)
    training = table.train()(ids)
    for one, vector in zip(ids.tolist(), training, strict=True):
        finite(vector, f"the vector of {one}")
    same(table.eval()(ids), training, "vectors in serving and in training")


def seed(make: Factory) -> None:
    """torch.manual_seed decides what a table begins with."""
    found = []
    for number in (3, 3, 4):
        torch.manual_seed(number)
        table = make()
        found.append(table(known(table)))
    same(found[1], found[0], "vectors of two tables made with one seed")
    require(not torch.equal(found[2], found[0]), "another seed gives the same vectors")
