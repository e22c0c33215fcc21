"""Order statistics of what several processes have."""

from __future__ import annotations

import torch
from torch import Tensor

from celrec.clustering.share import Share

_BITS = 8  # of a number at a time


def nth_smallest(values: Tensor, n: int, share: Share) -> float:
    """The n-th smallest, from 0 on, of the finite doubles of all processes, exactly.

    Floats are ordered as their bits are, so that eight histograms of 256 numbers, each of the
    next eight bits where those before are right, come to one number: what is sent does not
    depend on how many values there are.

    >>> nth_smallest(torch.tensor([0.5, -3.0, 2.0], dtype=torch.float64), 1, Share.whole(3))
    0.5
    """
    bits = (values + 0.0).view(torch.int64)  # of which -0.0 has others than 0.0
    keys = torch.where(bits < 0, bits ^ 0x7FFF_FFFF_FFFF_FFFF, bits)
    found, wanted = 0, n
    for shift in range(64 - _BITS, -1, -_BITS):
        digits = keys >> shift
        lowest = found << _BITS if shift < 64 - _BITS else -(1 << (_BITS - 1))
        inside = digits[(digits >= lowest) & (digits < lowest + (1 << _BITS))] - lowest
        counts = share.total(torch.bincount(inside, minlength=1 << _BITS))
        reached = counts.cumsum(0)
        digit = int(torch.searchsorted(reached, wanted, right=True))
        wanted -= int(reached[digit] - counts[digit])
        found = lowest + digit
    back = found ^ 0x7FFF_FFFF_FFFF_FFFF if found < 0 else found
    return float(torch.tensor(back, dtype=torch.int64).view(torch.float64))
