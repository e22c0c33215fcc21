"""Mixtures of shared rows, weighted by what is known of an id."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.id_rows import IdRows
from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget

STEPS_PER_BIT = 16
"""Evidence is kept in sixteenths of a bit."""
IMPOSSIBLE = 255
"""Evidence against a row that has no weight at all."""


class PosteriorEmbedding(Embedding):
    """The vector of an id is the mean of the shared rows under its posterior.

    `evidence` holds for every id and row one byte: how much worse the row explains what the
    id did than the best one does, in sixteenths of a bit. With e of that,

        v = Σ_k w_k·weight[k] / Σ_k w_k,    w_k = 2^(−e_k/16), but 0 where e_k = 255.

    An id of which little is known is near the mean of all rows; the more is known, the
    nearer it is to one of them, where it ends up. The last place of `evidence` is that of
    unseen ids, and what new ones begin with.

    >>> table = PosteriorEmbedding(3, 2, rows=2)
    >>> _ = table.evidence[0].copy_(torch.tensor([0, 16]))
    >>> table.weights(torch.tensor([0, 1, -1])).tolist()
    [[0.6666666865348816, 0.3333333432674408], [0.5, 0.5], [0.5, 0.5]]
    >>> table.memory()
    Memory(table=16, index=8)
    """

    evidence: Tensor
    """(ids + 1, rows) of uint8."""
    _active: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        first_rows: int | None = None,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`first_rows` of the `rows` are there from the beginning, or all; others by splits."""
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        first = rows if first_rows is None else first_rows
        if not 1 <= first <= rows:
            raise CelrecError(f"first_rows must lie in 1 … {rows} (the rows), not {first_rows}")
        self.max_rows, self._ids = rows, IdRows()
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        evidence = torch.zeros(num_embeddings + 1, rows, dtype=torch.uint8, device=device)
        evidence[:, first:] = IMPOSSIBLE
        self.register_buffer("evidence", evidence)
        self.register_buffer("_active", torch.tensor(first, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows from N(0, 1/dim)."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Memory is low where a byte for each row is far less than a row of one's own."""
        few = 4 * self.max_rows <= self.embedding_dim * self.weight.element_size()
        return Traits(low_time=False, low_memory=few, incremental=True)

    @property
    def num_rows(self) -> int:
        """The rows that are there by now."""
        return int(self._active)

    def weights(self, ids: Tensor) -> Tensor:
        """The weight of each row for each id; they sum to 1."""
        evidence = self._evidence_of(ids)
        bits = evidence.to(self.weight.dtype) / -STEPS_PER_BIT
        weights = torch.where(evidence == IMPOSSIBLE, 0.0, bits.exp2())
        return weights / weights.sum(-1, keepdim=True)

    def vectors(self, ids: Tensor) -> Tensor:
        """The means of the rows."""
        return self.weights(ids) @ self.weight

    def nearest(self, ids: Tensor) -> Tensor:
        """The row that has the largest weight for each id: its cluster."""
        return self._evidence_of(ids).argmin(-1)

    def _evidence_of(self, ids: Tensor) -> Tensor:
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return self.evidence[torch.where(seen, ids, self.num_embeddings)]

    @torch.no_grad()
    def split(self, row: int, step: Tensor) -> int:
        """Put two rows, at row ± `step`, in the place of one, each with half of its weight.

        So no vector changes, but for weights that halves of which are too small to be kept.
        Gives the number of the new row.
        """
        new = self.num_rows
        if not 0 <= row < new:
            raise CelrecError(f"row must be one that is there, 0 … {new - 1}, not {row}")
        if new == self.max_rows:
            raise CelrecError(f"all {self.max_rows} rows are in use; ask for more rows")
        halved = self.evidence[:, row].int() + STEPS_PER_BIT
        halved = halved.clamp(max=IMPOSSIBLE).to(torch.uint8)
        self.evidence[:, row] = self.evidence[:, new] = halved
        # The best row is the one without evidence against it, by definition.
        self.evidence -= torch.where(
            self.evidence == IMPOSSIBLE, 0, self.evidence.amin(1, keepdim=True)
        )
        self.weight[new] = self.weight[row] - step
        self.weight[row] += step
        self._active += 1
        return new

    @torch.no_grad()
    def merge(self, first: int, second: int) -> None:
        """Put one row, the mean of two, in their place, with the weights of both.

        The last row takes the number of the one that is gone. Where the two are the same,
        no vector changes, but for the rounding of the new weights.
        """
        last = self.num_rows - 1
        if first == second or not (0 <= first <= last and 0 <= second <= last):
            raise CelrecError(
                f"first and second must be two rows that are there, 0 … {last}, "
                f"not {first} and {second}"
            )
        kept, gone = sorted((first, second))
        pair = self.evidence[:, [kept, gone]]
        weights = torch.where(pair == IMPOSSIBLE, 0.0, (pair / -STEPS_PER_BIT).exp2()).sum(1)
        value = (-STEPS_PER_BIT * weights.log2()).round()
        lowest = torch.minimum(value, torch.zeros_like(value))  # of all rows: it becomes 0
        others = self.evidence.float() - lowest.unsqueeze(1)
        others = others.clamp(max=IMPOSSIBLE - 1).to(torch.uint8)
        self.evidence.copy_(torch.where(self.evidence == IMPOSSIBLE, self.evidence, others))
        value = (value - lowest).clamp(max=IMPOSSIBLE - 1).to(torch.uint8)
        self.evidence[:, kept] = torch.where(weights > 0, value, IMPOSSIBLE)
        self.weight[kept] = (self.weight[kept] + self.weight[gone]) / 2
        self.weight[gone] = self.weight[last]
        self.evidence[:, gone] = self.evidence[:, last]
        self.evidence[:, last] = IMPOSSIBLE
        self._active -= 1

    def use_budget(self, budget: MemoryBudget) -> None:
        """See `Embedding`."""
        self._ids = IdRows(budget)
        self.evidence = self._ids.moved_in(self.evidence)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """New ids begin with the weights of unseen ones."""
        self._grown(num_embeddings)
        self.evidence = self._ids.grown(self.evidence, num_embeddings + 1, self.evidence[-1])

    @torch.no_grad()
    def keep(self, ids: Tensor) -> None:
        """See `Embedding`. Rows stay, whoever is gone."""
        left = torch.cat([ids, ids.new_tensor([self.num_embeddings])])
        self._kept(ids)
        self.evidence = self._ids.kept(self.evidence, left)
        self.grow(max(len(ids), 1))

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        return {**super().settings(), "rows": self.max_rows}

    def memory(self, *, training: bool = False) -> Memory:
        """For serving the rows that are there and their weights; for training all."""
        if training:
            return Memory(self.weight.nbytes, self.evidence.nbytes + self._active.nbytes)
        rows, size = self.num_rows, self.weight.element_size()
        return Memory(rows * self.embedding_dim * size, len(self.evidence) * rows)

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        return f"{super().extra_repr()}, rows={self.num_rows} of {self.max_rows}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A saved table may have grown: its number of ids is that of the saved evidence.
        saved = state_dict.get(f"{prefix}evidence")
        if saved is not None and len(saved) != len(self.evidence):
            self.evidence = self._ids.emptied(self.evidence, len(saved))
            self.num_embeddings = len(saved) - 1
        super()._load_from_state_dict(state_dict, prefix, *rest)
