"""The latest events of ids, and what they say of the clusters that these are in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from celrec.cel.reassignment import best_columns
from celrec.config.online import OnlineClusterConfig
from celrec.data.replay_buffer import ReplayBuffer
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.online.kernels import (
    KNOWN_LOSSES,
    add_tangent_pulls,
    choose_by_tangents,
    draw_candidates,
)
from celrec.online.table_trainer import LossProbe
from celrec.recommender.batch import Batch
from celrec.runtime.memory_budget import MemoryBudget


class RecentEvents(ReplayBuffer):
    """A replay buffer that takes batches and gives batches.

    >>> kept = RecentEvents(latest=2, place=0, tables=2)
    >>> user, item = torch.tensor([4, 4, 4]), torch.tensor([7, 8, 9])
    >>> kept.store(Batch(user, item, torch.zeros(3)), user.numpy())
    >>> owner, batch = kept.replay(np.array([2, 4]))
    >>> owner, batch.user, batch.item
    (array([1, 1]), tensor([4, 4]), tensor([8, 9]))
    """

    def __init__(
        self,
        latest: int,
        place: int,
        tables: int,
        *,
        ids: int = 0,
        moments: bool = False,
        conversions: bool = False,
        budget: MemoryBudget | None = None,
    ) -> None:
        """For the table at `place` among all `tables` of a model.

        With `moments`, the numbers of events in the stream are kept with them. Where all targets
        are `conversions`, 0 or 1, they take a byte each.
        """
        columns: dict[str, DTypeLike] = {"others": (np.int32, tables - 1)}
        columns["target"] = self._kind = np.dtype(np.uint8 if conversions else np.float32)
        if moments:
            columns["moment"] = np.int64
        super().__init__(latest, columns, ids=ids, budget=budget)
        self._place, self._moments = place, moments

    def store(self, batch: Batch, ids: NDArray[np.int64]) -> None:
        """Keep the events of a batch; `ids` are those of the table."""
        event = {"target": batch.target.numpy().astype(self._kind, copy=False)}
        if self._moments and batch.moment is not None:
            event["moment"] = batch.moment.numpy()
        others = batch.ids()
        del others[self._place]
        event["others"] = np.empty((len(ids), len(others)), np.int32)
        for place, one in enumerate(others):
            event["others"][:, place] = one.numpy()
        self.insert(ids, **event)

    def renumber_others(self, place: int, numbers: NDArray[np.int64]) -> None:
        """Put other numbers in the places of ids of another table; see `TableTrainer.renumber`."""
        self.renumber("others", numbers, place - (place > self._place))

    def replay(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Batch]:
        """The kept events of some ids, and whose each is: a position in `ids`."""
        owner, columns = self.events(ids)
        every = list(torch.from_numpy(columns["others"].astype(np.int64)).unbind(-1))
        every.insert(self._place, torch.from_numpy(ids[owner]))
        moment = torch.from_numpy(columns["moment"]) if self._moments else None
        target = columns["target"].astype(np.float32, copy=False)
        return owner, Batch.of(every, torch.from_numpy(target), moment)


_NEAR = 2048  # rows that a cache has room for


class LatestEvidence:
    """Which cluster is best for an id, and where it would like the row of its own to go.

    Where the loss is one that kernels know, and outputs are numbers, events are judged by their
    tangents: a look at each tells of all clusters.
    """

    def __init__(
        self, side: str, table: ClusteredEmbedding, kept: RecentEvents, moving: OnlineClusterConfig
    ) -> None:
        self._side, self._table, self._kept, self._moving = side, table, kept, moving

    def best(
        self, ids: NDArray[np.int64], mean: Tensor, moment: int, probe: LossProbe
    ) -> NDArray[np.int64]:
        """The best cluster for each id, of its own and some that `moment` draws at random.

        That is argmin_k Σ_{latest events} loss(row k) + prior/2·‖row k − mean‖². Of very many
        clusters, all ids draw from the same few thousand, others in each moment: their rows are
        fetched once, so that it takes no longer the more clusters there are.
        """
        owner, batch = self._kept.replay(ids)
        moving, others = self._moving, self._others(moment)
        assignment = self._table.assignment.numpy()
        tangent = None
        if moving.by_tangent and probe.kind in KNOWN_LOSSES:
            tangent = probe.tangent(self._side, batch)
        if tangent is None:
            own = assignment[ids].astype(np.int64)
            drawn = draw_candidates(own, len(others), moving.candidates, moment)
            drawn[1:] = others[drawn[1:]]
            return self._best_of(drawn, mean, owner, batch, probe)
        weight = self._table.weight.detach().numpy()
        return choose_by_tangents(
            ids,
            assignment,
            weight,
            others,
            weight if len(others) == self._table.num_clusters else weight[others],
            moving.candidates,
            moment,
            mean.numpy(),
            moving.prior,
            owner,
            tangent.output.numpy(),
            tangent.slope.numpy(),
            tangent.vector.numpy(),
            batch.target.numpy(),
            probe.kind == "cross-entropy",
        )

    def _others(self, moment: int) -> NDArray[np.int64]:
        """The clusters that ids draw from at a moment: all, or some that are drawn themselves."""
        clusters = self._table.num_clusters
        if clusters <= _NEAR:
            return np.arange(clusters)
        return draw_candidates(np.zeros(1, np.int64), clusters, _NEAR, ~moment)[1:, 0]

    def _best_of(
        self,
        drawn: NDArray[np.int64],
        mean: Tensor,
        owner: NDArray[np.int64],
        batch: Batch,
        probe: LossProbe,
    ) -> NDArray[np.int64]:
        """The same by all outputs of the model, for each event and each cluster."""
        rows = self._table.weight.detach()[torch.from_numpy(drawn)]  # (candidates, ids, dim)
        losses = probe.losses(self._side, batch, rows[:, torch.from_numpy(owner)])
        total = self._moving.prior / 2 * (rows - mean).square().sum(-1)
        total.index_add_(1, torch.from_numpy(owner), losses)
        column, _ = best_columns(total.T, torch.zeros(len(drawn.T), dtype=torch.int64))
        best: NDArray[np.int64] = drawn[column.numpy(), np.arange(drawn.shape[1])]
        return best

    def pulls(self, ids: NDArray[np.int64], probe: LossProbe) -> NDArray[np.float64]:
        """(ids, dim): −∂/∂row Σ_{latest events} loss, at the row that each id has now."""
        pulls = np.zeros((len(ids), self._table.embedding_dim))
        owner, batch = self._kept.replay(ids)
        tangent = probe.tangent(self._side, batch) if probe.kind in KNOWN_LOSSES else None
        if tangent is None:
            np.subtract.at(pulls, owner, probe.gradients(self._side, batch).numpy())
            return pulls
        add_tangent_pulls(
            pulls,
            ids,
            self._table.assignment.numpy(),
            self._table.weight.detach().numpy(),
            owner,
            tangent.output.numpy(),
            tangent.slope.numpy(),
            tangent.vector.numpy(),
            batch.target.numpy(),
            probe.kind == "cross-entropy",
        )
        return pulls


class Waiting:
    """Ids come, perhaps again and again, until all are asked for.

    >>> waiting = Waiting()
    >>> waiting.add(np.array([4, 7]))
    >>> waiting.add(np.array([1, 4]))
    >>> waiting.taken(), waiting.all()
    (array([1, 4, 7]), array([], dtype=int64))
    """

    def __init__(self, ids: NDArray[np.int64] | None = None) -> None:
        """`ids` ascend, each once."""
        self._parts = [] if ids is None else [ids]

    def __bool__(self) -> bool:
        """Whether any have come since all were taken."""
        return bool(self._parts)

    def add(self, ids: NDArray[np.int64]) -> None:
        """They ascend, each once."""
        self._parts.append(ids)

    def all(self) -> NDArray[np.int64]:
        """The different ids, in ascending order."""
        if len(self._parts) == 1:
            return self._parts[0]
        return np.unique(np.concatenate([np.empty(0, np.int64), *self._parts]))

    def taken(self) -> NDArray[np.int64]:
        """The same, and none is waiting any more."""
        ids = self.all()
        self._parts = []
        return ids

    def keep(self, ids: NDArray[np.int64]) -> None:
        """Let only these remain of all ids, which ascend, numbered anew from 0."""
        self._parts = [np.flatnonzero(np.isin(ids, self.all()))]
