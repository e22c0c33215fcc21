"""How much the first principal component of a cluster's gradients stands out."""

from __future__ import annotations

import torch
from torch import Tensor

from celrec.errors import CelrecError


def eigenvalue_ratio(gradients: Tensor, *, normalise: bool = True) -> float:
    """λ₁/λ₂, the largest eigenvalue of GᵀG over the second largest, in double precision.

    The rows of G are the gradients of a cluster's members. With `normalise` their
    mean is subtracted first, as GPCA does by default; without it, G is taken as it is,
    for gradients that were normalised in another way, or not at all.

    A second eigenvalue that is 0 up to rounding, or missing for want of a second
    dimension, gives infinity: the first component is all there is. If there is not even
    that one, since all rows are equal (0 without `normalise`), the ratio is NaN.

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
        matrix = matrix - matrix[0]  # so that equal rows become exactly 0
        matrix = matrix - matrix.mean(0)
    # Squared singular values are the eigenvalues, and keep twice as many digits of the small ones.
    first, second = (*torch.linalg.svdvals(matrix).tolist(), 0.0)[:2]
    if not first:
        return torch.nan
    if second <= first * max(matrix.shape) * torch.finfo(matrix.dtype).eps:
        return torch.inf
    return float((first / second) ** 2)
