"""CEL-Lite with every id in one cluster, whose ids are spread over processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.clustering.ranks import Ranks
from celrec.clustering.shared_splits import Crowd, shared_splits
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.training.batch import Batch
from celrec.training.hard_side import HardSide
from celrec.training.moving import Moving
from celrec.training.online_side import Judge, Tangent
from celrec.training.routes import Routes
from celrec.training.row_descent import Descending


class SharedClusters(HardSide):
    """Rows are everywhere; each id, its latest events and its cluster belong to one process.

    Among all, id n of rank r has the number n·size + r. Those of users are known in their own
    processes alone, where their events are learned; for all other ids these are the numbers
    that everybody knows, and others ask the owner for the cluster, of each id once. Kept events
    have the numbers of all in them. So whoever judges them asks others for the vectors: looks are
    taken by all processes together, when all events of all have come to as many as it takes.

    What is decided depends on the sums over all processes of sizes and events of clusters, and of
    what members pull: see `shared_splits`. Where all members of a cluster would leave it at once,
    the one with the lowest number stays.
    """

    meets_others = True

    def __init__(
        self,
        name: str,
        table: ClusteredEmbedding,
        how: Descending,
        moving: Moving,
        place: int,
        tables: int,
        ranks: Ranks,
        **kept: Any,
    ) -> None:
        """See `HardSide`."""
        super().__init__(name, table, how, moving, place, tables, **kept)
        self._ranks, self._place, self._at_home = ranks, place, name == "users"
        self._known = torch.empty(0, dtype=torch.bool)
        self._fresh = self._new = 0

    def of_all(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers among all of some ids of this process."""
        return ids * self._ranks.size + self._ranks.rank

    def make_room(self, ids: Tensor) -> None:
        """See `OnlineSide`: where they are not at home, owners make room when they are asked."""
        if self._at_home:
            super().make_room(ids)

    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        if not self._at_home:
            return self.lookup_of_all(ids)
        self._known = ids >= 0
        return super().lookup(ids)

    def lookup_of_all(self, ids: Tensor) -> Tensor:
        """The vectors of ids of any process, by their numbers among all."""
        different, places = torch.unique(ids, return_inverse=True)
        routes, numbers = Routes.to_owners(different, self._ranks)
        super().make_room(numbers)
        clusters = routes.back(self._clusters.row_of(numbers).int())
        self._known, self._looked_up = ids >= 0, clusters.long()[places]
        return self._clusters.weight.detach().index_select(0, self._looked_up)

    def tell_owners(self, batch: Batch, gradients: Tensor, tangent: Tangent | None) -> None:
        """Nothing yet: what rows learn is summed here."""
        del gradients, tangent
        self._fresh = len(batch.user)

    def pull(self, gradients: Tensor) -> Tensor:  # type: ignore[override]
        """The sum of the gradients of each row, and in the last column how many there were.

        In the last row, the sum of the vectors of the batch, and how many ids they are of.
        """
        weight, clusters = self._clusters.weight.detach(), self._clusters.num_clusters
        pulled = weight.new_zeros(clusters + 1, weight.shape[1] + 1)
        counted = torch.cat([gradients, gradients.new_ones(len(gradients), 1)], 1)
        pulled.index_add_(0, self._looked_up, counted)
        fresh = self._looked_up[: self._fresh][self._known[: self._fresh]]
        pulled[-1, :-1], pulled[-1, -1] = weight[fresh].sum(0), len(fresh)
        return pulled

    def descend(self, pulled: Tensor | None) -> None:
        """See `OnlineSide`."""
        assert pulled is not None  # noqa: S101  (it is what `pull` gave)
        numbers = pulled.numpy()
        rows = np.flatnonzero(numbers[:-1, -1])
        slopes = np.ascontiguousarray(numbers[rows, :-1])
        if self._how.average:
            slopes /= numbers[rows, -1:]
        self._descent.descend(rows, slopes)
        self._new = int(numbers[-1, -1])
        if self._new:
            self._approach(pulled[-1:, :-1] / self._new, self._new)

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
        """Owners keep the events; where it is time for it, ids move and clusters are split."""
        del vectors, tangent, again  # several processes learn a stream, once
        if not self._new:
            return
        self.events += self._new
        if not self._at_home:
            batch, ids = self._told(batch, ids)
        different, due = self.members.count(ids.numpy(), self.buffer.counts)
        self.buffer.store(batch, ids.numpy())
        if self._moving.schedule == "always":
            self._reassign(different, judge)
        else:
            self._due.add(due)
        self._seen.add(different)
        if self._is_time():
            self._look(judge)

    def _told(self, batch: Batch, ids: Tensor) -> tuple[Batch, Tensor]:
        """The events of the ids here that any process has, and these ids by their numbers here."""
        every, size = batch.ids(), self._ranks.size
        every[0] = every[0] * size + self._ranks.rank
        every[self._place] = ids // size
        told = self._sent(batch, every, ids % size)
        return told, told.ids()[self._place]

    def latest(self, ids: NDArray[np.int64]) -> Batch:
        """See `OnlineSide`: those of the users here, of all ids that any process asks for."""
        if self._at_home:
            return super().latest(ids)
        _, numbers = Routes.to_owners(torch.from_numpy(ids), self._ranks)
        kept = super().latest(np.unique(numbers.numpy()))
        every, size = kept.ids(), self._ranks.size
        every[self._place] = every[self._place] * size + self._ranks.rank
        users, every[0] = every[0], every[0] // size
        return self._sent(kept, every, users % size)

    def _sent(self, batch: Batch, every: list[Tensor], owners: Tensor) -> Batch:
        """What others have for this process, in the order of time, given events with these ids."""
        assert batch.moment is not None  # noqa: S101  (each event of a stream has its number)
        numbers = torch.stack([batch.target], 1), torch.stack([batch.moment], 1)
        bits = [part.view(torch.int32) for part in numbers]
        told = torch.cat([torch.stack(every, 1).int(), *bits], 1)
        *every, target, first, second = Routes(owners, self._ranks).there(told).unbind(1)
        moment = torch.stack([first, second], 1).view(torch.int64).view(-1)
        found = Batch.of([one.long() for one in every], target.clone().view(torch.float32), moment)
        return found.at(torch.argsort(moment))

    def _reassign(self, ids: NDArray[np.int64], judge: Judge) -> None:
        clusters = self._clusters.num_clusters
        if clusters < 2 or not self._moving.candidates:
            return
        best = self._evidence.best(ids, self._mean, self._moment(), judge, self.of_all(ids))
        own = self._clusters.assignment.numpy()[ids].astype(np.int64)
        wish = best != own
        ids, own, best = ids[wish], own[wish], best[wish]
        numbers = self.of_all(ids)
        sizes, leaving = self._summed(
            self.members.sizes[:clusters], np.bincount(own, minlength=clusters)
        )
        emptied = np.flatnonzero((leaving > 0) & (leaving >= sizes))
        if len(emptied):
            lowest = np.full(clusters, np.iinfo(np.int64).max)
            np.minimum.at(lowest, own, numbers)
            staying = self._ranks.stacked(torch.from_numpy(lowest[emptied])).amin(0).numpy()
            going = ~np.isin(numbers, staying)
            ids, best = ids[going], best[going]
        self.members.move(ids, best, self.buffer.counts, least=0)
        self.moved += int(leaving.sum()) - len(emptied)

    def _part(self, warm: NDArray[np.int64]) -> None:
        clusters, size = self._clusters.num_clusters, self._ranks.size
        sizes = np.ones(self._clusters.max_clusters, np.int64)
        sizes[:clusters] = self._summed(self.members.sizes[:clusters])[0]
        own = self._clusters.assignment.numpy()[warm].astype(np.int64)
        told = np.column_stack([self.of_all(warm), own])[sizes[own] > 1]
        everybody = torch.cat(self._ranks.gathered(torch.from_numpy(told))).numpy()
        for number, cluster in everybody[np.argsort(everybody[:, 0])]:  # each when it leaves
            if sizes[cluster] > 1:
                if not self._room(int(cluster)):
                    break
                new = self._open(np.array([cluster]))
                sizes[cluster] -= 1
                if number % size == self._ranks.rank:
                    member = np.array([number // size])
                    self.members.move(member, new, self.buffer.counts, least=0)

    def _split_crowded(self, ids: NDArray[np.int64], judge: Judge) -> None:
        del ids  # only clusters with new events can have come to too many
        clusters, counts = self._clusters.num_clusters, self.buffer.counts
        books = self.members.sizes[:clusters], self.members.events[:clusters]
        sizes, events = self._summed(*books)
        most, room = self._most(int(events.sum())), self._clusters.max_clusters - clusters
        crowded = np.flatnonzero((events > most) & (sizes > 1))
        crowded = crowded[np.argsort(-events[crowded], kind="stable")][:room]
        if not len(crowded):
            return
        members, ends = self.members.of_all(crowded)
        group = np.repeat(np.arange(len(crowded)), np.diff(ends))
        members = members[np.lexsort((members, group))]  # sums do not depend on who came first
        sizes, events = sizes[crowded], events[crowded]
        fresh = clusters + np.arange(min(room, int(sizes.sum()) - len(crowded)))
        pulls = self._evidence.pulls(members, judge)
        crowd = Crowd(group, pulls, counts[members], self.of_all(members))
        goals, parents = shared_splits(crowded, sizes, events, crowd, most, fresh, self._ranks)
        self._open(parents)
        self.members.move(members, goals, counts, least=0)

    def _summed(self, *parts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sums over all processes, by one message."""
        total: NDArray[np.int64] = self._ranks.total(torch.from_numpy(np.stack(parts))).numpy()
        return total

    def same_everywhere(self) -> list[Tensor]:
        """See `OnlineSide`: rows, the tree of splits, and what comes next."""
        table = self._clusters
        counters = torch.tensor([self.events, self.moved, self._looked, table.num_clusters])
        squares = self._descent.state_dict()["squares"]
        return [table.weight.detach(), table.parent, squares, self._mean, counters]
