"""Loops over the members of clusters in machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import compiled

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Links = NDArray[np.int32]
Assignment = NDArray[np.signedinteger[Any]]


@compiled
def approach(mean: Floats, vectors: Floats, share: float) -> None:
    """Bring `mean` nearer to that of some vectors."""
    for d in range(len(mean)):
        total = 0.0
        for event in range(len(vectors)):
            total += vectors[event, d]
        mean[d] += share * (total / len(vectors) - mean[d])


@compiled
def look_up(ids: Ints, assignment: Assignment, weight: Floats) -> tuple[Ints, Floats]:
    """The clusters of ids and their rows; the last place of `assignment` is for unseen ids."""
    rows, vectors = np.empty_like(ids), np.empty((len(ids), weight.shape[1]), np.float32)
    unseen = len(assignment) - 1
    for event in range(len(ids)):
        one = ids[event]
        row = np.int64(assignment[one if 0 <= one < unseen else unseen])
        rows[event] = row
        for d in range(weight.shape[1]):
            vectors[event, d] = weight[row, d]
    return rows, vectors


@compiled
def tally(ids: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """The different ids in ascending order, how often each occurs, and how often it did before."""
    ordered = np.sort(ids)
    different, times, before = np.empty_like(ids), np.empty_like(ids), np.empty_like(ids)
    found = 0
    for place in range(len(ids)):
        one = ordered[place]
        if place == 0 or one != ordered[place - 1]:
            different[found], times[found] = one, 0
            before[found] = counts[one] if one < len(counts) else 0
            found += 1
        times[found - 1] += 1
    return different[:found], times[:found], before[:found]


@compiled
def _put_first(
    member: np.int64, cluster: np.int64, head: Links, after: Links, previous: Links
) -> None:
    """Put a member at the head of the list of a cluster."""
    first = head[cluster]
    after[member], previous[member] = first, -1 - cluster
    if first >= 0:
        previous[first] = member
    head[cluster] = member


@compiled
def enlist(
    ids: Ints,
    counts: Ints,
    assignment: Assignment,
    sizes: Ints,
    events: Ints,
    head: Links,
    after: Links,
    previous: Links,
) -> tuple[Ints, Ints]:
    """Count the events of ids, and put those that had none before at the heads of their lists.

    Gives the different ids, and those that have come to 1, 2, 4, 8 … events.
    """
    different, times, before = tally(ids, counts)
    doubled = np.zeros(len(different), np.bool_)
    for number in range(len(different)):
        member = different[number]
        # Only a binary digit more makes that number the larger one.
        doubled[number] = (before[number] + times[number]) ^ before[number] > before[number]
        cluster = np.int64(assignment[member])
        events[cluster] += times[number]
        if before[number]:
            continue
        sizes[cluster] += 1
        _put_first(member, cluster, head, after, previous)
    return different, different[doubled]


@compiled
def move(
    ids: Ints,
    goals: Ints,
    counts: Ints,
    assignment: Assignment,
    sizes: Ints,
    events: Ints,
    head: Links,
    after: Links,
    previous: Links,
    least: int,
) -> int:
    """Move ids to other clusters, which must keep `least` members; how many moved."""
    moved = 0
    for number in range(len(ids)):
        member, goal = ids[number], goals[number]
        own = assignment[member]
        if own == goal or sizes[own] <= least:
            continue
        last, following = previous[member], after[member]
        if last < 0:
            head[own] = following
        else:
            after[last] = following
        if following >= 0:
            previous[following] = last
        _put_first(member, goal, head, after, previous)
        assignment[member] = goal
        sizes[own] -= 1
        sizes[goal] += 1
        events[own] -= counts[member]
        events[goal] += counts[member]
        moved += 1
    return moved


@compiled
def crowded_clusters(
    ids: Ints, assignment: Assignment, sizes: Ints, events: Ints, most: float
) -> Ints:
    """Those clusters of ids that have several members with more than `most` events.

    Those with most events come first.
    """
    found, here = np.empty_like(ids), 0
    for number in range(len(ids)):
        cluster = np.int64(assignment[ids[number]])
        if events[cluster] > most and sizes[cluster] > 1:
            found[here] = cluster
            here += 1
    if here < 2:
        return found[:here]
    found = np.unique(found[:here])
    return found[np.argsort(-events[found], kind="mergesort")]


@compiled
def list_members(clusters: Ints, sizes: Ints, head: Links, after: Links) -> tuple[Ints, Ints]:
    """The members of clusters, one cluster after the other, and where each ends, after a 0."""
    ends = np.zeros(len(clusters) + 1, np.int64)
    for place in range(len(clusters)):
        ends[place + 1] = ends[place] + sizes[clusters[place]]
    members = np.empty(ends[-1], np.int64)
    for place in range(len(clusters)):
        member = head[clusters[place]]
        for number in range(ends[place], ends[place + 1]):
            members[number] = member
            member = after[member]
    return members, ends


@compiled
def relink(
    clusters: Ints,
    numbers: Ints,
    counts: Ints,
    old_head: Links,
    old_after: Links,
    sizes: Ints,
    events: Ints,
    head: Links,
    after: Links,
    previous: Links,
) -> None:
    """The lists of some clusters, in their order, of those members who have a new number.

    `numbers` are those, below 0 for all others, and `counts` events, by the old numbers. The first
    of the `clusters` becomes cluster 0. What is given behind is empty.
    """
    for cluster in range(len(clusters)):
        last = -1 - cluster
        member = old_head[clusters[cluster]]
        while member >= 0:
            number = numbers[member]
            if number >= 0:
                if last < 0:
                    head[cluster] = number
                else:
                    after[last] = number
                previous[number] = last
                last = number
                sizes[cluster] += 1
                events[cluster] += counts[member]
            member = old_after[member]


@compiled
def _first_component(values: Doubles) -> Doubles:
    """The first principal direction of centred rows, its largest entry being positive.

    The matrix of their products is squared until there is one direction left in it.
    """
    dim = values.shape[1]
    matrix, product = np.zeros((dim, dim)), np.empty((dim, dim))
    for row in range(len(values)):
        for i in range(dim):
            for j in range(dim):
                matrix[i, j] += values[row, i] * values[row, j]
    trace = 0.0
    for i in range(dim):
        trace += matrix[i, i]
    if trace == 0:
        return np.zeros(dim)
    matrix /= trace
    for _ in range(64):
        trace = 0.0
        for i in range(dim):
            for j in range(dim):
                product[i, j] = 0
            for k in range(dim):
                for j in range(dim):
                    product[i, j] += matrix[i, k] * matrix[k, j]
            trace += product[i, i]
        for i in range(dim):
            for j in range(dim):
                matrix[i, j] = product[i, j] / trace
        if trace > 1 - 1e-14:  # with a trace of 1, that of the square is 1 where the rank is
            break
    largest = 0
    for i in range(dim):
        if matrix[i, i] > matrix[largest, largest]:
            largest = i
    direction: Doubles = matrix[largest] / np.sqrt(matrix[largest, largest])
    return direction


@compiled
def _leaving(pulls: Doubles, counts: Ints) -> NDArray[np.bool_]:
    """Who leaves a cluster: `Splitter(threshold="balanced")`, in a fraction of the time."""
    size, dim = pulls.shape
    centred = np.empty((size, dim))
    for d in range(dim):
        mean = 0.0
        for row in range(size):
            centred[row, d] = pulls[row, d] - pulls[0, d]
            mean += centred[row, d]
        for row in range(size):
            centred[row, d] -= mean / size
    direction = _first_component(centred)
    scores = np.zeros(size)
    for row in range(size):
        for d in range(dim):
            scores[row] += centred[row, d] * direction[d]
    order = np.argsort(scores, kind="mergesort")
    total = counts.sum()
    below, least, staying = 0, total + 1, 0
    for place in range(size - 1):
        below += counts[order[place]]
        uneven = abs(2 * below - total)
        if uneven < least:
            least, staying = uneven, place + 1
    leaving = np.zeros(size, np.bool_)
    leaving[order[staying:]] = True
    return leaving


@compiled
def cut_clusters(
    clusters: Ints, ends: Ints, pulls: Doubles, counts: Ints, most: float, fresh: Ints
) -> tuple[Ints, Ints]:
    """Cut clusters in two until none of several members has more than `most` events.

    Those with most events first, as long as there is a `fresh` number for a new one. Members are
    given one cluster after the other, which `ends` are between: how each would like its row to
    change, and how many events it has. Gives the cluster of each member, and of every new
    cluster the one that it was cut from.
    """
    whose = np.empty(len(counts), np.int64)
    there = len(clusters)
    names, parents = np.concatenate((clusters, fresh)), np.empty_like(fresh)
    first, last = np.empty_like(names), np.empty_like(names)
    events = np.zeros_like(names)
    members = np.arange(len(counts))
    first[:there], last[:there] = ends[:-1], ends[1:]
    for group in range(there):
        events[group] = counts[first[group] : last[group]].sum()
    while there < len(names):
        most_crowded = -1
        for group in range(there):
            if not events[group] > most or last[group] - first[group] < 2:
                continue
            ahead = most_crowded < 0 or events[group] > events[most_crowded]
            if ahead or (
                events[group] == events[most_crowded] and names[group] < names[most_crowded]
            ):
                most_crowded = group
        if most_crowded < 0:
            break
        some = members[first[most_crowded] : last[most_crowded]].copy()
        leaving = _leaving(pulls[some], counts[some])
        staying = some[~leaving]
        middle = first[most_crowded] + len(staying)
        members[first[most_crowded] : middle] = staying
        members[middle : last[most_crowded]] = some[leaving]
        first[there], last[there] = middle, last[most_crowded]
        last[most_crowded] = middle
        events[there] = counts[some[leaving]].sum()
        events[most_crowded] -= events[there]
        parents[there - len(clusters)] = names[most_crowded]
        there += 1
    for group in range(there):
        for place in range(first[group], last[group]):
            whose[members[place]] = names[group]
    return whose, parents[: there - len(clusters)]
