"""CAFE: private rows for the ids with the largest gradients, hashed rows for all others."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Memory, SharedRows, TableOptions, Traits, table_options
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.id_rows import copy_rows, narrowest_dtype
from celrec.errors import CelrecError

SLOTS = 4
"""Ids per bucket."""
_EMPTY = -1


class HotSketch(nn.Module):
    """A sketch of the ids with the highest total scores, in `buckets` × 4 slots.

    An id belongs to bucket hash(id) mod buckets. If it has a slot, its score is added there;
    otherwise it takes an empty slot. If the bucket is full, it competes with the id of the lowest
    score: with a gain at least as high it takes the slot, otherwise its gain is subtracted from
    that score. So a score never exceeds the id's total, and many rare ids never look hot.
    (CAFE's own sketch replaces as SpaceSaving does: a new id always takes the slot and inherits
    its score. With four slots per requested id that finds fewer of the hottest ids.)

    A batch is summed by id first. Ids with a slot are updated first. Of the new ids of a bucket
    only the four with the highest gains compete, the lowest first, so that an id is never
    replaced by one that gained less.

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
    """The id in each slot, −1 if the slot is empty."""
    scores: Tensor
    """The score in each slot, always float32; 0 if the slot is empty."""

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
        """Add a score to each id; ids are not negative and may repeat."""
        ids, place = torch.unique(ids, return_inverse=True)
        gained = self.scores.new_zeros(len(ids)).index_add_(0, place, scores.float())
        bucket, here = self._find(ids)
        old = here.any(1)
        slot = here.long().argmax(1)
        self.scores[bucket[old], slot[old]] += gained[old]  # ids are unique
        for where, new, gain in _rounds(bucket[~old], ids[~old], gained[~old]):
            found = self.scores[where].masked_fill(self.ids[where] == _EMPTY, -1)
            lowest, slot = found.min(1)
            wins = gain >= lowest
            self.ids[where, slot] = torch.where(wins, new, self.ids[where, slot])
            self.scores[where, slot] = torch.where(wins, gain, lowest - gain)

    def decay(self, factor: float) -> None:
        """Multiply all scores by `factor`, so that recent gains weigh more."""
        self.scores *= factor

    def score(self, ids: Tensor) -> Tensor:
        """The score of each id; 0 if it has no slot."""
        bucket, here = self._find(ids)
        return (self.scores[bucket] * here).sum(-1)

    def hottest(self, count: int) -> tuple[Tensor, Tensor]:
        """Up to `count` ids with the highest scores, highest first, and their scores."""
        used = self.ids != _EMPTY
        ids, scores = self.ids[used], self.scores[used]
        order = scores.argsort(descending=True, stable=True)[:count]
        return ids[order], scores[order]

    @property
    def nbytes(self) -> int:
        """Bytes of ids and scores."""
        return self.ids.nbytes + self.scores.nbytes

    def extra_repr(self) -> str:
        """The arguments shown by `repr`."""
        return f"{len(self.ids)} × {SLOTS}"

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        bucket = hash_ids(ids, self.seed) % len(self.ids)
        return bucket, self.ids[bucket] == ids.unsqueeze(-1)

    def _apply(self, fn: Callable[[Tensor], Tensor], *rest: Any) -> Self:
        scores = self.scores
        super()._apply(fn, *rest)  # type: ignore[no-untyped-call]
        if self.scores.dtype != scores.dtype:  # half precision would lose small gains
            self.scores = scores.to(self.ids.device)
        return self


