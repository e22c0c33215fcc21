"""CEL-Lite as in the paper: each id is in one cluster, evaluated by its latest events."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.member_kernels import approach, look_up, tally
from celrec.cel.member_lists import MemberLists
from celrec.cel.reassignment import nearest_pair
from celrec.cel.split import BACKENDS
from celrec.cel.tangent_kernels import draw_candidates, hashed
from celrec.config.online import OnlineClusterConfig, RowDescentConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import DivergedError
from celrec.online.latest_evidence import LatestEvidence, RecentEvents, Waiting
from celrec.online.plain_tables import RowTableTrainer
from celrec.online.table_trainer import LossProbe, Observation
from celrec.recommender.batch import Batch
from celrec.runtime.memory_budget import MemoryBudget

_SWEEP = 4096  # ids at once
_GROWTH = 8  # the events between two looks are at most all earlier ones, divided by this
_COMPARED = 512  # rows in the search for a similar pair


class HardClusterTrainer(RowTableTrainer):
    """Clusters that are reassigned and split online.

    The events of each batch are stored. At every look, after each batch or less often, the ids
    that are due move to the best of their own cluster and some others:

        argmin_k Σ_{latest events} loss(row k) + prior/2·‖row k − mean row‖².

    Then each cluster with more than 2·d events is split in two with about equal numbers of
    events, along the first principal component of its members' gradients, until all rows are in
    use. The cost of an event does not depend on the number of clusters or ids.
    """

    def __init__(
        self,
        name: str,
        table: ClusteredEmbedding,
        how: RowDescentConfig,
        moving: OnlineClusterConfig,
        buffer: RecentEvents,
        *,
        seed: int = 0,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`buffer` stores the latest events of this table."""
        super().__init__(name, table, how, seed=seed, budget=budget)
        self._clusters, self.moving = table, moving
        self.members, self.buffer = MemberLists(table, budget), buffer
        self._mean = torch.zeros(table.embedding_dim)
        self._free: int | None = None
        self._due = Waiting()
        """The ids to be reassigned at the next look."""
        self._seen = Waiting()
        """The ids with events since the last look."""
        self.events = self.moved = self._looked = 0

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.buffer.counts

    def lookup(self, ids: Tensor) -> Tensor:
        assignment = self._clusters.assignment.numpy()
        weight = self._clusters.weight.detach().numpy()
        rows, vectors = look_up(ids.contiguous().numpy(), assignment, weight)
        self._looked_up = torch.from_numpy(rows)
        return torch.from_numpy(vectors)

    def observe(self, events: Observation, probe: LossProbe) -> None:
        """Store the events; at regular intervals, reassign ids and split clusters."""
        batch, ids, again = events.batch, events.ids, events.again
        share = max(0.01, 10 / (10 + self.events / max(len(ids), 1)))
        approach(self._mean.numpy(), events.vectors[self.name].numpy(), share)
        self.events += len(ids)
        if again:
            different, times, before = tally(ids.numpy(), self.buffer.counts)
            # About once in a pass for each id, however many events it has.
            chance = times / np.maximum(before, 1)
            due = different[hashed(different, self.events) < chance]
        else:
            different, due = self.members.count(ids.numpy(), self.buffer.counts)
            self.buffer.store(batch, ids.numpy())
        if self.moving.schedule == "always" and not again:
            self.reassign(different, probe)
        else:
            self._due.add(due)
        self._seen.add(different)
        if self.events - self._looked >= min(self.moving.every, self.events // _GROWTH):
            self._look(probe)

    def _look(self, probe: LossProbe) -> None:
        """Reassign ids and split clusters, for all events since the last look."""
        due, seen, self._looked = self._due.pop(), self._seen.pop(), self.events
        self.reassign(due, probe)
        if self.moving.own_row_above is not None:
            self._part(seen[self.buffer.counts[seen] > self.moving.own_row_above])
        self._split_crowded(seen, probe)

    def sweep(self, probe: LossProbe) -> None:
        everyone = np.flatnonzero(self.buffer.counts)
        for start in range(0, len(everyone), _SWEEP):
            self.reassign(everyone[start : start + _SWEEP], probe)

    def latest(self, ids: NDArray[np.int64]) -> Batch:
        return self.buffer.replay(ids)[1]

    def grow(self, ids: int) -> None:
        super().grow(ids)
        self.members.grow(ids)

    def keep(self, ids: NDArray[np.int64]) -> None:
        clusters = self._clusters.kept_rows(torch.from_numpy(ids)).numpy()
        super().keep(ids)
        self.members.keep(ids, clusters, self.buffer.counts)
        self.buffer.keep(ids)
        self._due.keep(ids)
        self._seen.keep(ids)

    def renumber(self, place: int, numbers: NDArray[np.int64]) -> None:
        self.buffer.renumber_others(place, numbers)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.members.nbytes + self.buffer.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "members": self.members.state_dict(),
            "buffer": self.buffer.state_dict(),
            "mean": self._mean,
            "due": torch.from_numpy(self._due.all()),
            "seen": torch.from_numpy(self._seen.all()),
            "looked": self._looked,
            "events": self.events,
            "moved": self.moved,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.members.load_state_dict(state["members"])
        self.buffer.load_state_dict(state["buffer"])
        self._mean = state["mean"].clone()
        self._due, self._seen = (Waiting(state[name].numpy().copy()) for name in ("due", "seen"))
        self._looked = int(state["looked"])
        self.events, self.moved = int(state["events"]), int(state["moved"])

    def _evidence(self, probe: LossProbe) -> LatestEvidence:
        """Evidence from the latest events of each id, for the current model."""
        return LatestEvidence(
            self.name, self._clusters, self.buffer, self.moving, self._mean, probe
        )

    def reassign(self, ids: NDArray[np.int64], probe: LossProbe) -> None:
        if self._clusters.num_clusters > 1 and len(ids) and self.moving.candidates:
            moment = (self.events ^ (self._seed << 32)) % 2**63  # another one after each batch
            best = self._evidence(probe).best(ids, moment)
            self.moved += self.members.move(ids, best, self.buffer.counts)

    def _part(self, warm: NDArray[np.int64]) -> None:
        """Give each of these ids a cluster of its own while there are free rows."""
        assignment = self._clusters.assignment.numpy()
        for member in warm[self.members.sizes[assignment[warm]] > 1]:  # each once, when it leaves
            own = int(assignment[member])
            if self.members.sizes[own] > 1:
                if not self._room(own):
                    break
                new = self._open(np.array([own]))
                self.members.move(np.array([member]), new, self.buffer.counts)

    def _split_crowded(self, ids: NDArray[np.int64], probe: LossProbe) -> None:
        """Split the clusters of these ids with too many events, the largest first."""
        limit = self.moving.limit
        most = 2 * float(limit(self.members.all_events) if callable(limit) else limit)
        while len(crowded := self.members.crowded(ids, most)):
            room = self._room(int(crowded[0]))
            if not room:
                return
            # All at once: a split changes no vector, and so no gradient of others.
            ids = np.concatenate([ids, self._split(crowded[:room], room, most, probe)])

    def _room(self, cluster: int) -> int:
        """How many clusters can be opened; if none, two similar clusters are merged."""
        table, within = self._clusters, self.moving.merge_within
        every = table.num_clusters
        if every < table.max_clusters or within is None:
            return table.max_clusters - every
        some = np.unique(draw_candidates(np.array([cluster]), every, _COMPARED, self.events)[1:])
        rows = table.weight.detach()[torch.from_numpy(some)]
        # Rows are equal just after a split: to merge those would undo it, again and again.
        first, second, distance = nearest_pair(rows, skip_equal=True)
        if not distance <= within:
            return 0
        kept, gone = sorted(int(some[one]) for one in (first, second))
        if cluster == gone:
            kept, gone = gone, kept
        self.members.merge(gone, kept, self.buffer.counts)
        if table.unseen_cluster == gone:
            table.unseen_cluster = kept
        self._free = gone
        return 1

    def _split(
        self, clusters: NDArray[np.int64], room: int, most: float, probe: LossProbe
    ) -> NDArray[np.int64]:
        """Split clusters repeatedly until none has too many events; return their members."""
        ids, ends = self.members.of_all(clusters)
        gradients = self._evidence(probe).gradients(torch.from_numpy(ids)).numpy()
        counts = self.buffer.counts
        if not np.isfinite(gradients).all():
            raise DivergedError(
                "gradients must be finite; lower the learning rate if training diverged"
            )
        fresh = self._clusters.num_clusters + np.arange(min(room, len(ids) - len(clusters)))
        if self._free is not None:
            fresh = np.array([self._free])
        goals, parents = BACKENDS["compiled"](clusters, ends, gradients, counts[ids], most, fresh)
        self._open(parents)
        self.members.move(ids, goals, counts)
        return ids

    def _open(self, parents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Open a cluster for each of these parents, with its optimiser state."""
        if self._free is None:
            new = np.array(self._clusters.open_all(parents.tolist()))
        else:
            new, self._free = np.array([self._free]), None
            self._clusters.reopen(int(new[0]), int(parents[0]))
        self.descent.copy(parents, new)
        return new
