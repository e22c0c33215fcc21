"""The data of a run, and the metrics of all models of a report on them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from celrec.config.plan import Plan
from celrec.data.datasets.library import open_data
from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.data.split import Split
from celrec.errors import CelrecError, first_line
from celrec.evaluation.comparison import measure
from celrec.evaluation.metrics import Accuracy, area_under_curve, log_loss, mean_squared_error
from celrec.evaluation.prequential import Measured, Prequential
from celrec.evaluation.ranking import Ranking, relevant_from
from celrec.offline.solver import ValidationRecord
from celrec.recommender.model import Model
from celrec.recommender.negatives import Negatives
from celrec.reporting.frequency import Frequency
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.run_folder import Run
from celrec.runs.seen_log import seen_in
from celrec.runtime.state_file import load_state


@dataclass(frozen=True)
class RunData:
    """The training and test data of a run, with the ids of the run."""

    split: Split

    @classmethod
    def of(cls, run: Run) -> RunData:
        """Read the data that the run records, and split them as for training.

        Raises an error if the run records none, or if they are missing or have changed.
        """
        source = run.source
        if "events" in run.result:
            raise CelrecError("it was learned from a stream, which has no test part")
        if not {"data", "fold", "seed"} <= set(source):
            raise CelrecError("the run does not record its training and test data")
        whole = open_data(source["data"], **source.get("reading", {}))
        split = Split.named(run.plan.prepared(whole), source["fold"], source["seed"])
        found = cls(split)
        for side, ids, counts in (
            ("users", whole.user_ids.ids, found.learned.user_counts),
            ("items", whole.item_ids.ids, found.learned.item_counts),
        ):
            table: pl.DataFrame = getattr(run, side)
            same = ids.cast(pl.String).equals(table.get_column("id").cast(pl.String))
            if not same or (counts != table.get_column("interactions").to_numpy()).any():
                raise CelrecError(f"{source['data']}: has changed since the run was trained on it")
        return found

    @cached_property
    def learned(self) -> Interactions:
        """Training and validation data."""
        return self.split.train_and_valid()

    @property
    def test(self) -> Interactions:
        """The test data."""
        return self.split.test

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of all interactions."""
        crc = 0
        for log in (self.learned, self.test):
            for column in (log.user, log.item, log.target):
                crc = zlib.crc32(np.ascontiguousarray(column).data, crc)
        return f"{crc:08x}"


NAME = "judgements.parquet"


def read_validation_records(folder: Path) -> dict[str, list[ValidationRecord]]:
    """The records of training by stage; empty for an online run."""
    path = folder / NAME
    if not path.is_file():
        return {}
    try:
        table = pl.read_parquet(path)
        known = [field.name for field in fields(ValidationRecord) if field.name in table.columns]
        stages: dict[str, list[ValidationRecord]] = {}
        for row in table.select("stage", *known).iter_rows(named=True) if len(table) else ():
            stages.setdefault(row.pop("stage"), []).append(ValidationRecord(**row))
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise CelrecError(f"{path}: damaged ({first_line(error)}); train again") from error
    return stages


_STATE = "training.safetensors"


def online_record(folder: Path) -> dict[str, Measured] | None:
    """The metrics of the last checkpoint by slice; None if it has none."""
    found = CheckpointFolder(folder).latest()
    if found is None:
        return None
    metrics = Prequential()
    try:
        metrics.load_state_dict(load_state(found.folder / _STATE)["notes"])
    except (CelrecError, LookupError, TypeError, AttributeError):
        return None  # other programs may write checkpoints without metrics
    return metrics.overall() if metrics.events else None


@dataclass(frozen=True, slots=True)
class Figures:
    """Metrics of predictions and recommendations on test data, ready for JSON."""

    test: dict[str, float | None]
    """The metrics of `measure`, and `log_loss` if targets are 0 or 1 and predictions between."""
    ranking: dict[str, float | None] | None
    """The metrics of `Ranking`; None without recommendations."""
    by_items: list[float | None]
    """The main metric by the training interactions of the item."""
    by_users: list[float | None]
    """The same for the user."""


Recommend: TypeAlias = Callable[
    [Model, NDArray[np.int64], NDArray[np.int64], int, SeenItems], NDArray[np.int32]
]
"""The best items of a model, given the interactions of each item, users, how many items, and what
users have seen: a row for each user, best first, −1 where there are fewer."""
BEST = 10
"""The length of recommended lists."""
MOST_USERS = 10_000
"""The largest number of users that recommendations are evaluated for."""