def _rounds(bucket: Tensor, ids: Tensor, gained: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rounds with at most one id per bucket: the four best of each, the lowest first."""
    order = gained.argsort(stable=True)
    order = order[bucket[order].argsort(stable=True)]
    bucket, ids, gained = bucket[order], ids[order], gained[order]
    end = torch.searchsorted(bucket, bucket, right=True)
    better = end - 1 - torch.arange(len(bucket), device=bucket.device)
    turns = [better == rank for rank in reversed(range(SLOTS))]
    return [(bucket[turn], ids[turn], gained[turn]) for turn in turns]


_NO_ID = torch.iinfo(torch.int64).max
_MARGIN = 1.2
"""An id takes over a row if its score is this many times that of the row's id."""


class CafeEmbedding(SharedRows):
    """CAFE: private rows for the ids with the largest gradients; the others are shared by hash.

    In training each lookup adds its gradient norm, divided by the mean norm in the batch, to the
    score of its id in a `HotSketch`. `adapt` gives private rows to the ids with the highest
    scores, initialised with their shared row. Ids whose scores have dropped return to their
    hashed row. A row is reassigned only to an id with a 1.2 times higher score. Each `adapt`
    multiplies all scores by `decay`.

    `hot_share` of the size is for private rows and their index: the sketch, with a bucket of
    four slots per private row, and the sorted list of hot ids. There is no memory per id. An
    unseen id is hashed like any other and never gets a private row. Compiled and exported code
    does not update scores.

    >>> table = CafeEmbedding(1000, 16, rows=100)
    >>> table.shared_rows, table.hot_rows
    (50, 26)
    >>> for _ in range(3):
    ...     table(torch.tensor([1, 2, 2, 3])).sum().backward()
    >>> table.adapt()
    >>> table.private(torch.arange(5)).tolist()
    [False, True, True, True, False]
    >>> table.memory()
    Memory(table=4864, index=243)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=True)
    needs_gradients = True

    hot_ids: Tensor
    """The ids with private rows, ascending; the largest int64 for rows not in use."""
    hot_row: Tensor
    """The private row of each of `hot_ids`, from 0."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        hot_share: float = 0.5,
        decay: float = 0.9999995,
        seed: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        padding_idx, device, dtype = table_options(**options)
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if not 0 <= hot_share <= 1:
            raise CelrecError(f"hot_share must lie in 0 … 1, not {hot_share}")
        if not 0 < decay <= 1:
            raise CelrecError(f"decay must be above 0 and at most 1, not {decay}")
        self.hot_share, self.decay, self.seed = hot_share, decay, seed
        # Floats count as four bytes, so that sizes do not depend on the dtype.
        row, index = 4 * embedding_dim, narrowest_dtype(rows)
        hot_bytes = min(int(hot_share * rows), rows - 1) * row
        each = row + 12 * SLOTS + 8 + index.itemsize
        self.hot_rows = hot_bytes // each
        self.shared_rows = rows - math.ceil(self.hot_rows * each / row)
        total = self.shared_rows + self.hot_rows
        self.weight = nn.Parameter(torch.empty(total, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)
        self.sketch = HotSketch(max(1, self.hot_rows), seed=seed + 1, device=device)
        # One more place, always empty, so that every search ends at a valid index.
        ids = torch.full((self.hot_rows + 1,), _NO_ID, device=device)
        self.register_buffer("hot_ids", ids)
        self.register_buffer("hot_row", torch.arange(self.hot_rows + 1, device=device).to(index))

    @property
    def num_rows(self) -> int:
        return self.shared_rows + int((self.hot_ids != _NO_ID).sum())

    def row_of(self, ids: Tensor) -> Tensor:
        """The private row of an id, or hash(id) mod the shared rows."""
        place, private = self._find(ids)
        shared = hash_ids(ids, self.seed) % self.shared_rows
        return torch.where(private, self.shared_rows + self.hot_row[place].long(), shared)

    def private(self, ids: Tensor) -> Tensor:
        """Which of `ids` have a private row."""
        return self._find(ids)[1]

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`; in training their gradient norms are added to the scores."""
        found = super().vectors(ids)
        if self.training and found.requires_grad and not torch.compiler.is_compiling():
            observe = partial(self._observe, ids)
            found.register_hook(observe)  # type: ignore[no-untyped-call]
        return found

    @torch.no_grad()
    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Give the hottest ids free rows, or the rows of ids with much lower scores."""
        ids, scores = self.sketch.hottest(self.hot_rows)
        new = ~self.private(ids)
        ids, scores = ids[new], scores[new]
        free = self.hot_ids[:-1] == _NO_ID
        current = self.sketch.score(self.hot_ids[:-1]).masked_fill(free, -1)
        # The hottest candidates compete with the coldest rows, so the winners come first.
        place = current.argsort(stable=True)[: len(ids)]
        wins = scores > _MARGIN * current[place]
        ids, place = ids[wins], place[wins]
        copy_rows(
            self.weight, self.row_of(ids), self.shared_rows + self.hot_row[place].long(), optimizer
        )
        self.hot_ids[place] = ids
        ordered, order = self.hot_ids.sort(stable=True)
        self.hot_ids.copy_(ordered)
        self.hot_row.copy_(self.hot_row[order])
        self.sketch.decay(self.decay)

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids are hashed until they are hot."""
        self._grow_ids(num_embeddings)

    def memory(self, *, training: bool = False) -> Memory:
        """The rows and the list of hot ids; while training also the sketch."""
        sketch = self.sketch.nbytes if training else 0
        return Memory(self.weight.nbytes, self.hot_ids.nbytes + self.hot_row.nbytes + sketch)

    def extra_repr(self) -> str:
        used = self.num_rows - self.shared_rows
        return f"{super().extra_repr()}, private={used} of {self.hot_rows}"

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.searchsorted(self.hot_ids, ids.contiguous())
        return place, (self.hot_ids[place] == ids) & (ids < self.num_embeddings)

    @torch.no_grad()
    def _observe(self, ids: Tensor, gradient: Tensor) -> None:
        norms = gradient.float().norm(dim=-1)
        # Skip padding, whose gradient is zero, and gradients that overflowed.
        kept = (ids >= 0) & (ids < self.num_embeddings) & (norms > 0) & norms.isfinite()
        norms = norms[kept]
        self.sketch.add(ids[kept], norms / norms.mean())
