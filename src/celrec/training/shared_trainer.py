"""Judging events of ids that several processes have."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from celrec.clustering.ranks import Ranks
from celrec.storage.room import Room
from celrec.training.batch import Batch
from celrec.training.id_model import IdModel
from celrec.training.online_side import OnlineSide
from celrec.training.online_trainer import OnlineTrainer
from celrec.training.owned_side import OwnedSide
from celrec.training.routes import Routes
from celrec.training.shared_clusters import SharedClusters


class SharedTrainer(OnlineTrainer):
    """Learns a share of each batch; kept events are judged by all processes at the same time.

    In those, others have the numbers that they have among all: see `SharedClusters`. Their
    owners are asked for their vectors, and for what users did before.
    """

    def __init__(
        self,
        recommender: IdModel,
        sides: Mapping[str, OnlineSide],
        network_rate: float,
        ranks: Ranks,
        *,
        replay: bool = False,
        room: Room | None = None,
    ) -> None:
        super().__init__(recommender, sides, network_rate, replay=replay, ranks=ranks, room=room)
        users = self.sides["users"]
        self._users = users if isinstance(users, SharedClusters) else OwnedSide(users, ranks)

    def _known(self, side: str, batch: Batch) -> tuple[Batch, dict[str, Tensor]]:
        every, place = batch.ids(), list(self.sides).index(side)
        every[place] = every[place] * self._ranks.size + self._ranks.rank
        batch = self._with_far_history(Batch.of(every, batch.target, batch.moment))
        return batch, self._look_up(batch, self._found)

    def _found(self, name: str, ids: Tensor) -> Tensor:
        if name != "users":
            return self.sides[name].lookup(ids)
        if isinstance(self._users, SharedClusters):
            return self._users.lookup_of_all(ids)
        different, places = torch.unique(ids, return_inverse=True)
        return self._users.lookup(different)[places]

    def _with_far_history(self, batch: Batch) -> Batch:
        if not self.recommender.history_length or batch.moment is None:
            return batch
        routes, users = Routes.to_owners(batch.user, self._ranks)
        asked = Batch(users, users, torch.zeros(len(users)), moment=routes.there(batch.moment))
        history = self._with_history(asked).history
        assert history is not None  # noqa: S101  (the model looks at one)
        return batch._replace(history=routes.back(history.int()).long())
