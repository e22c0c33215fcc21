"""Processes that work on one model together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from celrec.errors import CelrecError

_SMALL = 1 << 17  # values that all processes send to one
_T = TypeVar("_T", float, Tensor)


class Ranks:
    """A process among those of a `torch.distributed` group; without a group, it is alone.

    All processes have to ask for the same sums in the same order. What comes of them is the same
    to the last bit on each.

    >>> ranks = Ranks.alone()
    >>> ranks.rank, ranks.size, ranks.total(torch.tensor([1.0, 2.0]))
    (0, 1, tensor([1., 2.]))
    >>> ranks.cuts(np.array([5, 1, 1, 1]))
    array([0, 4])
    """

    def __init__(self, rank: int, size: int, group: distributed.ProcessGroup | None = None) -> None:
        """See `here` and `alone`."""
        self.rank, self.size, self._group = rank, size, group

    @classmethod
    def alone(cls) -> Ranks:
        """No others."""
        return cls(0, 1)

    @classmethod
    def here(cls, group: distributed.ProcessGroup | None = None) -> Ranks:
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

    def check_alike(self, what: str, tensors: Iterable[Tensor]) -> None:
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