class Evaluator:
    """Evaluates predictions for the test data of a run, and lists of recommended items.

    All models are evaluated on the same rows, users and items.
    """

    def __init__(self, plan: Plan, data: RunData) -> None:
        self._plan, self._data = plan, data
        self.learned, self.test = data.learned, data.test
        self.events = self.test
        """The rows to predict; for implicit feedback with a negative sample beside each."""
        if plan.only_positive:
            self.events = Negatives(self.test).beside(self.test, plan.seed)
        squared = plan.loss == "squared-error" and not plan.only_positive
        self.metric = "mse" if squared else "auc"
        """The main metric, which is also shown by frequency."""
        self.binary = bool(np.isin(self.events.target, (0, 1)).all()) and len(self.events) > 0
        self.items = Frequency.of(self.learned.item_counts, self.events.item)
        self.users = Frequency.of(self.learned.user_counts, self.events.user)
        self.seen = seen_in(self.learned)
        every = np.unique(self.test.user[self.test.user >= 0]).astype(np.int64)
        # Evenly spaced, so that the choice is deterministic.
        places = np.linspace(0, len(every) - 1, min(len(every), MOST_USERS)).astype(np.int64)
        self.requested = every[places]
        """The users for whom recommendations are evaluated."""
        self.relevant_from = relevant_from(plan, self.test, self.mean)

    @property
    def mean(self) -> float:
        """The mean of all training targets."""
        return float(np.mean(self.learned.target, dtype=np.float64)) if len(self.learned) else 0.0

    def of_model(self, model: Model, recommend: Recommend) -> Figures:
        """The figures of a trained model."""
        counts = self.learned.item_counts
        lists = recommend(model, counts, self.requested, BEST, self.seen)
        found = self.of_predictions(np.asarray(model.predict(self.events)), lists)
        # With the same test metrics as after training; with two tasks there are more.
        return replace(found, test=found.test | measure(model, self._plan, self.test, counts))

    def of_predictions(self, predicted: ArrayLike, lists: ArrayLike | None) -> Figures:
        """The figures of predictions for `events`, and of items for the users `requested`."""
        values = np.asarray(predicted, np.float64)
        counts = self.learned.item_counts
        test: dict[str, float | None] = asdict(Accuracy.of(values, self.events, counts))
        if self._plan.only_positive:
            test |= dict.fromkeys(("mse", "mse_cold", "mse_warm"))
        elif self.binary and ((values >= 0) & (values <= 1)).all():
            test["log_loss"] = log_loss(values, self.events.target)
        return Figures(
            test=test,
            ranking=None if lists is None else self._ranking(lists),
            by_items=self.items.each(lambda rows: self._of_rows(values, self.events, rows)),
            by_users=self.users.each(lambda rows: self._of_rows(values, self.events, rows)),
        )

    def _of_rows(
        self, predicted: NDArray[np.float64], events: Interactions, rows: NDArray[np.bool_]
    ) -> float | None:
        target = events.target[rows]
        if self.metric == "mse":
            return mean_squared_error(predicted[rows], target)
        if not self.binary or len(np.unique(target)) < 2:
            return None
        return area_under_curve(predicted[rows], target)

    def _ranking(self, lists: ArrayLike) -> dict[str, Any]:
        found = Ranking.by_slice(
            lists,
            self.requested,
            self.test,
            self.learned.item_counts,
            relevant_from=self.relevant_from,
            seen=self.seen,
        )
        return asdict(found["all"]) | {"ndcg_cold": found["cold"].ndcg}


_USERS = 64  # at once


def item_means(learned: Interactions, events: Interactions) -> NDArray[np.float64]:
    """The mean target of each event's item, or the mean of all targets for unseen items.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2, 1], "item": [7, 7, 9], "rating": [1.0, 3.0, 5.0]})
    >>> item_means(log, log)
    array([2., 2., 5.])
    """
    learned = learned.seen()
    counts = learned.item_counts
    sums = np.bincount(learned.item, learned.target, learned.num_items)
    mean = float(np.mean(learned.target, dtype=np.float64)) if len(learned) else 0.0
    means = np.append(np.where(counts > 0, sums / np.maximum(counts, 1), mean), mean)
    return means[events.item]  # the last entry is for unseen items


def same_for_all(
    scores: NDArray[np.floating] | NDArray[np.integer],
    users: NDArray[np.int64],
    k: int,
    seen: SeenItems,
) -> NDArray[np.int32]:
    """The k unseen items with the highest scores for each user.

    One row per user, best first, padded with −1; ties are broken by the lower number.

    >>> seen = SeenItems()
    >>> seen.add([0, 0], [2, 1])
    >>> same_for_all(np.array([3, 9, 9, 1]), np.array([0, 1]), 3, seen)
    array([[ 0,  3, -1],
           [ 1,  2,  0]], dtype=int32)
    """
    order = np.argsort(-scores.astype(np.float64), kind="stable").astype(np.int32)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    lists = np.full((len(users), k), -1, np.int32)
    for start in range(0, len(users), _USERS):
        some = users[start : start + _USERS]
        starts, items = seen.of(some)
        counts = np.diff(starts)
        near = min(k + int(counts.max(initial=0)), len(order))  # among so many there are k new ones
        new = np.ones((len(some), near), bool)
        row, at = np.repeat(np.arange(len(some)), counts), place[items]
        new[row[at < near], at[at < near]] = False
        rank = np.cumsum(new, 1)
        row, at = np.nonzero(new & (rank <= k))
        lists[start + row, rank[row, at] - 1] = order[at]
    return lists
