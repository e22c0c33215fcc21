"""Rows of four bits for serving, one of each id."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.errors import CelrecError

_TOP = 7  # the greatest number of four bits with a sign; those from −7 to 7 are used
_CLIPPED = (1.0, 0.9, 0.8, 0.7, 0.6)  # shares of the largest number of a row that are tried


class FourBitEmbedding(Embedding):
    """A row of four-bit integers for each id, times a step of the row: for serving.

    The step of a row is that of a few, from its largest number / 7 downwards, with the least
    squared error. Two numbers lie in a byte.

    >>> from celrec.embeddings.full import FullEmbedding
    >>> table = FourBitEmbedding.of(FullEmbedding(1000, 16))
    >>> table.memory()
    Memory(table=12012, index=0)
    """

    traits = Traits(low_time=True, low_memory=False, incremental=True)
    per_id = "step"

    packed: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        ids, width = num_embeddings + 1, -(-embedding_dim // 2)
        self.step = nn.Parameter(torch.ones(ids, device=device, dtype=dtype), False)
        packed = torch.zeros(ids, width, dtype=torch.uint8, device=device)
        self.register_buffer("packed", packed)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Round rows from N(0, 1/dim)."""
        self._set(torch.randn(self.num_embeddings + 1, self.embedding_dim).to(self.step))
        with torch.no_grad():
            self.step.mul_(self.embedding_dim**-0.5)

    @classmethod
    @torch.no_grad()
    def of(cls, table: Embedding) -> FourBitEmbedding:
        """The vectors of a table, rounded."""
        like = next(table.parameters())
        ids = torch.arange(-1, table.num_embeddings, device=like.device).roll(-1)
        vectors = table.vectors(ids)
        packed = cls(
            *(table.num_embeddings, table.embedding_dim),
            padding_idx=table.padding_idx,
            device=like.device,
            dtype=vectors.dtype,
        )
        packed._set(vectors)
        return packed

    @torch.no_grad()
    def _set(self, vectors: Tensor) -> None:
        largest = vectors.abs().amax(1).clamp(min=torch.finfo(vectors.dtype).tiny * 2 * _TOP)
        steps = torch.stack([largest * share / _TOP for share in _CLIPPED])
        errors = torch.stack(
            [(_whole(vectors, step) * step[:, None] - vectors).square().sum(1) for step in steps]
        )
        step = steps.gather(0, errors.argmin(0)[None])[0]
        whole = _whole(vectors, step).long() + _TOP
        whole = nn.functional.pad(whole, (0, whole.shape[1] % 2))
        self.packed.copy_(whole[:, ::2] + whole[:, 1::2] * 16)
        self.step.copy_(step)

    def vectors(self, ids: Tensor) -> Tensor:
        place = self._place(ids)
        both = self.packed[place].long()
        whole = torch.stack([both % 16, both // 16], -1).flatten(-2)[..., : self.embedding_dim]
        return (whole - _TOP) * self.step[place][..., None]

    @property
    def num_rows(self) -> int:
        return self.num_embeddings + 1

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids have the row of unseen ids."""
        more = num_embeddings - self.num_embeddings
        self._grow_ids(num_embeddings)
        self.packed = torch.cat([self.packed, self.packed[-1:].expand(more, -1)])
        self.step.data = torch.cat([self.step, self.step[-1:].expand(more)])

    @torch.no_grad()
    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these, given in ascending order, and renumber them from 0."""
        places = torch.cat([ids, ids.new_tensor([self.num_embeddings])])
        self._keep_ids(ids)
        self.packed, self.step.data = self.packed[places], self.step.data[places]
        self.grow(max(len(ids), 1))

    def _fit(self, length: int) -> None:
        self.step.data = self.step.new_ones(length)
        self.packed = self.packed.new_zeros(length, self.packed.shape[1])
        self.num_embeddings = length - 1

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(self.packed.nbytes + self.step.nbytes, 0)

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """None: an error, since packed rows are not trained."""
        raise CelrecError("rows of four bits are not trained; train a FullEmbedding, and round it")


def _whole(vectors: Tensor, step: Tensor) -> Tensor:
    return (vectors / step[:, None]).round().clamp(-_TOP, _TOP)
