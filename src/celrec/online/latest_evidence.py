"""The latest events of ids, and the evidence for clusters from them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.cel.reassignment import best_columns
from celrec.cel.tangent_kernels import (
    KNOWN_LOSSES,
    add_tangent_gradients,
    choose_by_tangents,
    draw_candidates,
)
from celrec.config.online import OnlineClusterConfig
from celrec.data.replay_buffer import ReplayBuffer
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.online.table_trainer import LossProbe, Tangent
from celrec.recommender.batch import Batch
from celrec.runtime.memory_budget import MemoryBudget


class RecentEvents(ReplayBuffer):
    """A replay buffer of batches.

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

        With `moments`, the numbers of events in the stream are stored. If all targets are
        `conversions`, 0 or 1, they take one byte each.
        """
        columns: dict[str, DTypeLike] = {"others": (np.int32, tables - 1)}
        columns["target"] = self._kind = np.dtype(np.uint8 if conversions else np.float32)
        if moments:
            columns["moment"] = np.int64
        super().__init__(latest, columns, ids=ids, budget=budget)
        self._place, self._moments = place, moments

    def store(self, batch: Batch, ids: NDArray[np.int64]) -> None:
        """Store the events of a batch; `ids` are those of the table."""
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
        """Renumber the ids of another table, as `TableTrainer.renumber` does."""
        self.renumber("others", numbers, place - (place > self._place))

    def replay(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Batch]:
        """The stored events of some ids, and the position of each one's id in `ids`."""
        owner, columns = self.events(ids)
        every = list(torch.from_numpy(columns["others"].astype(np.int64)).unbind(-1))
        every.insert(self._place, torch.from_numpy(ids[owner]))
        moment = torch.from_numpy(columns["moment"]) if self._moments else None
        target = columns["target"].astype(np.float32, copy=False)
        return owner, Batch.of(every, torch.from_numpy(target), moment)


CACHED_ROWS = 2048  # rows that fit in a cache


