"""Splitting the crowded clusters of a stream, several at a time.

A stream splits many small clusters between two batches. `split_crowded` says how, in terms of
`Splitter`; `BACKENDS` has a compiled implementation too, which gives the same clusters in a
fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.cel.member_kernels import split_crowded_compiled
from celrec.cel.split import Splitter, choose_cluster
from celrec.cel.split_scores import Members

Ints: TypeAlias = NDArray[np.int64]
Doubles: TypeAlias = NDArray[np.float64]
CrowdedSplit: TypeAlias = Callable[[Ints, Ints, Doubles, Ints, float, Ints], tuple[Ints, Ints]]


def split_crowded(
    clusters: Ints, ends: Ints, gradients: Doubles, events: Ints, limit: float, fresh: Ints
) -> tuple[Ints, Ints]:
    """Split clusters until none of several members has more than `limit` events.

    The cluster with most events is split first, the one of the lowest number among equals, by
    GPCA with a balanced threshold, as long as there is a `fresh` number for a new cluster.
    The members of clusters[k] are at ends[k] … ends[k + 1] of `gradients` and `events`. Gives the
    cluster of each member, and the parent of each new cluster.

    >>> gradients, events = np.array([[1.0], [3.0], [5.0], [2.0]]), np.array([2, 1, 3, 9])
    >>> split_crowded(np.array([4, 7]), np.array([0, 3, 4]), gradients, events, 5.0, np.array([8]))
    (array([4, 4, 8, 7]), array([4]))
    """
    splitter, generator = Splitter(threshold="balanced"), torch.Generator()
    members = {
        int(name): np.arange(*span) for name, span in zip(clusters, pairwise(ends), strict=True)
    }
    parents: list[int] = []
    for new in fresh.tolist():
        names = sorted(members)
        totals = torch.tensor([int(events[members[name]].sum()) for name in names])
        sizes = torch.tensor([len(members[name]) for name in names])
        chosen = choose_cluster(totals, sizes.where(totals > limit, 0))
        if chosen is None:
            break
        parent = names[chosen]
        own = members[parent]
        known = Members(torch.from_numpy(gradients[own]), torch.from_numpy(events[own]))
        leaving = splitter.leaving(known, generator).numpy()
        members[parent], members[new] = own[~leaving], own[leaving]
        parents.append(parent)
    assignment = np.empty(len(events), np.int64)
    for name, own in members.items():
        assignment[own] = name
    return assignment, np.array(parents, np.int64)


BACKENDS: dict[str, CrowdedSplit] = {"torch": split_crowded, "compiled": split_crowded_compiled}
"""Implementations that give the same clusters."""
