"""Bags of ids over a clustered table, like `nn.EmbeddingBag`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Memory
from celrec.errors import CelrecError

MODES = ("sum", "mean", "max")


@dataclass(frozen=True, slots=True)
class Bags:
    """The flat ids of bags, without padding, and the bag of each id."""

    ids: Tensor
    bag: Tensor
    count: int
    """The number of bags, empty ones included."""


BagProbe: TypeAlias = Callable[[Bags], Tensor]
"""Computes the vector of each id of some bags."""


class LooksUpBags(Protocol):
    """A module that looks up bags of ids in a clustered table, with replaceable vectors."""

    @property
    def table(self) -> ClusteredEmbedding:
        """The clustered table."""

    def probing(self, probe: BagProbe) -> AbstractContextManager[None]:
        """Inside the block `probe` gives the vectors of all ids."""


class ClusteredEmbeddingBag(nn.Module):
    """The sum, mean or maximum over the vectors of each bag, like `nn.EmbeddingBag`.

    Vectors come from `table`, a `ClusteredEmbedding`. Bags are the rows of a matrix of ids, or
    flat ids with the `offsets` at which bags start. Padding is ignored, also in means; an empty
    bag gives zeros.

    >>> bags = ClusteredEmbeddingBag(ClusteredEmbedding(9, 2, max_clusters=3), mode="sum")
    >>> bags(torch.tensor([[1, 2, 2], [3, 4, 5]])).shape
    torch.Size([2, 2])
    >>> one, two = bags(torch.tensor([1, 5, 8]), torch.tensor([0, 1]))
    >>> bool((2 * one == two).all())  # all ids share one row yet
    True
    """

    def __init__(
        self, table: ClusteredEmbedding, *, mode: str = "mean", include_last_offset: bool = False
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise CelrecError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        self.table = table
        self.mode, self.include_last_offset = mode, include_last_offset
        self._probe: BagProbe | None = None

    @property
    def weight(self) -> nn.Parameter:
        """The rows of the table."""
        return self.table.weight

    @property
    def num_embeddings(self) -> int:
        """The number of ids."""
        return self.table.num_embeddings

    @property
    def embedding_dim(self) -> int:
        """The length of a vector."""
        return self.table.embedding_dim

    @property
    def padding_idx(self) -> int | None:
        """The id that is ignored in bags."""
        return self.table.padding_idx

    def forward(
        self,
        input: Tensor,  # noqa: A002  (the name that nn.EmbeddingBag gives it)
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """One vector per bag."""
        ids = input.long()
        if ids.dim() == 1 and offsets is None:
            raise CelrecError("offsets are missing: flat ids need them; pass offsets or a matrix")
        if self._probe is not None:
            return self._probed(self._probe, ids, offsets, per_sample_weights)
        rows = self.table.row_of(ids)
        weight: Tensor = self.table.weight
        if self.padding_idx is not None:
            # Other ids may share the row of the padding id, so it gets an extra row.
            rows = torch.where(ids == self.padding_idx, len(weight), rows)
            weight = torch.cat([weight, weight.new_zeros(1, self.embedding_dim)])
        return functional.embedding_bag(
            rows,
            weight,
            None if offsets is None else offsets.long(),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=None if self.padding_idx is None else len(weight) - 1,
        )

    @contextmanager
    def probing(self, probe: BagProbe) -> Iterator[None]:
        """Inside the block `probe` gives the vectors of all ids; bags are reduced as usual.

        The probe's result may have further leading axes.
        """
        self._probe = probe
        try:
            yield
        finally:
            self._probe = None

    def memory(self, *, training: bool = False) -> Memory:
        """The memory of the table."""
        return self.table.memory(training=training)

    def extra_repr(self) -> str:
        """The arguments shown by `repr`."""
        last = ", include_last_offset=True" if self.include_last_offset else ""
        return f"mode={self.mode!r}{last}"

    def _probed(
        self, probe: BagProbe, ids: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        if offsets is None:
            count = len(ids)
            bag = torch.arange(count, device=ids.device).repeat_interleave(ids.shape[1])
        else:
            starts = offsets.long()
            if self.include_last_offset:
                starts = starts[:-1]
            count = len(starts)
            place = torch.arange(len(ids), device=ids.device)
            bag = torch.searchsorted(starts, place, right=True) - 1
        ids = ids.reshape(-1)
        kept = torch.ones_like(ids, dtype=torch.bool)
        if self.padding_idx is not None:
            kept = ids != self.padding_idx
        ids, bag = ids[kept], bag[kept]
        vectors = probe(Bags(ids, bag, count))
        if weights is not None:
            vectors = vectors * weights.reshape(-1)[kept].unsqueeze(-1)
        empty = vectors.new_zeros(*vectors.shape[:-2], count, self.embedding_dim)
        if self.mode == "max":
            where = bag.unsqueeze(-1).expand_as(vectors)
            return empty.scatter_reduce(-2, where, vectors, "amax", include_self=False)
        total = empty.index_add(-2, bag, vectors)
        if self.mode == "sum":
            return total
        return total / torch.bincount(bag, minlength=count).clamp(min=1).unsqueeze(-1).to(total)
