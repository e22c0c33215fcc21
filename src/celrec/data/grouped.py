"""Interactions grouped by the ids of one table."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.interactions import Interactions


class Grouped:
    """The interactions sorted by user, by item, or by the id in a further column.

    The interactions of id j are at starts[j] … starts[j + 1] − 1 of the sorted arrays; `order`
    has their rows in the log.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2, 1], "item": [7, 7, 9], "rating": [4.0, 3.0, 5.0]})
    >>> by_item = Grouped(log, "items")
    >>> by_item.starts, by_item.partners, log.target[by_item.order]
    (array([0, 2, 3]), tensor([0, 1, 0]), array([4., 3., 5.], dtype=float32))
    """

    def __init__(self, log: Interactions, side: str) -> None:
        """Sort `log`, which has no unseen users or items, by `side`.

        `side` is users, items or a further column. The partners of a further column are items;
        rows without an id in it are dropped.
        """
        if side in ("users", "items"):
            own, other = (log.item, log.user) if side == "items" else (log.user, log.item)
            size = log.num_items if side == "items" else log.num_users
        else:
            column = log.columns[side]
            own, other, size = column.values, log.item, len(column.ids)
        rows = np.flatnonzero(own >= 0)
        self.counts: NDArray[np.int64] = np.bincount(own[rows], minlength=size)
        self.starts: NDArray[np.int64] = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(self.counts)]
        )
        self.order: NDArray[np.int64] = rows[np.argsort(own[rows], kind="stable")]
        self.partners: Tensor = torch.from_numpy(other[self.order].astype(np.int64))
