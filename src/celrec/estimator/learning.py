"""The tables and the state of an estimator: learning more, saving, loading, evaluation."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from celrec.config.picking import pick
from celrec.config.plan import LITE, Plan
from celrec.data.columns import Columns, Table, TableKind, as_polars, further, with_column
from celrec.data.id_map import Ids
from celrec.data.interactions import Interactions
from celrec.data.reading import read
from celrec.data.split import Split
from celrec.errors import CelrecError, first_line
from celrec.evaluation.comparison import measure, training_result
from celrec.evaluation.ranking import Ranking, relevant_from
from celrec.inference.top_k import TopK
from celrec.offline.fitting import fit
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.following import requested_settings, stream_source
from celrec.runs.online_learner import OnlineLearner
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import Run, load_run, save_run, trained_run
from celrec.runs.seen_log import LATEST_SEEN, SeenLog, seen_in
from celrec.streams.events import Offset

ROLES = ("user", "item", "target", "timestamp")
_PREDICTION = "prediction"


class Names(NamedTuple):
    """The names of columns by role; None for a name that is guessed."""

    user: str | None = None
    item: str | None = None
    target: str | None = None
    timestamp: str | None = None
    columns: tuple[str, ...] = ()
    """Further columns of ids."""

    @classmethod
    def of_reading(cls, reading: Mapping[str, Any]) -> Names:
        """The names that a run records, as `EventTable.reading` gives them."""
        roles = {role: reading.get(role) for role in ROLES}
        return cls(**roles, columns=tuple(reading.get("columns", ())))


class EventTable:
    """A table, a path or a log, with the names of its columns.

    >>> table = EventTable({"who": [1, 2], "item": ["a", "b"], "rating": [3, None]}, Names("who"))
    >>> table.pairs(read({"user": [2, 3], "item": ["a", "c"]})).user
    array([-1,  0], dtype=int32)
    """

    def __init__(
        self, source: str | Path | Table, names: Names, before: Names | None = None
    ) -> None:
        """Missing names are those of `before`, if the table has such columns."""
        self.source, self.kind = source, TableKind.of(source)
        self._path = source if isinstance(source, str | Path) else None
        self._frame: pl.DataFrame | None = None
        if not isinstance(source, str | Path | Interactions):
            self._frame = as_polars(source, "table").lazy().collect()
        self.names = names if before is None else self._filled(names, before)

    def interactions(
        self, *, need_target: bool = False, drop_invalid: bool = False
    ) -> Interactions:
        """All events, with an id map of their own."""
        if isinstance(self.source, Interactions):
            return self.source
        source = self._path if self._frame is None else self._frame
        return read(source, **self.reading, need_target=need_target, drop_invalid=drop_invalid)

    @property
    def reading(self) -> dict[str, Any]:
        """The names as keyword arguments of `celrec.read`, ready for JSON."""
        return {**self.names._asdict(), "columns": list(self.names.columns)}

    def pairs(self, known: Interactions) -> Interactions:
        """All events with the ids of `known`; targets are ignored."""
        frame, names = self._frame, self.names
        if frame is None:
            frame, names = self.interactions().to_frame(), Names(columns=self.names.columns)
        roles = Columns(*names[:4], more=names.columns, need_target=False).resolve(frame.columns)
        if roles.target is not None:
            frame, names = frame.drop(roles.target), names._replace(target=None)
        return read(frame, **EventTable(frame, names).reading, like=known)

    def predicted(self, predictions: pl.Series) -> Table:
        """The table with a column of predictions; a polars table for a path or a log."""
        if isinstance(self.source, str | Path | Interactions):
            return self.interactions().to_frame().with_columns(predictions.alias(_PREDICTION))
        if self.kind is TableKind.LAZY and self._frame is not None:
            return with_column(self._frame, _PREDICTION, predictions).lazy()
        return with_column(self.source, _PREDICTION, predictions)

    def __len__(self) -> int:
        """The number of rows of a table; 1 for a path, which is not read yet."""
        if isinstance(self.source, Interactions):
            return len(self.source)
        return 1 if self._frame is None else len(self._frame)

    def _filled(self, names: Names, before: Names) -> Names:
        def filled(role: str) -> str | None:
            now, then = getattr(names, role), getattr(before, role)
            there = self._frame is None or then in self._frame.columns
            return now or (then if there and not isinstance(self.source, Interactions) else None)

        roles = {role: filled(role) for role in ROLES}
        return Names(**roles, columns=names.columns or before.columns)


OneOrMany: TypeAlias = int | str | Ids
"""An id, or a sequence, an array or a column of ids."""


def requested_ids(argument: str, given: OneOrMany) -> pl.Series:
    """One id or many as a column.

    >>> requested_ids("users", "ann").to_list(), requested_ids("users", [7, 8]).to_list()
    (['ann'], [7, 8])
    """
    values: Any = [given] if isinstance(given, int | str | np.integer | np.str_) else given
    try:
        if type(values).__module__.partition(".")[0] == "pandas":
            ids: Any = pl.from_pandas(values)
        else:
            there = isinstance(values, pl.Series | pl.DataFrame | pl.LazyFrame)
            ids = values if there else pl.Series(values, strict=False)
    except ImportError as error:
        raise CelrecError(f"{argument}: pyarrow is needed to read this column") from error
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise CelrecError(
            f"{argument}: expected an id or a column of ids, got {type(given).__name__}"
        ) from error
    if not isinstance(ids, pl.Series):
        raise CelrecError(f"{argument}: expected a column of ids, got a table; name its column")
    if ids.null_count() or (ids.dtype.is_float() and ids.is_nan().any()):
        raise CelrecError(f"{argument}: some ids are missing; leave these out")
    return ids


def learn_events(learner: OnlineLearner, log: Interactions, options: Mapping[str, Any]) -> None:
    """Learn a log in chronological order, if it has timestamps, after checking that it fits.

    `options` are those that were given; the others in the plan were picked.
    """
    plan = learner.plan
    _check(plan, log, options)
    if plan.negatives and plan.positive is None:
        log = plan.prepared(log)
    frame = _in_order(log)
    for start in range(0, len(frame), learner.batch):
        learner.learn(frame[start : start + learner.batch])


def _check(plan: Plan, log: Interactions, options: Mapping[str, Any]) -> None:
    if plan.positive is not None:
        return
    if plan.negatives and "negatives" not in options:
        if np.ptp(log.target):
            raise CelrecError(
                f"target: there are several, such as {log.target.min():g} and "
                f"{log.target.max():g}, but those of the first table were equal and taken for mere "
                "events; begin with a table that shows several, or with loss='squared-error'"
            )
    elif not plan.negatives:
        plan.check(log)


def _in_order(log: Interactions) -> pl.DataFrame:
    """Events in chronological order, with columns as in `Events`."""
    if log.timestamp is not None:
        log = log[np.argsort(log.timestamp, kind="stable")]
    return log.to_frame().rename({name: further(name) for name in log.columns})


@dataclass(slots=True)
class Fitted:
    """What an estimator has learned, and what it goes on from."""

    names: Names
    """The columns of the tables that it learned from."""
    kind: TableKind
    """The kind of these tables, and of answers."""
    options: Mapping[str, Any]
    """The options that were given; all others were picked from the data."""
    picked: str
    """What was picked, and why."""
    run: Run | None = None
    """None after a learner has learned more, until it is asked for."""
    learner: OnlineLearner | None = None
    """None if it cannot learn further events."""
    source: dict[str, Any] = field(default_factory=dict)
    """The source of events that an online run notes; empty if it was not in a folder yet."""
    offset: Offset | None = None
    """The position in that source."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What `celrec online` notes besides."""

    def current_run(self) -> Run:
        """The model as it is now, with its ids."""
        if self.run is None:
            assert self.learner is not None  # noqa: S101  (one of them is always there)
            learned = {"events": self.learner.events, "rejected": 0, "late": 0}
            self.run = self.learner.run(self.source, learned)
        return self.run

    def save(self, path: str | Path) -> None:
        """Write a run folder; an online run if it can learn further events."""
        run = self.current_run()
        if self.learner is None:
            save_run(path, run)
            return
        source = self.source
        if not source:
            requested = requested_settings(run.plan, self.names._asdict())
            source = stream_source(requested, run.plan, Path(path).resolve().name)
            source = {"options": self.options, "picked": self.picked, **source}
        OnlineRun.keep(path, self.learner, source, offset=self.offset, notes=self.notes)

    @classmethod
    def load(cls, path: str | Path) -> Fitted:
        """Read a run folder, or the latest checkpoint of an online run, even of one that runs."""
        place, learner, offset = Path(path), None, None
        notes: dict[str, Any] = {}
        found = CheckpointFolder(place).latest()
        if found is None:
            run = load_run(place, seen=True)
        else:
            run = load_run(found.folder)
            try:
                seen = SeenLog.resume(place, found.about.get("seen"), run.known, LATEST_SEEN).seen
                learner, notes = OnlineLearner.load(found.folder, run, seen)
                offset = found.about["offset"]
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise CelrecError(
                    f"{path}: does not fit this version of celrec ({first_line(error)}); load it "
                    "with the one that wrote it"
                ) from error
            run = learner.run(run.source, run.result)
        source = run.source
        options = source.get("options", asdict(run.plan))
        picked = source.get("picked", "nothing was picked: the run was trained by other means")
        names = Names.of_reading(source.get("reading", {}))
        return cls(names, TableKind.POLARS, options, picked, run, learner, source, offset, notes)


