"""A model as it was at one moment, ready to answer, and the one that answers now."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap
from celrec.data.interactions import IdColumn
from celrec.errors import CelrecError
from celrec.inference.explanation import Explainer
from celrec.inference.search import Best
from celrec.inference.top_k import TopK
from celrec.runs.run_folder import Run
from celrec.service.guard import UnknownError
from celrec.service.messages import (
    Answer,
    Id,
    Pair,
    Recommended,
    RecommendedToMany,
    Scores,
    Similar,
    Wanted,
    Why,
)

Numbers: TypeAlias = NDArray[np.int32]
_FEW = 100  # answers
_BRIEF = 0.002  # seconds


class Version:
    """Nothing of it changes, so any number of threads may ask it: an answer is of one moment."""

    def __init__(self, number: int, run: Run, learned: int = 0) -> None:
        """`learned` is how many events of the service are in it."""
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
        self._clusters = _numbers(run.items)
        for known in (run.known.user_ids, run.known.item_ids):
            _ = known.ids  # put together now, by one thread
        newcomer = Wanted(users=["newcomer"], with_seen=run.seen is None)
        self.recommend(newcomer)  # the first of a process compiles and loads what all need
        self.brief = min(self._seconds(newcomer) for _ in range(3)) < _BRIEF
        """Whether a recommendation to one user takes so little time that nobody has to wait."""

    def recommend(self, wanted: Wanted) -> RecommendedToMany:
        """The best items for users."""
        run = self.run
        if run.seen is None and not wanted.with_seen:
            raise CelrecError(
                "with_seen: the run has no record of what users have seen, since an earlier "
                "version of celrec wrote it; request seen items as well, or train again"
            )
        top = self._top_k
        if wanted.allowed is not None or wanted.banned is not None:
            top = self._within(wanted.allowed, wanted.banned)
        dense = _encoded(run.known.user_ids, wanted.users)
        best = top.recommend(dense, wanted.k, seen=None if wanted.with_seen else run.seen)
        lists = self._answers(best)
        told = [
            Recommended.model_construct(
                version=self.number,
                learned=self.learned,
                user=given if number < 0 else self._user_ids.item(number),
                known=number >= 0,
                items=items,
            )
            for given, number, items in zip(wanted.users, dense.tolist(), lists, strict=True)
        ]
        return RecommendedToMany.model_construct(
            version=self.number, learned=self.learned, users=told
        )

    def _seconds(self, wanted: Wanted) -> float:
        begun = time.thread_time()
        self.recommend(wanted)
        return time.thread_time() - begun

    def similar(self, item: Id, k: int) -> Similar:
        """The items that are most like another."""
        dense = self.item(item)
        answers = self._answers(self._top_k.similar([dense], k))[0]
        known = self._item_ids.item(dense)
        return Similar.model_construct(version=self.number, item=known, items=answers)

    def score(self, pairs: list[Pair]) -> Scores:
        """What is predicted for pairs."""
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

    def explain(self, item: Id, user: Id | None, neighbours: int) -> Why:
        """Why an item is where it is."""
        self.item(item)
        why = self._explainer.explain(item, user, neighbours)
        fields = {"version": self.number, **why.as_dict(), "told": why.text()}
        return Why.model_validate(fields)

    def item(self, item: Id) -> int:
        """Its number; complains if it is not known."""
        dense = int(_encoded(self.run.known.item_ids, [item])[0])
        if dense < 0:
            raise UnknownError(f"item {item!r} is not known; name one that is in the data")
        return dense

    def _within(self, allowed: list[Id] | None, banned: list[Id] | None) -> TopK:
        filters = {}
        for name, ids in (("allowed", allowed), ("banned", banned)):
            if ids is not None:
                numbers = _encoded(self.run.known.item_ids, ids)
                filters[name] = numbers[numbers >= 0]
        if allowed is not None and not len(filters["allowed"]):
            raise CelrecError("allowed: none of these items is known; check that they are ids")
        return self._top_k.within(**filters)

    def _answers(self, best: Best) -> list[list[Answer]]:
        """A list for each row, as long as there are items."""
        found = best.items >= 0
        flat = best.items[found]
        ids = _taken(self._item_ids, flat)
        titles = [None] * len(ids) if self._titles is None else _taken(self._titles, flat)
        clusters = [None] * len(ids) if self._clusters is None else self._clusters[flat].tolist()
        columns = zip(ids, best.scores[found].tolist(), titles, clusters, strict=True)
        answers = [
            Answer.model_construct(item=item, score=score, title=title, cluster=cluster)
            for item, score, title, cluster in columns
        ]
        ends = np.cumsum(found.sum(1)).tolist()
        return [answers[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def sides(self) -> dict[str, pl.DataFrame]:
        """What is known of ids, by the names of the tables."""
        return {"items": self.run.items, "users": self.run.users, **self.run.columns}


def _numbers(table: pl.DataFrame) -> Numbers | None:
    if "cluster" not in table.columns:
        return None
    return table.get_column("cluster").to_numpy()


def _taken(values: pl.Series, numbers: Numbers) -> list[Any]:
    if values.dtype == pl.Int64:
        integers: list[int] = values.to_numpy()[numbers].tolist()  # of a view
        return integers
    if len(numbers) > _FEW:
        return values.gather(numbers).to_list()
    return [values.item(number) for number in numbers.tolist()]  # a call of `gather` takes longer


def _encoded(known: IdMap, ids: Sequence[Id]) -> Numbers:
    """The numbers of ids, of which some may be integers and others texts."""
    if known.ids.dtype == pl.Int64:
        integers = [one if isinstance(one, int) else _integer(one) for one in ids]
        return known.encode(pl.Series(integers, dtype=pl.Int64))
    return known.encode(pl.Series(map(str, ids), dtype=pl.String))


def _integer(text: str) -> int | None:
    """The integer that is written so, and not otherwise: "007" is none."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


class Versions:
    """Who asks takes `current` once, and is answered by it whatever comes meanwhile.

    A new version is made ready before it takes the place of the old one, which goes when the last
    request that has it is answered. So nobody waits for the change.
    """

    def __init__(self, run: Run, learned: int = 0) -> None:
        self._lock = threading.Lock()
        self.current = Version(1, run, learned)

    def publish(self, run: Run, learned: int = 0) -> None:
        """Let a run answer from now on."""
        with self._lock:
            self.current = Version(self.current.number + 1, run, learned)
