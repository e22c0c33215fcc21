"""Integers that take no more room than they need."""

from __future__ import annotations

import torch


def narrowest(count: int) -> torch.dtype:
    """The narrowest integers that can number `count` things from 0.

    >>> narrowest(256), narrowest(257)
    (torch.uint8, torch.int16)
    """
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if count - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64
