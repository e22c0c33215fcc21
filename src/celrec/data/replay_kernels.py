"""Compiled loops over the arrays of the replay buffer.

Event number n of an id, from 0, is in slot id · width + n mod width. So the count of an id
determines which slots are filled and where its oldest event is.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from celrec.runtime.jit import Ints, compiled


@compiled
def bounds(ids: Ints) -> tuple[int, int]:
    """The lowest and the highest id; 0 and -1 without ids."""
    lowest, highest = 0, -1
    for row in range(len(ids)):
        lowest, highest = min(lowest, ids[row]), max(highest, ids[row])
    return lowest, highest


@compiled
def place(counts: Ints, ids: Ints, width: int, slots: Ints) -> None:
    """Count the events of `ids`, which must be below len(counts), and find their slots."""
    for row in range(len(ids)):
        owner = ids[row]
        if width > 0:
            slots[row] = owner * width + counts[owner] % width
        counts[owner] += 1


@compiled
def count_kept(counts: Ints, ids: Ints, width: int, kept: Ints) -> int:
    """The number of stored events of each id, and their total."""
    total = 0
    for row in range(len(ids)):
        known = 0 <= ids[row] < len(counts)  # other ids have no events
        kept[row] = min(counts[ids[row]], width) if known else 0
        total += kept[row]
    return total


@compiled
def find(counts: Ints, ids: Ints, width: int, kept: Ints, owners: Ints, slots: Ints) -> None:
    """The row in `ids` and the slot of every stored event, oldest first within each row."""
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
def write(ring: NDArray[Any], slots: Ints, values: NDArray[Any], length: int) -> None:
    """Write the values of events, `length` words each, to their slots; the last write wins."""
    if length == 1:
        for event in range(len(slots)):
            ring[slots[event]] = values[event]
    else:
        for event in range(len(slots)):
            for word in range(length):
                ring[slots[event] * length + word] = values[event * length + word]


@compiled
def read(ring: NDArray[Any], slots: Ints, values: NDArray[Any], length: int) -> None:
    """Read the values of events, `length` words each, from their slots."""
    if length == 1:
        for event in range(len(slots)):
            values[event] = ring[slots[event]]
    else:
        for event in range(len(slots)):
            for word in range(length):
                values[event * length + word] = ring[slots[event] * length + word]


@compiled
def renumber(values: NDArray[Any], place: int, length: int, numbers: Ints) -> None:
    """Replace v ≥ 0 by numbers[v], at `place` in each run of `length`."""
    for at in range(place, len(values), length):
        if values[at] >= 0:
            values[at] = numbers[values[at]]
