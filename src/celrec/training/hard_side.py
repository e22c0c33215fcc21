"""CEL-Lite as the paper has it: every id in one cluster, judged by its latest events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from celrec.clustering import split_methods
from celrec.clustering.splitter import Splitter
from celrec.data.replay_buffer import ReplayBuffer
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError
from celrec.training._online_kernels import draw_candidates, hashed
from celrec.training.batch import Batch
from celrec.training.members import Members
from celrec.training.online_side import Judge, Tangent
from celrec.training.plain_side import PlainSide
from celrec.training.row_descent import Descending

_SWEEP = 4096  # ids at once
_COMPARED = 512  # rows at once, where two are sought that are alike
SCHEDULES = ("always", "doubling")


@dataclass(frozen=True, slots=True)
class Moving:
    """When and how ids move between clusters, and clusters split."""

    latest: int = 20
    """By how many of its latest events an id is judged (n)."""
    candidates: int = 10
    """How many other clusters are tried, drawn at random (m)."""
    schedule: str = "doubling"
    """Which ids of a batch are judged: those that come to 1, 2, 4, 8 … events, or `always` all."""
    prior: float = 1.0
    """What is added to the loss of a row: prior/2·‖row − mean row‖²."""
    limit: Callable[[int], float] | float = 100.0
    """d: a cluster with more than 2·d events is split; a number, or a function, which must not
    fall, of the events seen so far, each counted once."""
    merge_within: float | None = None
    """When all rows are in use and a cluster is to be split, two rows that are no further apart
    than this become one, to make room; None: never."""
    own_row_above: float | None = None
    """An id with more events than this has a cluster to itself; None: no id has."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise CelrecError(
                f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}"
            )
        for name in ("latest", "candidates", "prior"):
            if not getattr(self, name) >= 0:
                raise CelrecError(f"{name} must not be negative, not {getattr(self, name)}")


