"""The interface of embedding methods: `Embedding`, `SharedRows`, `Memory` and `Traits`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a table in bytes: its rows, and the index that maps ids to rows.

    >>> Memory(table=1024, index=4000).total
    5024
    """

    table: int
    """Rows or other trained parameters."""
    index: int
    """Cluster assignments, pointers, hash state, counts."""

    @property
    def total(self) -> int:
        """Table and index together."""
        return self.table + self.index


class Traits(NamedTuple):
    """The three properties by which the paper compares methods, as implemented here."""

    low_time: bool
    """Low time complexity: the training cost of a lookup does not grow with the rows."""
    low_memory: bool
    """Low memory complexity: with few, long rows, training memory is far below a full table's."""
    incremental: bool
    """Supports incremental training: new ids can be added with `Embedding.grow`."""

    @property
    def ticks(self) -> str:
        """LTC, LMC and SIT as in the paper's tables.

        >>> Traits(True, True, False).ticks
        '✓✓✗'
        """
        return "".join("✓" if value else "✗" for value in self)


class TableOptions(TypedDict, total=False):
    """Keyword arguments that the constructors of tables have in common."""

    padding_idx: int | None
    device: torch.device | str | None
    dtype: torch.dtype | None


def table_options(
    padding_idx: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[int | None, torch.device | str | None, torch.dtype | None]:
    """`TableOptions` as a tuple, with their defaults."""
    return padding_idx, device, dtype


class Embedding(nn.Module, ABC):
    """Maps ids to vectors; a drop-in replacement for `nn.Embedding`.

    Ids of any shape give vectors of that shape plus one axis. An id outside
    0 … `num_embeddings` − 1 is unseen; each method defines the finite vector that it gets. The
    vector of `padding_idx` is zero and has no gradient.

    `rows` is the size of a compressed table: it has at most as many parameters as that many
    rows. If a method cannot be that small, `overrun` is the ratio by which it is larger.
    """

    traits: ClassVar[Traits]
    needs_gradients: ClassVar[bool] = False
    """Whether the method uses the gradients of its vectors besides the optimiser's steps."""
    per_id: ClassVar[str] = ""
    """The tensor whose length is the number of ids of a saved state, if that may differ."""

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
        self.rows_requested = rows
        """The requested size in rows; None for a table that is not compressed."""
        self.preparation_bytes = 0
        """Peak memory of the preparation before training, such as pretraining hash codes."""

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`."""
        ids = ids.long()  # narrower integers cannot be compared with every id
        vectors = self.vectors(ids)
        if self.padding_idx is None:
            return vectors
        return torch.where((ids == self.padding_idx).unsqueeze(-1), 0.0, vectors)

    @abstractmethod
    def vectors(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`, before padding is masked."""

    @property
    def observes_lookups(self) -> bool:
        """Whether lookups in training change the table besides the gradient steps.

        Such a table would differ between data-parallel processes.
        """
        return self.needs_gradients

    @property
    def num_rows(self) -> int:
        """The rows in use; for tables without rows, their parameters divided by the dimension."""
        size = max(parameter.element_size() for parameter in self.parameters())
        return -(-self.memory().table // (self.embedding_dim * size))

    @property
    def overrun(self) -> float:
        """The table's bytes divided by those of `rows_requested` rows; 1 without a request."""
        if self.rows_requested is None:
            return 1.0
        size = max(parameter.element_size() for parameter in self.parameters())
        return self.memory().table / (self.rows_requested * self.embedding_dim * size)

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """The parameters to keep non-negative so that all vectors are non-negative.

        All parameters, for methods whose vectors are sums and products of them.
        """
        return list(self.parameters())

    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Update the table besides the optimiser's steps; by default do nothing.

        Training loops call it at least ten times per epoch. Where a parameter's value is
        replaced, the method adjusts the state of `optimizer` too.
        """

    @contextmanager
    def as_served(self) -> Iterator[None]:
        """Inside the block, ids have the vectors that `settled` will give them."""
        yield

    def settled(self) -> Embedding:
        """The table for serving, after training: this one, or a smaller one made from it."""
        return self

    def penalty(self) -> Tensor | None:
        """The method's own regularisation term, summed over the data; by default None."""
        return None

    def use_budget(self, budget: MemoryBudget) -> None:
        """Allocate per-id memory under `budget` from now on; by default do nothing."""

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids start with the vector of unseen ids."""
        raise CelrecError(
            f"{type(self).__name__} cannot grow from {self.num_embeddings:,} to "
            f"{num_embeddings:,} ids; create a new table and train it"
        )

    def _grow_ids(self, num_embeddings: int) -> None:
        if num_embeddings < self.num_embeddings:
            raise CelrecError(
                f"num_embeddings can only grow, from {self.num_embeddings:,}, not to "
                f"{num_embeddings:,}"
            )
        self.num_embeddings = num_embeddings

    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these, given in ascending order, and renumber them from 0.

        Their vectors and that of unseen ids stay the same. If the method needs more ids than
        these, the additional ones start like unseen ids.
        """
        raise CelrecError(
            f"{type(self).__name__} cannot keep only {len(ids):,} of {self.num_embeddings:,} ids; "
            "create a new table and train it"
        )

    def _keep_ids(self, ids: Tensor) -> None:
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
        """Constructor arguments of a table of the same shape: its attributes of these names."""
        common = ("num_embeddings", "embedding_dim", "padding_idx")
        names = [name for name in _arguments(type(self)) if name not in common]
        values = {"rows": self.rows_requested} if "rows" in names else {}
        return (
            {name: getattr(self, name) for name in common}
            | values
            | {name: getattr(self, name) for name in names if hasattr(self, name)}
        )

    def _fit(self, length: int) -> None:
        """Take as many ids as a saved state has, given the length of its `per_id`."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(prefix + self.per_id)
        own = getattr(self, self.per_id, None) if self.per_id else None
        if saved is not None and own is not None and len(saved) != len(own):
            self._fit(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _place(self, ids: Tensor) -> Tensor:
        """The ids, with `num_embeddings` for unseen ones."""
        return torch.where((ids >= 0) & (ids < self.num_embeddings), ids, self.num_embeddings)

    @abstractmethod
    def memory(self, *, training: bool = False) -> Memory:
        """Memory when serving, or while training, without the optimiser state."""

    def extra_repr(self) -> str:
        """The arguments shown by `repr`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        over = "" if self.overrun <= 1 else f", {self.overrun:.2f} times the requested size"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{over}"


def _arguments(kind: type) -> Iterator[str]:
    """The names of the constructor's arguments, also of those that `**options` passes on."""
    for base in kind.__mro__:
        parameters = signature(base).parameters
        yield from parameters
        if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
            return


class SharedRows(Embedding):
    """An embedding whose vectors are rows of one table: v(id) = weight[row_of(id)].

    Ids with the same row get the same predictions, so their interactions can be aggregated into
    pair statistics before training.
    """

    weight: nn.Parameter

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of rows in use; they are the first ones of `weight`."""

    @abstractmethod
    def row_of(self, ids: Tensor) -> Tensor:
        """The row of each id as int64, for ids of any shape, unseen ones included."""

    @property
    def plain(self) -> bool:
        """Whether a lookup only reads rows: no padding, counts or hooks."""
        return self.padding_idx is None and not self.observes_lookups

    def kept_rows(self, ids: Tensor) -> Tensor:
        """The rows of `ids` and of unseen ids, ascending; `keep` moves them to the front."""
        kept = torch.zeros(len(self.weight), dtype=torch.bool, device=self.weight.device)
        kept[self.row_of(torch.cat([ids, ids.new_full((1,), -1)]))] = True
        return kept.nonzero().squeeze(1)

    def vectors(self, ids: Tensor) -> Tensor:
        rows = self.row_of(ids)
        # Faster than indexing, above all in the backward pass.
        flat = self.weight.index_select(0, rows.reshape(-1))
        return flat.view(*rows.shape, self.embedding_dim)
