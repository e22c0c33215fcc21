"""Splits of clusters: scores of members, one cluster in two, crowded clusters repeatedly."""

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
from celrec.embeddings.kmeans import draw_start, lloyd
from celrec.errors import CelrecError, DivergedError
from celrec.runtime.communicator import WHOLE, Partition


def identity(gradients: Tensor, partition: Partition = WHOLE) -> Tensor:
    """The gradients as they are."""
    del partition
    return gradients


def centred(gradients: Tensor, partition: Partition = WHOLE) -> Tensor:
    """Each column less its mean, so that a threshold of 0 is the mean score."""
    # From the first member's, so that a constant column becomes exactly 0.
    shifted = gradients - partition.all_gather(gradients[:1])[0]
    return shifted - _mean(shifted, partition)


def standardised(gradients: Tensor, partition: Partition = WHOLE) -> Tensor:
    """Each column with mean 0 and variance 1; a constant column becomes 0."""
    shifted = centred(gradients, partition)
    deviation = _mean(shifted.square(), partition).sqrt()
    return shifted.div(deviation.where(deviation > 0, 1.0))


def unit_rows(gradients: Tensor, partition: Partition = WHOLE) -> Tensor:
    """Each member's gradient with length 1, so that popular members weigh no more than others."""
    del partition
    length = gradients.square().sum(1, keepdim=True).sqrt()
    return gradients.div(length.where(length > 0, 1.0))


Normalisation: TypeAlias = Callable[[Tensor, Partition], Tensor]
"""From the gradients of this rank's members to normalised ones."""

NORMALISATIONS: dict[str, Normalisation] = {
    "none": identity,
    "centre": centred,
    "z-score": standardised,
    "unit-rows": unit_rows,
}


def _mean(values: Tensor, partition: Partition) -> Tensor:
    return partition.all_reduce(values.sum(0)) / partition.total_size(values)


@dataclass(frozen=True, slots=True)
class Members:
    """What is known of the members of a cluster that is to be split, a row each."""

    gradients: Tensor
    """g_j = −∂L/∂B(j) at the shared row: the direction that lowers the loss of member j."""
    interactions: Tensor
    """The number of interactions of each."""
    partners: Tensor | None = None
    """The mean vector of the users (or items) that each interacted with, if a method needs it."""
    partition: Partition = WHOLE
    """Which of all members these are, if other ranks have the others."""


SplitMethod: TypeAlias = Callable[[Members, torch.Generator], Tensor]
"""From members to a score each."""


def first_component(rows: Tensor, partition: Partition = WHOLE) -> Tensor:
    """The top eigenvector of GᵀG in double precision, its largest entry being positive.

    The rows of G are not centred here. Of the rows of several ranks, only GᵀG is communicated.

    >>> first_component(torch.tensor([[0.0, -3.0], [1.0, 0.0]]))
    tensor([0., 1.], dtype=torch.float64)
    """
    rows = rows.double()
    moments = partition.all_reduce(rows.T @ rows)
    direction: Tensor = torch.linalg.eigh(moments).eigenvectors[:, -1]
    return direction * direction[direction.abs().argmax()].sign()


def eigenvalue_ratio(gradients: Tensor, *, normalise: bool = True) -> float:
    """λ₁/λ₂, the largest eigenvalue of GᵀG over the second largest, in double precision.

    The rows of G are the gradients of a cluster's members; with `normalise` their mean is
    subtracted, as GPCA does by default. The ratio is infinite if the second eigenvalue is missing
    or 0 up to rounding, and NaN if the first is 0 too.

    >>> eigenvalue_ratio(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    9.0
    """
    if gradients.ndim != 2 or not gradients.numel():
        raise CelrecError(
            f"gradients must be members × dim, at least one of each, "
            f"not of shape {tuple(gradients.shape)}"
        )
    matrix = gradients.detach().double()
    if not bool(matrix.isfinite().all()):
        raise CelrecError("gradients must be finite, not infinite or NaN: lower the learning rate")
    if normalise:
        matrix = centred(matrix)
    # Squared singular values are the eigenvalues, and keep twice as many digits of the small ones.
    first, second = (*torch.linalg.svdvals(matrix).tolist(), 0.0)[:2]
    if not first:
        return torch.nan
    if second <= first * max(matrix.shape) * torch.finfo(matrix.dtype).eps:
        return torch.inf
    return float((first / second) ** 2)


def gpca(members: Members, generator: torch.Generator) -> Tensor:
    """Gradient principal component analysis: g_jᵀp, p the first principal component.

    >>> gradients = torch.tensor([[2.0, 0.1], [1.0, 0.0], [-3.0, -0.1]])
    >>> gpca(Members(gradients, torch.ones(3)), torch.Generator()) > 0
    tensor([ True,  True, False])
    """
    del generator  # nothing about it is random
    gradients = members.gradients.double()
    return gradients.mv(first_component(gradients, members.partition))


def random_split(members: Members, generator: torch.Generator) -> Tensor:
    """Scores from N(0, 1), whatever the gradients are."""
    partition = members.partition
    count = partition.total_size(members.gradients)
    return _normal((count,), members.gradients, generator)[partition.mine]


def gradient_random_projection(members: Members, generator: torch.Generator) -> Tensor:
    """g_jᵀp for a random direction p."""
    direction = _normal((members.gradients.shape[1],), members.gradients, generator)
    return members.gradients.double().mv(direction / direction.norm())


def gradient_two_means(members: Members, generator: torch.Generator) -> Tensor:
    """Bisecting 2-means on the gradients: how much nearer the second centroid is than the first.

    Ranks exchange all gradients.
    """
    return _two_means(members.gradients.double(), members.partition, generator)


def user_inspired_two_means(members: Members, generator: torch.Generator) -> Tensor:
    """Bisecting 2-means on the mean vectors of the users that the members interacted with.

    Ranks exchange all of these vectors.
    """
    if members.partners is None:
        raise ValueError("user-inspired splits need the partners of the members")
    return _two_means(members.partners.double(), members.partition, generator)


SPLIT_METHODS: dict[str, SplitMethod] = {
    "gpca": gpca,
    "random": random_split,
    "gradient-2-means": gradient_two_means,
    "user-2-means": user_inspired_two_means,
    "random-projection": gradient_random_projection,
}


def _two_means(own: Tensor, partition: Partition, generator: torch.Generator) -> Tensor:
    """Distance to the first of two centroids less that to the second, after Lloyd's algorithm."""
    points = partition.all_gather(own)
    first = int(torch.randint(len(points), (1,), generator=generator))
    if bool((points == points[0]).all()):
        return torch.zeros_like(own[:, 0])
    points = points - points.mean(0)  # far from the origin, distances would be inexact
    draws = torch.rand(1, generator=generator, dtype=torch.float64)
    centroids = lloyd(points, draw_start(points, first, draws))
    distances = torch.cdist(points[partition.mine], centroids)
    return distances[:, 0] - distances[:, 1]


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.device)


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
