"""Machine-code backends for streams: linked lists of members, and splits of many clusters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import Doubles, Flags, Floats, Ints, compiled

Links = NDArray[np.int32]
Assignment = NDArray[np.signedinteger[Any]]


class Lists(NamedTuple):
    """The linked lists of the members of all clusters."""

    sizes: Ints
    """The number of members of each cluster."""
    events: Ints
    """The number of events of its members."""
    head: Links
    """The first member of each cluster, −1 if it is empty."""
    after: Links
    """The next member after each member, −1 after the last."""
    previous: Links
    """The member before each member; −1 − cluster before the first."""


@compiled
def approach(mean: Floats, vectors: Floats, share: float) -> None:
    """Move an exponential moving average of vectors towards the mean of some, by `share`."""
    for d in range(len(mean)):
        total = 0.0
        for event in range(len(vectors)):
            total += vectors[event, d]
        mean[d] += share * (total / len(vectors) - mean[d])


@compiled
def look_up(ids: Ints, assignment: Assignment, weight: Floats) -> tuple[Ints, Floats]:
    """The clusters of ids and their rows; the last entry of `assignment` is for unseen ids."""
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
    """The unique ids in ascending order, how often each occurs, and its count before."""
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
def _put_first(member: np.int64, cluster: np.int64, lists: Lists) -> None:
    """Insert a member at the head of its cluster's list."""
    first = lists.head[cluster]
    lists.after[member], lists.previous[member] = first, -1 - cluster
    if first >= 0:
        lists.previous[first] = member
    lists.head[cluster] = member


@compiled
def enlist(ids: Ints, counts: Ints, assignment: Assignment, lists: Lists) -> tuple[Ints, Ints]:
    """Count the events of ids, and insert those that are new at the heads of their lists.

    Returns the unique ids, and those whose counts have reached 1, 2, 4, 8 … events.
    """
    different, times, before = tally(ids, counts)
    doubled = np.zeros(len(different), np.bool_)
    for number in range(len(different)):
        member = different[number]
        # True if the sum has more binary digits.
        doubled[number] = (before[number] + times[number]) ^ before[number] > before[number]
        cluster = np.int64(assignment[member])
        lists.events[cluster] += times[number]
        if before[number]:
            continue
        lists.sizes[cluster] += 1
        _put_first(member, cluster, lists)
    return different, different[doubled]


@compiled
def move(
    ids: Ints, goals: Ints, counts: Ints, assignment: Assignment, lists: Lists, least: int
) -> int:
    """Move ids to the clusters `goals`, one after the other; the number that moved.

    A cluster with `least` members loses none.
    """
    moved = 0
    sizes, events, head, after, previous = lists
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
        _put_first(member, goal, lists)
        assignment[member] = goal
        sizes[own] -= 1
        sizes[goal] += 1
        events[own] -= counts[member]
        events[goal] += counts[member]
        moved += 1
    return moved


@compiled
def crowded_clusters(ids: Ints, assignment: Assignment, lists: Lists, most: float) -> Ints:
    """The clusters of ids with several members and more than `most` events, descending."""
    found, here = np.empty_like(ids), 0
    for number in range(len(ids)):
        cluster = np.int64(assignment[ids[number]])
        if lists.events[cluster] > most and lists.sizes[cluster] > 1:
            found[here] = cluster
            here += 1
    if here < 2:
        return found[:here]
    found = np.unique(found[:here])
    return found[np.argsort(-lists.events[found], kind="mergesort")]


@compiled
def list_members(clusters: Ints, lists: Lists) -> tuple[Ints, Ints]:
    """The members of clusters, one cluster after the other, and the offset of each cluster."""
    ends = np.zeros(len(clusters) + 1, np.int64)
    for place in range(len(clusters)):
        ends[place + 1] = ends[place] + lists.sizes[clusters[place]]
    members = np.empty(ends[-1], np.int64)
    for place in range(len(clusters)):
        member = lists.head[clusters[place]]
        for number in range(ends[place], ends[place + 1]):
            members[number] = member
            member = lists.after[member]
    return members, ends