class LatestEvidence(Evidence):
    """Evidence from the latest events of each id, in a stream.

    The loss of an id under a row is Σ_{latest events} loss(row) + prior/2·‖row − mean‖². With
    a loss that kernels know and one output, events are represented by their tangents: one
    forward and backward pass for all clusters.
    """

    def __init__(
        self,
        side: str,
        table: ClusteredEmbedding,
        events: RecentEvents,
        config: OnlineClusterConfig,
        mean: Tensor,
        probe: LossProbe,
    ) -> None:
        """`mean` is that of the vectors, `probe` the model as it is now."""
        self._side, self._table, self._events = side, table, events
        self._config, self._mean, self._probe = config, mean, probe

    def interactions(self) -> Tensor:
        """The number of events of each id, also those no longer stored."""
        counts = np.zeros(self._table.num_embeddings, np.int64)
        counts[: len(self._events.counts)] = self._events.counts
        return torch.from_numpy(counts)

    def gradients(self, members: Tensor) -> Tensor:
        """Of the latest events, without the prior, at the current row of each member."""
        ids = members.numpy()
        gradients = np.zeros((len(ids), self._table.embedding_dim))
        owner, batch = self._events.replay(ids)
        tangent = self._tangent(batch)
        if tangent is None:
            slopes = self._probe.gradients(self._side, batch).numpy()
            np.subtract.at(gradients, owner, slopes)
        else:
            add_tangent_gradients(
                gradients,
                ids,
                self._table.assignment.numpy(),
                self._table.weight.detach().numpy(),
                owner,
                tangent.arrays(batch.target, self._probe.kind),
            )
        return torch.from_numpy(gradients)

    def losses(self) -> Tensor:
        """By forward passes of the model, for each event and cluster."""
        ids = np.arange(self._table.num_embeddings)
        clusters = torch.arange(self._table.num_clusters)[:, None].expand(-1, len(ids))
        return self._losses(clusters, *self._events.replay(ids)).T

    def own_losses(self) -> Tensor:
        ids = np.arange(self._table.num_embeddings)
        own = self._table.assignment[None, :-1].long()
        return self._losses(own, *self._events.replay(ids))[0]

    def best(self, ids: NDArray[np.int64], moment: int) -> NDArray[np.int64]:
        """The cluster of least loss for each id, among its own and some that `moment` draws.

        If there are very many clusters, all ids draw from the same few thousand, others at each
        moment: these rows are fetched once, so that the time does not grow with the clusters.
        """
        owner, batch = self._events.replay(ids)
        config, others = self._config, self._others(moment)
        assignment = self._table.assignment.numpy()
        tangent = self._tangent(batch) if config.by_tangent else None
        if tangent is None:
            own = assignment[ids].astype(np.int64)
            drawn = draw_candidates(own, len(others), config.candidates, moment)
            drawn[1:] = others[drawn[1:]]
            losses = self._losses(torch.from_numpy(drawn), owner, batch)
            column, _ = best_columns(losses.T, torch.zeros(len(ids), dtype=torch.int64))
            best: NDArray[np.int64] = drawn[column.numpy(), np.arange(len(ids))]
            return best
        weight = self._table.weight.detach().numpy()
        return choose_by_tangents(
            ids,
            assignment,
            weight,
            others,
            weight if len(others) == self._table.num_clusters else weight[others],
            config.candidates,
            moment,
            self._mean.numpy(),
            config.prior,
            owner,
            tangent.arrays(batch.target, self._probe.kind),
        )

    def _others(self, moment: int) -> NDArray[np.int64]:
        """The clusters that candidates are drawn from at a moment: all, or a random subset."""
        clusters = self._table.num_clusters
        if clusters <= CACHED_ROWS:
            return np.arange(clusters)
        return draw_candidates(np.zeros(1, np.int64), clusters, CACHED_ROWS, ~moment)[1:, 0]

    def _tangent(self, batch: Batch) -> Tangent | None:
        if self._probe.kind not in KNOWN_LOSSES:
            return None
        return self._probe.tangent(self._side, batch)

    def _losses(self, candidates: Tensor, owner: NDArray[np.int64], batch: Batch) -> Tensor:
        rows = self._table.weight.detach()[candidates]  # (candidates, ids, dim)
        owners = torch.from_numpy(owner)
        losses = self._probe.losses(self._side, batch, rows[:, owners])
        total = self._config.prior / 2 * (rows - self._mean).square().sum(-1)
        return total.index_add_(1, owners, losses)


class Waiting:
    """A set of ids that is collected until it is popped.

    >>> waiting = Waiting()
    >>> waiting.add(np.array([4, 7]))
    >>> waiting.add(np.array([1, 4]))
    >>> waiting.pop(), waiting.all()
    (array([1, 4, 7]), array([], dtype=int64))
    """

    def __init__(self, ids: NDArray[np.int64] | None = None) -> None:
        """`ids` are distinct and ascending."""
        self._parts = [] if ids is None else [ids]

    def __bool__(self) -> bool:
        """Whether any ids were added since the last `pop`."""
        return bool(self._parts)

    def add(self, ids: NDArray[np.int64]) -> None:
        """Add distinct, ascending ids."""
        self._parts.append(ids)

    def all(self) -> NDArray[np.int64]:
        """The distinct ids, ascending."""
        if len(self._parts) == 1:
            return self._parts[0]
        return np.unique(np.concatenate([np.empty(0, np.int64), *self._parts]))

    def pop(self) -> NDArray[np.int64]:
        """Return the ids and clear the set."""
        ids = self.all()
        self._parts = []
        return ids

    def keep(self, ids: NDArray[np.int64]) -> None:
        """Keep only these of all ids, given in ascending order, renumbered from 0."""
        self._parts = [np.flatnonzero(np.isin(ids, self.all()))]
