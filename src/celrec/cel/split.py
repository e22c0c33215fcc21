"""Splitting a cluster: which one, and which of its members leave it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from celrec.cel.split_scores import NORMALISATIONS, SPLIT_METHODS, Members
from celrec.cel.thresholds import THRESHOLDS, at_median
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
