"""Trainers of tables without clusters, of composed tables, and of private offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.config.online import RowDescentConfig
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.online.row_descent import RowDescent
from celrec.online.table_trainer import LossProbe, Observation, TableTrainer, Tangent
from celrec.recommender.batch import Batch
from celrec.runtime.memory_budget import MemoryBudget

_BLOCK = 256  # ids at once: what is worked on stays in the cache


def id_noise(
    first: int, last: int, width: int, seed: int
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """`width` values from N(0, 1) for each id from `first` up to `last`, in parts.

    Each part is the places, counted from `first`, and their values. They depend on the number
    of an id and the seed alone: not on who came together with it.

    >>> [(part, noise.shape) for part, noise in id_noise(250, 260, 2, seed=0)]
    [(slice(0, 6, None), (6, 2)), (slice(6, 10, None), (4, 2))]
    """
    for block in range(first // _BLOCK, -(-last // _BLOCK)):
        begin, end = max(first, block * _BLOCK), min(last, (block + 1) * _BLOCK)
        rng = np.random.default_rng([seed, block])
        noise = rng.standard_normal((end - block * _BLOCK, width), np.float32)
        yield slice(begin - first, end - first), noise[begin - block * _BLOCK :]


class RowTableTrainer(TableTrainer):
    """A table such as a full one, or one with rows shared by chance.

    Rows that come with new ids begin as those of unseen ids, and `spread` apart from them: rows
    that are all alike would go on being so.
    """

    def __init__(
        self,
        name: str,
        table: SharedRows,
        how: RowDescentConfig,
        *,
        spread: float = 0.0,
        seed: int = 0,
        budget: MemoryBudget | None = None,
    ) -> None:
        super().__init__(name, table)
        self._rows, self.descent = table, RowDescent(table.weight, how, budget)
        self._how, self._spread, self._seed = how, spread, seed
        self._looked_up = torch.empty(0, dtype=torch.int64)

    def lookup(self, ids: Tensor) -> Tensor:
        self._looked_up = self._rows.row_of(ids)
        return self._rows.weight.detach().index_select(0, self._looked_up)

    def learn(self, gradients: Tensor) -> None:
        self.descent.step(self._looked_up, gradients)

    def grow(self, ids: int) -> None:
        before = self.table.num_embeddings
        self.table.grow(ids)
        self._scatter(before)

    def keep(self, ids: NDArray[np.int64]) -> None:
        kept = torch.from_numpy(ids)
        rows = self._rows.kept_rows(kept)
        self.table.keep(kept)
        self.descent.keep(rows.numpy())
        self._scatter(len(ids))

    def _scatter(self, first: int) -> None:
        if not isinstance(self.table, FullEmbedding):
            return
        rows = self.table.weight.detach()[first:-1]
        for part, noise in id_noise(first, first + len(rows), rows.shape[1], self._seed):
            rows[part] += self._spread * torch.from_numpy(noise)
        if self._how.non_negative:
            rows.abs_()

    @property
    def nbytes(self) -> int:
        return self.descent.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"descent": self.descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.descent.load_state_dict(state["descent"])


_ADAPT_EVERY = 100  # batches


class ComposedTableTrainer(TableTrainer):
    """A table that is differentiated through: hashed codes, mixtures, products and the like.

    Its gradients are means over the batch, since there is no row whose lookups could be
    counted, and all of its parameters move at once.
    """

    def __init__(self, name: str, table: Embedding, how: RowDescentConfig) -> None:
        super().__init__(name, table)
        self._how, self._steps = how, 0
        parameters, rate = list(table.parameters()), how.learning_rate
        self._optimizer: torch.optim.Optimizer
        if how.rule == "sgd":
            self._optimizer = torch.optim.SGD(parameters, lr=rate, weight_decay=how.l2)
        else:
            self._optimizer = torch.optim.Adagrad(
                parameters,
                lr=rate,
                weight_decay=how.l2,
                initial_accumulator_value=how.first_square,
            )
        self._vectors = torch.empty(0)

    def lookup(self, ids: Tensor) -> Tensor:
        with torch.enable_grad():
            self._vectors = self.table(ids)
        return self._vectors.detach()

    def learn(self, gradients: Tensor) -> None:
        self._optimizer.zero_grad()
        scale = len(gradients) if self._how.average else 1
        self._vectors.backward(gradients / scale)  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._steps += 1
        if self._steps % _ADAPT_EVERY == 0:
            self.table.adapt(self._optimizer)
        if self._how.non_negative:
            for parameter in self.table.non_negative_parameters():
                parameter.data.clamp_(min=0)

    def grow(self, ids: int) -> None:
        self._vectors = torch.empty(0)  # the last graph knows parameters of the old shapes
        self.table.grow(ids)
        for parameter, state in self._optimizer.state.items():
            if "sum" in state and state["sum"].shape != parameter.shape:
                fresh = torch.full_like(parameter.data, self._how.first_square)
                fresh[: len(state["sum"])] = state["sum"]
                state["sum"] = fresh

    @property
    def nbytes(self) -> int:
        state = self._optimizer.state.values()
        return sum(v.nbytes for one in state for v in one.values() if isinstance(v, Tensor))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "optimizer": self._optimizer.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = int(state["steps"])
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})


class PersonalTableTrainer(TableTrainer):
    """Shared rows as before, plus a private offset for ids with more than `above` events.

    The penalty of `how` draws offsets to 0, and so vectors to their shared vectors:
    L + l2/2·‖own vector − shared vector‖² for each lookup.
    """

    def __init__(
        self,
        inner: TableTrainer,
        table: PersonalEmbedding,
        how: RowDescentConfig,
        above: int,
        place: int,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`place` is the position of the table in the model."""
        super().__init__(inner.name, table)
        self._inner, self._personal, self._above, self._place = inner, table, above, place
        self.by_tangent = inner.by_tangent
        self.descent = RowDescent(table.offset, how, budget)
        self._looked_up = torch.empty(0, dtype=torch.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._inner.counts

    def begin(self) -> None:
        self._inner.begin()

    @torch.no_grad()
    def lookup(self, ids: Tensor) -> Tensor:
        self._looked_up = self._personal.own_of(ids)
        return self._inner.lookup(ids) + self._personal.offsets(ids)

    def learn(self, gradients: Tensor) -> None:
        has = self._looked_up >= 0
        if bool(has.any()):
            self.descent.step(self._looked_up[has], gradients[has])
        self._inner.learn(gradients)

    def without(self, batch: Batch, vectors: Mapping[str, Tensor], probe: LossProbe) -> Tensor:
        offsets = self._personal.offsets(batch.ids()[self._place])
        shared = self._inner.without(batch, vectors, Shifted(probe, self._personal, self._place))
        return shared + offsets

    def observe(self, events: Observation, probe: LossProbe) -> None:
        """Shared rows are evaluated together with the offset of each id."""
        ids, tangent = events.ids, events.tangent
        shifted = Shifted(probe, self._personal, self._place)
        if tangent is not None:
            tangent = tangent._replace(vector=tangent.vector - self._personal.offsets(ids))
        self._inner.observe(events._replace(tangent=tangent), shifted)
        warm = ids[torch.from_numpy(self.counts[ids.numpy()] > self._above)]
        warm = warm[self._personal.own_of(warm) < 0]
        if len(warm):
            self._personal.give(warm)

    def latest(self, ids: NDArray[np.int64]) -> Batch | None:
        return self._inner.latest(ids)

    def sweep(self, probe: LossProbe) -> None:
        self._inner.sweep(Shifted(probe, self._personal, self._place))

    def grow(self, ids: int) -> None:
        self._inner.grow(ids)
        self._personal.sync_growth()

    def keep(self, ids: NDArray[np.int64]) -> None:
        kept = torch.from_numpy(ids)
        rows = self._personal.kept_rows(kept)
        self._inner.keep(ids)
        self._personal.sync_kept(kept)
        self.descent.keep(rows.numpy())

    def renumber(self, place: int, numbers: NDArray[np.int64]) -> None:
        self._inner.renumber(place, numbers)

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + self.descent.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self._inner.state_dict(), "descent": self.descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        self.descent.load_state_dict(state["descent"])


@dataclass(frozen=True, slots=True)
class Shifted(LossProbe):
    """A probe of shared vectors, to which the offsets of ids are added."""

    probe: LossProbe
    table: PersonalEmbedding
    place: int

    def losses(
        self,
        side: str,
        batch: Batch,
        candidates: Tensor,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        offsets = self.table.offsets(batch.ids()[self.place])
        return self.probe.losses(side, batch, candidates + offsets, vectors)

    @property
    def kind(self) -> str:
        return self.probe.kind

    def gradients(self, side: str, batch: Batch) -> Tensor:
        return self.probe.gradients(side, batch)

    def tangent(
        self, side: str, batch: Batch, vectors: Mapping[str, Tensor] | None = None
    ) -> Tangent | None:
        found = self.probe.tangent(side, batch, vectors)
        if found is None:
            return None
        offsets = self.table.offsets(batch.ids()[self.place])
        return found._replace(vector=found.vector - offsets)
