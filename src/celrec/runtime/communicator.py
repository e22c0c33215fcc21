"""Processes that train one model together, and which part of the work is whose."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from celrec.errors import CelrecError

_SMALL = 1 << 17  # values that all processes send to one
_T = TypeVar("_T", float, Tensor)


class Communicator:
    """A process among those of a `torch.distributed` group; without a group, it is alone.

    All processes have to ask for the same sums in the same order. What comes of them is the same
    to the last bit on each.

    >>> communicator = Communicator.alone()
    >>> communicator.rank, communicator.size, communicator.total(torch.tensor([1.0, 2.0]))
    (0, 1, tensor([1., 2.]))
    >>> communicator.cuts(np.array([5, 1, 1, 1]))
    array([0, 4])
    """

    def __init__(self, rank: int, size: int, group: distributed.ProcessGroup | None = None) -> None:
        """See `here` and `alone`."""
        self.rank, self.size, self._group = rank, size, group

    @classmethod
    def alone(cls) -> Communicator:
        """No others."""
        return cls(0, 1)

    @classmethod
    def here(cls, group: distributed.ProcessGroup | None = None) -> Communicator:
        """All processes of a group, the default one if None; none but this if there is none."""
        if not distributed.is_available() or not distributed.is_initialized():
            return cls.alone()
        return cls(distributed.get_rank(group), distributed.get_world_size(group), group)

    @property
    def first(self) -> bool:
        """Whether it is this process that speaks for all."""
        return self.rank == 0

    def total(self, value: _T) -> _T:
        """The sum over all processes."""
        if self.size == 1:
            return value
        if isinstance(value, Tensor):
            if value.numel() * self.size <= _SMALL:
                return self._small_total(value)
            summed = value.detach().clone(memory_format=torch.contiguous_format)
            distributed.all_reduce(summed, group=self._group)
            return summed
        number = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(number, group=self._group)
        return float(number)

    def _small_total(self, value: Tensor) -> Tensor:
        """By one message to each, where latency is what takes time; summed in the same order."""
        mine = value.detach().reshape(-1).repeat(self.size)
        found = torch.empty_like(mine)
        distributed.all_to_all_single(found, mine, group=self._group)
        return found.view(self.size, *value.shape).sum(0, dtype=value.dtype)

    def totals(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """The sums of several tensors of one kind, by one message."""
        if self.size == 1 or not parts:
            return parts
        flat = self.total(torch.cat([part.reshape(-1) for part in parts]))
        sums = torch.split(flat, [part.numel() for part in parts])
        return [total.view_as(part) for total, part in zip(sums, parts, strict=True)]

    def gathered(self, values: Tensor) -> list[Tensor]:
        """What all processes have, by their ranks: of any length, but one kind and width."""
        if self.size == 1:
            return [values]
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(values)
        distributed.all_reduce(lengths, group=self._group)
        longest = int(lengths.max())
        mine = values.new_zeros(longest, *values.shape[1:])
        mine[: len(values)] = values
        found = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(found, mine, group=self._group)
        return [part[: int(length)] for part, length in zip(found, lengths, strict=True)]

    def cuts(self, counts: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where each process's share of ids begins, and their number: with as many counts each.

        The ids of a process are next to each other.
        """
        reached = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        goals = reached[-1] * np.arange(1, self.size) / self.size
        inner = np.searchsorted(reached, goals)
        return np.concatenate([[0], inner, [len(counts)]]).astype(np.int64)

    def check_equal(self, what: str, tensors: Iterable[Tensor]) -> None:
        """Complain if tensors that should be the same everywhere are not, by their hashes."""
        if self.size == 1:
            return
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors:
            # Bits, so that nothing that cannot be compared is in the way.
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        mine = torch.tensor([int.from_bytes(digest.digest(), "little", signed=True)])
        others = torch.cat(self.gathered(mine))
        if bool((others != others[0]).any()):
            apart = [n for n, other in enumerate(others.tolist()) if other != int(others[0])]
            raise CelrecError(
                f"{what} of rank {apart[0]} is not that of rank 0; give all ranks the same data, "
                "settings and versions"
            )


class Partition:
    """Which members, or samples, of some that several processes have are this one's.

    Those of a process are next to each other. Where it is alone, all of them are its own.

    >>> share = Partition.even(Communicator(1, 3), 7)
    >>> share.mine, share.count
    (slice(2, 4, None), 7)
    >>> Partition.whole(7).mine
    slice(0, 7, None)
    """

    def __init__(self, communicator: Communicator, cuts: NDArray[np.int64]) -> None:
        """`cuts` has the first member of each rank, and the number of all in its last place."""
        self.communicator, self.count = communicator, int(cuts[-1])
        self.mine = slice(int(cuts[communicator.rank]), int(cuts[communicator.rank + 1]))

    @classmethod
    def whole(cls, count: int) -> Partition:
        """Nobody else has any."""
        return cls.even(Communicator.alone(), count)

    @classmethod
    def even(cls, communicator: Communicator, count: int) -> Partition:
        """As many for each as can be."""
        return cls(communicator, count * np.arange(communicator.size + 1) // communicator.size)

    def total(self, value: _T) -> _T:
        """The sum of what all processes have."""
        return self.communicator.total(value)

    def joined(self, values: Tensor) -> Tensor:
        """What all processes have of their members, in the order of the members."""
        return (
            values if self.communicator.size == 1 else torch.cat(self.communicator.gathered(values))
        )


_THREADS_END = 0.2  # seconds


@contextmanager
def launched() -> Iterator[Communicator]:
    """The processes of `torchrun -m celrec …`, which have met; this alone without torchrun.

    >>> with launched() as communicator:
    ...     communicator.size
    1
    """
    if _world_size() == 1 or distributed.is_initialized():
        yield Communicator.here()
        return
    store, rank, size = next(rendezvous("env://"))
    # Processes that were started again would find the addresses of those before them in it.
    store = PrefixStore(f"start {_restarts()}", store)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield Communicator.here()
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


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], communicator: Communicator) -> None:
    """Let each parameter have the sum of the gradients that all processes have, by one message.

    No gradient counts as 0. A parameter for which nobody has one stays without, so that an
    optimiser leaves it alone.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> weight.sum().backward()
    >>> sum_gradients([weight], Communicator.alone())
    >>> weight.grad
    tensor([1., 1.])
    """
    if communicator.size == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    given = [parameter.grad is not None for parameter in trained]
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    counts, *sums = communicator.totals([torch.tensor(given).to(slopes[0]), *slopes])
    for parameter, count, total in zip(trained, counts.tolist(), sums, strict=True):
        parameter.grad = total if count else None
