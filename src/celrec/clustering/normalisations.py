"""What is done to the gradients of a cluster's members before they are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from celrec.clustering.share import Share


def as_they_are(gradients: Tensor, share: Share | None = None) -> Tensor:
    """Nothing."""
    del share
    return gradients


def centred(gradients: Tensor, share: Share | None = None) -> Tensor:
    """Each column less its mean, so that a threshold of 0 is the mean score."""
    share = share or Share.whole(len(gradients))
    # From the first member's, so that a constant column becomes exactly 0.
    shifted = gradients - share.joined(gradients[:1])[0]
    return shifted - _mean(shifted, share)


def standardised(gradients: Tensor, share: Share | None = None) -> Tensor:
    """Each column with mean 0 and variance 1; a constant column becomes 0."""
    share = share or Share.whole(len(gradients))
    shifted = centred(gradients, share)
    spread = _mean(shifted.square(), share).sqrt()
    return shifted.div(spread.where(spread > 0, 1.0))


def unit_rows(gradients: Tensor, share: Share | None = None) -> Tensor:
    """Each member's gradient with length 1, so that popular members weigh no more than others."""
    del share
    length = gradients.square().sum(1, keepdim=True).sqrt()
    return gradients.div(length.where(length > 0, 1.0))


Normalisation: TypeAlias = Callable[[Tensor, Share | None], Tensor]
"""From the gradients of a process's members to others in their place."""

NORMALISATIONS: dict[str, Normalisation] = {
    "none": as_they_are,
    "centre": centred,
    "z-score": standardised,
    "unit-rows": unit_rows,
}


def _mean(values: Tensor, share: Share) -> Tensor:
    """Of all members."""
    return share.total(values.sum(0)) / share.count
