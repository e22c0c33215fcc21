"""Binary code hashing: sums of rows that are selected by the bits of an id."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count
from typing import Unpack

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, TableOptions, Traits, table_options
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.id_rows import narrowest_dtype
from celrec.errors import CelrecError

_BITS = 62
_HALF = 31


class BinaryCodeEmbedding(Embedding):
    """Binary code hashing: v(id) = Σ_b table_b[block b of the bits of code(id)].

    The code is a seeded bijection on L-bit integers, so no two ids below 2^L select the same
    rows. Its bits are split into blocks: of consecutive bits (`succession`), or distributed
    round-robin (`skip`). A block of w bits has its own table of 2^w rows. Other ids, negative
    ones included, are reduced modulo 2^L.

    With `numbered`, the code of an id is a number set by `set_numbers` and stored per id, by
    default the id itself. This suits ids with meaningful numbers, such as the order of a
    catalogue: neighbours share the high bits.

    L is ⌈log2 `num_embeddings`⌉, at least 1. Candidate splits are equal blocks, or two blocks of
    any widths, narrow ones first. Of the splits with at least `rows` rows in total the smallest
    is used; if there is none, the largest. So there are never fewer rows than about 2·L.

    `widths` overrides this rule, as is needed to recreate a table that has grown.

    Yan et al., Binary Code based Hash Embedding for Web-scale Applications, CIKM 2021.

    >>> table = BinaryCodeEmbedding(3952, 64, rows=40)
    >>> table.widths
    [4, 4, 4]
    >>> table.memory()
    Memory(table=12288, index=0)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=True)
    per_id = "number"
    number: Tensor | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        split: str = "succession",
        widths: Sequence[int] | None = None,
        numbered: bool = False,
        seed: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        padding_idx, device, dtype = table_options(**options)
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if split not in ("succession", "skip"):
            raise CelrecError(f"split must be succession or skip, not {split!r}")
        self.widths = choose_widths(num_embeddings, rows) if widths is None else list(widths)
        self.bits = sum(self.widths)
        if min(self.widths, default=0) < 1 or self.bits > _BITS:
            raise CelrecError(
                f"widths must be positive and sum to at most {_BITS} bits, not {self.widths}"
            )
        self.split, self.seed, self.numbered = split, seed, numbered
        number = None
        if numbered:
            number = torch.arange(num_embeddings, device=device).to(narrowest_dtype(2**self.bits))
        self.register_buffer("number", number)
        draws = hash_ids(torch.arange(4, device="cpu"), seed).tolist()
        self.offset, *factors = draws
        self.factors = [factor | 1 for factor in factors]
        self._runs = _dealt(self.widths) if split == "skip" else _consecutive(self.widths)
        self.weight = nn.Parameter(
            torch.empty(_rows(self.widths), embedding_dim, device=device, dtype=dtype)
        )
        nn.init.normal_(self.weight, std=(embedding_dim * len(self.widths)) ** -0.5)

    @torch.no_grad()
    def set_numbers(self, numbers: Tensor) -> None:
        """Set the code of each id, a number below 2^L."""
        if self.number is None:
            raise CelrecError("numbered is False, so codes are hashes; create it with True")
        if numbers.shape != self.number.shape:
            raise CelrecError(
                f"numbers must be one for each of {self.num_embeddings:,} ids, "
                f"not of shape {tuple(numbers.shape)}"
            )
        low, high = (int(end) for end in numbers.aminmax())
        if low < 0 or high >= 2**self.bits:
            wrong = low if low < 0 else high
            raise CelrecError(f"numbers must lie in 0 … {2**self.bits - 1:,}, not {wrong}")
        self.number.copy_(numbers)

    def code(self, ids: Tensor) -> Tensor:
        """The code of each id as an integer of L bits."""
        mask = 2**self.bits - 1
        if self.number is not None:
            seen = (ids >= 0) & (ids < self.num_embeddings)
            known = self.number[torch.where(seen, ids, 0)].long()
            return torch.where(seen, known, ids.long() & mask)
        code: Tensor = ((ids.long() & mask) + self.offset) & mask
        for factor in self.factors:
            # In two halves, since the whole product would not fit in 63 bits.
            low = (code & (2**_HALF - 1)) * factor
            high = ((code >> _HALF) * factor & (mask >> _HALF)) << _HALF
            code = (low + high) & mask
            code = code ^ (code >> (self.bits + 1) // 2)
        return code

    def rows_of(self, ids: Tensor) -> Tensor:
        """The rows of `weight` that are summed for each id; the last axis runs over blocks."""
        code = self.code(ids)
        rows = []
        first = 0
        for width, runs in zip(self.widths, self._runs, strict=True):
            row = torch.full_like(code, first)
            place = 0
            for start, length in runs:
                row = row + (((code >> start) & (2**length - 1)) << place)
                place += length
            rows.append(row)
            first += 2**width
        return torch.stack(rows, -1)

    def vectors(self, ids: Tensor) -> Tensor:
        rows = self.rows_of(ids)
        found = self.weight.index_select(0, rows.reshape(-1))
        return found.view(*rows.shape, self.embedding_dim).sum(-2)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; ids from 2^L on share all rows with earlier ones."""
        before = self.num_embeddings
        self._grow_ids(num_embeddings)
        if self.number is not None:
            new = torch.arange(before, num_embeddings, device=self.number.device)
            more = (new & (2**self.bits - 1)).to(self.number)
            self.number = torch.cat([self.number, more])

    def memory(self, *, training: bool = False) -> Memory:
        """The rows, and the stored numbers if there are any."""
        return Memory(self.weight.nbytes, 0 if self.number is None else self.number.nbytes)

    def _fit(self, length: int) -> None:
        if self.number is not None:
            self.number = self.number.new_zeros(length)
            self.num_embeddings = length

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bits={'+'.join(str(width) for width in self.widths)}"


def choose_widths(num_embeddings: int, rows: int) -> list[int]:
    """The widths of the blocks, narrow ones first, by the rule of `BinaryCodeEmbedding`."""
    bits = max(1, (num_embeddings - 1).bit_length())
    splits = [[narrow, bits - narrow] for narrow in range(1, bits // 2 + 1)]
    for blocks in range(1, bits + 1):
        each, wider = divmod(bits, blocks)
        splits.append([each] * (blocks - wider) + [each + 1] * wider)
    enough = [split for split in splits if _rows(split) >= rows]
    return min(enough, key=_rows) if enough else max(splits, key=_rows)


def _rows(widths: Sequence[int]) -> int:
    return sum(2**width for width in widths)


def _consecutive(widths: list[int]) -> list[list[tuple[int, int]]]:
    """The bits of each block as runs (first bit, length): one run per block."""
    return [[run] for run in zip(accumulate(widths, initial=0), widths, strict=False)]


def _dealt(widths: list[int]) -> list[list[tuple[int, int]]]:
    """The bits of each block as runs of one bit, distributed round-robin."""
    bits = count()
    runs: list[list[tuple[int, int]]] = [[] for _ in widths]
    for turn in range(max(widths)):
        for run, width in zip(runs, widths, strict=True):
            if turn < width:
                run.append((next(bits), 1))
    return runs
