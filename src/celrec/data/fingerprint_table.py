"""An open-addressing hash table from 96-bit fingerprints to consecutive numbers.

The probing loops are compiled. torch, numpy and polars look up many keys by sorting or by
building a new table at each call, which is too slow for a stream of small batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import Ints, ShortInts, Words, compiled
from celrec.runtime.memory_budget import GrowingRows, MemoryBudget

_MAX_LOAD = 0.7
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HIGH_HALF = np.uint64(0xFFFFFFFF00000000)
# A slot has two words. The first is the low word of the fingerprint. The second has the high half
# of the fingerprint's high word, and number + 1 in its low half, which is 0 in an empty slot.


@compiled
def _place(low: np.uint64, shift: np.uint64) -> np.uint64:
    """The first slot to probe, by Fibonacci hashing, which also spreads runs of integers."""
    return np.uint64((low * _GOLDEN) >> shift)


@compiled
def _insert(
    low: Words,
    high: Words,
    slots: Words,
    shift: np.uint64,
    count: int,
    numbers: ShortInts,
    first_rows: Ints,
) -> int:
    mask, one = np.uint64(len(slots) - 1), np.uint64(1)
    start = count
    for row in range(len(low)):
        own, tag = low[row], high[row] & _HIGH_HALF
        place = _place(own, shift)
        while True:
            second = slots[place, 1]
            number = second & _LOW_HALF
            if number == 0:
                slots[place, 0] = own
                slots[place, 1] = tag | np.uint64(count + 1)
                numbers[row] = count
                first_rows[count - start] = row
                count += 1
                break
            if slots[place, 0] == own and (second & _HIGH_HALF) == tag:
                numbers[row] = np.int64(number) - 1
                break
            place = (place + one) & mask
    return count


@compiled
def _find(low: Words, high: Words, slots: Words, shift: np.uint64, numbers: ShortInts) -> None:
    mask, one = np.uint64(len(slots) - 1), np.uint64(1)
    for row in range(len(low)):
        own, tag = low[row], high[row] & _HIGH_HALF
        place = _place(own, shift)
        while True:
            second = slots[place, 1]
            number = second & _LOW_HALF
            if number == 0 or (slots[place, 0] == own and (second & _HIGH_HALF) == tag):
                numbers[row] = np.int64(number) - 1
                break
            place = (place + one) & mask


@compiled
def _move(old: Words, new: Words, shift: np.uint64) -> None:
    mask, one = np.uint64(len(new) - 1), np.uint64(1)
    for row in range(len(old)):
        if old[row, 1] & _LOW_HALF != 0:
            place = _place(old[row, 0], shift)
            while new[place, 1] & _LOW_HALF != 0:
                place = (place + one) & mask
            new[place] = old[row]


class FingerprintTable:
    """Numbers distinct fingerprints 0, 1, 2 … in the order of their first insertion.

    A fingerprint is a low word and the upper half of a high word. A slot takes 16 bytes, and at
    most 70 % of the slots are used. With a `budget`, slots beyond it are in a file.

    >>> table = FingerprintTable()
    >>> low, high = np.array([7, 9, 7], np.uint64), np.array([0, 0, 0], np.uint64)
    >>> table.insert(low, high)
    (array([0, 1, 0], dtype=int32), array([0, 1]))
    >>> table.find(np.array([9, 8], np.uint64), np.zeros(2, np.uint64))
    array([ 1, -1], dtype=int32)
    """

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._budget, self._count = budget, 0
        self._begin(64)

    def _begin(self, slots: int) -> None:
        self._rows = GrowingRows(np.dtype(np.uint64), (2,), slots, self._budget)
        self._slots: NDArray[np.uint64] = self._rows.first(slots)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of the slots."""
        return self._slots.nbytes

    def copy(self) -> FingerprintTable:
        """An independent copy in memory."""
        other = FingerprintTable()
        other._begin(len(self._slots))
        other._slots[:], other._count = self._slots, self._count
        return other

    def insert(
        self, low: NDArray[np.uint64], high: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The number of every fingerprint, and the first rows of the new ones."""
        self._reserve(len(low))
        numbers = np.empty(len(low), np.int32)
        first_rows = np.empty(len(low), np.int64)
        before = self._count
        self._count = _insert(
            low, high, self._slots, _shift(self._slots), before, numbers, first_rows
        )
        return numbers, first_rows[: self._count - before].copy()

    def find(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of every fingerprint, -1 if it was never inserted."""
        numbers = np.empty(len(low), np.int32)
        _find(low, high, self._slots, _shift(self._slots), numbers)
        return numbers

    def _reserve(self, extra: int) -> None:
        capacity = len(self._slots)
        while self._count + extra > _MAX_LOAD * capacity:
            capacity *= 2
        if capacity > len(self._slots):
            before = self._slots
            self._begin(capacity)
            _move(before, self._slots, _shift(self._slots))


def _shift(slots: NDArray[np.uint64]) -> np.uint64:
    return np.uint64(65 - len(slots).bit_length())
