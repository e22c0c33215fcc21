"""Immutable versions of a model, ready to answer, and the current one."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap
from celrec.data.interactions import IdColumn
from celrec.errors import CelrecError
from celrec.inference.explanation import Explainer
from celrec.inference.search import Best
from celrec.inference.top_items import item_filters
from celrec.inference.top_k import TopK
from celrec.runs.run_folder import Run
from celrec.service.guard import UnknownError
from celrec.service.messages import (
    Answer,
    Explained,
    Id,
    Pair,
    Recommended,
    RecommendedToMany,
    RecommendRequest,
    Scores,
    Similar,
)

Numbers: TypeAlias = NDArray[np.int32]
_FEW = 100  # values that are read one by one
_BRIEF = 0.002  # seconds of an answer that may run in the event loop


class Version:
    """A model at one moment. It is immutable, so any number of threads may use it."""

    def __init__(self, number: int, run: Run, learned: int = 0) -> None:
        """`learned` is the number of events of the service that the model has learned."""
        self.number, self.run, self.learned = number, run, learned
        self.since = datetime.now(UTC)
        run.model.eval()
        priority = run.items.get_column("interactions").to_numpy()
        self._model = run.model.with_materialised_items()
        self._top_k = TopK(self._model, priority)
        self._explainer = Explainer(run, self._top_k)
        self._item_ids = run.items.get_column("id")
        self._user_ids = run.users.get_column("id")
        self._titles = run.items.get_column("title") if "title" in run.items.columns else None
        self._clusters = _clusters_of(run.items)
        for known in (run.known.user_ids, run.known.item_ids):
            _ = known.ids  # builds the cache now, in one thread
        newcomer = RecommendRequest(users=["newcomer"], with_seen=run.seen is None)
        self.recommend(newcomer)  # compiles kernels and fills caches
        self.brief = min(self._seconds(newcomer) for _ in range(3)) < _BRIEF
        """Whether a recommendation is so quick that it may run in the event loop."""

    def recommend(self, request: RecommendRequest) -> RecommendedToMany:
        """The best items for each user."""
        run = self.run
        if run.seen is None and not request.with_seen:
            raise CelrecError(
                "with_seen: the run has no record of what users have seen, since an earlier "
                "version of celrec wrote it; request seen items as well, or train again"
            )
        top = self._top_k
        if request.allowed is not None or request.banned is not None:
            encode = partial(_encoded, run.known.item_ids)
            top = top.within(**item_filters(encode, request.allowed, request.banned))
        dense = _encoded(run.known.user_ids, request.users)
        best = top.recommend(dense, request.k, seen=None if request.with_seen else run.seen)
        lists = self._answers(best)
        users = [
            Recommended.model_construct(
                version=self.number,
                learned=self.learned,
                user=given if number < 0 else self._user_ids.item(number),
                known=number >= 0,
                items=items,
            )
            for given, number, items in zip(request.users, dense.tolist(), lists, strict=True)
        ]
        return RecommendedToMany.model_construct(
            version=self.number, learned=self.learned, users=users
        )

    def _seconds(self, request: RecommendRequest) -> float:
        begun = time.thread_time()
        self.recommend(request)
        return time.thread_time() - begun

    def similar(self, item: Id, k: int) -> Similar:
        """The items most similar to an item."""
        dense = self.item(item)
        answers = self._answers(self._top_k.similar([dense], k))[0]
        known = self._item_ids.item(dense)
        return Similar.model_construct(version=self.number, item=known, items=answers)

    def score(self, pairs: list[Pair]) -> Scores:
        """Predictions for pairs."""
        known = self.run.known
        users = _encoded(known.user_ids, [pair.user for pair in pairs])
        items = _encoded(known.item_ids, [pair.item for pair in pairs])
        nothing = np.full(len(pairs), UNSEEN, np.int32)
        log = replace(
            known,
            user=users,
            item=items,
            target=np.zeros(len(pairs), np.float32),
            columns={name: IdColumn(nothing, column.ids) for name, column in known.columns.items()},
        )
        scores = self._model.predict(log)
        return Scores.model_construct(version=self.number, scores=scores.tolist())

    def explain(self, item: Id, user: Id | None, neighbours: int) -> Explained:
        """The cluster of an item; for a user, also the score."""
        self.item(item)
        why = self._explainer.explain(item, user, neighbours)
        fields = {"version": self.number, **why.as_dict(), "text": why.text()}
        return Explained.model_validate(fields)

    def item(self, item: Id) -> int:
        """The number of an item; raises if it is not known."""
        dense = int(_encoded(self.run.known.item_ids, [item])[0])
        if dense < 0:
            raise UnknownError(f"item {item!r} is not known; name one that is in the data")
        return dense

    def _answers(self, best: Best) -> list[list[Answer]]:
        """A list of answers for each row, without padding."""
        found = best.items >= 0
        flat = best.items[found]
        ids = _gathered(self._item_ids, flat)
        titles = [None] * len(ids) if self._titles is None else _gathered(self._titles, flat)
        clusters = [None] * len(ids) if self._clusters is None else self._clusters[flat].tolist()
        columns = zip(ids, best.scores[found].tolist(), titles, clusters, strict=True)
        answers = [
            Answer.model_construct(item=item, score=score, title=title, cluster=cluster)
            for item, score, title, cluster in columns
        ]
        ends = np.cumsum(found.sum(1)).tolist()
        return [answers[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _clusters_of(table: pl.DataFrame) -> Numbers | None:
    if "cluster" not in table.columns:
        return None
    return table.get_column("cluster").to_numpy()


def _gathered(values: pl.Series, numbers: Numbers) -> list[Any]:
    if values.dtype == pl.Int64:
        integers: list[int] = values.to_numpy()[numbers].tolist()
        return integers
    if len(numbers) > _FEW:
        return values.gather(numbers).to_list()
    return [values.item(number) for number in numbers.tolist()]  # quicker than `gather` for a few


def _encoded(known: IdMap, ids: Sequence[Id]) -> Numbers:
    """The numbers of ids; integers and strings may be mixed."""
    if known.ids.dtype == pl.Int64:
        integers = [one if isinstance(one, int) else _integer(one) for one in ids]
        return known.encode(pl.Series(integers, dtype=pl.Int64))
    return known.encode(pl.Series(map(str, ids), dtype=pl.String))


def _integer(text: str) -> int | None:
    """The integer in its canonical form; None for "007", for example."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


class Versions:
    """The current version, and its atomic replacement.

    A request reads `current` once and uses that version to the end. A new version is prepared
    before it replaces the old one, so requests never wait.
    """

    def __init__(self, run: Run, learned: int = 0) -> None:
        self._lock = threading.Lock()
        self.current = Version(1, run, learned)

    def publish(self, run: Run, learned: int = 0) -> None:
        """Make a run the current version."""
        with self._lock:
            self.current = Version(self.current.number + 1, run, learned)
