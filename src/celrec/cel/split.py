"""Splitting a cluster: scores of its members, and a threshold on the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from celrec.errors import CelrecError, DivergedError
from celrec.runtime.communicator import Partition


def as_they_are(gradients: Tensor, share: Partition | None = None) -> Tensor:
    """Nothing."""
    del share
    return gradients


def centred(gradients: Tensor, share: Partition | None = None) -> Tensor:
    """Each column less its mean, so that a threshold of 0 is the mean score."""
    share = share or Partition.whole(len(gradients))
    # From the first member's, so that a constant column becomes exactly 0.
    shifted = gradients - share.joined(gradients[:1])[0]
    return shifted - _mean(shifted, share)


def standardised(gradients: Tensor, share: Partition | None = None) -> Tensor:
    """Each column with mean 0 and variance 1; a constant column becomes 0."""
    share = share or Partition.whole(len(gradients))
    shifted = centred(gradients, share)
    spread = _mean(shifted.square(), share).sqrt()
    return shifted.div(spread.where(spread > 0, 1.0))


def unit_rows(gradients: Tensor, share: Partition | None = None) -> Tensor:
    """Each member's gradient with length 1, so that popular members weigh no more than others."""
    del share
    length = gradients.square().sum(1, keepdim=True).sqrt()
    return gradients.div(length.where(length > 0, 1.0))


Normalisation: TypeAlias = Callable[[Tensor, Partition | None], Tensor]
"""From the gradients of a process's members to others in their place."""

NORMALISATIONS: dict[str, Normalisation] = {
    "none": as_they_are,
    "centre": centred,
    "z-score": standardised,
    "unit-rows": unit_rows,
}


def _mean(values: Tensor, share: Partition) -> Tensor:
    """Of all members."""
    return share.total(values.sum(0)) / share.count


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
    share: Partition | None = None
    """Which of all members these are, if other processes have others."""

    @property
    def among(self) -> Partition:
        """Which of all members these are."""
        return self.share or Partition.whole(len(self.interactions))


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


def _two_means(own: Tensor, share: Partition, generator: torch.Generator) -> Tensor:
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


_BITS = 8  # of a number at a time


def nth_smallest(values: Tensor, n: int, share: Partition) -> float:
    """The n-th smallest, from 0 on, of the finite doubles of all processes, exactly.

    Floats are ordered as their bits are, so that eight histograms of 256 numbers, each of the
    next eight bits where those before are right, come to one number: what is sent does not
    depend on how many values there are.

    >>> nth_smallest(torch.tensor([0.5, -3.0, 2.0], dtype=torch.float64), 1, Partition.whole(3))
    0.5
    """
    bits = (values + 0.0).view(torch.int64)  # of which -0.0 has others than 0.0
    keys = torch.where(bits < 0, bits ^ 0x7FFF_FFFF_FFFF_FFFF, bits)
    found, wanted = 0, n
    for shift in range(64 - _BITS, -1, -_BITS):
        digits = keys >> shift
        lowest = found << _BITS if shift < 64 - _BITS else -(1 << (_BITS - 1))
        inside = digits[(digits >= lowest) & (digits < lowest + (1 << _BITS))] - lowest
        counts = share.total(torch.bincount(inside, minlength=1 << _BITS))
        reached = counts.cumsum(0)
        digit = int(torch.searchsorted(reached, wanted, right=True))
        wanted -= int(reached[digit] - counts[digit])
        found = lowest + digit
    back = found ^ 0x7FFF_FFFF_FFFF_FFFF if found < 0 else found
    return float(torch.tensor(back, dtype=torch.int64).view(torch.float64))


def at_zero(scores: Tensor, interactions: Tensor, share: Partition | None = None) -> Tensor:
    """δ = 0: those with a score of 0 or more leave."""
    del interactions, share
    return scores >= 0


def at_median(scores: Tensor, interactions: Tensor, share: Partition | None = None) -> Tensor:
    """δ = the median: the upper half leaves, ties cut in the order of the members.

    Several processes tell each other histograms of their scores.
    """
    del interactions
    if share is None or share.communicator.size == 1:
        upper = scores.argsort(stable=True)[len(scores) // 2 :]
        return torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, upper, True)
    staying = share.count // 2
    median = nth_smallest(scores.double(), staying, share)
    level = scores == median
    tied = share.joined(level.sum().view(1))
    below = int(share.total((scores < median).sum()))
    earlier = int(tied[: share.communicator.rank].sum())  # that are level, of the members before
    return (scores > median) | (level & (level.cumsum(0) > staying - below - earlier))


def balanced(scores: Tensor, interactions: Tensor, share: Partition | None = None) -> Tensor:
    """δ such that both sides have as equal numbers of interactions as a cut allows.

    Several processes tell each other all scores.

    >>> balanced(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 1, 5]))
    tensor([False, False,  True])
    """
    share = share or Partition.whole(len(scores))
    scores, interactions = share.joined(scores), share.joined(interactions)
    order = scores.argsort(stable=True)
    below = interactions[order].cumsum(0)[:-1]
    staying = int((2 * below - interactions.sum()).abs().argmin()) + 1
    leaving = torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, order[staying:], True)
    return leaving[share.mine]


Threshold: TypeAlias = Callable[[Tensor, Tensor, Partition | None], Tensor]
"""From scores and interactions of a process's members to a mask of those that leave."""

THRESHOLDS: dict[str, Threshold] = {
    "zero": at_zero,
    "median": at_median,
    "balanced": balanced,
}


@dataclass(frozen=True, slots=True)
class Splitter:
    """A split method, what it does to the gradients first, and where it cuts.

    A cut that would leave one side empty, as with gradients that are all equal,
    is replaced by one at the median.

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
        """Whether the method looks at those the members interacted with."""
        return self.method == "user-2-means"

    def leaving(self, members: Members, generator: torch.Generator) -> Tensor:
        """A mask of the members that leave; at least one leaves and one stays.

        Where several processes have some of the members each, they have to ask together.
        """
        share = members.among
        if share.count < 2:
            raise CelrecError("a cluster of one member cannot be split")
        if share.total(float((~members.gradients.isfinite()).sum())):
            raise DivergedError(
                "gradients must be finite; lower the learning rate if training diverged"
            )
        normalised = NORMALISATIONS[self.normalisation](members.gradients.double(), share)
        scores = SPLIT_METHODS[self.method](replace(members, gradients=normalised), generator)
        leaving = THRESHOLDS[self.threshold](scores, members.interactions, share)
        if share.total(float(leaving.sum())) in (0, share.count):
            leaving = at_median(scores, members.interactions, share)
        return leaving
