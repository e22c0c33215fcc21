"""The scores that a cluster is split by: one number for each member, from its gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from celrec.embeddings.kmeans import draw_start, lloyd
from celrec.errors import CelrecError
from celrec.runtime.partition import WHOLE, Partition


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

    The rows of G are the gradients of a cluster's members. With `normalise` their mean is
    subtracted first, as GPCA does by default; without it, G is taken as it is.

    A second eigenvalue that is 0 up to rounding, or missing where there is one dimension only,
    gives infinity. If the first is 0 too, since all rows are equal (0 without `normalise`), the
    ratio is NaN.

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
