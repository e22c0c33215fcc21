"""Loops of online learning in machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from celrec.data.compiled import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Links = NDArray[np.int32]


@compiled
def sum_by_row(
    rows: Ints,
    values: Floats,
    place: NDArray[np.int32],
    touched: Ints,
    sums: Floats,
    counts: Floats,
) -> int:
    """Sums of `values` over equal `rows`; how many different rows there are.

    `place` is −1 for every row of the table, and is left so. The different rows are put in
    `touched`, in order of appearance, their sums and numbers in `sums` and `counts`.
    """
    different = 0
    for event in range(len(rows)):
        row = rows[event]
        at = place[row]
        if at < 0:
            at = different
            place[row] = at
            touched[at] = row
            sums[at] = 0
            counts[at] = 0
            different += 1
        counts[at] += 1
        for d in range(values.shape[1]):
            sums[at, d] += values[event, d]
    for at in range(different):
        place[touched[at]] = -1
    return different


@compiled
def descend_rows(
    weight: Floats,
    squares: Floats,
    rows: Ints,
    gradients: Floats,
    rate: float,
    pull: float,
    adaptive: bool,
    least: float,
) -> None:
    """One step of gradient descent or AdaGrad for some rows, all different."""
    for event in range(len(rows)):
        row = rows[event]
        for d in range(weight.shape[1]):
            gradient = gradients[event, d] + pull * weight[row, d]
            step = rate * gradient
            if adaptive:
                squares[row, d] += gradient * gradient
                step /= np.sqrt(squares[row, d])
            weight[row, d] = max(weight[row, d] - step, least)


@compiled
def weigh(evidence: NDArray[np.uint8], ids: Ints, scale: Floats, weights: Floats) -> None:
    """The weights that evidence gives: `scale` holds what each of the 256 values stands for."""
    for event in range(len(ids)):
        total = np.float32(0)
        for k in range(weights.shape[1]):
            weights[event, k] = scale[evidence[ids[event], k]]
            total += weights[event, k]
        share = np.float32(1) / total
        for k in range(weights.shape[1]):
            weights[event, k] *= share


@compiled
def _mixed(number: np.uint64) -> np.uint64:
    """64 bits that look random, for each number others (the finaliser of SplitMix64)."""
    number += np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@compiled
def hashed(ids: Ints, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each id, which looks random, the same for the same seed."""
    numbers = np.empty(len(ids))
    for place in range(len(ids)):
        bits = _mixed(np.uint64(ids[place]) ^ _mixed(np.uint64(seed)))
        numbers[place] = (bits >> np.uint64(11)) * 2.0**-53
    return numbers


@compiled
def _take_notice(row: NDArray[np.uint8], value: Floats, active: int, moment: np.uint64) -> None:
    """Keep `value`, how bad each row is, as evidence: above the least, rounded at random.

    All are rounded up by the same chance: so the mean of what is kept is what was added, and
    differences between rows are kept best.
    """
    least = np.float32(np.inf)
    for k in range(active):
        least = min(least, value[k])
    chance = np.float32(_mixed(moment) >> np.uint64(40)) * np.float32(2.0**-24)
    for k in range(active):
        row[k] = np.uint8(min(value[k] - least + chance, np.float32(254)))


@compiled
def add_evidence(
    evidence: NDArray[np.uint8], ids: Ints, losses: Floats, kept: Floats, steps: float, moment: int
) -> None:
    """Add what each event tells of its id: `steps` for a unit of loss, rounded at random.

    Of what was known before, the share `kept` remains. losses is (rows, events), for the first
    rows; others stay impossible. Event by event, so that an id may be repeated. `moment` is the
    number of the first event.
    """
    active = losses.shape[0]
    value = np.empty(active, np.float32)
    for event in range(len(ids)):
        row = evidence[ids[event]]
        for k in range(active):
            value[k] = kept[event] * row[k] + np.float32(steps) * losses[k, event]
        _take_notice(row, value, active, np.uint64(moment + event))