def fit_events(events: EventTable, options: Mapping[str, Any], drop_invalid: bool) -> Fitted:
    """A new model trained on all events of a table, with the options that are not given picked."""
    log = events.interactions(drop_invalid=drop_invalid)
    plan, picked = pick(log, options)
    prepared = plan.prepared(log)
    split = Split.random(prepared, test=0, seed=plan.seed)
    begun = clock.perf_counter()
    fitted = fit(split, plan)
    result = training_result(fitted, plan, split, clock.perf_counter() - begun)
    reading = {**events.reading, "drop_invalid": drop_invalid}
    source = {"options": options, "picked": picked, "reading": reading}
    learned, records = split.train_and_valid(), fitted.validation_records
    run = trained_run(learned, fitted.model, plan, records, source, result, seen=log)
    state = Fitted(events.names, events.kind, options, picked, run)
    if plan.embedding == LITE:
        state.learner = OnlineLearner.after(fitted, plan, prepared, seen=log)
    return state


def evaluate(
    run: Run,
    log: Interactions,
    *,
    k: int | None = None,
    relevant: float | None = None,
    learned: Interactions | None = None,
) -> dict[str, Any]:
    """Metrics of predictions for a log and, with `k`, of the top-k recommendations; for JSON.

    The log is one that the plan has `prepared`. Items with a target from `relevant` on are
    relevant; by default as `relevant_from` decides. Users have seen what was `learned`, if that is
    given, else what the run records.
    """
    events = read(log.to_frame(), like=run.known, columns=list(run.known.columns))
    counts = run.items.get_column("interactions").to_numpy()
    found: dict[str, Any] = {
        "rows": len(events),
        "unseen": {
            "users": int((events.user < 0).sum()),
            "items": int((events.item < 0).sum()),
        },
        "test": measure(run.model, run.plan, events, counts),
    }
    return found if k is None else {**found, "ranking": _rank(run, events, learned, k, relevant)}


def _rank(
    run: Run, test: Interactions, learned: Interactions | None, k: int, relevant: float | None
) -> dict[str, Any]:
    seen = run.seen
    if learned is not None:
        seen = seen_in(read(learned.to_frame(), like=run.known))
    if seen is None:
        raise CelrecError(
            "k: the run has no record of what users have seen, since an earlier version of celrec "
            "wrote it; train again"
        )
    counts = run.items.get_column("interactions").to_numpy()
    if relevant is None:
        sums = run.items.get_column("mean_target").fill_nan(0).to_numpy() @ counts
        relevant = relevant_from(run.plan, test, float(sums) / max(int(counts.sum()), 1))
    users = np.unique(test.user[test.user >= 0])
    lists = TopK(run.model, counts).recommend(users, k, seen=seen).items
    found = Ranking.by_slice(lists, users, test, counts, relevant_from=relevant, seen=seen)
    return {"k": k, "relevant_from": relevant, **{n: asdict(one) for n, one in found.items()}}
