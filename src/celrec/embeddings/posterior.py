"""Mixtures of shared rows, weighted by the posterior of each id."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.id_rows import IdRows
from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget

STEPS_PER_BIT = 16
"""Evidence is stored in sixteenths of a bit."""
IMPOSSIBLE = 255
"""The evidence against a row with weight 0."""


class PosteriorEmbedding(Embedding):
    """The vector of an id is the mean of the shared rows under its posterior.

    `evidence` has one byte per id and row: by how much the log-likelihood of the id's
    interactions under the row is below that under its best row, in sixteenths of a bit. With
    e_k the evidence against row k,

        v = Σ_k w_k·weight[k] / Σ_k w_k,    w_k = 2^(−e_k/16), but 0 where e_k = 255.

    An id with few interactions is near the mean of all rows; with more it approaches one row.
    The last row of `evidence` is for unseen ids, and new ids start with it.

    >>> table = PosteriorEmbedding(3, 2, rows=2)
    >>> _ = table.evidence[0].copy_(torch.tensor([0, 16]))
    >>> table.weights(torch.tensor([0, 1, -1])).tolist()
    [[0.6666666865348816, 0.3333333432674408], [0.5, 0.5], [0.5, 0.5]]
    >>> table.memory()
    Memory(table=16, index=8)
    """

    per_id = "evidence"
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
        """Start with `first_rows` active rows (default: all); `split` activates the others."""
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
        """Initialise rows from N(0, 1/dim)."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Memory is low if one byte per row is far less than a full row per id."""
        few = 4 * self.max_rows <= self.embedding_dim * self.weight.element_size()
        return Traits(low_time=False, low_memory=few, incremental=True)

    @property
    def num_rows(self) -> int:
        return int(self._active)

    def weights(self, ids: Tensor) -> Tensor:
        """The weight of each row for each id; they sum to 1."""
        evidence = self._evidence_of(ids)
        bits = evidence.to(self.weight.dtype) / -STEPS_PER_BIT
        weights = torch.where(evidence == IMPOSSIBLE, 0.0, bits.exp2())
        return weights / weights.sum(-1, keepdim=True)

    def vectors(self, ids: Tensor) -> Tensor:
        return self.weights(ids) @ self.weight

    def nearest(self, ids: Tensor) -> Tensor:
        """The row with the largest weight for each id: its cluster."""
        return self._evidence_of(ids).argmin(-1)

    def _evidence_of(self, ids: Tensor) -> Tensor:
        return self.evidence[self._place(ids)]

    @torch.no_grad()
    def split(self, row: int, step: Tensor) -> int:
        """Replace a row by row + `step` and row − `step`, each with half of its weight.

        No vector changes, except where half a weight is too small for one byte. Returns the
        number of the new row.
        """
        new = self.num_rows
        if not 0 <= row < new:
            raise CelrecError(f"row must be an active one, 0 … {new - 1}, not {row}")
        if new == self.max_rows:
            raise CelrecError(f"all {self.max_rows} rows are in use; raise rows")
        halved = self.evidence[:, row].int() + STEPS_PER_BIT
        halved = halved.clamp(max=IMPOSSIBLE).to(torch.uint8)
        self.evidence[:, row] = self.evidence[:, new] = halved
        # Evidence is relative to the best row, which has 0.
        self.evidence -= torch.where(
            self.evidence == IMPOSSIBLE, 0, self.evidence.amin(1, keepdim=True)
        )
        self.weight[new] = self.weight[row] - step
        self.weight[row] += step
        self._active += 1
        return new

    @torch.no_grad()
    def merge(self, first: int, second: int) -> None:
        """Replace two rows by their mean, with the sum of their weights.

        The last row takes the number of the removed one. If the two rows are equal, no vector
        changes, except for the rounding of weights.
        """
        last = self.num_rows - 1
        if first == second or not (0 <= first <= last and 0 <= second <= last):
            raise CelrecError(
                f"first and second must be two active rows, 0 … {last}, not {first} and {second}"
            )
        kept, gone = sorted((first, second))
        pair = self.evidence[:, [kept, gone]]
        weights = torch.where(pair == IMPOSSIBLE, 0.0, (pair / -STEPS_PER_BIT).exp2()).sum(1)
        value = (-STEPS_PER_BIT * weights.log2()).round()
        lowest = torch.minimum(value, torch.zeros_like(value))  # the best row gets 0
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
        self._ids = IdRows(budget)
        self.evidence = self._ids.place(self.evidence)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids start with the weights of unseen ids."""
        self._grow_ids(num_embeddings)
        self.evidence = self._ids.extended(self.evidence, num_embeddings + 1, self.evidence[-1])

    @torch.no_grad()
    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these, given in ascending order; no row is removed."""
        places = torch.cat([ids, ids.new_tensor([self.num_embeddings])])
        self._keep_ids(ids)
        self.evidence = self._ids.selected(self.evidence, places)
        self.grow(max(len(ids), 1))

    def memory(self, *, training: bool = False) -> Memory:
        """When serving, the active rows and their evidence; while training, all allocations."""
        if training:
            return Memory(self.weight.nbytes, self.evidence.nbytes + self._active.nbytes)
        rows, size = self.num_rows, self.weight.element_size()
        return Memory(rows * self.embedding_dim * size, len(self.evidence) * rows)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rows={self.num_rows} of {self.max_rows}"

    def _fit(self, length: int) -> None:
        self.evidence = self._ids.zeros(self.evidence, length)
        self.num_embeddings = length - 1
