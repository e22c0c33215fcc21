"""The loops over the arrays of the replay buffer.

Event number `n` of an id, from 0, lies in slot `id * width + n % width`; so an
id's count alone tells which slots are filled and where the oldest event is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import compiled


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
