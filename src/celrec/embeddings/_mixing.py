"""Hashing of ids without any stored state."""

from __future__ import annotations

from torch import Tensor

_MASK = 0x7FFFFFFF
_GOLDEN = 0x9E3779B1


def mixed(ids: Tensor, seed: int) -> Tensor:
    """31 bits that look random, the same for the same id and seed: multiplications and shifts.

    >>> import torch
    >>> int(mixed(torch.tensor(3), 0)) == int(mixed(torch.tensor(3), 1))
    False
    """
    offset = _GOLDEN * (seed + 1) & _MASK  # of any seed, however large
    bits = ((ids.long() & _MASK) + offset) & _MASK
    for multiplier in (0x45D9F3B, 0x2C1B3C6D):
        bits = ((bits ^ (bits >> 16)) * multiplier) & _MASK
    return bits ^ (bits >> 16)
