"""Processes started by torchrun: how they meet, and what they know of their start."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from celrec.errors import CelrecError
from celrec.runtime.communicator import Communicator, default_communicator

_SHUTDOWN = 0.2  # seconds


@contextmanager
def launched() -> Iterator[Communicator]:
    """Join the process group of `torchrun -m celrec …`; without torchrun, stay alone.

    >>> with launched() as communicator:
    ...     communicator.size
    1
    """
    if _world_size() == 1 or distributed.is_initialized():
        yield default_communicator()
        return
    store, rank, size = next(rendezvous("env://"))
    # Restarted processes would find the addresses of their predecessors in the same store.
    store = PrefixStore(f"start {_restarts()}", store)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield default_communicator()
    finally:
        distributed.destroy_process_group()
        # Its threads end a moment later; a process that ends before them is aborted.
        time.sleep(_SHUTDOWN)


def check_one_process(command: str) -> None:
    """Raise an error if torchrun started several processes for a command that needs one."""
    if (size := _world_size()) > 1:
        raise CelrecError(
            f"torchrun --nproc-per-node (WORLD_SIZE={size}): {command} runs in one process for "
            "now; start it without torchrun"
        )


def restarted() -> bool:
    """Whether torchrun restarted the processes after a failure."""
    return _restarts() > 0


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
