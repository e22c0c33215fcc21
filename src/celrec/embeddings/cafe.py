"""Rows of their own for the ids that learn the most, hashed rows for all others."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.hashing import mixed
from celrec.embeddings.id_rows import narrowest
from celrec.embeddings.row_state import copy_rows
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


_NOBODY = torch.iinfo(torch.int64).max
_MARGIN = 1.2
"""How many times hotter than the id in a row another has to be to get it."""


class CafeEmbedding(SharedRows):
    """Private rows for the ids with the largest gradients (CAFE); the others are shared by hash.

    While training, each lookup adds the norm of the gradient at its vector, over the
    mean norm in the batch, to the score of its id in a `HotSketch`. `adapt` gives
    private rows to the hottest ids, with a copy of their shared row, and takes them from
    ids that are not hot any more, which go back to their hashed row. A row changes hands
    only for an id that is 1.2 times hotter. At each `adapt` all scores are multiplied by
    `decay`.

    `hot_share` of the budget is for private rows and for what leads to them: the sketch,
    which has a bucket of four slots for each of them, and the sorted list of hot ids.
    No id costs anything by itself. An unseen id is hashed like any other and stays so.
    Compiled and exported code leaves the scores alone.

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
    """The ids with private rows in ascending order, the largest integer where there is none."""
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
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if not 0 <= hot_share <= 1:
            raise CelrecError(f"hot_share must lie in 0 … 1, not {hot_share}")
        if not 0 < decay <= 1:
            raise CelrecError(f"decay must be above 0 and at most 1, not {decay}")
        self.hot_share, self.decay, self.seed = hot_share, decay, seed
        # Sizes must not depend on the float type, which can change: floats count as four bytes.
        row, index = 4 * embedding_dim, narrowest(rows)
        room = min(int(hot_share * rows), rows - 1) * row
        each = row + 12 * SLOTS + 8 + index.itemsize
        self.hot_rows = room // each
        self.shared_rows = rows - math.ceil(self.hot_rows * each / row)
        held = self.shared_rows + self.hot_rows
        self.weight = nn.Parameter(torch.empty(held, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)
        self.sketch = HotSketch(max(1, self.hot_rows), seed=seed + 1, device=device)
        # One place more, where nobody ever is, so that every search ends somewhere.
        ids = torch.full((self.hot_rows + 1,), _NOBODY, device=device)
        self.register_buffer("hot_ids", ids)
        self.register_buffer("hot_row", torch.arange(self.hot_rows + 1, device=device).to(index))

    @property
    def num_rows(self) -> int:
        """The shared rows, and the private ones that somebody has."""
        return self.shared_rows + int((self.hot_ids != _NOBODY).sum())

    def row_of(self, ids: Tensor) -> Tensor:
        """The private row of an id, or hash(id) mod the shared rows."""
        place, private = self._find(ids)
        shared = mixed(ids, self.seed) % self.shared_rows
        return torch.where(private, self.shared_rows + self.hot_row[place].long(), shared)

    def private(self, ids: Tensor) -> Tensor:
        """Which of `ids` have a row of their own."""
        return self._find(ids)[1]

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`, whose gradients are watched in training."""
        found = super().vectors(ids)
        if self.training and found.requires_grad and not torch.compiler.is_compiling():
            watch = partial(self._observe, ids)
            found.register_hook(watch)  # type: ignore[no-untyped-call]
        return found

    @torch.no_grad()
    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Give the hottest ids free rows, or those of ids that have cooled down."""
        ids, scores = self.sketch.hottest(self.hot_rows)
        new = ~self.private(ids)
        ids, scores = ids[new], scores[new]
        nobody = self.hot_ids[:-1] == _NOBODY
        holding = self.sketch.score(self.hot_ids[:-1]).masked_fill(nobody, -1)
        # The hottest against the coldest: once one does not win, none of the next does.
        place = holding.argsort(stable=True)[: len(ids)]
        wins = scores > _MARGIN * holding[place]
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
        """Nothing but the number changes: new ids are hashed until they are hot."""
        self._grown(num_embeddings)

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        own = {"hot_share": self.hot_share, "decay": self.decay, "seed": self.seed}
        return {**super().settings(), "rows": self.rows_asked, **own}

    def memory(self, *, training: bool = False) -> Memory:
        """All rows and the list of hot ids; for training the sketch too."""
        sketch = self.sketch.nbytes if training else 0
        return Memory(self.weight.nbytes, self.hot_ids.nbytes + self.hot_row.nbytes + sketch)

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        used = self.num_rows - self.shared_rows
        return f"{super().extra_repr()}, private={used} of {self.hot_rows}"

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Where in `hot_ids` each id would be, and whether it is there."""
        place = torch.searchsorted(self.hot_ids, ids.contiguous())
        return place, (self.hot_ids[place] == ids) & (ids < self.num_embeddings)

    @torch.no_grad()
    def _observe(self, ids: Tensor, gradient: Tensor) -> None:
        norms = gradient.float().norm(dim=-1)
        # Padding has no gradient, and one that overflowed says nothing.
        kept = (ids >= 0) & (ids < self.num_embeddings) & (norms > 0) & norms.isfinite()
        norms = norms[kept]
        self.sketch.add(ids[kept], norms / norms.mean())
