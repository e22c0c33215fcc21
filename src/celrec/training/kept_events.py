"""The latest events of the ids of a table, as batches."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from celrec.data.replay_buffer import ReplayBuffer
from celrec.storage.room import Room
from celrec.training.batch import Batch


class KeptEvents(ReplayBuffer):
    """A replay buffer that takes batches and gives batches.

    >>> kept = KeptEvents(latest=2, place=0, tables=2)
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
        room: Room | None = None,
    ) -> None:
        """For the table at `place` among all `tables` of a model.

        With `moments`, the numbers of events in the stream are kept with them. Where all targets
        are `conversions`, 0 or 1, they take a byte each.
        """
        columns: dict[str, DTypeLike] = {"others": (np.int32, tables - 1)}
        columns["target"] = self._kind = np.dtype(np.uint8 if conversions else np.float32)
        if moments:
            columns["moment"] = np.int64
        super().__init__(latest, columns, ids=ids, room=room)
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
        """Put other numbers in the places of ids of another table; see `OnlineSide.renumber`."""
        self.renumber("others", numbers, place - (place > self._place))

    def replay(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Batch]:
        """The kept events of some ids, and whose each is: a position in `ids`."""
        owner, columns = self.events(ids)
        every = list(torch.from_numpy(columns["others"].astype(np.int64)).unbind(-1))
        every.insert(self._place, torch.from_numpy(ids[owner]))
        moment = torch.from_numpy(columns["moment"]) if self._moments else None
        target = columns["target"].astype(np.float32, copy=False)
        return owner, Batch.of(every, torch.from_numpy(target), moment)