class HardSide(PlainSide):
    """Clusters that ids move between, and that split when they have seen enough.

    After a batch is learned, its events are kept, and those of its ids that are due move to
    the best of their own cluster and some others:

        argmin_k Σ_{latest events} loss(row k) + prior/2·‖row k − mean row‖².

    Then each cluster that has come to more than 2·d events is split in two with about equal
    numbers of events, along the first principal component of its members' gradients, until
    all rows are in use. So the work for an event depends neither on the number of clusters
    nor on that of ids.
    """

    def __init__(
        self,
        name: str,
        table: ClusteredEmbedding,
        how: Descending,
        moving: Moving,
        place: int,
        tables: int,
        *,
        moments: bool = False,
        seed: int = 0,
    ) -> None:
        """`place` is that of the table among all `tables` of the model.

        With `moments`, the numbers of events in the stream are kept with them.
        """
        super().__init__(name, table, how, seed=seed)
        self._clusters, self._moving = table, moving
        self.members = Members(table)
        self._place, self._moments = place, moments
        columns: dict[str, DTypeLike] = {"others": (np.int32, tables - 1), "target": np.float32}
        if moments:
            columns["moment"] = np.int64
        self.buffer = ReplayBuffer(moving.latest, columns, ids=table.num_embeddings)
        self._splitter = Splitter(threshold="balanced")
        self._mean = torch.zeros(table.embedding_dim)
        self._free: int | None = None
        self.events = self.moved = 0

    @property
    def counts(self) -> NDArray[np.int64]:
        """See `OnlineSide`."""
        return self.buffer.counts

    def observe(
        self,
        batch: Batch,
        ids: Tensor,
        vectors: Mapping[str, Tensor],
        judge: Judge,
        *,
        again: bool,
        tangent: Tangent | None = None,
    ) -> None:
        """Keep the events, move ids, split clusters."""
        del tangent  # an id is judged by more events than these
        share = max(0.01, 10 / (10 + self.events / max(len(ids), 1)))
        self._mean.lerp_(vectors[self.name].mean(0), share)
        self.events += len(ids)
        different, times = np.unique(ids.numpy(), return_counts=True)
        if again:
            # About once in a pass for each id, however many events it has.
            chance = times / np.maximum(self.buffer.counts[different], 1)
            due = different[hashed(different, self.events) < chance]
        else:
            due = self._count(batch, ids.numpy(), different, times)
        self._reassign(due, judge)
        touched = np.unique(self._clusters.row_of(torch.from_numpy(different)).numpy())
        self._grow_clusters(different, touched, judge)

    def _count(
        self,
        batch: Batch,
        ids: NDArray[np.int64],
        different: NDArray[np.int64],
        times: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Keep new events; those of their ids that are due to be judged."""
        known = self.buffer.counts
        before = np.zeros(len(different), np.int64)
        met = different < len(known)
        before[met] = known[different[met]]
        event = {"others": self._others(batch), "target": batch.target.numpy()}
        if self._moments and batch.moment is not None:
            event["moment"] = batch.moment.numpy()
        self.buffer.insert(ids, **event)
        self.members.count(different, different[before == 0], times)
        if self._moving.schedule == "always":
            return different
        return different[_bits(before + times) > _bits(before)]

    def sweep(self, judge: Judge) -> None:
        """See `OnlineSide`."""
        everyone = np.flatnonzero(self.buffer.counts)
        for start in range(0, len(everyone), _SWEEP):
            self._reassign(everyone[start : start + _SWEEP], judge)

    def latest(self, ids: NDArray[np.int64]) -> Batch:
        """See `OnlineSide`."""
        return self.replay(ids)[1]

    def replay(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Batch]:
        """The kept events of some ids, and whose each is: a position in `ids`."""
        owner, columns = self.buffer.events(ids)
        return owner, self._as_batch(torch.from_numpy(ids[owner]), columns)

    def grow(self, ids: int) -> None:
        """See `OnlineSide`."""
        super().grow(ids)
        self.members.grow(ids)

    @property
    def nbytes(self) -> int:
        """The buffer, the lists of members, and what the descent holds."""
        return super().nbytes + self.members.nbytes + self.buffer.nbytes

    def state_dict(self) -> dict[str, Any]:
        """See `OnlineSide`."""
        return {
            **super().state_dict(),
            "members": self.members.state_dict(),
            "buffer": self.buffer.state_dict(),
            "mean": self._mean,
            "events": self.events,
            "moved": self.moved,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `OnlineSide`."""
        super().load_state_dict(state)
        self.members.load_state_dict(state["members"])
        self.buffer.load_state_dict(state["buffer"])
        self._mean = state["mean"].clone()
        self.events, self.moved = int(state["events"]), int(state["moved"])

    def _reassign(self, ids: NDArray[np.int64], judge: Judge) -> None:
        clusters = self._clusters.num_clusters
        if clusters == 1 or not len(ids) or not self._moving.candidates:
            return
        own = self._clusters.row_of(torch.from_numpy(ids)).numpy()
        moment = (self.events ^ (self._seed << 32)) % 2**63
        drawn = draw_candidates(own, clusters, self._moving.candidates, moment)
        owner, batch = self.replay(ids)
        rows = self._clusters.weight.detach()[torch.from_numpy(drawn)]  # (candidates, ids, dim)
        losses = judge.losses(self.name, batch, rows[:, torch.from_numpy(owner)])
        total = self._moving.prior / 2 * (rows - self._mean).square().sum(-1)
        total.index_add_(1, torch.from_numpy(owner), losses)
        best = drawn[total.argmin(0).numpy(), np.arange(len(ids))]
        self.moved += self.members.move(ids, best, self.buffer.counts)

    def _grow_clusters(
        self, ids: NDArray[np.int64], touched: NDArray[np.int64], judge: Judge
    ) -> None:
        table, members, limit = self._clusters, self.members, self._moving.own_row_above
        if limit is not None:
            warm = ids[self.buffer.counts[ids] > limit]
            shared = members.sizes[self._clusters.row_of(torch.from_numpy(warm)).numpy()] > 1
            for member in warm[shared]:  # each once, when it leaves
                own = int(table.assignment[member])
                if members.sizes[own] > 1:
                    if not self._has_room(own):
                        break
                    self._open(own, np.array([member]))
        given = self._moving.limit
        most = 2 * (given(int(members.events.sum())) if callable(given) else given)
        waiting = [int(cluster) for cluster in touched]
        while waiting := [c for c in waiting if members.events[c] > most and members.sizes[c] > 1]:
            cluster = max(waiting, key=lambda one: (members.events[one], -one))
            if not self._has_room(cluster):
                break
            waiting.append(self._split(cluster, judge))

    def _has_room(self, cluster: int) -> bool:
        """Whether another cluster can be opened; two that are alike are merged if need be."""
        table, within = self._clusters, self._moving.merge_within
        if table.num_clusters < table.max_clusters or self._free is not None:
            return True
        if within is None:
            return False
        every = table.num_clusters
        some = np.unique(draw_candidates(np.array([cluster]), every, _COMPARED, self.events)[1:])
        rows = table.weight.detach()[torch.from_numpy(some)]
        apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        # Rows are the same just after a split: to merge those would undo it, again and again.
        apart[apart == 0] = torch.inf
        first, second = divmod(int(apart.argmin()), len(some))
        if not float(apart[first, second]) <= within:
            return False
        kept, gone = sorted(int(some[one]) for one in (first, second))
        if cluster == gone:
            kept, gone = gone, kept
        self.members.merge(gone, kept, self.buffer.counts)
        if table.unseen_cluster == gone:
            table.unseen_cluster = kept
        self._free = gone
        return True

    def _split(self, cluster: int, judge: Judge) -> int:
        ids = np.sort(self.members.of(cluster))
        owner, batch = self.replay(ids)
        gradients = torch.zeros(len(ids), self._clusters.embedding_dim)
        if len(owner):
            pulls = -judge.gradients(self.name, batch)
            gradients.index_add_(0, torch.from_numpy(owner), pulls)
        counts = torch.from_numpy(self.buffer.counts[ids])
        split = split_methods.Members(gradients, counts)
        leaving = self._splitter.leaving(split, torch.Generator())
        return self._open(cluster, ids[leaving.numpy()])

    def _open(self, parent: int, leaving: NDArray[np.int64]) -> int:
        if self._free is None:
            new = self._clusters.open(parent)
        else:
            new, self._free = self._free, None
            self._clusters.reopen(new, parent)
        self._descent.copy(parent, new)
        goals = np.full(len(leaving), new)
        self.members.move(leaving, goals, self.buffer.counts)
        return new

    def _others(self, batch: Batch) -> NDArray[np.int64]:
        ids = batch.ids()
        del ids[self._place]
        return torch.stack(ids, -1).numpy()

    def _as_batch(self, own: Tensor, columns: dict[str, NDArray[Any]]) -> Batch:
        ids = list(torch.from_numpy(columns["others"].astype(np.int64)).unbind(-1))
        ids.insert(self._place, own)
        moment = torch.from_numpy(columns["moment"]) if self._moments else None
        return Batch.of(ids, torch.from_numpy(columns["target"]), moment)


def _bits(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many binary digits each has: one more at 1, 2, 4, 8 and so on."""
    return np.frexp(counts.astype(np.float64))[1].astype(np.int64)
