"""Ranks that train one model together: collective operations, partitions of work, launch."""

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

_SMALL = 1 << 17  # values; up to here, all-to-all is faster than a ring
_T = TypeVar("_T", float, Tensor)


class Communicator:
    """One of `size` ranks, which train one model together; of this class, the only rank.

    Its methods are collective: every rank makes the same calls in the same order. Results are
    equal on all ranks to the last bit. For one rank each method is the identity.

    >>> LOCAL.rank, LOCAL.size, LOCAL.all_reduce(torch.tensor([1.0, 2.0]))
    (0, 1, tensor([1., 2.]))
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def all_reduce(self, value: _T) -> _T:
        """The sum over ranks."""
        return value

    def all_reduce_many(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """The sums of several tensors of one dtype, by one message."""
        return parts

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each parameter's gradient by the sum over ranks, by one message.

        A missing gradient counts as 0. Where it is missing on all ranks, it stays missing, so
        that an optimiser leaves the parameter alone.
        """

    def all_gather(self, values: Tensor) -> Tensor:
        """The rows of all ranks, in the order of the ranks; each may have any number of them."""
        return values

    def check_equal(self, what: str, tensors: Iterable[Tensor]) -> None:
        """Raise an error if tensors are not the same on all ranks; their hashes are compared."""


LOCAL = Communicator()
"""The communicator of a process that trains by itself."""


class ProcessGroupCommunicator(Communicator):
    """The ranks of a `torch.distributed` process group, by default of all processes."""

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        super().__init__(distributed.get_rank(group), distributed.get_world_size(group))
        self._group = group

    def all_reduce(self, value: _T) -> _T:
        """The sum over ranks; numbers are summed in double precision."""
        if isinstance(value, Tensor):
            if value.numel() * self.size <= _SMALL:
                return self._all_reduce_small(value)
            summed = value.detach().clone(memory_format=torch.contiguous_format)
            distributed.all_reduce(summed, group=self._group)
            return summed
        number = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(number, group=self._group)
        return float(number)

    def _all_reduce_small(self, value: Tensor) -> Tensor:
        """By one message to each rank, as latency dominates; summed in the order of the ranks."""
        mine = value.detach().reshape(-1).repeat(self.size)
        found = torch.empty_like(mine)
        distributed.all_to_all_single(found, mine, group=self._group)
        return found.view(self.size, *value.shape).sum(0, dtype=value.dtype)

    def all_reduce_many(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """The sums of several tensors, sent as one flat tensor."""
        if not parts:
            return parts
        flat = self.all_reduce(torch.cat([part.reshape(-1) for part in parts]))
        sums = torch.split(flat, [part.numel() for part in parts])
        return [total.view_as(part) for total, part in zip(sums, parts, strict=True)]

    @torch.no_grad()
    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """The sums of gradients, and of how many ranks have each."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if not trained:
            return
        present = [parameter.grad is not None for parameter in trained]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        counts, *sums = self.all_reduce_many([torch.tensor(present).to(gradients[0]), *gradients])
        for parameter, count, total in zip(trained, counts.tolist(), sums, strict=True):
            parameter.grad = total if count else None

    def all_gather(self, values: Tensor) -> Tensor:
        """The rows of all ranks; shorter ones are padded on the way."""
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(values)
        distributed.all_reduce(lengths, group=self._group)
        longest = int(lengths.max())
        mine = values.new_zeros(longest, *values.shape[1:])
        mine[: len(values)] = values
        found = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(found, mine, group=self._group)
        return torch.cat(
            [part[:length] for part, length in zip(found, lengths.tolist(), strict=True)]
        )

    def check_equal(self, what: str, tensors: Iterable[Tensor]) -> None:
        """Compare hashes of the tensors' bits, so that NaN equals NaN."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors:
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        mine = torch.tensor([int.from_bytes(digest.digest(), "little", signed=True)])
        first, *others = self.all_gather(mine).tolist()
        differing = [rank for rank, other in enumerate(others, 1) if other != first]
        if differing:
            raise CelrecError(
                f"{what} of rank {differing[0]} is not that of rank 0; give all ranks the same "
                "data, settings and versions"
            )


def default_communicator() -> Communicator:
    """All processes of the default process group; this one alone if there is no group."""
    if distributed.is_available() and distributed.is_initialized():
        return ProcessGroupCommunicator()
    return LOCAL


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


class Partition:
    """The ids, rows or samples of this rank: a contiguous range, `mine`, of those of all ranks.

    Ranges follow each other in the order of the ranks.
    """

    def __init__(self, mine: slice, communicator: Communicator) -> None:
        self.mine, self.communicator = mine, communicator

    @classmethod
    def even(cls, count: int, communicator: Communicator = LOCAL) -> Partition:
        """Equally many for each rank, up to one.

        >>> Partition.even(7).mine
        slice(0, 7, None)
        """
        return cls(_range(even_bounds(count, communicator.size), communicator), communicator)

    @classmethod
    def balanced(
        cls, weights: NDArray[np.integer], communicator: Communicator = LOCAL
    ) -> Partition:
        """Equal sums of weights for each rank, as far as contiguous ranges allow.

        >>> Partition.balanced(np.array([5, 1, 1, 1])).mine
        slice(0, 4, None)
        """
        bounds = balanced_bounds(weights, communicator.size)
        return cls(_range(bounds, communicator), communicator)

    @property
    def start(self) -> int:
        """The first place in the range."""
        return self.mine.start or 0

    def all_reduce(self, value: _T) -> _T:
        """The sum over ranks."""
        return self.communicator.all_reduce(value)

    def all_gather(self, values: Tensor) -> Tensor:
        """The rows of all ranks, in their order."""
        return self.communicator.all_gather(values)

    def total_size(self, values: Tensor) -> int:
        """How many rows all ranks have together, given those of this rank."""
        return int(self.communicator.all_reduce(float(len(values))))


WHOLE = Partition(slice(None), LOCAL)
"""No other rank has any."""


def even_bounds(count: int, parts: int) -> NDArray[np.int64]:
    """Where equal parts of a range begin, and its end.

    >>> even_bounds(7, 3)
    array([0, 2, 4, 7])
    """
    return count * np.arange(parts + 1) // parts


def balanced_bounds(weights: NDArray[np.integer], parts: int) -> NDArray[np.int64]:
    """Where contiguous parts of equal weight begin, and the number of weights.

    >>> balanced_bounds(np.array([5, 1, 1, 1, 4]), 2)
    array([0, 2, 5])
    """
    cumulative = np.concatenate([[0], np.cumsum(weights, dtype=np.int64)])
    goals = cumulative[-1] * np.arange(1, parts) / parts
    inner = np.searchsorted(cumulative, goals)
    return np.concatenate([[0], inner, [len(weights)]]).astype(np.int64)


def _range(bounds: NDArray[np.int64], communicator: Communicator) -> slice:
    return slice(*bounds[communicator.rank :][:2].tolist())
