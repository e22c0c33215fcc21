"""What is done to the gradients of a cluster's members before they are looked at."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def as_they_are(gradients: Tensor) -> Tensor:
    """Nothing."""
    return gradients


def centred(gradients: Tensor) -> Tensor:
    """Each column less its mean, so that a threshold of 0 is the mean score."""
    shifted = gradients - gradients[0]  # so that a constant column becomes exactly 0
    return shifted - shifted.mean(0)


def standardised(gradients: Tensor) -> Tensor:
    """Each column with mean 0 and variance 1; a constant column becomes 0."""
    shifted = centred(gradients)
    spread = shifted.square().mean(0).sqrt()
    return shifted.div(spread.where(spread > 0, 1.0))


def unit_rows(gradients: Tensor) -> Tensor:
    """Each member's gradient with length 1, so that popular members weigh no more than others."""
    length = gradients.square().sum(1, keepdim=True).sqrt()
    return gradients.div(length.where(length > 0, 1.0))


NORMALISATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": as_they_are,
    "centre": centred,
    "z-score": standardised,
    "unit-rows": unit_rows,
}
