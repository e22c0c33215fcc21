"""The arrays of the replay buffer and the loops over them.

Event number `n` of an id, from 0, lies in slot `id * width + n % width`; so an
id's count alone tells which slots are filled and where the oldest event is.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celrec.data.compiled import compiled

_PART = 1 << 16  # rows at once, where some are moved


class GrowingRows:
    """Rows of numbers, all zero at first, to which more can be added: in memory or in a file.

    >>> rows = GrowingRows(np.dtype(np.float32), (2,), 1)
    >>> rows.grow(3)
    >>> rows.first(2)
    array([[0., 0.],
           [0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        rows: int,
        path: Path | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._size, self._path = math.prod(shape), path
        self._map: np.memmap[Any, Any] | None = None
        self.flat: NDArray[Any] = np.zeros(0 if path else rows * self._size, dtype)
        """All numbers in one row."""
        self.words = self._bits()
        """The same as unsigned words, so that loops are compiled for four dtypes only."""
        if path:
            path.unlink(missing_ok=True)  # a buffer that still has it mapped keeps its own
            path.touch()
            self.grow(rows)

    def first(self, rows: int) -> NDArray[Any]:
        """The first `rows` of them, as a view."""
        return self.flat[: rows * self._size].reshape(rows, *self.shape)

    def grow(self, rows: int) -> None:
        """Make room for at least `rows`; copies only in memory, if somebody holds a view."""
        length = rows * self._size
        if length <= len(self.flat):
            return
        del self.words  # this view too
        try:
            if self._path:  # opening a longer map extends the file by a hole of zeros
                self._map = np.memmap(self._path, self.dtype, "r+", shape=(length,))
                self.flat = np.asarray(self._map)
            else:
                self._resize(length)
        finally:
            self.words = self._bits()

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Let only these remain, which ascend, in their order; all other room is given back."""
        if self._path:
            held = self.flat
            self._path.unlink()  # who has the old file mapped keeps it
            self._path.touch()
            self._map, self.flat = None, np.zeros(0, self.dtype)
            self.words = self._bits()
            self.grow(len(rows))
            _gather(held, rows, self._size, self.flat)
            return
        _gather(self.flat, rows, self._size, self.flat)
        del self.words
        self._resize(len(rows) * self._size)
        self.words = self._bits()

    def flush(self) -> None:
        """Write to the file what is only in memory yet."""
        if self._map is not None:
            self._map.flush()

    def _resize(self, length: int) -> None:
        try:
            self.flat.resize(length)
        except ValueError:  # the memory of a view must not go away
            other, common = np.zeros(length, self.dtype), min(length, len(self.flat))
            other[:common] = self.flat[:common]
            self.flat = other

    def _bits(self) -> NDArray[Any]:
        return self.flat.view(f"u{self.dtype.itemsize}")


def _gather(flat: NDArray[Any], rows: NDArray[np.int64], size: int, kept: NDArray[Any]) -> None:
    """Put `rows` of `size` numbers at the front of `kept`, which may be `flat`: they ascend."""
    for start in range(0, len(rows) if size else 0, _PART):
        part = rows[start : start + _PART]
        goal = kept[start * size : (start + len(part)) * size]
        goal.reshape(-1, size)[:] = flat.reshape(-1, size)[part]


@compiled
def bounds(ids: NDArray[np.int64]) -> tuple[int, int]:
    """The lowest and the highest id; 0 and -1 if there is none."""
    lowest, highest = 0, -1
    for row in range(len(ids)):
        lowest, highest = min(lowest, ids[row]), max(highest, ids[row])
    return lowest, highest


@compiled
def place(
    counts: NDArray[np.int64], ids: NDArray[np.int64], width: int, slots: NDArray[np.int64]
) -> None:
    """Count the events of `ids`, which all have a place in `counts`, and find their slots."""
    for row in range(len(ids)):
        owner = ids[row]
        if width > 0:
            slots[row] = owner * width + counts[owner] % width
        counts[owner] += 1


@compiled
def count_kept(
    counts: NDArray[np.int64], ids: NDArray[np.int64], width: int, kept: NDArray[np.int64]
) -> int:
    """How many events of each id are kept, and how many that is in all."""
    total = 0
    for row in range(len(ids)):
        known = 0 <= ids[row] < len(counts)  # beyond, ids can have had no event
        kept[row] = min(counts[ids[row]], width) if known else 0
        total += kept[row]
    return total


@compiled
def find(
    counts: NDArray[np.int64],
    ids: NDArray[np.int64],
    width: int,
    kept: NDArray[np.int64],
    owners: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> None:
    """The row in `ids` and the slot of every kept event, oldest first within each row."""
    event = 0
    for row in range(len(ids)):
        if kept[row] == 0:
            continue
        start = ids[row] * width
        slot = start + (counts[ids[row]] - kept[row]) % width
        for _ in range(kept[row]):
            owners[event], slots[event] = row, slot
            event += 1
            slot += 1
            if slot == start + width:
                slot = start


@compiled
def write(ring: NDArray[Any], slots: NDArray[np.int64], values: NDArray[Any], length: int) -> None:
    """Put the events' values, `length` words each, into their slots; the last one stays."""
    if length == 1:
        for event in range(len(slots)):
            ring[slots[event]] = values[event]
    else:
        for event in range(len(slots)):
            for word in range(length):
                ring[slots[event] * length + word] = values[event * length + word]


@compiled
def read(ring: NDArray[Any], slots: NDArray[np.int64], values: NDArray[Any], length: int) -> None:
    """Take the events' values, `length` words each, out of their slots."""
    if length == 1:
        for event in range(len(slots)):
            values[event] = ring[slots[event]]
    else:
        for event in range(len(slots)):
            for word in range(length):
                values[event * length + word] = ring[slots[event] * length + word]


@compiled
def renumber(values: NDArray[Any], place: int, length: int, numbers: NDArray[np.int64]) -> None:
    """Put numbers[v] where v stands, at `place` in each run of `length`; negative ones stay."""
    for at in range(place, len(values), length):
        if values[at] >= 0:
            values[at] = numbers[values[at]]
