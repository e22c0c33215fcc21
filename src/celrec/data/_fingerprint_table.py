"""An open-addressing hash table from 128-bit fingerprints to consecutive numbers.

The probing loop is compiled: torch, numpy and polars can only look up many keys
by sorting or by building a new table at each call, which a stream of small
batches cannot afford.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.data.compiled import compiled

_MAX_LOAD = 0.7
_LOW, _HIGH, _NUMBER = 0, 1, 2  # columns of a slot; a number of 0 marks an empty slot


@compiled
def _insert(
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    slots: NDArray[np.uint64],
    count: int,
    numbers: NDArray[np.int32],
    first_rows: NDArray[np.int64],
) -> int:
    mask = np.uint64(len(slots) - 1)
    one = np.uint64(1)
    start = count
    for row in range(len(low)):
        place = low[row] & mask
        while True:
            number = slots[place, _NUMBER]
            if number == 0:
                slots[place, _LOW] = low[row]
                slots[place, _HIGH] = high[row]
                slots[place, _NUMBER] = np.uint64(count + 1)
                numbers[row] = count
                first_rows[count - start] = row
                count += 1
                break
            if slots[place, _LOW] == low[row] and slots[place, _HIGH] == high[row]:
                numbers[row] = np.int64(number) - 1
                break
            place = (place + one) & mask
    return count


@compiled
def _find(
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    slots: NDArray[np.uint64],
    numbers: NDArray[np.int32],
) -> None:
    mask = np.uint64(len(slots) - 1)
    one = np.uint64(1)
    for row in range(len(low)):
        place = low[row] & mask
        while True:
            number = np.int64(slots[place, _NUMBER])
            if number == 0 or (slots[place, _LOW] == low[row] and slots[place, _HIGH] == high[row]):
                numbers[row] = number - 1
                break
            place = (place + one) & mask


@compiled
def _move(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    mask = np.uint64(len(new) - 1)
    one = np.uint64(1)
    for row in range(len(old)):
        if old[row, _NUMBER] != 0:
            place = old[row, _LOW] & mask
            while new[place, _NUMBER] != 0:
                place = (place + one) & mask
            new[place] = old[row]


class FingerprintTable:
    """Numbers distinct (low, high) pairs 0, 1, 2 … in the order of their first insertion.

    Holds 24 bytes a slot and keeps at most 70 % of the slots full. The low word
    must be well mixed: it chooses the slot.

    >>> table = FingerprintTable()
    >>> low, high = np.array([7, 9, 7], np.uint64), np.array([0, 0, 0], np.uint64)
    >>> table.insert(low, high)
    (array([0, 1, 0], dtype=int32), array([0, 1]))
    >>> table.find(np.array([9, 8], np.uint64), np.zeros(2, np.uint64))
    array([ 1, -1], dtype=int32)
    """

    def __init__(self) -> None:
        self._slots = np.zeros((64, 3), np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes that the slots occupy."""
        return self._slots.nbytes

    def insert(
        self, low: NDArray[np.uint64], high: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The number of every pair, and the rows at which new pairs occurred first."""
        self._reserve(len(low))
        numbers = np.empty(len(low), np.int32)
        first_rows = np.empty(len(low), np.int64)
        before = self._count
        self._count = _insert(low, high, self._slots, before, numbers, first_rows)
        return numbers, first_rows[: self._count - before].copy()

    def find(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of every pair, -1 for pairs never inserted."""
        numbers = np.empty(len(low), np.int32)
        _find(low, high, self._slots, numbers)
        return numbers

    def _reserve(self, extra: int) -> None:
        capacity = len(self._slots)
        while self._count + extra > _MAX_LOAD * capacity:
            capacity *= 2
        if capacity > len(self._slots):
            slots = np.zeros((capacity, 3), np.uint64)
            _move(self._slots, slots)
            self._slots = slots
