"""Context managers for the number of PyTorch threads and for denormal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run tensor operations on one thread inside the block, or in the decorated function.

    Operations of a few microseconds spend longer on synchronisation than on work. The thread
    pools of NumPy and PyTorch also spin while they wait and slow each other down: CEL-Lite with
    NMF took 19 times as long on two threads as on one, on two idle cores.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal numbers (below about 1e-38) to zero inside the block.

    Rows of a non-negative factorisation shrink towards zero and pass through denormals,
    which make products several times slower.
    """
    already = float(np.float32(1e-40) * np.float32(1)) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(already)
