"""Learning from a stream of conversions, each predicted before it is learned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.config.plan import Plan
from celrec.errors import DivergedError
from celrec.evaluation.prequential import Prequential
from celrec.online.make_trainer import (
    initialise_tables,
    make_trainer,
    online_settings,
    stream_model,
)
from celrec.online.trainer import Learned, OnlineTrainer
from celrec.recommender.batch import Batch
from celrec.runtime.jit import compiled
from reproduce.conversion_stream import ConversionStream
from reproduce.peak_memory import PeakMemory

BATCH = 1024
"""Events that are learned together, by all methods."""
COLD = 5
"""An event is cold if its user or its item had at most so many events before its batch."""
_JUDGED = 0.1  # the last part of the stream, by which methods are judged


def learn_stream(stream: ConversionStream, plan: Plan) -> dict[str, Any]:
    """One pass over a stream; how well its last tenth was predicted, and what that took.

    Areas are in per cent; they are those of 10,000 events at a time, see `Prequential`.

    >>> stream = ConversionStream(20_000, 90, 60, user_clusters=3, item_clusters=3)
    >>> found = learn_stream(stream, Plan(embedding="modulo", compression="4", side="both",
    ...                                   model="mf", preset="online", loss="cross-entropy"))
    >>> 50 < found["auc"] < 70, found["rows"], found["ids"], found["index"]
    (True, [4, 4], [90, 60], 0)
    """
    with PeakMemory() as peak:
        found = _learned(stream, plan)
    return {**found, "peak": peak.nbytes}


def _learned(stream: ConversionStream, plan: Plan) -> dict[str, Any]:
    how, model = online_settings(plan), stream_model(plan, ())
    trainer = make_trainer(how, model)
    users, items = _Seen(stream.users), _Seen(stream.items)
    metrics, seconds = Prequential(cold=COLD), 0.0
    for batch in _batches(stream):
        if not trainer.events:
            initialise_tables(how, model, float(batch.target.mean()))
            for side in trainer.sides.values():
                side.begin()
        judged = trainer.events >= (1 - _JUDGED) * stream.events
        known = users.before(batch.user), items.before(batch.item)
        begun = time.process_time()
        try:
            outputs = trainer.step(batch)
        except DivergedError as error:
            return {"diverged": str(error)}
        seconds += time.process_time() - begun
        if not bool(outputs.isfinite().all()):
            return {"diverged": f"predictions are not finite after {trainer.events:,} events"}
        if judged:
            predictions = model.loss.prediction(outputs).numpy()
            metrics.add(Learned(predictions, batch.target.numpy(), *known))
    sizes = _sizes(trainer, [users.ids, items.ids])
    return {**_areas(metrics), **sizes, "events": trainer.events, "seconds": seconds}


def _batches(stream: ConversionStream) -> Iterator[Batch]:
    for chunk in stream.batches():
        parts = (torch.split(one, BATCH) for one in (chunk.user, chunk.item, chunk.target))
        yield from (Batch(*part) for part in zip(*parts, strict=True))


def _areas(metrics: Prequential) -> dict[str, Any]:
    overall = metrics.overall()
    areas = {name: overall[name].auc for name in ("all", "cold")}
    return {
        "judged": metrics.events,
        "cold_events": overall["cold"].events,
        "auc": None if areas["all"] is None else 100 * areas["all"],
        "auc_cold": None if areas["cold"] is None else 100 * areas["cold"],
    }


def _sizes(trainer: OnlineTrainer, ids: list[int]) -> dict[str, Any]:
    tables = [side.table for side in trainer.sides.values()]
    memory = [table.memory() for table in tables]
    return {
        "ids": ids,
        # A full table has room for more ids than have come.
        "rows": [min(table.num_rows, known) for table, known in zip(tables, ids, strict=True)],
        "table": sum(one.table for one in memory),
        "index": sum(one.index for one in memory),
        "training": sum(table.memory(training=True).total for table in tables),
        "beside": trainer.nbytes,
    }


class _Seen:
    """How many events each id has had, up to 255: one byte is all that it takes."""

    def __init__(self, ids: int) -> None:
        self._counts = np.zeros(ids, np.uint8)
        self.ids = 0
        """How many have appeared."""

    def before(self, ids: Tensor) -> NDArray[np.int64]:
        """How many events these have had before the batch that they make up, which is counted."""
        numbers = ids.numpy()
        known: NDArray[np.int64] = self._counts[numbers].astype(np.int64)
        _count(self._counts, numbers)
        self.ids = max(self.ids, int(numbers.max()) + 1)
        return known


@compiled
def _count(counts: NDArray[np.uint8], ids: NDArray[np.int64]) -> None:
    for event in range(len(ids)):
        if counts[ids[event]] < 255:
            counts[ids[event]] += 1
