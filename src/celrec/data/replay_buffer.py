"""The latest events of every id."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray

from celrec.data import replay_kernels as kernels
from celrec.errors import CelrecError
from celrec.runtime.growing_arrays import GrowingRows
from celrec.runtime.memory_budget import MemoryBudget

_NO_ROOM = (MemoryError, OverflowError, ValueError)  # from arrays too large


class Replayed(NamedTuple):
    """Kept events of some ids, one after the other."""

    owner: NDArray[np.int64]
    """Whose event it is: a position in the ids that were asked for, never decreasing."""
    columns: dict[str, NDArray[Any]]
    """The events' values by name, oldest first within each owner."""


class ReplayBuffer:
    """The `width` latest events of each of the ids 0, 1, 2 …, and how many each has had.

    An event has one value in each of the named `columns`: a number of 1, 2, 4 or 8
    bytes, declared by its dtype, or a vector of k such numbers, declared by
    `(dtype, k)`. An id takes 8 bytes and `width` times the bytes of an event. The
    first `ids` ids are known from the start; others become known by their first
    event, for which the buffer grows by an eighth or as far as needed.

    With a `budget`, what is beyond its budget lies in memory-mapped files, which may be
    larger than the memory. What is to outlast the process goes through `state_dict`.

    >>> buffer = ReplayBuffer(2, {"partner": np.int32, "target": np.float32})
    >>> buffer.insert([0, 1, 0, 0], partner=[5, 6, 7, 8], target=[1.0, 0.0, 0.5, 0.25])
    >>> owner, columns = buffer.events([1, 0])
    >>> owner
    array([0, 1, 1])
    >>> columns["partner"]
    array([6, 7, 8], dtype=int32)
    >>> buffer.counts
    array([3, 1])
    """

    def __init__(
        self,
        width: int,
        columns: Mapping[str, DTypeLike],
        *,
        ids: int = 0,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.width = _size("width", width)
        self._num_ids = _size("ids", ids)
        layouts = {name: _layout(name, declared) for name, declared in columns.items()}
        with _telling_of_room(self._num_ids):
            self._columns = {
                name: GrowingRows(dtype, (self.width, *shape), self._num_ids, budget)
                for name, (dtype, shape) in layouts.items()
            }
            self._counts = GrowingRows(np.dtype(np.int64), (), self._num_ids, budget)

    @property
    def num_ids(self) -> int:
        """How many ids are known: one more than the highest of them."""
        return self._num_ids

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many events each id has had, kept or not: a read-only view.

        It may show later events or not; take it anew after an `insert`.
        """
        counts = self._counts.first(self._num_ids)
        counts.flags.writeable = False
        return counts

    @property
    def nbytes(self) -> int:
        """Bytes allocated in memory or in files, with the room for ids to come."""
        return sum(rows.nbytes for rows in (self._counts, *self._columns.values()))

    def insert(self, ids: ArrayLike, **columns: ArrayLike) -> None:
        """Append events in their order: the id of each, and its value in every column.

        Integers must fit the column's dtype; floats are rounded to it. An error
        leaves the buffer as it was.
        """
        owners = _as_ids(ids)
        if columns.keys() != self._columns.keys():
            raise CelrecError(
                f"columns must be {_listed(self._columns)}, got {_listed(columns)}; "
                "pass exactly those declared"
            )
        lowest, highest = kernels.bounds(owners)
        if lowest < 0:
            value = np.asarray(ids)[np.argmin(owners)]
            raise CelrecError(f"ids must lie in 0 … 2**63 - 1, got {value}; leave such events out")
        words = [
            _as_words(name, columns[name], len(owners), rows)
            for name, rows in self._columns.items()
        ]
        self._know(highest + 1)
        slots = np.empty(len(owners), np.int64)
        kernels.place(self._counts.flat, owners, self.width, slots)
        if self.width:
            for rows, values in zip(self._columns.values(), words, strict=True):
                kernels.write(rows.words, slots, values, math.prod(rows.shape[1:]))

    def events(self, ids: ArrayLike) -> Replayed:
        """The kept events of each of these ids: none of an unknown one, all again if repeated."""
        asked, counts = _as_ids(ids), self._counts.flat
        kept = np.empty(len(asked), np.int64)
        total = kernels.count_kept(counts, asked, self.width, kept)
        owner, slots = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.find(counts, asked, self.width, kept, owner, slots)
        columns = {}
        for name, rows in self._columns.items():
            columns[name] = values = np.empty((total, *rows.shape[1:]), rows.dtype)
            words = values.reshape(-1).view(rows.words.dtype)
            kernels.read(rows.words, slots, words, math.prod(rows.shape[1:]))
        return Replayed(owner, columns)

    def kept(self, ids: ArrayLike) -> NDArray[np.int64]:
        """How many events `events` would give for each of these ids."""
        asked = _as_ids(ids)
        kept = np.empty(len(asked), np.int64)
        kernels.count_kept(self._counts.flat, asked, self.width, kept)
        return kept

    def keep(self, ids: ArrayLike) -> None:
        """Let only these ids remain, which ascend, numbered anew from 0; all room is given back.

        Those that are not known yet are not known afterwards. `counts` are to be taken anew.
        """
        asked = _as_ids(ids)
        if (np.diff(asked) <= 0).any() or (len(asked) and asked[0] < 0):
            raise CelrecError("ids to keep must be 0 or more and ascend; sort them, each once")
        asked = asked[asked < self._num_ids]
        with _telling_of_room(len(asked)):
            for rows in (self._counts, *self._columns.values()):
                rows.keep(asked)
        self._num_ids = len(asked)

    def renumber(self, column: str, numbers: NDArray[np.int64], place: int = 0) -> None:
        """Put numbers[v] in the place of each v in a column of whole numbers, where v ≥ 0.

        If its values are vectors, in one `place` of them.
        """
        rows = self._columns[column]
        kernels.renumber(rows.flat, place, math.prod(rows.shape[1:]), numbers)

    def state_dict(self) -> dict[str, Any]:
        """The width, and the counts and columns of the known ids as tensors.

        The tensors share the buffer's memory: copy or save them before it changes.
        """
        return {
            "width": self.width,
            "counts": torch.from_numpy(self._counts.first(self._num_ids)),
            "columns": {
                name: torch.from_numpy(rows.first(self._num_ids))
                for name, rows in self._columns.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave, in place of all that the buffer holds.

        The width and the columns must be the buffer's own; an error leaves it as it was.
        """
        try:
            width, counts, columns = state["width"], state["counts"], dict(state["columns"])
        except (LookupError, TypeError, ValueError) as error:
            raise CelrecError(
                "state must hold width, counts and columns; pass what state_dict gave"
            ) from error
        if width != self.width or columns.keys() != self._columns.keys():
            raise CelrecError(
                f"state: width {width}, columns {_listed(columns)} where width {self.width}, "
                f"columns {_listed(self._columns)} are expected; make the buffer like it"
            )
        ids = len(counts) if isinstance(counts, torch.Tensor) and counts.ndim else 0
        held = [(self._counts, _from_tensor("counts", counts, ids, self._counts))]
        for name, rows in self._columns.items():
            held.append((rows, _from_tensor(f"columns.{name}", columns[name], ids, rows)))
        if ids and (fewest := held[0][1].min()) < 0:
            raise CelrecError(f"state.counts holds {fewest}; counts are 0 or more, it is damaged")
        before = self._num_ids
        self._know(ids)
        for rows, values in held:
            rows.first(ids)[:] = values
            rows.first(before)[ids:] = 0
        self._num_ids = ids

    def _know(self, ids: int) -> None:
        """Make the first `ids` ids known, if more than now."""
        if ids <= self._num_ids:
            return
        capacity = len(self._counts.flat)
        if ids > capacity:
            capacity = max(ids, capacity * 9 // 8)
        with _telling_of_room(ids):
            for rows in (*self._columns.values(), self._counts):  # what needs most room first
                rows.grow(capacity)
        self._num_ids = ids


def _size(argument: str, value: int) -> int:
    if not isinstance(value, int | np.integer) or value < 0:
        raise CelrecError(f"{argument} must be a whole number, 0 or more, got {value!r}")
    return int(value)


def _layout(name: str, declared: DTypeLike) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype of a column and the shape of one value in it."""
    if not str(name).isidentifier() or name in ("self", "ids"):
        raise CelrecError(f"columns: {name!r} cannot be a column; choose another name")
    try:
        number, *shape = declared if isinstance(declared, tuple) else (declared,)
        dtype = np.dtype(number).newbyteorder("=")
        fits = len(shape) < 2 and all(isinstance(k, int) and k > 0 for k in shape)
    except (TypeError, ValueError):
        fits = False
    if not fits or dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise CelrecError(
            f"columns: {name} is declared {declared!r}; give the dtype of a number of at most "
            "8 bytes, or a pair (dtype, k) of it and a length from 1"
        )
    return dtype, tuple(shape)


def _as_ids(ids: ArrayLike) -> NDArray[np.int64]:
    given = _as_array("ids", ids)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise CelrecError(
            f"ids must be whole numbers in one row, got {given.dtype} of shape {given.shape}; "
            "pass a flat array of integers"
        )
    return np.ascontiguousarray(given, np.int64)


def _as_words(name: str, values: ArrayLike, events: int, rows: GrowingRows) -> NDArray[Any]:
    """The values of a column as its words, one event after the other."""
    given = _as_array(name, values)
    if given.shape != (events, *rows.shape[1:]):
        raise CelrecError(
            f"{name} has shape {given.shape} where {(events, *rows.shape[1:])} is expected; "
            "pass one value for each of the ids"
        )
    if given.dtype != rows.dtype:
        given = _converted(name, given, rows.dtype)
    return np.ascontiguousarray(given).reshape(-1).view(rows.words.dtype)


def _converted(name: str, given: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    allowed = "biuf" if dtype.kind == "f" else "biu"
    if given.size and given.dtype.kind not in allowed:
        raise CelrecError(f"{name} is {given.dtype} where {dtype} is expected; convert it first")
    with np.errstate(over="ignore"):
        converted = given.astype(dtype)
    lost = converted != given if dtype.kind in "iu" else np.isinf(converted) & ~np.isinf(given)
    if lost.any():
        raise CelrecError(
            f"{name}: {given[lost][0]} does not fit in {dtype}; declare the column wider"
        )
    return converted


def _as_array(argument: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # the last from a tensor with a gradient
        raise CelrecError(f"{argument}: no array ({error}); pass an array of numbers") from error


def _from_tensor(key: str, value: Any, ids: int, rows: GrowingRows) -> NDArray[Any]:
    expected = torch.from_numpy(np.empty(0, rows.dtype)).dtype, (ids, *rows.shape)
    if not isinstance(value, torch.Tensor):
        raise CelrecError(f"state.{key} is a {type(value).__name__}; pass what state_dict gave")
    if (value.dtype, tuple(value.shape)) != expected:
        raise CelrecError(
            f"state.{key} is {value.dtype} of shape {tuple(value.shape)} where {expected[0]} of "
            f"shape {expected[1]} is expected; make the buffer like it"
        )
    return np.asarray(value.detach().cpu())


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(str, names)) or "none"


@contextmanager
def _telling_of_room(ids: int) -> Iterator[None]:
    try:
        yield
    except CelrecError:  # a file could not grow, and that is told already
        raise
    except _NO_ROOM as error:
        reason = str(error).partition("\n")[0]
        raise CelrecError(
            f"ids: no room for {ids:,} of them ({reason}); number ids densely, or give a `budget` "
            "on a disk with enough space"
        ) from error
