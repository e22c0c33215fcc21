"""A row of its own for the warmest ids, hashed rows for all others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.hashing import mixed
from celrec.embeddings.id_rows import narrowest
from celrec.embeddings.row_state import copy_rows
from celrec.errors import CelrecError

_MOST = torch.iinfo(torch.int32).max


class AdaptiveEmbedding(SharedRows):
    """Half of the rows are private, each for one warm id; the others are shared by hash.

    The row of an id without a private one is hash(id) mod ⌈rows / 2⌉; private rows
    come after these. Nobody has a private row at first. `promote` gives them to ids
    that are known to be warm. Where they are not known beforehand, `promote_above`
    says after how many lookups in training `adapt` promotes an id, the most frequent
    first, while there are free rows.

    An unseen id is hashed like any other and never promoted.

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

    own: Tensor
    """1 + the private row of every id, 0 if it has none; in the last place that of unseen ids."""
    lookups: Tensor | None
    """How often each id was looked up, if `promote_above` is set."""

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
        index = narrowest(self.private_rows + 1)
        self.register_buffer("own", torch.zeros(num_embeddings + 1, dtype=index, device=device))
        lookups = None
        if promote_above is not None:
            lookups = torch.zeros(num_embeddings, dtype=torch.int32, device=device)
        self.register_buffer("lookups", lookups)

    @property
    def watches(self) -> bool:
        """Where it counts lookups."""
        return self.lookups is not None

    @property
    def num_rows(self) -> int:
        """The shared rows, and the private ones that somebody has."""
        return self.shared_rows + int(self.own.max())

    @property
    def free_rows(self) -> int:
        """How many private rows nobody has."""
        return len(self.weight) - self.num_rows

    def row_of(self, ids: Tensor) -> Tensor:
        """The private row of an id, or hash(id) mod the shared rows."""
        own = self._own(ids)
        shared = mixed(ids, self.seed) % self.shared_rows
        return torch.where(own > 0, own + (self.shared_rows - 1), shared)

    def private(self, ids: Tensor) -> Tensor:
        """Which of `ids` have a row of their own."""
        return self._own(ids) > 0

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`, whose lookups are counted in training if they have to be."""
        if self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.observe(ids)
        return super().vectors(ids)

    @torch.no_grad()
    def promote(self, ids: Tensor, optimizer: Optimizer | None = None) -> None:
        """Give each of `ids`, warmest first, a free private row with a copy of its shared one.

        Vectors are the same just after as just before; the optimiser's state goes along.
        """
        first = self.num_rows
        if len(ids) > self.free_rows:
            raise CelrecError(
                f"ids: {len(ids)} are to be promoted, but only {self.free_rows} private rows are "
                "free; pass fewer ids or raise rows"
            )
        known = (ids >= 0) & (ids < self.num_embeddings) & ~self.private(ids)
        if not bool(known.all()):
            raise CelrecError(
                f"ids: {int(ids[~known][0])} is unknown or has a private row already; leave it out"
            )
        if len(torch.unique(ids)) < len(ids):
            raise CelrecError("ids: one is named twice; name each id once")
        target = torch.arange(first, first + len(ids), device=ids.device)
        copy_rows(self.weight, self.row_of(ids), target, optimizer)
        self.own[ids] = (target - (self.shared_rows - 1)).to(self.own.dtype)

    @torch.no_grad()
    def observe(self, ids: Tensor) -> None:
        """Count lookups, if `promote_above` is set; compiled code has to call it itself."""
        if self.lookups is None:
            return
        known = (ids >= 0) & (ids < self.num_embeddings)
        if self.padding_idx is not None:
            known &= ids != self.padding_idx
        found, times = torch.unique(ids[known], return_counts=True)
        self.lookups[found] = (self.lookups[found] + times).clamp(max=_MOST).int()

    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Promote ids looked up more than `promote_above` times, as far as rows are free."""
        free = self.free_rows
        if self.lookups is None or self.promote_above is None or not free:
            return
        warm = ((self.lookups > self.promote_above) & (self.own[:-1] == 0)).nonzero().squeeze(1)
        order = self.lookups[warm].argsort(descending=True, stable=True)
        self.promote(warm[order[:free]], optimizer)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """New ids have no private row."""
        more = num_embeddings - self.num_embeddings
        self._grown(num_embeddings)
        self.own = torch.cat([self.own, self.own.new_zeros(more)])
        if self.lookups is not None:
            self.lookups = torch.cat([self.lookups, self.lookups.new_zeros(more)])

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        own = {"rows": len(self.weight), "promote_above": self.promote_above, "seed": self.seed}
        return {**super().settings(), **own}

    def memory(self, *, training: bool = False) -> Memory:
        """All rows and each id's private one; for training the counts too."""
        counts = self.lookups.nbytes if training and self.lookups is not None else 0
        return Memory(self.weight.nbytes, self.own.nbytes + counts)

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        used = self.private_rows - self.free_rows
        return f"{super().extra_repr()}, private={used} of {self.private_rows}"

    def _own(self, ids: Tensor) -> Tensor:
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return self.own[torch.where(seen, ids, self.num_embeddings)].long()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A saved table may have grown: its number of ids is that of the saved rows of ids.
        saved = state_dict.get(f"{prefix}own")
        if saved is not None and len(saved) > len(self.own):
            self.grow(len(saved) - 1)
        super()._load_from_state_dict(state_dict, prefix, *rest)
