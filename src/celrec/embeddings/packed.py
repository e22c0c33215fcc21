"""Packed tables for serving: codes of as many bits as they need, and rows of eight bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError

ROW_BITS = (8, 32)
"""The bits that a number in a row of a packed table may have."""
_BYTE = 8
_MOST = 127
_MOST_ROWS = 1 << 25  # whose codes lie in four bytes, wherever they begin
_CHUNK = 1 << 16  # ids at a time, a multiple of eight


class PackedLevels(Embedding):
    """Sums of rows of several levels, with codes packed in bits.

    Level l has `rows[l]` rows for the columns `columns[l]`, and a code of ⌈log₂ rows[l]⌉ bits for
    each id. The codes of all levels and ids lie side by side in one string of bits: four levels
    of 16 rows take two bytes an id. Numbers in rows are floats, or with `bits=8` integers times
    a step of their level.

    The table is made of a trained one by `of` or `pack`, and is not trained itself. Ids can be
    added and removed; new ids have the codes of unseen ids.

    >>> table = LevelledEmbedding(1000, 8, max_clusters=16, levels=4)
    >>> packed = PackedLevels.of(table, bits=32)
    >>> bool((packed(torch.arange(1000)) == table(torch.arange(1000))).all())
    True
    >>> PackedLevels(1000, 8, rows=[16] * 4, bits=8).memory()
    Memory(table=528, index=2010)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=True)

    packed: Tensor
    """The bytes of all codes, those of unseen ids in the last place."""
    weight: nn.Parameter
    """The rows of all levels, one after another."""
    step: nn.Parameter
    """The step of each level, for rows of eight bits; else empty."""
    _ids: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: Sequence[int],
        columns: Sequence[Sequence[int]] | None = None,
        bits: int = 8,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create levels of random rows, with code 0 for each id.

        `columns` has the first column of each level, and the one after its last; None: all.
        """
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        if bits not in ROW_BITS:
            raise CelrecError(f"bits must be one of {', '.join(map(str, ROW_BITS))}, not {bits}")
        if not rows or not all(1 <= count <= _MOST_ROWS for count in rows):
            raise CelrecError(f"rows must be numbers from 1 to {_MOST_ROWS:,}, not {list(rows)}")
        columns = [(0, embedding_dim)] * len(rows) if columns is None else columns
        if len(columns) != len(rows) or any(
            len(ends) != 2 or not 0 <= ends[0] < ends[1] <= embedding_dim for ends in columns
        ):
            raise CelrecError(
                f"columns must be two ends in 0 … {embedding_dim} for each of {len(rows)} levels, "
                f"not {[list(ends) for ends in columns]}"
            )
        self.rows, self.columns = list(rows), [list(ends) for ends in columns]
        self.bits = bits
        self._widths = [(count - 1).bit_length() for count in self.rows]
        self._sizes = [
            count * (stop - first)
            for count, (first, stop) in zip(self.rows, self.columns, strict=True)
        ]
        like = torch.empty(0, device=device, dtype=dtype)
        whole = {8: torch.int8, 32: like.dtype}[bits]
        self.weight = nn.Parameter(like.new_zeros(sum(self._sizes), dtype=whole), False)
        self.step = nn.Parameter(like.new_ones(len(rows) if bits == 8 else 0), False)
        self.register_buffer("packed", torch.zeros(0, dtype=torch.uint8, device=like.device))
        self.register_buffer("_ids", torch.tensor(num_embeddings, device=like.device))
        self._fit(num_embeddings)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw rows from N(0, 1/dim), divided by the number of levels of their columns."""
        covered = torch.zeros(self.embedding_dim)
        for first, stop in self.columns:
            covered[first:stop] += 1
        for level, (first, stop) in enumerate(self.columns):
            deviation = (self.embedding_dim * covered[first:stop]).rsqrt()
            self._set_rows(level, torch.randn(self.rows[level], stop - first) * deviation)

    @classmethod
    def of(cls, table: Embedding, bits: int = 8) -> PackedLevels:
        """The vectors of a table of clusters or levels; rounded, if `bits` is 8."""
        if isinstance(table, LevelledEmbedding):
            levels = table.clustered_levels
            columns = [table.part_of(number) for number in range(len(levels))]
        elif isinstance(table, ClusteredEmbedding):
            levels, columns = [table], [slice(0, table.embedding_dim)]
        else:
            raise CelrecError(
                f"table must be a ClusteredEmbedding or a LevelledEmbedding, "
                f"not {type(table).__name__}"
            )
        rows = [level.weight.detach()[: level.num_clusters] for level in levels]
        ids = torch.arange(-1, table.num_embeddings, device=rows[0].device).roll(-1)
        codes = torch.stack([level.row_of(ids) for level in levels], 1)
        ends = [[part.start, part.stop] for part in columns]
        packed = cls.pack(codes, rows, ends, bits)
        packed.padding_idx = table.padding_idx
        return packed

    @classmethod
    @torch.no_grad()
    def pack(
        cls,
        codes: Tensor,
        rows: Sequence[Tensor],
        columns: Sequence[Sequence[int]],
        bits: int = 8,
    ) -> PackedLevels:
        """Pack the codes of all ids and of unseen ids, (ids + 1) × levels, and their rows."""
        table = cls(
            len(codes) - 1,
            max(stop for _, stop in columns),
            rows=[len(level) for level in rows],
            columns=columns,
            bits=bits,
            device=codes.device,
            dtype=rows[0].dtype,
        )
        for number, level in enumerate(rows):
            table._set_rows(number, level)
        starts = range(0, len(codes), _CHUNK)
        table.packed = torch.cat([table._bytes(codes[s : s + _CHUNK]) for s in starts])
        return table

    def codes(self, ids: Tensor) -> Tensor:
        """The row of each id in each level, with one more axis than `ids`."""
        widths = torch.tensor(self._widths, device=ids.device)
        bit = self._place(ids)[..., None] * sum(self._widths) + widths.cumsum(0) - widths
        first, last = bit // _BYTE, max(len(self.packed) - 1, 0)
        word = torch.zeros_like(bit)
        for place in range(4):
            found = self.packed[(first + place).clamp(max=last)] if len(self.packed) else word
            word = word + found.long() * (1 << _BYTE * place)
        shift, size = 2 ** (bit % _BYTE), 2**widths
        return word // shift % size

    def vectors(self, ids: Tensor) -> Tensor:
        codes = self.codes(ids)
        sums = torch.zeros(
            *ids.shape, self.embedding_dim, dtype=self._dtype, device=self.weight.device
        )
        for level, (first, stop) in enumerate(self.columns):
            found = self._level(level).index_select(0, codes[..., level].reshape(-1))
            found = found.view(*ids.shape, stop - first)
            if self.bits == _BYTE:
                found = found * self.step[level]
            # Not in place: sums of exported code are new tensors.
            sums = sums + nn.functional.pad(found, (first, self.embedding_dim - stop))
        return sums

    def level_rows(self) -> list[Tensor]:
        """The rows of each level, in floats."""
        steps = self.step if self.bits == _BYTE else [1.0] * len(self.rows)
        return [self._level(level) * step for level, step in enumerate(steps)]

    @property
    def num_rows(self) -> int:
        return sum(self.rows)

    @property
    def _dtype(self) -> torch.dtype:
        return self.step.dtype if self.bits == _BYTE else self.weight.dtype

    def _level(self, level: int) -> Tensor:
        """The rows of a level, as a view of the weight."""
        first = sum(self._sizes[:level])
        return self.weight[first : first + self._sizes[level]].view(self.rows[level], -1)

    def _set_rows(self, level: int, rows: Tensor) -> None:
        if self.bits == _BYTE:
            step = (rows.abs().amax() / _MOST).clamp(min=torch.finfo(rows.dtype).tiny)
            self.step[level] = step
            rows = (rows / step).round()
        self._level(level).copy_(rows)

    def _bytes(self, codes: Tensor) -> Tensor:
        """The codes of some ids as a string of bits, filled up to whole bytes."""
        bits = [
            codes[:, level, None] // 2 ** torch.arange(width, device=codes.device) % 2
            for level, width in enumerate(self._widths)
        ]
        flat = torch.cat(bits, 1).flatten()
        flat = nn.functional.pad(flat, (0, -len(flat) % _BYTE)).view(-1, _BYTE)
        powers: Tensor = (flat * 2 ** torch.arange(_BYTE, device=flat.device)).sum(1)
        return powers.to(torch.uint8)

    def _select(self, places: Tensor) -> Tensor:
        """The string of bits of the codes of some ids, by their places."""
        starts = range(0, len(places), _CHUNK)
        return torch.cat([self._bytes(self.codes(places[s : s + _CHUNK])) for s in starts])

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids have the codes of unseen ids."""
        places = torch.arange(num_embeddings + 1, device=self.packed.device)
        packed = self._select(places)  # those above the ids are unseen
        self._grow_ids(num_embeddings)
        self.packed = packed
        self._ids.fill_(num_embeddings)

    @torch.no_grad()
    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these, given in ascending order, and renumber them from 0."""
        before = self.num_embeddings
        packed = self._select(torch.cat([ids, ids.new_tensor([before])])) if len(ids) else None
        self._keep_ids(ids)
        if packed is None:  # a table has at least one id, an unseen one
            packed, self.num_embeddings = self._select(ids.new_tensor([before] * 2)), 1
        self.packed = packed
        self._ids.fill_(self.num_embeddings)

    def _fit(self, length: int) -> None:
        size = -(-(length + 1) * sum(self._widths) // _BYTE)
        self.packed = self.packed.new_zeros(size)
        self.num_embeddings = length

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}_ids")
        if saved is not None and int(saved) != self.num_embeddings:
            self._fit(int(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(self.weight.nbytes + self.step.nbytes, self.packed.nbytes + self._ids.nbytes)

    def settings(self) -> dict[str, Any]:
        common = {name: getattr(self, name) for name in ("num_embeddings", "embedding_dim")}
        return {
            **common,
            "padding_idx": self.padding_idx,
            "rows": self.rows,
            "columns": self.columns,
            "bits": self.bits,
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rows={self.rows}, bits={self.bits}"
