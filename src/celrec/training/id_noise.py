"""Random numbers for ids, whenever they come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # ids at once: what is worked on stays in the cache


def id_noise(
    first: int, last: int, width: int, seed: int
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """`width` values from N(0, 1) for each id from `first` up to `last`, in parts.

    Each part is the places, counted from `first`, and their values. They depend on the number
    of an id and the seed alone: not on who came together with it.

    >>> [(part, noise.shape) for part, noise in id_noise(250, 260, 2, seed=0)]
    [(slice(0, 6, None), (6, 2)), (slice(6, 10, None), (4, 2))]
    """
    for block in range(first // _BLOCK, -(-last // _BLOCK)):
        begin, end = max(first, block * _BLOCK), min(last, (block + 1) * _BLOCK)
        rng = np.random.default_rng([seed, block])
        noise = rng.standard_normal((end - block * _BLOCK, width), np.float32)
        yield slice(begin - first, end - first), noise[begin - block * _BLOCK :]
