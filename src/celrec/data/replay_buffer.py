"""A ring buffer of the latest events of every id."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray

from celrec.data import replay_kernels as kernels
from celrec.data.id_map import whole_numbers
from celrec.errors import CelrecError, first_line
from celrec.runtime.memory_budget import GrowingRows, MemoryBudget

_TOO_LARGE = (MemoryError, OverflowError, ValueError)  # from arrays that cannot be allocated


class Replayed(NamedTuple):
    """Stored events of the requested ids."""

    owner: NDArray[np.int64]
    """The position of the event's id among the requested ids, non-decreasing."""
    columns: dict[str, NDArray[Any]]
    """The values of the events by column, oldest first for each id."""


class ReplayBuffer:
    """The `width` latest events of each of the ids 0, 1, 2 …, and the number of events of each.

    An event has one value in each of the named `columns`: a number of 1, 2, 4 or 8 bytes,
    declared by its dtype, or a vector of k such numbers, declared by `(dtype, k)`. An id takes
    8 bytes plus `width` events. Memory for the first `ids` ids is allocated at once; for others
    the buffer grows at their first event, by at least one eighth.

    With a `budget`, memory beyond it is in memory-mapped files. Use `state_dict` to save the
    buffer.

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
        with _allocating(self._num_ids):
            self._columns = {
                name: GrowingRows(dtype, (self.width, *shape), self._num_ids, budget)
                for name, (dtype, shape) in layouts.items()
            }
            self._counts = GrowingRows(np.dtype(np.int64), (), self._num_ids, budget)

    @property
    def num_ids(self) -> int:
        """The number of known ids: one more than the highest id."""
        return self._num_ids

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of events of each id, stored or not, as a read-only view.

        The view may be outdated after an `insert`.
        """
        counts = self._counts.first(self._num_ids)
        counts.flags.writeable = False
        return counts

    @property
    def nbytes(self) -> int:
        """Bytes allocated in memory or in files, including spare capacity."""
        return sum(rows.nbytes for rows in (self._counts, *self._columns.values()))

    def insert(self, ids: ArrayLike, **columns: ArrayLike) -> None:
        """Append events in order, given their ids and their values in every column.

        Integers must fit the dtype of the column; floats are rounded to it. On an error the
        buffer does not change.
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
            raise CelrecError(f"ids must lie in 0 … 2**63 - 1, got {value}; drop such events")
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
        """The stored events of each of these ids; unknown ids have none, and ids may repeat."""
        requested, counts = _as_ids(ids), self._counts.flat
        kept = np.empty(len(requested), np.int64)
        total = kernels.count_kept(counts, requested, self.width, kept)
        owner, slots = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.find(counts, requested, self.width, kept, owner, slots)
        columns = {}
        for name, rows in self._columns.items():
            columns[name] = values = np.empty((total, *rows.shape[1:]), rows.dtype)
            words = values.reshape(-1).view(rows.words.dtype)
            kernels.read(rows.words, slots, words, math.prod(rows.shape[1:]))
        return Replayed(owner, columns)

    def kept(self, ids: ArrayLike) -> NDArray[np.int64]:
        """The number of stored events of each of these ids."""
        requested = _as_ids(ids)
        kept = np.empty(len(requested), np.int64)
        kernels.count_kept(self._counts.flat, requested, self.width, kept)
        return kept

    def keep(self, ids: ArrayLike) -> None:
        """Keep only these ids, in ascending order and renumbered from 0, and free other memory.

        Unknown ids stay unknown. Earlier views of `counts` become invalid.
        """
        kept = _as_ids(ids)
        if (np.diff(kept) <= 0).any() or (len(kept) and kept[0] < 0):
            raise CelrecError("ids to keep must be 0 or more and ascend; sort them, each once")
        kept = kept[kept < self._num_ids]
        with _allocating(len(kept)):
            for rows in (self._counts, *self._columns.values()):
                rows.keep(kept)
        self._num_ids = len(kept)

    def renumber(self, column: str, numbers: NDArray[np.int64], place: int = 0) -> None:
        """Replace each value v ≥ 0 of an integer column by numbers[v].

        In a column of vectors, only the value at `place` of each vector is replaced.
        """
        rows = self._columns[column]
        kernels.renumber(rows.flat, place, math.prod(rows.shape[1:]), numbers)

    def state_dict(self) -> dict[str, Any]:
        """The width, and the counts and columns of the known ids as tensors.

        The tensors share memory with the buffer; copy or save them before it changes.
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
        """Replace the contents by those of a `state_dict` with the same width and columns.

        On an error the buffer does not change.
        """
        try:
            width, counts, columns = state["width"], state["counts"], dict(state["columns"])
        except (LookupError, TypeError, ValueError) as error:
            raise CelrecError(
                "state must have width, counts and columns; pass a state_dict"
            ) from error
        if width != self.width or columns.keys() != self._columns.keys():
            raise CelrecError(
                f"state: width {width}, columns {_listed(columns)} where width {self.width}, "
                f"columns {_listed(self._columns)} are expected; create a buffer with its columns"
            )
        ids = len(counts) if isinstance(counts, torch.Tensor) and counts.ndim else 0
        loaded = [(self._counts, _from_tensor("counts", counts, ids, self._counts))]
        for name, rows in self._columns.items():
            loaded.append((rows, _from_tensor(f"columns.{name}", columns[name], ids, rows)))
        if ids and (fewest := loaded[0][1].min()) < 0:
            raise CelrecError(f"state.counts has {fewest}, but counts are 0 or more; it is damaged")
        before = self._num_ids
        self._know(ids)
        for rows, values in loaded:
            rows.first(ids)[:] = values
            rows.first(before)[ids:] = 0
        self._num_ids = ids

    def _know(self, ids: int) -> None:
        if ids <= self._num_ids:
            return
        capacity = len(self._counts.flat)
        if ids > capacity:
            capacity = max(ids, capacity * 9 // 8)
        with _allocating(ids):
            for rows in (*self._columns.values(), self._counts):  # the largest first
                rows.grow(capacity)
        self._num_ids = ids


def _size(argument: str, value: int) -> int:
    if not isinstance(value, int | np.integer) or value < 0:
        raise CelrecError(f"{argument} must be an integer, 0 or more, got {value!r}")
    return int(value)


def _layout(name: str, declared: DTypeLike) -> tuple[np.dtype[Any], tuple[int, ...]]:
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
    return np.ascontiguousarray(whole_numbers("ids", _as_array("ids", ids)))


def _as_words(name: str, values: ArrayLike, events: int, rows: GrowingRows) -> NDArray[Any]:
    """The values of a column as unsigned words, one event after the other."""
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
        raise CelrecError(
            f"{argument}: not an array ({error}); pass an array of numbers"
        ) from error


def _from_tensor(key: str, value: Any, ids: int, rows: GrowingRows) -> NDArray[Any]:
    expected = torch.from_numpy(np.empty(0, rows.dtype)).dtype, (ids, *rows.shape)
    if not isinstance(value, torch.Tensor):
        raise CelrecError(f"state.{key} is a {type(value).__name__}; pass a state_dict")
    if (value.dtype, tuple(value.shape)) != expected:
        raise CelrecError(
            f"state.{key} is {value.dtype} of shape {tuple(value.shape)} where {expected[0]} of "
            f"shape {expected[1]} is expected; create a buffer with its columns"
        )
    return np.asarray(value.detach().cpu())


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(str, names)) or "none"


@contextmanager
def _allocating(ids: int) -> Iterator[None]:
    try:
        yield
    except CelrecError:  # a file could not grow
        raise
    except _TOO_LARGE as error:
        raise CelrecError(
            f"ids: not enough memory for {ids:,} of them ({first_line(error)}); number ids "
            "densely, or pass a `budget` with a folder on a disk with enough space"
        ) from error
