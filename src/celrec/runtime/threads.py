"""How PyTorch and the processor work on small steps: one thread, no denormal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let tensor operations have one thread inside the block, or the function it decorates.

    Where each of them takes microseconds, threads wait for each other longer than they work; and
    those of NumPy and PyTorch, which both wait by trying again and again, keep each other from
    working. CEL-Lite with NMF took 19 times as long with two threads, on two idle cores.

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
