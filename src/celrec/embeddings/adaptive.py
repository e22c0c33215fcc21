"""AdaptEmb: private rows for frequent ids, hashed rows for all others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.id_rows import copy_rows, narrowest_dtype
from celrec.errors import CelrecError

_MOST = torch.iinfo(torch.int32).max


class AdaptiveEmbedding(SharedRows):
    """Half of the rows are private, each for one frequent id; the others are shared by hash.

    An id without a private row has row hash(id) mod ⌈rows / 2⌉; the private rows follow. At
    first no id has a private row. `promote` assigns them to ids that are known to be frequent.
    With `promote_above`, lookups in training are counted instead, and `adapt` promotes ids
    looked up more often than that, the most frequent first, while private rows are free.

    An unseen id is hashed like any other and is never promoted.

    >>> table = AdaptiveEmbedding(1000, 4, rows=10)
    >>> before = table(torch.tensor(7))
    >>> table.promote(torch.tensor([7, 3]))
    >>> table.private(torch.tensor([3, 4, 7])).tolist(), table.free_rows
    ([True, False, True], 3)
    >>> bool((table(torch.tensor(7)) == before).all())
    True
    >>> table.memory()
    Memory(table=160, index=1001)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=True)
    per_id = "own"

    own: Tensor
    """1 + the private row of every id, 0 if it has none; the last entry is for unseen ids."""
    lookups: Tensor | None
    """The lookups of each id in training, if `promote_above` is set."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        promote_above: int | None = None,
        seed: int = 0,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if promote_above is not None and not 0 <= promote_above < _MOST:
            raise CelrecError(f"promote_above must lie in 0 … {_MOST - 1:,}, not {promote_above}")
        self.seed, self.promote_above = seed, promote_above
        self.private_rows = rows // 2
        self.shared_rows = rows - self.private_rows
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)
        index = narrowest_dtype(self.private_rows + 1)
        self.register_buffer("own", torch.zeros(num_embeddings + 1, dtype=index, device=device))
        lookups = None
        if promote_above is not None:
            lookups = torch.zeros(num_embeddings, dtype=torch.int32, device=device)
        self.register_buffer("lookups", lookups)

    @property
    def observes_lookups(self) -> bool:
        return self.lookups is not None

    @property
    def num_rows(self) -> int:
        return self.shared_rows + int(self.own.max())

    @property
    def free_rows(self) -> int:
        """The private rows that are not in use."""
        return len(self.weight) - self.num_rows

    def row_of(self, ids: Tensor) -> Tensor:
        """The private row of an id, or hash(id) mod the shared rows."""
        own = self._own(ids)
        shared = hash_ids(ids, self.seed) % self.shared_rows
        return torch.where(own > 0, own + (self.shared_rows - 1), shared)

    def private(self, ids: Tensor) -> Tensor:
        """Which of `ids` have a private row."""
        return self._own(ids) > 0

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`; in training lookups are counted if `promote_above` is set."""
        if self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.observe(ids)
        return super().vectors(ids)

    @torch.no_grad()
    def promote(self, ids: Tensor, optimizer: Optimizer | None = None) -> None:
        """Give each of `ids` a free private row, a copy of its shared row.

        Vectors do not change, and the optimiser state is copied with the rows.
        """
        first = self.num_rows
        if len(ids) > self.free_rows:
            raise CelrecError(
                f"ids: cannot promote {len(ids)}, only {self.free_rows} private rows are free; "
                "pass fewer ids or raise rows"
            )
        known = (ids >= 0) & (ids < self.num_embeddings) & ~self.private(ids)
        if not bool(known.all()):
            raise CelrecError(
                f"ids: {int(ids[~known][0])} is unknown or has a private row already; leave it out"
            )
        if len(torch.unique(ids)) < len(ids):
            raise CelrecError("ids: an id occurs twice; pass each id once")
        target = torch.arange(first, first + len(ids), device=ids.device)
        copy_rows(self.weight, self.row_of(ids), target, optimizer)
        self.own[ids] = (target - (self.shared_rows - 1)).to(self.own.dtype)

    @torch.no_grad()
    def observe(self, ids: Tensor) -> None:
        """Count lookups if `promote_above` is set; compiled code must call it explicitly."""
        if self.lookups is None:
            return
        known = (ids >= 0) & (ids < self.num_embeddings)
        if self.padding_idx is not None:
            known &= ids != self.padding_idx
        found, times = torch.unique(ids[known], return_counts=True)
        self.lookups[found] = (self.lookups[found] + times).clamp(max=_MOST).int()

    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Promote ids looked up more than `promote_above` times while private rows are free."""
        free = self.free_rows
        if self.lookups is None or self.promote_above is None or not free:
            return
        warm = ((self.lookups > self.promote_above) & (self.own[:-1] == 0)).nonzero().squeeze(1)
        order = self.lookups[warm].argsort(descending=True, stable=True)
        self.promote(warm[order[:free]], optimizer)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids have no private row."""
        more = num_embeddings - self.num_embeddings
        self._grow_ids(num_embeddings)
        self.own = torch.cat([self.own, self.own.new_zeros(more)])
        if self.lookups is not None:
            self.lookups = torch.cat([self.lookups, self.lookups.new_zeros(more)])

    def memory(self, *, training: bool = False) -> Memory:
        """The rows, and the private row number of each id; while training also the counts."""
        counts = self.lookups.nbytes if training and self.lookups is not None else 0
        return Memory(self.weight.nbytes, self.own.nbytes + counts)

    def extra_repr(self) -> str:
        used = self.private_rows - self.free_rows
        return f"{super().extra_repr()}, private={used} of {self.private_rows}"

    def _own(self, ids: Tensor) -> Tensor:
        return self.own[self._place(ids)].long()

    def _fit(self, length: int) -> None:
        if length > len(self.own):
            self.grow(length - 1)
