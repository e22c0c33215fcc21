"""Checks of a table's state, settings, memory and number of ids."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding
from celrec.errors import CelrecError
from celrec.testing.gradient_checks import learns
from celrec.testing.tables import (
    FLOATS,
    Factory,
    finite,
    probe_ids,
    require,
    same,
    saved,
    trainable,
    trained,
)

_MORE = 7
"""The number of ids added by `grow`."""


def copies(make: Factory) -> None:
    """Training a deep copy does not change the table."""
    table = make()
    ids = probe_ids(table)
    before = table(ids).detach()
    state_before = saved(table)
    twin = copy.deepcopy(table)
    same(twin(ids), before, "vectors of the copy")
    trained(twin)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    require(not torch.equal(twin(ids), before), "the copy does not change with its parameters")
    for name, value in table.state_dict().items():
        require(torch.equal(value, state_before[name]), f"training the copy changes {name}")
    same(table(ids), before, "vectors before and after the copy is trained")


def state(make: Factory) -> None:
    """A fresh table that loads the state of a trained one has its vectors."""
    table, fresh = trained(make()), make()
    fresh.load_state_dict(saved(table))
    _same_tables(fresh, table)


def settings(make: Factory) -> None:
    """A table made from the settings loads the state."""
    table = trained(make(padding_idx=0))
    again = type(table)(**_written_and_read(table))
    with torch.no_grad():
        for parameter in again.parameters():  # tables among the settings share theirs
            parameter.zero_()
    again.load_state_dict(saved(table))
    for name in ("num_embeddings", "embedding_dim", "padding_idx"):
        found, expected = getattr(again, name), getattr(table, name)
        require(found == expected, f"{name} is {found}, not {expected}")
    _same_tables(again, table)


def _written_and_read(table: Embedding) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.settings().items():
        if isinstance(value, Embedding):
            _written_and_read(value)
            found[name] = copy.deepcopy(value)
        else:
            found[name] = json.loads(json.dumps(value))
    return found


def _same_tables(found: Embedding, expected: Embedding) -> None:
    ids = probe_ids(expected)
    same(found(ids), expected(ids), "vectors")
    with found.as_served(), expected.as_served():
        same(found(ids), expected(ids), "vectors within as_served()")


def moves(make: Factory) -> None:
    """`to(torch.float64)` changes no vector."""
    table = make()
    ids = probe_ids(table)
    before = table(ids)
    table.to(torch.float64)
    require(table(ids).dtype == torch.float64, f"{table(ids).dtype} after to(torch.float64)")
    same(table(ids), before, "vectors before and after")


def settled(make: Factory) -> None:
    """`settled` has the vectors seen inside `as_served`, which changes nothing."""
    table = trained(make(padding_idx=0))
    ids = probe_ids(table)
    before = table(ids).detach()
    with table.as_served():
        served = table(ids).detach()
    finite(served, "a vector")
    same(table(ids), before, "vectors before and after as_served()")
    same(copy.deepcopy(table).settled()(ids), served, "vectors of settled() and as served")


def memory(make: Factory) -> None:
    """`memory` is exact in training, and when serving that of `settled`."""
    for dtype in FLOATS:
        for table in (make(dtype=dtype), trained(make(dtype=dtype))):
            reported, allocated = table.memory(training=True).total, _bytes(table)
            require(reported == allocated, f"{dtype}: {reported} reported, {allocated} allocated")
            serving = table.memory().total
            require(serving <= reported, f"{dtype}: {serving} for serving, {reported} for training")
            settled_bytes = copy.deepcopy(table).settled().memory().total
            require(
                serving == settled_bytes,
                f"{dtype}: {serving} for serving, {settled_bytes} when settled",
            )


def _bytes(table: nn.Module) -> int:
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(table) if tensor.nbytes}
    return sum(sizes.values())


def _tensors(table: nn.Module) -> Iterator[Tensor]:
    yield from table.parameters()
    yield from table.buffers()
    for module in table.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def budget(make: Factory) -> None:
    """The table is at most as large as the requested rows, or `overrun` says how much larger."""
    table = make()
    if table.rows_requested is None:
        require(table.overrun == 1, f"overrun is {table.overrun} without requested rows")
        return
    size = max(parameter.element_size() for parameter in table.parameters())
    requested, reported = table.rows_requested * table.embedding_dim * size, table.memory().table
    over = reported / requested
    require(
        abs(table.overrun - over) <= 1e-6 * over,
        f"overrun is {table.overrun:.4g}, but {reported} bytes are {over:.4g} times {requested}",
    )
    require(over <= 1 or f"{over:.2f}" in repr(table), f"repr() does not contain {over:.2f}")


def growth(make: Factory) -> None:
    """`grow` keeps all vectors and new ids can be learned, or it raises an error."""
    table = trained(make())
    count = table.num_embeddings
    more = count + _MORE
    if not table.traits.incremental:
        require(_refuses(table, more), "grow() raises no CelrecError, traits.incremental is False")
        return
    ids = torch.cat([probe_ids(table), torch.arange(count, more)])
    before = table(ids).detach()
    table.grow(more)
    require(table.num_embeddings == more, f"num_embeddings is {table.num_embeddings}, not {more}")
    # New ids start with the vectors that they had as unseen ids.
    same(table(ids), before, "vectors before and after grow()")
    require(_refuses(table, count), "grow() to fewer ids raises no CelrecError")
    if trainable(table):
        learns(table, more - 2)


def grown_state(make: Factory) -> None:
    """A table of the original size loads the state of one that has grown."""
    table = trained(make())
    if not table.traits.incremental:
        return
    count = table.num_embeddings
    table.grow(count + _MORE)
    if trainable(table):
        learns(table, count + _MORE - 2)
    fresh = make()
    fresh.load_state_dict(saved(table))
    ids = torch.cat([probe_ids(table), torch.arange(count, count + _MORE)])
    same(fresh(ids), table(ids), "vectors")


def dropping(make: Factory) -> None:
    """`keep` does not change the vectors of remaining ids, or it raises an error."""
    table = trained(make(padding_idx=2))
    count = table.num_embeddings
    kept = torch.arange(0, count, 2)
    unseen = torch.tensor([-1, count, 2**40])
    before, size = table(torch.cat([kept, unseen])).detach(), table.memory(training=True).total
    try:
        table.keep(kept)
    except CelrecError:
        require(table.num_embeddings == count, "keep() raises an error and changes the table")
        return
    least, most = len(kept), table.num_embeddings
    require(least <= most <= count, f"num_embeddings is {most} where {least} of {count} are kept")
    require(table.memory(training=True).total <= size, "fewer ids take more memory")
    after = table(torch.cat([torch.arange(least), unseen]))
    same(after, before, "vectors before and after keep()")
    again = type(table)(**_written_and_read(table))
    again.load_state_dict(saved(table))
    _same_tables(again, table)


def _refuses(table: Embedding, num_embeddings: int) -> bool:
    try:
        table.grow(num_embeddings)
    except CelrecError:
        return True
    return False
