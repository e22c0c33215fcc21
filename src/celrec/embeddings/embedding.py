"""What every embedding method has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of rows and of what leads from an id to its row, never one without the other.

    >>> Memory(table=1024, index=4000)
    Memory(table=1024, index=4000)
    >>> Memory(table=1024, index=4000).total
    5024
    """

    table: int
    """The vectors."""
    index: int
    """Cluster maps, pointers, hash state, counts."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.table + self.index


class Traits(NamedTuple):
    """The three ticks of the paper's tables, as far as they are true of what is built here."""

    low_time: bool
    """The work of training for a lookup does not grow with the number of rows."""
    low_memory: bool
    """What is held while training is a small part of a full table, whenever few rows are asked
    for and rows are long."""
    incremental: bool
    """Ids that come later can be learned without beginning anew: see `Embedding.grow`."""

    @property
    def ticks(self) -> str:
        """As the paper has them: LTC, LMC, SIT.

        >>> Traits(True, True, False).ticks
        '✓✓✗'
        """
        return "".join("✓" if held else "✗" for held in self)


class Embedding(nn.Module, ABC):
    """Id to vector, able to stand where `nn.Embedding` stands.

    Ids of any shape give vectors of that shape plus one axis. An id outside
    0 … `num_embeddings` − 1 is unseen and gets a finite vector all the same, by
    the one policy of the method. The vector of `padding_idx` is zero and takes
    no gradient.

    A compressed table is asked to hold no more numbers than so many `rows` would. Where
    a method cannot be as small as that, `overrun` tells how much larger it is.
    """

    traits: ClassVar[Traits]
    needs_gradients: ClassVar[bool] = False
    """Whether it learns from the gradients at its vectors, so that they have to be computed."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        sizes = {"num_embeddings": num_embeddings, "embedding_dim": embedding_dim, "rows": rows}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise CelrecError(f"{name} must be positive, not {value}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise CelrecError(
                f"padding_idx must be an id below {num_embeddings}, not {padding_idx}"
            )
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.rows_asked = rows
        """How many rows the table was asked to be as small as, if it was."""
        self.prepared_with = 0
        """Bytes that had to be held to prepare the table, and were given up before training."""

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`."""
        ids = ids.long()  # narrower integers cannot be compared with every id
        vectors = self.vectors(ids)
        if self.padding_idx is None:
            return vectors
        return torch.where((ids == self.padding_idx).unsqueeze(-1), 0.0, vectors)

    @abstractmethod
    def vectors(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`, padding not yet blanked."""

    @property
    def watches(self) -> bool:
        """Whether being looked at in training changes it, beside what its gradients do.

        Several processes that see different samples would come to have different tables.
        """
        return self.needs_gradients

    @property
    def num_rows(self) -> int:
        """The rows in use, or as many as the numbers of the table would make."""
        size = max(parameter.element_size() for parameter in self.parameters())
        return -(-self.memory().table // (self.embedding_dim * size))

    @property
    def overrun(self) -> float:
        """Bytes of the table over those of the rows that it was asked to be as small as.

        1 where nothing was asked.
        """
        if self.rows_asked is None:
            return 1.0
        size = max(parameter.element_size() for parameter in self.parameters())
        return self.memory().table / (self.rows_asked * self.embedding_dim * size)

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """Those that, where none of their values is below 0, keep all vectors from it.

        All, for methods whose vectors are sums and products of parameters.
        """
        return list(self.parameters())

    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """What has to be done now and then besides the optimiser's steps; here nothing.

        Training loops call it some ten times in an epoch, or oftener. The optimiser, if it is
        given, is told of parameters that came to mean something else.
        """

    @contextmanager
    def as_served(self) -> Iterator[None]:
        """Within it, ids have the vectors that they will have when training is over."""
        yield

    def settled(self) -> Embedding:
        """What is left when training is over: the table itself, or a smaller one that serves."""
        return self

    def penalty(self) -> Tensor | None:
        """What the method adds to the loss, summed over the data; here nothing."""
        return None

    def use_budget(self, budget: MemoryBudget) -> None:
        """Let what is held for each id be where a room puts it, from now on."""

    def grow(self, num_embeddings: int) -> None:
        """Make room for more ids, which begin as unseen ones did; vectors stay as they are."""
        raise CelrecError(
            f"{type(self).__name__} cannot take more than its {self.num_embeddings:,} ids, "
            f"not {num_embeddings:,}; make a new one and train it anew"
        )

    def _grown(self, num_embeddings: int) -> None:
        if num_embeddings < self.num_embeddings:
            raise CelrecError(
                f"num_embeddings can only grow, from {self.num_embeddings:,}, not to "
                f"{num_embeddings:,}"
            )
        self.num_embeddings = num_embeddings

    def keep(self, ids: Tensor) -> None:
        """Let only these ids remain, which ascend, numbered anew from 0; their vectors stay.

        So does that of unseen ids. Where the table needs more ids than these, the others begin
        as unseen ones.
        """
        raise CelrecError(
            f"{type(self).__name__} cannot drop ids, {len(ids):,} of {self.num_embeddings:,} were "
            "to be kept; make a new one and train it anew"
        )

    def _kept(self, ids: Tensor) -> None:
        inside = not len(ids) or bool((ids[0] >= 0) & (ids[-1] < self.num_embeddings))
        if not inside or bool((ids.diff() <= 0).any()):
            raise CelrecError(
                f"ids to keep must ascend, from 0 to {self.num_embeddings - 1:,} at most; sort "
                "them, each once"
            )
        if self.padding_idx is not None:
            place = (ids == self.padding_idx).nonzero()
            self.padding_idx = int(place) if len(place) else None
        self.num_embeddings = len(ids)

    def settings(self) -> dict[str, Any]:
        """What its class has to be called with to make one of the same shape."""
        return {
            "num_embeddings": self.num_embeddings,
            "embedding_dim": self.embedding_dim,
            "padding_idx": self.padding_idx,
        }

    @abstractmethod
    def memory(self, *, training: bool = False) -> Memory:
        """Bytes held for serving, or while training; optimiser state not included."""

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        over = "" if self.overrun <= 1 else f", {self.overrun:.2f} times what was asked for"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{over}"


class SharedRows(Embedding):
    """The vector of an id is one row of `weight`: weight[row_of(id)].

    Ids with equal rows predict alike, so their interactions can be summed up
    before training: see `training.collapse`.
    """

    weight: nn.Parameter

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """How many rows are in use; they are the first ones of `weight`."""

    @abstractmethod
    def row_of(self, ids: Tensor) -> Tensor:
        """The row of each id as int64, any shape, unseen ids included."""

    @property
    def plain(self) -> bool:
        """Whether vectors are rows just now, and to look them up does nothing else."""
        return self.padding_idx is None and not self.watches

    def rows_left(self, ids: Tensor) -> Tensor:
        """The rows of these and of unseen ids, ascending: those that `keep` leaves, in front."""
        left = torch.zeros(len(self.weight), dtype=torch.bool, device=self.weight.device)
        left[self.row_of(torch.cat([ids, ids.new_full((1,), -1)]))] = True
        return left.nonzero().squeeze(1)

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`."""
        rows = self.row_of(ids)
        # Gathers and, above all, adds up gradients faster than indexing does.
        flat = self.weight.index_select(0, rows.reshape(-1))
        return flat.view(*rows.shape, self.embedding_dim)
