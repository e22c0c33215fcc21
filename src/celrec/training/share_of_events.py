"""The part of a batch that one of several processes learns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ShareOfEvents(NamedTuple):
    """Which events of a batch, and how many the batch has."""

    places: Tensor
    total: int
