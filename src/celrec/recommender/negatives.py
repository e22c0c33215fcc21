"""Negative sampling: items that a user has not interacted with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.data.split import Split
from celrec.embeddings.hashing import hash_ids

_TRIES = 8


class Negatives:
    """Negative sampling: random items without an interaction of the user in a log.

    A rejected item is drawn again a few times, so users with nearly all items may get one of them.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 1, 2], "item": [5, 6, 7], "rating": [1.0] * 3})
    >>> Negatives(log).draw(torch.tensor([0, 0, 0]), torch.Generator().manual_seed(0))
    tensor([2, 2, 2])
    """

    def __init__(self, log: Interactions) -> None:
        self._items = log.num_items
        self._know(log.user.astype(np.int64), log.item)

    @classmethod
    def of_seen(cls, seen: SeenItems, users: NDArray[np.int64], items: int) -> Negatives:
        """For these users only, by the items that they have `seen`."""
        made = cls.__new__(cls)
        made._items, who = items, np.unique(users)
        starts, known = seen.of(who)
        made._know(np.repeat(who, np.diff(starts)), known)
        return made

    def _know(self, users: NDArray[np.int64], items: NDArray[np.int32]) -> None:
        known = np.unique(self._key(users, items))
        self._known = np.append(known, np.iinfo(np.int64).max)  # so every search finds a key

    def draw(self, users: Tensor, generator: torch.Generator) -> Tensor:
        """One item for each of the users."""
        return self._draw(
            users, lambda again, _: torch.randint(self._items, (len(again),), generator=generator)
        )

    def draw_alike(self, users: Tensor, places: Tensor, seed: int) -> Tensor:
        """The same, where each item depends on its place in the log and the seed only."""
        return self._draw(
            users, lambda again, number: hash_ids(places[again], seed + number) % self._items
        )

    def _draw(self, users: Tensor, items: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Draw by `items(positions, attempt)`."""
        drawn = items(torch.arange(len(users)), 0)
        for number in range(1, 1 + _TRIES):
            keys = self._key(users.numpy(), drawn.numpy())
            known = self._known[np.searchsorted(self._known, keys)] == keys
            again = torch.from_numpy(np.flatnonzero(known))
            if not len(again):
                break
            drawn[again] = items(again, number)
        return drawn

    def _key(self, users: NDArray[np.int64], items: NDArray[np.integer]) -> NDArray[np.int64]:
        keys: NDArray[np.int64] = users * self._items + items
        return keys

    def beside(self, log: Interactions, seed: int, count: int = 1) -> Interactions:
        """The log with target 1, followed by `count` negative samples per row with target 0."""
        users = torch.from_numpy(np.tile(log.user.astype(np.int64), count))
        drawn = self.draw(users, torch.Generator().manual_seed(seed)).numpy()
        all_rows = log[np.tile(np.arange(len(log)), 1 + count)]
        return replace(
            all_rows,
            item=np.concatenate([log.item, drawn.astype(np.int32)]),
            target=np.repeat(np.array([1] + [0] * count, np.float32), len(log)),
        )


def with_negatives(split: Split, count: int, seed: int) -> Split:
    """The split with `count` negative samples per row, of items in no part of the split."""
    negatives = Negatives(split.train_and_valid())
    return replace(
        split,
        train=negatives.beside(split.train, 2 * seed, count),
        valid=negatives.beside(split.valid, 2 * seed + 1, count),
    )