@compiled
def relink(clusters: Ints, numbers: Ints, counts: Ints, old: Lists, lists: Lists) -> None:
    """Copy the lists of `clusters`, which become 0, 1, …, with new numbers for their members.

    `numbers` has the new number of each id, below 0 for ids that are dropped; `counts` has the
    events by old ids. The lists that are written are empty before.
    """
    sizes, events, head, after, previous = lists
    for cluster in range(len(clusters)):
        last = -1 - cluster
        member = old.head[clusters[cluster]]
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
            member = old.after[member]


@compiled
def first_component_compiled(rows: Doubles) -> Doubles:
    """`split_scores.first_component`: the top eigenvector of GᵀG, its largest entry positive.

    GᵀG is squared until its rank is 1 up to rounding. 0 where all rows are 0.
    """
    dim = rows.shape[1]
    matrix, product = np.zeros((dim, dim)), np.empty((dim, dim))
    for row in range(len(rows)):
        for i in range(dim):
            for j in range(dim):
                matrix[i, j] += rows[row, i] * rows[row, j]
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
def _leaving(gradients: Doubles, events: Ints) -> Flags:
    """`Splitter(threshold="balanced").leaving`: centred gradients, GPCA, a balanced threshold."""
    size, dim = gradients.shape
    centred = np.empty((size, dim))
    for d in range(dim):
        mean = 0.0
        for row in range(size):
            centred[row, d] = gradients[row, d] - gradients[0, d]
            mean += centred[row, d]
        for row in range(size):
            centred[row, d] -= mean / size
    direction = first_component_compiled(centred)
    scores = np.zeros(size)
    for row in range(size):
        for d in range(dim):
            scores[row] += centred[row, d] * direction[d]
    order = np.argsort(scores, kind="mergesort")
    total = events.sum()
    below, least, staying = 0, total + 1, 0
    for place in range(size - 1):
        below += events[order[place]]
        uneven = abs(2 * below - total)
        if uneven < least:
            least, staying = uneven, place + 1
    leaving = np.zeros(size, np.bool_)
    leaving[order[staying:]] = True
    return leaving


@compiled
def split_crowded_compiled(
    clusters: Ints, ends: Ints, gradients: Doubles, events: Ints, limit: float, fresh: Ints
) -> tuple[Ints, Ints]:
    """`crowded.split_crowded` in machine code: the same arguments, the same clusters."""
    assignment = np.empty(len(events), np.int64)
    count = len(clusters)
    names, parents = np.concatenate((clusters, fresh)), np.empty_like(fresh)
    first, last = np.empty_like(names), np.empty_like(names)
    totals = np.zeros_like(names)
    members = np.arange(len(events))
    first[:count], last[:count] = ends[:-1], ends[1:]
    for group in range(count):
        totals[group] = events[first[group] : last[group]].sum()
    while count < len(names):
        chosen = -1
        for group in range(count):
            if not totals[group] > limit or last[group] - first[group] < 2:
                continue
            ahead = chosen < 0 or totals[group] > totals[chosen]
            if ahead or (totals[group] == totals[chosen] and names[group] < names[chosen]):
                chosen = group
        if chosen < 0:
            break
        own = members[first[chosen] : last[chosen]].copy()
        leaving = _leaving(gradients[own], events[own])
        staying = own[~leaving]
        middle = first[chosen] + len(staying)
        members[first[chosen] : middle] = staying
        members[middle : last[chosen]] = own[leaving]
        first[count], last[count] = middle, last[chosen]
        last[chosen] = middle
        totals[count] = events[own[leaving]].sum()
        totals[chosen] -= totals[count]
        parents[count - len(clusters)] = names[chosen]
        count += 1
    for group in range(count):
        for place in range(first[group], last[group]):
            assignment[members[place]] = names[group]
    return assignment, parents[: count - len(clusters)]
