"""What several processes learned together, in one."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.clustering.ranks import Ranks
from celrec.data.id_map import IdMap
from celrec.data.table_bytes import from_bytes, to_bytes
from celrec.training.known_ids import KnownIds
from celrec.training.online_learner import OnlineLearner
from celrec.training.online_trainer import OnlineTrainer
from celrec.training.owned_side import OwnedSide


def whole_learner(learner: OnlineLearner) -> OnlineLearner | None:
    """A learner that knows all that each process knows: on the first one, None on the others.

    All processes ask for it at the same time. Of one process it is the learner itself.
    """
    ranks = learner.ranks
    if ranks.size == 1:
        return learner
    users = learner.tables["users"]
    numbers = learner.own_users.counted(len(users.ids))
    everyone = _Gathering(ranks, numbers, learner.own_users.total)
    ids = everyone.ids(users.ids.ids)
    counts, sums = (everyone.rows(torch.from_numpy(one)) for one in (users.counts, users.sums))
    history = learner.trainer.history.state_dict()
    past = everyone.each({"counts": history["counts"], **history["columns"]}, len(numbers))
    who, what = learner.seen.events()
    seen = [everyone.together(torch.from_numpy(one)) for one in (numbers[who], what)]
    about, alike = {}, []
    for name, side in learner.trainer.sides.items():
        gathering, known = everyone, len(numbers)
        if name != "users":
            total = len(learner.tables[name].ids)
            owned = np.arange(ranks.rank, total, ranks.size)
            gathering, known = _Gathering(ranks, owned, total), len(owned)
        inner = side.inner if isinstance(side, OwnedSide) else side
        if known > inner.capacity:
            inner.grow(known)
        about[name] = gathering.each(inner.about_ids(known), known)
        alike += inner.same_everywhere()
    ranks.check_alike("what is learned", alike)
    if ids is None:
        return None
    whole = OnlineLearner.start(learner.plan, learner.model.column_names, room=learner.room)
    whole.tables = dict(learner.tables)
    assert counts is not None  # noqa: S101  (the first process has all of it)
    assert sums is not None  # noqa: S101
    whole.tables["users"] = KnownIds(
        IdMap(ids, learner.room), counts.numpy(), sums.numpy(), room=learner.room
    )
    _take_up(
        whole.trainer, learner.trainer, about, {n: len(t.ids) for n, t in whole.tables.items()}
    )
    places = everyone.numbers()
    for name, side in whole.trainer.sides.items():
        if name != "users":
            side.renumber(0, places)
    columns = {name: part for name, part in past.items() if name != "counts"}
    whole.trainer.history.load_state_dict(
        {"width": history["width"], "counts": past["counts"], "columns": columns}
    )
    whole.seen.generation = learner.events  # another one each time: numbers have new places
    whole.seen.add(*(part.numpy() for part in seen if part is not None))
    return whole


def _take_up(
    trainer: OnlineTrainer,
    other: OnlineTrainer,
    about: dict[str, dict[str, Tensor]],
    known: dict[str, int],
) -> None:
    """Let a new trainer have what another has that is the same everywhere, and that of all ids."""
    trainer.take_up_network(other)
    for name, side in trainer.sides.items():
        shared = other.sides[name]
        if known[name] > side.capacity:
            side.grow(known[name])
        side.take_up_rows(shared.inner if isinstance(shared, OwnedSide) else shared)
        side.take_up_ids(about[name])


class _Gathering:
    """Brings what processes know of their ids to the first one, by the numbers among all."""

    def __init__(self, ranks: Ranks, numbers: NDArray[np.int64], total: int) -> None:
        self._ranks, self._total = ranks, total
        self._numbers = ranks.at_first(torch.from_numpy(numbers))

    def numbers(self) -> NDArray[np.int64]:
        """By n·size + rank, what is n there; −1 where there is nobody. On the first process."""
        parts = self._numbers or []
        found = np.full((max(1, *map(len, parts)), len(parts)), -1)
        for rank, part in enumerate(parts):
            found[: len(part), rank] = part.numpy()
        return found.reshape(-1)

    def together(self, values: Tensor) -> Tensor | None:
        """All that any process has, one after the other."""
        parts = self._ranks.at_first(values)
        return None if parts is None else torch.cat(parts)

    def rows(self, values: Tensor) -> Tensor | None:
        """A row for each id."""
        parts = self._ranks.at_first(values)
        if parts is None or self._numbers is None:
            return None
        found = values.new_zeros(self._total, *values.shape[1:])
        for numbers, part in zip(self._numbers, parts, strict=True):
            found[numbers] = part
        return found

    def each(self, values: dict[str, Tensor], ids: int) -> dict[str, Tensor]:
        """The same for several; of ids that nothing is known of, zeros. Empty on others."""
        found = {}
        for name, value in values.items():
            if len(value) < ids:
                more = value.new_zeros(ids - len(value), *value.shape[1:])
                value = torch.cat([value, more])
            if (rows := self.rows(value)) is not None:
                found[name] = rows
        return found

    def ids(self, ids: pl.Series) -> pl.Series | None:
        """The original ids of all."""
        data = np.frombuffer(to_bytes(ids.to_frame("id")), np.uint8)
        parts = self._ranks.at_first(torch.from_numpy(data.copy()))
        if parts is None or self._numbers is None:
            return None
        found = [from_bytes(part.numpy().tobytes()).to_series() for part in parts]
        found = [one for one in found if len(one)]
        if len({one.dtype for one in found}) > 1:
            found = [one.cast(pl.String) for one in found]
        order = torch.argsort(torch.cat(self._numbers)).numpy()
        return pl.concat(found).gather(order) if found else ids
