"""The heaviest ids of a stream, in little room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from celrec.embeddings._mixing import mixed
from celrec.errors import CelrecError

SLOTS = 4
"""Ids that a bucket has room for."""
_EMPTY = -1


class HotSketch(nn.Module):
    """Scores of the ids that gained the most, `buckets` × 4 of them, whatever the stream's length.

    An id belongs in the bucket hash(id) mod buckets. If it is there, it gains its score;
    else it takes an empty slot. In a full bucket it stands against the id with the lowest
    score: it takes that one's slot if it gains as much, and else wears that score down by
    what it gains. So no score is above what its id gained, and rare ids, however many,
    do not look hot. (In CAFE's sketch a new id always takes the slot and inherits its
    score, as in SpaceSaving; with four slots per id that is sought, fewer of the hottest
    ids are found so.)

    A batch is summed by id first. Ids already there gain first. Of the new ids of one
    bucket only the four with the highest scores count, the lowest first, so that none of
    them is put out by one that gained less.

    >>> sketch = HotSketch(1)
    >>> sketch.add(torch.tensor([5, 6, 5, 7, 8]), torch.tensor([1.0, 2.0, 3.0, 5.0, 6.0]))
    >>> sketch.add(torch.tensor([9]), torch.tensor([0.5]))
    >>> ids, scores = sketch.hottest(4)
    >>> ids.tolist(), scores.tolist()
    ([8, 7, 5, 6], [6.0, 5.0, 4.0, 1.5])
    >>> sketch.add(torch.tensor([9]), torch.tensor([2.0]))
    >>> sketch.score(torch.tensor([6, 9])).tolist()
    [0.0, 2.0]
    """

    ids: Tensor
    """The id in each slot, −1 if it is empty."""
    scores: Tensor
    """Its score, as float32 whatever the module is moved to; 0 if it is empty."""

    def __init__(
        self, buckets: int, *, seed: int = 0, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        if buckets < 1:
            raise CelrecError(f"buckets must be positive, not {buckets}")
        self.seed = seed
        self.register_buffer("ids", torch.full((buckets, SLOTS), _EMPTY, device=device))
        scores = torch.zeros(buckets, SLOTS, dtype=torch.float32, device=device)
        self.register_buffer("scores", scores)

    @torch.no_grad()
    def add(self, ids: Tensor, scores: Tensor) -> None:
        """Let each id, none below 0, gain its score; an id may come more than once."""
        ids, place = torch.unique(ids, return_inverse=True)
        gained = self.scores.new_zeros(len(ids)).index_add_(0, place, scores.float())
        bucket, here = self._find(ids)
        old = here.any(1)
        slot = here.long().argmax(1)
        self.scores[bucket[old], slot[old]] += gained[old]  # no id is there twice
        for where, new, gain in _rounds(bucket[~old], ids[~old], gained[~old]):
            found = self.scores[where].masked_fill(self.ids[where] == _EMPTY, -1)
            lowest, slot = found.min(1)
            wins = gain >= lowest
            self.ids[where, slot] = torch.where(wins, new, self.ids[where, slot])
            self.scores[where, slot] = torch.where(wins, gain, lowest - gain)

    def decay(self, factor: float) -> None:
        """Multiply all scores, so that what happened long ago counts less."""
        self.scores *= factor

    def score(self, ids: Tensor) -> Tensor:
        """What each id has gained, as far as it is known; 0 if it has no slot."""
        bucket, here = self._find(ids)
        return (self.scores[bucket] * here).sum(-1)

    def hottest(self, count: int) -> tuple[Tensor, Tensor]:
        """Up to `count` ids with the highest scores, highest first, and their scores."""
        taken = self.ids != _EMPTY
        ids, scores = self.ids[taken], self.scores[taken]
        order = scores.argsort(descending=True, stable=True)[:count]
        return ids[order], scores[order]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.ids.nbytes + self.scores.nbytes

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        return f"{len(self.ids)} × {SLOTS}"

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The bucket of each id, and in which of its slots the id is."""
        bucket = mixed(ids, self.seed) % len(self.ids)
        return bucket, self.ids[bucket] == ids.unsqueeze(-1)

    def _apply(self, fn: Callable[[Tensor], Tensor], *rest: Any) -> Self:
        scores = self.scores
        super()._apply(fn, *rest)  # type: ignore[no-untyped-call]
        if self.scores.dtype != scores.dtype:  # narrower floats could not add up small gains
            self.scores = scores.to(self.ids.device)
        return self


def _rounds(bucket: Tensor, ids: Tensor, gained: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """At most one id of each bucket at a time: the four best of each, the lowest first."""
    order = gained.argsort(stable=True)
    order = order[bucket[order].argsort(stable=True)]
    bucket, ids, gained = bucket[order], ids[order], gained[order]
    end = torch.searchsorted(bucket, bucket, right=True)
    better = end - 1 - torch.arange(len(bucket), device=bucket.device)
    turns = [better == rank for rank in reversed(range(SLOTS))]
    return [(bucket[turn], ids[turn], gained[turn]) for turn in turns]
