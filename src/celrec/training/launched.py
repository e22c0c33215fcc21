"""Processes that torchrun started together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from celrec.clustering.ranks import Ranks
from celrec.errors import CelrecError

_THREADS_END = 0.2  # seconds


@contextmanager
def launched() -> Iterator[Ranks]:
    """The processes of `torchrun -m celrec …`, which have met; this alone without torchrun.

    >>> with launched() as ranks:
    ...     ranks.size
    1
    """
    if _world_size() == 1 or distributed.is_initialized():
        yield Ranks.here()
        return
    store, rank, size = next(rendezvous("env://"))
    # Processes that were started again would find the addresses of those before them in it.
    store = PrefixStore(f"start {_restarts()}", store)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield Ranks.here()
    finally:
        distributed.destroy_process_group()
        # Its threads end a moment later, and a process that ends before them is aborted.
        time.sleep(_THREADS_END)


def check_one_process(command: str) -> None:
    """Complain if torchrun has started several processes for a command that is for one."""
    if (size := _world_size()) > 1:
        raise CelrecError(
            f"torchrun --nproc-per-node (WORLD_SIZE={size}): {command} runs in one process for "
            "now; start it without torchrun"
        )


def restarted() -> bool:
    """Whether torchrun has started the processes again after one of them had ended."""
    return _restarts() > 0


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
