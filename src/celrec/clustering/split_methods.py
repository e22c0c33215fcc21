"""Ways to score the members of a cluster, so that a threshold on the scores splits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from celrec.clustering.share import Share

_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Members:
    """What is known of the members of a cluster that is to be split, a row each."""

    gradients: Tensor
    """g_j = −∂L/∂B(j) at the shared row: where each member would like the row to go."""
    interactions: Tensor
    """How many interactions each has."""
    partners: Tensor | None = None
    """The mean vector of those that each interacted with, for methods that look at it."""
    share: Share | None = None
    """Which of all members these are, if other processes have others."""

    @property
    def among(self) -> Share:
        """Which of all members these are."""
        return self.share or Share.whole(len(self.interactions))


SplitMethod: TypeAlias = Callable[[Members, torch.Generator], Tensor]


def gpca(members: Members, generator: torch.Generator) -> Tensor:
    """Gradient principal component analysis: g_jᵀp, p the top eigenvector of GᵀG.

    The sign of p is fixed by its largest entry being positive. Of the members of several
    processes, GᵀG is all that they tell each other.

    >>> gradients = torch.tensor([[2.0, 0.1], [1.0, 0.0], [-3.0, -0.1]])
    >>> gpca(Members(gradients, torch.ones(3)), torch.Generator()) > 0
    tensor([ True,  True, False])
    """
    del generator  # nothing about it is random
    gradients = members.gradients.double()
    moments = members.among.total(gradients.T @ gradients)
    direction = torch.linalg.eigh(moments).eigenvectors[:, -1]
    direction = direction * direction[direction.abs().argmax()].sign()
    return gradients.mv(direction)


def random_split(members: Members, generator: torch.Generator) -> Tensor:
    """Scores from N(0, 1), whoever the members are."""
    share = members.among
    return _normal((share.count,), members.gradients, generator)[share.mine]


def gradient_random_projection(members: Members, generator: torch.Generator) -> Tensor:
    """g_jᵀp for a random direction p."""
    direction = _normal((members.gradients.shape[1],), members.gradients, generator)
    return members.gradients.double().mv(direction / direction.norm())


def gradient_two_means(members: Members, generator: torch.Generator) -> Tensor:
    """Bisecting 2-means on the gradients: how much nearer the second centre is than the first.

    Several processes tell each other all gradients.
    """
    return _two_means(members.gradients.double(), members.among, generator)


def user_inspired_two_means(members: Members, generator: torch.Generator) -> Tensor:
    """Bisecting 2-means on the mean vectors of those the members interacted with.

    Several processes tell each other all of these.
    """
    if members.partners is None:
        raise ValueError("user-inspired splits need the partners of the members")
    return _two_means(members.partners.double(), members.among, generator)


SPLIT_METHODS: dict[str, SplitMethod] = {
    "gpca": gpca,
    "random": random_split,
    "gradient-2-means": gradient_two_means,
    "user-2-means": user_inspired_two_means,
    "random-projection": gradient_random_projection,
}


def _two_means(own: Tensor, share: Share, generator: torch.Generator) -> Tensor:
    """Lloyd's algorithm from two members, the second drawn far from the first (k-means++)."""
    points = share.joined(own)
    points = points - points.mean(0)  # far from the origin, distances would be inexact
    first = int(torch.randint(len(points), (1,), generator=generator))
    reach = (points - points[first]).square().sum(1).cpu().cumsum(0)
    if not float(reach[-1]):
        return torch.zeros_like(own[:, 0])
    drawn = torch.rand(1, generator=generator, dtype=reach.dtype) * reach[-1]
    second = int(torch.searchsorted(reach, drawn, right=True))
    centres = points[[first, second]]
    side = None
    for _ in range(_ROUNDS):
        nearer = torch.cdist(points, centres).argmin(1)
        if side is not None and bool((nearer == side).all()):
            break
        side = nearer
        centres = torch.stack([points[side == 0].mean(0), points[side == 1].mean(0)])
    distances = torch.cdist(points[share.mine], centres)
    return distances[:, 0] - distances[:, 1]


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.device)
