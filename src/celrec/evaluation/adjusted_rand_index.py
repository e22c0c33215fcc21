"""How far two clusterings agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.errors import CelrecError


def adjusted_rand_index(first: ArrayLike, second: ArrayLike) -> float:
    """The agreement of two labelings of the same things, whatever the labels are called.

    Of all t = n·(n − 1)/2 pairs of things, a are together in the first labeling, b
    in the second and c in both (Hubert and Arabie, 1985):

        ARI = (c − a·b/t) / ((a + b)/2 − a·b/t)

    It is 1 for equal partitions, those with one cluster alone or with none but
    singletons included, and 0 in expectation for independent ones. Pairs are
    counted exactly, at any n.

    >>> adjusted_rand_index([0, 0, 1, 1], [7, 7, 3, 3])
    1.0
    >>> adjusted_rand_index([0, 0, 1, 1], [0, 1, 0, 1])
    -0.5
    """
    one, other = _codes("first", first), _codes("second", second)
    if len(one) != len(other) or not len(one):
        raise CelrecError(
            f"first and second must label the same things, at least one, "
            f"not {len(one):,} and {len(other):,}"
        )
    together_first, together_second = _pairs(one), _pairs(other)
    together_in_both = _pairs(one * (other.max() + 1) + other)
    total = len(one) * (len(one) - 1) // 2
    # Numerator and denominator times 2t are integers; those of Python do not overflow.
    by_chance = together_first * together_second
    above_chance = 2 * (total * together_in_both - by_chance)
    at_most = total * (together_first + together_second) - 2 * by_chance
    return above_chance / at_most if at_most else 1.0  # 0 only where both partitions are trivial


def _codes(name: str, labels: ArrayLike) -> NDArray[np.int64]:
    """The labels, numbered from 0 without gaps: pairs of them can be numbered in 64 bits then."""
    values = np.asarray(labels)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise CelrecError(
            f"{name} must be a list of integers, not {values.dtype} of shape {values.shape}"
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _pairs(labels: NDArray[np.int64]) -> int:
    """How many pairs have the same label."""
    sizes = np.unique(labels, return_counts=True)[1].astype(np.int64)
    return int((sizes * (sizes - 1) // 2).sum())
