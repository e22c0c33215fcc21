"""Levelled embeddings: the vector of an id is a sum of shared rows, one of each level."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget


class LevelledEmbedding(Embedding):
    """Sums of rows of several small tables, each with clusters of its own.

    With the cluster c_l(j) of id j in level l, and a row for each cluster,

        v_j = Σ_l weight_l[c_l(j)],

    so L levels of K rows tell K^L ids apart, and an id takes a byte a level with up to 256 rows.
    One level is `ClusteredEmbedding`; with several, the first is coarse and those after it refine
    it (residual codes). With `parts`, the columns are divided into as many parts of equal width,
    and each part has `levels` of its own (product codes, where `levels` is 1).

    Each of `levels` is a `ClusteredEmbedding`, which can be split, reassigned and merged like
    any other. All but the first of a part begin with a row of zeros.

    >>> table = LevelledEmbedding(5, 2, max_clusters=2, levels=2)
    >>> table.levels[0].split(0, torch.tensor([3, 4])), table.levels[1].split(0, torch.tensor([4]))
    (1, 1)
    >>> table.codes(torch.tensor([0, 3, 4])).tolist()
    [[0, 0], [1, 0], [1, 1]]
    >>> table.memory()
    Memory(table=32, index=12)
    """

    traits = Traits(low_time=False, low_memory=True, incremental=True)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        max_clusters: int,
        levels: int = 2,
        parts: int = 1,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create `parts` × `levels` tables of at most `max_clusters` rows each."""
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        if levels < 1:
            raise CelrecError(f"levels must be positive, not {levels}")
        if parts < 1 or embedding_dim % parts:
            raise CelrecError(
                f"parts must divide embedding_dim={embedding_dim}, not {parts}; change one of them"
            )
        self.max_clusters, self.parts = max_clusters, parts
        self.levels = nn.ModuleList(
            ClusteredEmbedding(
                num_embeddings,
                embedding_dim // parts,
                max_clusters=max_clusters,
                device=device,
                dtype=dtype,
            )
            for _ in range(parts * levels)
        )
        self.reset_parameters()
        self.register_load_state_dict_post_hook(_follow)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        """Rows of first levels from N(0, 1/dim), of all others zeros."""
        for number, level in enumerate(self.clustered_levels):
            if number % self.levels_per_part:
                nn.init.zeros_(level.weight)
            else:
                nn.init.normal_(level.weight, std=self.embedding_dim**-0.5)

    @property
    def clustered_levels(self) -> list[ClusteredEmbedding]:
        """The tables of all levels, those of the first part first."""
        return [level for level in self.levels if isinstance(level, ClusteredEmbedding)]

    @property
    def levels_per_part(self) -> int:
        """The number of rows that are added up."""
        return len(self.levels) // self.parts

    @property
    def num_clusters(self) -> int:
        """The active clusters of all levels."""
        return sum(level.num_clusters for level in self.clustered_levels)

    @property
    def num_rows(self) -> int:
        return self.num_clusters

    def part_of(self, level: int) -> slice:
        """The columns that a level has rows for."""
        width = self.embedding_dim // self.parts
        first = level // self.levels_per_part * width
        return slice(first, first + width)

    @torch.no_grad()
    def start_from(self, other: LevelledEmbedding) -> None:
        """Take over the clusters of another table with as many levels, but not its rows."""
        for level, before in zip(self.clustered_levels, other.clustered_levels, strict=True):
            level.start_from(before.assignment[:-1].long())
            level.unseen_cluster = before.unseen_cluster

    def codes(self, ids: Tensor) -> Tensor:
        """The cluster of each id in each level, with one more axis than `ids`."""
        return torch.stack([level.row_of(ids) for level in self.clustered_levels], -1)

    def vectors(self, ids: Tensor) -> Tensor:
        found = [level.vectors(ids) for level in self.clustered_levels]
        per = self.levels_per_part
        sums = [sum(found[n + 1 : n + per], found[n]) for n in range(0, len(found), per)]
        if self.parts == 1:
            return sums[0]
        # A probe of one part may have an axis of candidates.
        return torch.cat(torch.broadcast_tensors(*sums), -1)  # type: ignore[no-untyped-call]

    def use_budget(self, budget: MemoryBudget) -> None:
        for level in self.clustered_levels:
            level.use_budget(budget)

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids have the codes of unseen ids."""
        self._grow_ids(num_embeddings)
        for level in self.clustered_levels:
            level.grow(num_embeddings)

    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these; rows that no id has any more are removed in each level."""
        self._keep_ids(ids)
        for level in self.clustered_levels:
            level.keep(ids)
        self.grow(max(level.num_embeddings for level in self.clustered_levels))

    def memory(self, *, training: bool = False) -> Memory:
        each = [level.memory(training=training) for level in self.clustered_levels]
        return Memory(sum(one.table for one in each), sum(one.index for one in each))

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "levels": self.levels_per_part}

    def extra_repr(self) -> str:
        parts = "" if self.parts == 1 else f", parts={self.parts}"
        return f"{super().extra_repr()}, levels={self.levels_per_part}{parts}"


def _follow(table: LevelledEmbedding, _: object) -> None:
    """After loading, take over the number of ids of the levels."""
    table.num_embeddings = table.clustered_levels[0].num_embeddings
