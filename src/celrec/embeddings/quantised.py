"""Rows of eight bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Embedding, Memory, SharedRows, Traits
from celrec.embeddings.hashing import mixed
from celrec.embeddings.tree import TreeEmbedding
from celrec.errors import CelrecError

_MOST = 127
_PACE = 1 / 64
"""A step has to learn much more slowly than the values that it rounds."""


class QuantisedEmbedding(Embedding):
    """The vectors of another table in eight bits: Δ_r · q_r, with whole q_r in −127 … 127.

    The step of a row is Δ_r = (1 + stretch_r / 64) · max |w_r| / 127, with w_r its floats
    and a learned `stretch`, 0 at first. While training, vectors are rounded to the nearest
    multiples of the step, and gradients go straight through to the floats; the stretch has
    the gradient of LSQ, over √(127 · dim). `adapt`, to be called after each step of the
    optimiser, puts all floats on the grid again by stochastic rounding, so that eight bits
    hold all that is learned (ALPT). As steps follow the floats, rows may be split, merged
    and promoted beneath.

    `pack` leaves the integers and the steps, for serving: four times smaller, the same
    vectors, and nothing that can be trained.

    >>> from celrec.embeddings.modulo import ModuloEmbedding
    >>> table = QuantisedEmbedding(ModuloEmbedding(1000, 16, rows=10))
    >>> table.memory(training=True), table.memory()
    (Memory(table=680, index=8), Memory(table=200, index=0))
    >>> before = table(torch.arange(5))
    >>> table.pack()
    >>> bool((table(torch.arange(5)) == before).all()), table.rows.weight.dtype
    (True, torch.int8)
    """

    stretch: nn.Parameter
    """By how much the step of each row is longer than its values need, until it is packed."""
    step: nn.Parameter
    """The step of each row, once it is packed."""
    _rounds: Tensor | None

    def __init__(self, rows: SharedRows, *, packed: bool = False, seed: int = 0) -> None:
        super().__init__(rows.num_embeddings, rows.embedding_dim, rows.padding_idx)
        if isinstance(rows, TreeEmbedding):
            raise CelrecError("rows must not be a tree that is still trained; pass its settled()")
        self.rows, self.packed, self.seed = rows, False, seed
        self.prepared_with = rows.prepared_with
        device, count = rows.weight.device, len(rows.weight)
        self.register_buffer("_rounds", torch.zeros((), dtype=torch.int64, device=device))
        if rows.weight.is_floating_point():
            self.stretch = nn.Parameter(rows.weight.new_zeros(count))
            if packed:
                self.pack()
        elif packed:  # the rows of one that was packed
            self._keep(rows.weight.detach(), torch.ones(count, device=device))
        else:
            raise CelrecError(
                f"packed: rows of {rows.weight.dtype} cannot be trained; pass packed=True"
            )
        self.register_load_state_dict_post_hook(_follow)  # type: ignore[no-untyped-call]

    @property
    def watches(self) -> bool:
        """As the rows have it."""
        return self.rows.watches

    @property
    def num_rows(self) -> int:
        """Those that are in use."""
        return self.rows.num_rows

    def row_of(self, ids: Tensor) -> Tensor:
        """The row of each id."""
        return self.rows.row_of(ids)

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`, rounded."""
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
        # The value of what is rounded, the gradient of what is not.
        return whole * step.detach() + (through - through.detach())

    @torch.no_grad()
    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """What the rows have to do; then round them, up or down by chance, to their grids."""
        if self._rounds is None:
            return
        self.rows.adapt(optimizer)
        weight = self.rows.weight
        generator = Generator(weight.device).manual_seed(int(mixed(self._rounds, self.seed)))
        chance = torch.empty_like(weight).uniform_(generator=generator)
        step = _step(weight, self.stretch)
        exact = weight / step
        # What is on the grid already stays there, whatever division makes of it.
        near = (exact - exact.round()).abs() < min(0.25, 1024 * torch.finfo(weight.dtype).eps)
        whole = torch.where(near, exact.round(), (exact + chance).floor()).clamp(-_MOST, _MOST)
        weight.copy_(whole * step)
        # Rounding may have changed a row's largest value, but must not change its step.
        plain = _step(weight, torch.zeros_like(self.stretch))
        self.stretch.copy_(((step / plain).squeeze(-1) - 1) / _PACE)
        self._rounds += 1

    @torch.no_grad()
    def pack(self) -> None:
        """Give up the floats for integers and steps; vectors stay the same, training ends."""
        if self.packed:
            return
        step = _step(self.rows.weight, self.stretch)
        whole = (self.rows.weight / step).round().clamp(-_MOST, _MOST)
        del self.stretch
        self._keep(whole.to(torch.int8), step.squeeze(-1))

    def _keep(self, whole: Tensor, step: Tensor) -> None:
        # In the place of the floats, so that the table that knows the rows knows no difference.
        self.rows.weight = nn.Parameter(whole, requires_grad=False)
        self.step = nn.Parameter(step, requires_grad=False)
        self._rounds, self.packed = None, True

    def settled(self) -> Embedding:
        """Itself, packed."""
        self.pack()
        return self

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Those of the rows."""
        return self.rows.traits

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """As the rows have it: steps are positive."""
        return self.rows.non_negative_parameters()

    def penalty(self) -> Tensor | None:
        """As the rows have it."""
        return self.rows.penalty()

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """As the rows have it; rows that are added at the end are like the last one."""
        self.rows.grow(num_embeddings)
        self._grown(num_embeddings)
        of_row = self.step if self.packed else self.stretch
        more = len(self.rows.weight) - len(of_row)
        of_row.data = torch.cat([of_row, of_row[-1:].expand(more)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The rows may have grown: there are as many of them as there are steps.
        for name in ("step", "stretch"):
            saved, held = state_dict.get(f"{prefix}{name}"), getattr(self, name, None)
            if saved is not None and held is not None and len(saved) != len(held):
                held.data = held.new_zeros(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def settings(self) -> dict[str, Any]:
        """The table that it is made from, and whether it is packed."""
        return {"rows": self.rows, "packed": self.packed, "seed": self.seed}

    def memory(self, *, training: bool = False) -> Memory:
        """For serving what is left after `pack`; all that is held for training."""
        rows, of_row = self.rows.memory(training=training), next(self.parameters())
        if training:
            rounds = 0 if self._rounds is None else self._rounds.nbytes
            return Memory(rows.table + of_row.nbytes, rows.index + rounds)
        whole = rows.table // self.rows.weight.element_size()
        steps = whole // self.embedding_dim * of_row.element_size()
        return Memory(whole + steps, rows.index)

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        return f"{super().extra_repr()}{', packed' if self.packed else ''}"


def _step(rows: Tensor, stretch: Tensor) -> Tensor:
    """Steps of rows, with one more axis than `stretch`."""
    plain = rows.detach().abs().amax(-1, keepdim=True) / _MOST
    plain = plain.clamp(min=torch.finfo(rows.dtype).tiny)  # rows of zeros have a step too
    return (stretch * _PACE + 1).clamp(0.25, 4.0).unsqueeze(-1) * plain


def _follow(table: QuantisedEmbedding, _: object) -> None:
    """The rows that were loaded may have grown."""
    table.num_embeddings = table.rows.num_embeddings
