"""Numbers too small to be computed with quickly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Take numbers below 1e-38 for zero inside the block, and only there.

    Rows that are pushed towards zero, as those of a non-negative factorisation are,
    pass through such numbers, which slow products down several times.
    """
    already = float(np.float32(1e-40) * np.float32(1)) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(already)
