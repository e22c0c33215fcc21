"""The known ids of a stream, and the events that fit the loss."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.config.plan import Plan
from celrec.data.id_map import UNSEEN, IdMap
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.errors import CelrecError
from celrec.recommender.model import Model
from celrec.runtime.memory_budget import GrowingRows, MemoryBudget
from celrec.streams.events import Rejected

_NEVER = np.iinfo(np.int64).min
_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


class KnownIds:
    """Original ids with their numbers, their counts of events and sums of targets.

    With `moments`, also the time of the last event of each id.

    >>> shops = KnownIds()
    >>> numbers = shops.numbers(pl.Series(["north", None, "north"]))
    >>> numbers
    array([ 0, -1,  0])
    >>> shops.add(numbers, np.array([4.0, 1.0, 5.0], np.float32))
    >>> shops.counts_of(np.array([0, -1])), shops.sums
    (array([2, 0]), array([9.]))
    """

    def __init__(
        self,
        ids: IdMap | None = None,
        counts: NDArray[np.int64] | None = None,
        sums: NDArray[np.float64] | None = None,
        moments: NDArray[np.int64] | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.ids = IdMap(budget=budget) if ids is None else ids
        self._counts = _rows(_INT64, counts, budget)
        self._sums = _rows(_FLOAT64, sums, budget)
        self._moments = None if moments is None else _rows(_INT64, moments, budget)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of events of each id."""
        return self._counts.first(len(self.ids))

    @property
    def sums(self) -> NDArray[np.float64]:
        """The sum of the targets of each id."""
        return self._sums.first(len(self.ids))

    @property
    def moments(self) -> NDArray[np.int64] | None:
        """The moment of the last event of each id, if moments are stored."""
        return None if self._moments is None else self._moments.first(len(self.ids))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.ids.nbytes + sum(rows.nbytes for rows in self._all())

    def numbers(self, values: pl.Series) -> NDArray[np.int64]:
        """The number of each id, UNSEEN for null; new ids get the next numbers."""
        if values.null_count():
            numbers = np.full(len(values), UNSEEN, np.int64)
            numbers[values.is_not_null().to_numpy()] = self.ids.extend(values.drop_nulls())
        else:
            numbers = self.ids.extend(values).astype(np.int64)
        room = len(self._counts.flat)
        if len(self.ids) > room:  # by an eighth at least: to grow may take time for all ids
            for rows in self._all():
                rows.grow(max(len(self.ids), room * 9 // 8))
            if self._moments is not None:
                self._moments.flat[room:] = _NEVER
        return numbers

    def _all(self) -> tuple[GrowingRows, ...]:
        both = self._counts, self._sums
        return both if self._moments is None else (*both, self._moments)

    def counts_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of events of these ids, 0 for UNSEEN."""
        known = numbers > UNSEEN
        counts = np.zeros(len(numbers), np.int64)
        counts[known] = self._counts.flat[numbers[known]]
        return counts

    def add(
        self,
        numbers: NDArray[np.int64],
        targets: NDArray[np.float32],
        moments: NDArray[np.int64] | None = None,
    ) -> None:
        """Count events, and record their moments if these are stored."""
        known = numbers > UNSEEN
        np.add.at(self._counts.flat, numbers[known], 1)
        np.add.at(self._sums.flat, numbers[known], targets[known].astype(np.float64))
        if self._moments is not None and moments is not None:
            np.maximum.at(self._moments.flat, numbers[known], moments[known])

    def heard_since(self, moment: int) -> NDArray[np.int64]:
        """The ids with an event at this moment or later; all if moments are not stored."""
        if self.moments is None:
            return np.arange(len(self.ids))
        return np.flatnonzero(self.moments >= moment)

    def keep(self, numbers: NDArray[np.int64]) -> None:
        """Keep only these ids, given in ascending order and renumbered."""
        for rows in self._all():
            rows.keep(numbers)
        self.ids.keep(numbers)


def _rows(
    dtype: np.dtype[Any], values: NDArray[Any] | None, budget: MemoryBudget | None
) -> GrowingRows:
    rows = GrowingRows(dtype, (), 0 if values is None else len(values), budget)
    if values is not None:
        rows.flat[:] = values
    return rows


_CHUNK = 1 << 16


def id_tables(log: Interactions, model: Model) -> dict[str, pl.DataFrame]:
    """The `ids_table` of each table of a model that was trained on `log`, with titles."""
    rows = model.tables
    tables = {
        "users": _table_of(log, log.user_ids, log.user, rows["users"], log.user_features),
        "items": _table_of(log, log.item_ids, log.item, rows["items"], log.item_features),
    }
    for name, column in log.columns.items():
        if name in rows:
            tables[name] = _table_of(log, column.ids, column.values, rows[name])
    return tables


def ids_table(
    ids: pl.Series, counts: NDArray[np.int64], sums: NDArray[np.float64], table: Embedding
) -> pl.DataFrame:
    """Original ids in dense order, with interactions, mean targets and clusters.

    The cluster in a table of several levels is that of the first one.
    """
    columns = {
        "id": ids,
        "interactions": counts,
        "mean_target": np.where(counts > 0, sums / np.maximum(counts, 1), np.nan),
    }
    size = len(ids)
    if isinstance(table, PersonalEmbedding):
        columns["private"] = (table.own_of(torch.arange(size)) >= 0).numpy()
        table = table.shared
    if isinstance(table, LevelledEmbedding):
        table = table.clustered_levels[0]
    if isinstance(table, ClusteredEmbedding):
        columns["cluster"] = table.assignment[:size].int().numpy()
    if isinstance(table, PosteriorEmbedding):
        starts = range(0, max(size, 1), _CHUNK)
        parts = [table.nearest(torch.arange(s, min(s + _CHUNK, size))) for s in starts]
        columns["cluster"] = torch.cat(parts).int().numpy()
    if isinstance(table, MixedEmbedding):
        columns["private"] = table.private(torch.arange(size)).numpy()
    return pl.DataFrame(columns)


def _table_of(
    log: Interactions,
    ids: IdMap,
    dense: NDArray[np.int32],
    table: Embedding,
    features: pl.DataFrame | None = None,
) -> pl.DataFrame:
    size, seen = min(len(ids), table.num_embeddings), dense >= 0
    counts = np.bincount(dense[seen], minlength=size)
    sums = np.bincount(dense[seen], log.target[seen], size).astype(np.float64)
    shown = ids_table(ids.ids[:size], counts, sums, table)
    if features is not None and "title" in features.columns:
        shown = shown.with_columns(title=features.get_column("title"))
    return shown


class FittingEvents(NamedTuple):
    """The events with targets that fit the loss, and the other ones.

    >>> plan = Plan(embedding="cel-lite", model="mf", loss="cross-entropy", positive=4)
    >>> FittingEvents.of(pl.DataFrame({"target": [5.0, 2.0]}), plan, learned=0).targets
    array([1., 0.], dtype=float32)
    """

    frame: pl.DataFrame
    targets: NDArray[np.float32]
    """The targets for the loss."""
    unfit: list[Rejected]

    @classmethod
    def of(cls, frame: pl.DataFrame, plan: Plan, learned: int) -> FittingEvents:
        """For cross-entropy, targets are conversions, or 0 or 1. With negative sampling, events
        without a conversion, or with target 0, are skipped.

        `learned` is the number of earlier events. If none of the first events fits, the plan is
        wrong.
        """
        targets = frame.get_column("target").cast(pl.Float32).to_numpy(writable=True)
        if plan.negatives:
            happened = targets > 0 if plan.positive is None else targets >= plan.positive
            frame = frame.filter(happened)
            return cls(frame, np.ones(len(frame), np.float32), [])
        if plan.loss != "cross-entropy":
            return cls(frame, targets, [])
        if plan.positive is not None:
            return cls(frame, (targets >= plan.positive).astype(np.float32), [])
        fits = (targets == 0) | (targets == 1)
        if fits.all():
            return cls(frame, targets, [])
        reason = "a target that is neither 0 nor 1 needs a `positive` one (--positive 4)"
        if not learned and not fits.any():
            raise CelrecError(f"loss 'cross-entropy': {reason}, as in {targets[0]:g}")
        unfit = [
            Rejected(
                f"row {row + 1} of the batch after {learned:,} events",
                json.dumps(frame.row(row, named=True), default=str, ensure_ascii=False),
                reason,
            )
            for row in np.flatnonzero(~fits).tolist()
        ]
        return cls(frame.filter(fits), targets[fits], unfit)
