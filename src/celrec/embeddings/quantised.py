"""Quantisation of rows to eight bits, trained with learned steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Embedding, Memory, SharedRows, Traits
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.tree import TreeEmbedding
from celrec.errors import CelrecError

_MOST = 127
_PACE = 1 / 64
"""Scale of `stretch`, so that steps learn more slowly than values."""


class QuantisedEmbedding(Embedding):
    """The vectors of another table in eight bits: Δ_r · q_r, with integers q_r in −127 … 127.

    The step of a row is Δ_r = (1 + stretch_r / 64) · max |w_r| / 127, where w_r are its floats
    and `stretch` is learned, from 0. In training, vectors are rounded to the nearest multiple of
    the step. Gradients pass straight through to the floats (straight-through estimator), and the
    stretch has the gradient of LSQ, divided by √(127 · dim). `adapt`, called after each step of
    the optimiser, rounds the floats stochastically to the grid, so that eight bits represent the
    training state too (ALPT). Steps follow the floats, so rows of the inner table may be split,
    merged and promoted.

    `pack` keeps integers and steps only, for serving: the same vectors in a quarter of the
    memory, without training.

    >>> from celrec.embeddings.hashing import ModuloEmbedding
    >>> table = QuantisedEmbedding(ModuloEmbedding(1000, 16, rows=10))
    >>> table.memory(training=True), table.memory()
    (Memory(table=680, index=8), Memory(table=200, index=0))
    >>> before = table(torch.arange(5))
    >>> table.pack()
    >>> bool((table(torch.arange(5)) == before).all()), table.rows.weight.dtype
    (True, torch.int8)
    """

    stretch: nn.Parameter
    """The learned stretch of each row's step, before packing."""
    step: nn.Parameter
    """The step of each row, after packing."""
    _rounds: Tensor | None

    def __init__(self, rows: SharedRows, *, packed: bool = False, seed: int = 0) -> None:
        super().__init__(rows.num_embeddings, rows.embedding_dim, rows.padding_idx)
        if isinstance(rows, TreeEmbedding):
            raise CelrecError("rows must not be a TreeEmbedding in training; pass its settled()")
        self.rows, self.packed, self.seed = rows, False, seed
        self.preparation_bytes = rows.preparation_bytes
        device, count = rows.weight.device, len(rows.weight)
        self.register_buffer("_rounds", torch.zeros((), dtype=torch.int64, device=device))
        if rows.weight.is_floating_point():
            self.stretch = nn.Parameter(rows.weight.new_zeros(count))
            if packed:
                self.pack()
        elif packed:  # integer rows, from a description of a packed table
            self._set_packed(rows.weight.detach(), torch.ones(count, device=device))
        else:
            raise CelrecError(
                f"packed: rows of {rows.weight.dtype} cannot be trained; pass packed=True"
            )
        self.register_load_state_dict_post_hook(_follow)  # type: ignore[no-untyped-call]

    @property
    def observes_lookups(self) -> bool:
        return self.rows.observes_lookups

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows

    def row_of(self, ids: Tensor) -> Tensor:
        """The row of each id."""
        return self.rows.row_of(ids)

    def vectors(self, ids: Tensor) -> Tensor:
        row, rows = self.row_of(ids), self.rows.vectors(ids)
        of_row = self.step if self.packed else self.stretch
        each = of_row.index_select(0, row.reshape(-1)).view(row.shape)
        if self.packed:
            return rows * each.unsqueeze(-1)
        step = _step(rows, each)
        exact = (rows / step).detach()
        whole = exact.round().clamp(-_MOST, _MOST)
        slow = step / (_MOST * self.embedding_dim) ** 0.5
        inside = exact.abs() < _MOST + 0.5
        through = torch.where(inside, rows + slow * (whole - exact), slow * whole)
        # The value of the rounded vectors, the gradient of the exact ones.
        return whole * step.detach() + (through - through.detach())

    @torch.no_grad()
    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Adapt the inner table, then round its rows stochastically to their grids."""
        if self._rounds is None:
            return
        self.rows.adapt(optimizer)
        weight = self.rows.weight
        generator = Generator(weight.device).manual_seed(int(hash_ids(self._rounds, self.seed)))
        chance = torch.empty_like(weight).uniform_(generator=generator)
        step = _step(weight, self.stretch)
        exact = weight / step
        # Values on the grid stay there despite the rounding error of the division.
        near = (exact - exact.round()).abs() < min(0.25, 1024 * torch.finfo(weight.dtype).eps)
        whole = torch.where(near, exact.round(), (exact + chance).floor()).clamp(-_MOST, _MOST)
        weight.copy_(whole * step)
        # Adjust the stretch, so that a changed maximum does not change the step.
        plain = _step(weight, torch.zeros_like(self.stretch))
        self.stretch.copy_(((step / plain).squeeze(-1) - 1) / _PACE)
        self._rounds += 1

    @torch.no_grad()
    def pack(self) -> None:
        """Replace floats by integers and steps; vectors stay the same, training is over."""
        if self.packed:
            return
        step = _step(self.rows.weight, self.stretch)
        whole = (self.rows.weight / step).round().clamp(-_MOST, _MOST)
        del self.stretch
        self._set_packed(whole.to(torch.int8), step.squeeze(-1))

    def _set_packed(self, whole: Tensor, step: Tensor) -> None:
        # The integers become the weight of the inner table, which goes on looking up rows.
        self.rows.weight = nn.Parameter(whole, requires_grad=False)
        self.step = nn.Parameter(step, requires_grad=False)
        self._rounds, self.packed = None, True

    def settled(self) -> Embedding:
        """The table itself, packed."""
        self.pack()
        return self

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """The traits of the inner table."""
        return self.rows.traits

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """Those of the inner table, since steps are positive."""
        return self.rows.non_negative_parameters()

    def penalty(self) -> Tensor | None:
        return self.rows.penalty()

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Grow the inner table; rows added to it get the step of the last row."""
        self.rows.grow(num_embeddings)
        self._grow_ids(num_embeddings)
        of_row = self.step if self.packed else self.stretch
        more = len(self.rows.weight) - len(of_row)
        of_row.data = torch.cat([of_row, of_row[-1:].expand(more)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The saved table may have more rows: as many as saved steps.
        for name in ("step", "stretch"):
            saved, own = state_dict.get(f"{prefix}{name}"), getattr(self, name, None)
            if saved is not None and own is not None and len(saved) != len(own):
                own.data = own.new_zeros(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def settings(self) -> dict[str, Any]:
        """Constructor arguments: the inner table, and whether it is packed."""
        return {"rows": self.rows, "packed": self.packed, "seed": self.seed}

    def memory(self, *, training: bool = False) -> Memory:
        """When serving, the memory after `pack`; while training, all parameters."""
        rows, of_row = self.rows.memory(training=training), next(self.parameters())
        if training:
            rounds = 0 if self._rounds is None else self._rounds.nbytes
            return Memory(rows.table + of_row.nbytes, rows.index + rounds)
        whole = rows.table // self.rows.weight.element_size()
        steps = whole // self.embedding_dim * of_row.element_size()
        return Memory(whole + steps, rows.index)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}{', packed' if self.packed else ''}"


def _step(rows: Tensor, stretch: Tensor) -> Tensor:
    """The steps of rows, with one more axis than `stretch`."""
    plain = rows.detach().abs().amax(-1, keepdim=True) / _MOST
    plain = plain.clamp(min=torch.finfo(rows.dtype).tiny)  # positive also for rows of zeros
    return (stretch * _PACE + 1).clamp(0.25, 4.0).unsqueeze(-1) * plain


def _follow(table: QuantisedEmbedding, _: object) -> None:
    """After loading, take over the number of ids of the inner table."""
    table.num_embeddings = table.rows.num_embeddings
