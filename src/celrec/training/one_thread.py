"""Steps too small to be shared out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