@compiled
def add_tangent_evidence(
    evidence: NDArray[np.uint8],
    ids: Ints,
    rows: Floats,
    outputs: Floats,
    slopes: Floats,
    vectors: Floats,
    targets: Floats,
    kept: Floats,
    steps: float,
    moment: int,
    softplus: Floats,
) -> None:
    """The same with losses of outputs that are linear in the vector, as a `Tangent` tells.

    rows is (dim, rows), so that the inner loops run over rows. The loss is a squared error, or
    cross-entropy if there is a table `softplus`, of log(1 + exp(−i/64)): what is lost by looking
    it up is far below a step of the evidence.
    """
    active = rows.shape[1]
    output, value = np.empty(active, np.float32), np.empty(active, np.float32)
    last = np.float32(len(softplus) - 1)
    for event in range(len(ids)):
        row, target = evidence[ids[event]], targets[event]
        constant = outputs[event]
        for d in range(rows.shape[0]):
            constant -= slopes[event, d] * vectors[event, d]
        for k in range(active):
            output[k] = constant
        for d in range(rows.shape[0]):
            slope = slopes[event, d]
            for k in range(active):
                output[k] += slope * rows[d, k]
        if len(softplus):
            for k in range(active):
                z = output[k]
                place = np.int64(min(np.float32(64) * abs(z) + np.float32(0.5), last))
                output[k] = max(z, np.float32(0)) + softplus[place] - target * z
        else:
            for k in range(active):
                output[k] = (output[k] - target) ** 2
        for k in range(active):
            value[k] = kept[event] * row[k] + np.float32(steps) * output[k]
        _take_notice(row, value, active, np.uint64(moment + event))


@compiled
def enlist(ids: Ints, clusters: Ints, head: Links, after: Links, before: Links) -> None:
    """Put ids at the heads of the lists of members of clusters."""
    for event in range(len(ids)):
        member, cluster = ids[event], clusters[event]
        first = head[cluster]
        after[member] = first
        before[member] = -1 - cluster
        if first >= 0:
            before[first] = member
        head[cluster] = member


@compiled
def move(
    ids: Ints,
    goals: Ints,
    counts: Ints,
    assignment: NDArray[np.signedinteger[Any]],
    sizes: Ints,
    events: Ints,
    head: Links,
    after: Links,
    before: Links,
    least: int,
) -> int:
    """Move ids to other clusters, which must keep `least` members; how many moved."""
    moved = 0
    for number in range(len(ids)):
        member, goal = ids[number], goals[number]
        own = assignment[member]
        if own == goal or sizes[own] <= least:
            continue
        last, following = before[member], after[member]
        if last < 0:
            head[own] = following
        else:
            after[last] = following
        if following >= 0:
            before[following] = last
        first = head[goal]
        after[member], before[member] = first, -1 - goal
        if first >= 0:
            before[first] = member
        head[goal] = member
        assignment[member] = goal
        sizes[own] -= 1
        sizes[goal] += 1
        events[own] -= counts[member]
        events[goal] += counts[member]
        moved += 1
    return moved


@compiled
def list_members(cluster: int, size: int, head: Links, after: Links) -> Ints:
    """The members of a cluster, of which there are `size`."""
    members = np.empty(size, np.int64)
    member = head[cluster]
    for number in range(size):
        members[number] = member
        member = after[member]
    return members


@compiled
def draw_candidates(own: Ints, clusters: int, count: int, moment: int) -> Ints:
    """(count + 1, ids): the own cluster, and `count` drawn at random, perhaps repeated."""
    drawn = np.empty((count + 1, len(own)), np.int64)
    for member in range(len(own)):
        drawn[0, member] = own[member]
        bits = _mixed(np.uint64(moment) ^ _mixed(np.uint64(member)))
        for number in range(1, count + 1):
            bits = _mixed(bits)
            drawn[number, member] = np.int64(bits % np.uint64(clusters))
    return drawn
