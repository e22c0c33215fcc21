"""Deciding which members leave a cluster that is split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from celrec.clustering.normalisations import NORMALISATIONS
from celrec.clustering.split_methods import SPLIT_METHODS, Members
from celrec.clustering.thresholds import THRESHOLDS, at_median
from celrec.errors import CelrecError, DivergedError


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
