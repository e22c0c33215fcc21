"""Splits of clusters: one cluster in two, and crowded clusters until none is too large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.criteria import THRESHOLDS, at_median
from celrec.cel.member_kernels import split_crowded_compiled
from celrec.cel.split_scores import NORMALISATIONS, SPLIT_METHODS, Members
from celrec.errors import CelrecError, DivergedError


def choose_cluster(priority: Tensor, sizes: Tensor) -> int | None:
    """The cluster with the highest priority among those of several members, the first of equals.

    None if no cluster can be split.

    >>> choose_cluster(torch.tensor([5.0, 9.0, 7.0]), torch.tensor([2, 1, 3]))
    2
    """
    cluster = int(priority.double().masked_fill(sizes < 2, -torch.inf).argmax())
    return cluster if int(sizes[cluster]) > 1 else None


@dataclass(frozen=True, slots=True)
class Splitter:
    """How the members of a cluster are divided: normalisation, scores, and a threshold.

    A threshold that would leave one side empty, as with gradients that are all equal,
    is replaced by the median.

    >>> pull = torch.tensor([[1.0], [2.0], [9.0]])
    >>> Splitter().leaving(Members(pull, torch.ones(3)), torch.Generator())
    tensor([False, False,  True])
    """

    method: str = "gpca"
    normalisation: str = "centre"
    threshold: str = "zero"

    def __post_init__(self) -> None:
        choices = (("method", SPLIT_METHODS), ("normalisation", NORMALISATIONS))
        for name, known in (*choices, ("threshold", THRESHOLDS)):
            if getattr(self, name) not in known:
                raise CelrecError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )

    @property
    def needs_partners(self) -> bool:
        """Whether the method uses the vectors of the partners of the members."""
        return self.method == "user-2-means"

    def leaving(self, members: Members, generator: torch.Generator) -> Tensor:
        """A mask of the members that leave; at least one leaves and one stays.

        A collective operation where several ranks have some of the members each.
        """
        partition = members.partition
        count = partition.total_size(members.gradients)
        if count < 2:
            raise CelrecError("a cluster of one member cannot be split")
        if partition.all_reduce(float((~members.gradients.isfinite()).sum())):
            raise DivergedError(
                "gradients must be finite; lower the learning rate if training diverged"
            )
        normalised = NORMALISATIONS[self.normalisation](members.gradients.double(), partition)
        scores = SPLIT_METHODS[self.method](replace(members, gradients=normalised), generator)
        leaving = THRESHOLDS[self.threshold](scores, members.interactions, partition)
        if partition.all_reduce(float(leaving.sum())) in (0, count):
            leaving = at_median(scores, members.interactions, partition)
        return leaving


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
