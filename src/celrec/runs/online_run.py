"""Learning from a stream, for as long as there is one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from celrec.config.plan import Plan
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError, first_line
from celrec.online.eviction import IdleTime
from celrec.online.trainer import Learned
from celrec.recommender.model import Model
from celrec.runs.checkpoint_folder import CheckpointFolder, RejectedFile, RunLock, lock_run
from celrec.runs.online_learner import OnlineLearner
from celrec.runs.run_folder import Run, check_place, load_run
from celrec.runs.seen_log import LATEST_SEEN, SeenLog
from celrec.runtime.atomic import atomic_folder
from celrec.runtime.memory_budget import MemoryBudget
from celrec.streams.events import Events, Offset


class OnlineRun:
    """An online learner with a folder for its checkpoints, which one process at a time may use.

    The folder has `checkpoints` (the latest two), `rejected.jsonl` (invalid events), `seen` (the
    latest 1,000 items of each user), `journal` (events of a service) and `lock`. After a crash,
    `resume` continues from the last checkpoint; the source continues after `offset`. The same
    events in the same batches give the same state to the last bit, with or without interruptions.

    >>> from tempfile import mkdtemp
    >>> import polars as pl
    >>> plan = Plan(embedding="cel-lite", compression="4", model="mf")
    >>> ratings = pl.DataFrame({"user": ["ann", "bob"], "item": [7, 7], "target": [4.0, 3.0]})
    >>> folder = Path(mkdtemp(), "run")
    >>> with OnlineRun.start(folder, plan) as run:
    ...     learned = run.learn(Events(ratings, {"row": 2}))
    ...     run.checkpoint()
    True
    >>> learned.targets, learned.item_events
    (array([4., 3.], dtype=float32), array([0, 0]))
    >>> with OnlineRun.resume(folder) as run:
    ...     run.events, run.offset, run.learner.tables["users"].ids.ids.to_list()
    (2, {'row': 2}, ['ann', 'bob'])
    """

    def __init__(
        self,
        folder: Path,
        lock: RunLock,
        learner: OnlineLearner,
        seen_log: SeenLog,
        source: dict[str, Any],
        rejected_bytes: int = 0,
    ) -> None:
        self.folder, self._lock = folder, lock
        self.learner, self.source = learner, source
        learner.seen = seen_log.seen
        self._seen_log = seen_log
        self.offset: Offset | None = None
        """The position in the source; None before the first event."""
        self.journal = 0
        """The number of events learned from the journal of a service, which has no offset."""
        self.rejected = 0
        """The number of invalid events."""
        self.notes: dict[str, Any] = {}
        """The notes of the last checkpoint."""
        self.damaged: tuple[CelrecError, ...] = ()
        """Why later checkpoints, or the seen items, were skipped as damaged."""
        self._checkpoints = CheckpointFolder(folder)
        self._rejected = RejectedFile(folder / "rejected.jsonl", rejected_bytes)
        self._saved: tuple[object, ...] | None = None

    @classmethod
    def start(
        cls,
        folder: str | Path,
        plan: Plan,
        columns: Sequence[str] = (),
        *,
        source: Mapping[str, Any] | None = None,
        expected_ids: int | None = None,
        evict_after: IdleTime | None = None,
        memory: int | None = None,
    ) -> OnlineRun:
        """A new run in a new folder.

        `columns` are further columns of ids; `source` is recorded in the checkpoints. The plan's
        `compression` must be a number of rows, or a share of the `expected_ids` of a table. Ids
        that are idle for longer than `evict_after` are evicted; None: no id is. `memory` is the
        budget in bytes of what is stored per id, as of a `MemoryBudget`; results do not depend on
        it.
        """
        place = Path(folder)
        budget = None if memory is None else MemoryBudget(memory, place)
        learner = OnlineLearner.start(
            plan, columns, expected_ids=expected_ids, evict_after=evict_after, budget=budget
        )
        lock = lock_run(place)
        try:
            if CheckpointFolder(place).whole():
                raise CelrecError(f"{folder}: holds a run already; resume it, or name a new folder")
            CheckpointFolder(place).tidy()
            return cls(
                place, lock, learner, SeenLog(place, LATEST_SEEN, budget), dict(source or {})
            )
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(cls, folder: str | Path, memory: int | None = None) -> OnlineRun:
        """Resume from the latest whole checkpoint, with any budget of `memory`."""
        place, missing = Path(folder), f"{folder}: holds no online run to go on with; start one"
        checkpoints = CheckpointFolder(place)
        if not checkpoints.whole():  # before a folder is made for the lock
            raise CelrecError(missing)
        lock = lock_run(place)
        try:
            found = checkpoints.latest()
            if found is None:
                raise CelrecError(missing)
            budget = None if memory is None else MemoryBudget(memory, place)
            known = load_run(found.folder, budget=budget)
            seen_log = SeenLog.resume(
                place, found.about.get("seen"), known.known, LATEST_SEEN, budget
            )
            learner, notes = OnlineLearner.load(found.folder, known, seen_log.seen, budget)
            run = cls(
                *(place, lock, learner, seen_log, known.source),
                rejected_bytes=found.about["rejected_bytes"],
            )
            run.offset, run.rejected = found.about["offset"], known.result["rejected"]
            run.notes, run.journal = notes, found.about.get("journal", 0)
            run.damaged = (*found.damaged, *seen_log.damaged)
            run._saved = run._position()
            checkpoints.tidy(found.folder)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            lock.release()
            raise CelrecError(
                f"{folder}: does not fit this version of celrec ({first_line(error)}); go on "
                "with the one that wrote it, or start a new run"
            ) from error
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def keep(
        cls,
        folder: str | Path,
        learner: OnlineLearner,
        source: dict[str, Any],
        *,
        offset: Offset | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a learner to a folder atomically, as a run that can be resumed.

        An existing run is replaced, unless a process works on it.
        """
        place = Path(folder)
        lock = lock_run(place) if CheckpointFolder(place).whole() else None
        try:
            if lock is None:
                check_place(place)
            with atomic_folder(place) as temporary:
                log = SeenLog(temporary, learner.seen.latest)
                log.seen = learner.seen
                with cls(temporary, lock_run(temporary), learner, log, source) as run:
                    run.offset = offset
                    run.checkpoint(notes)
        finally:
            if lock is not None:
                lock.release()

    @property
    def plan(self) -> Plan:
        """The plan of the model."""
        return self.learner.plan

    @property
    def model(self) -> Model:
        """The model as it is now."""
        return self.learner.model

    @property
    def events(self) -> int:
        """The number of events learned."""
        return self.learner.events

    @property
    def seen(self) -> SeenItems:
        """The items that users have seen."""
        return self.learner.seen

    @property
    def late(self) -> int:
        """The number of late events, with a lower timestamp than an earlier one."""
        return int((self.offset or {}).get("late", 0))

    @property
    def mapped(self) -> int:
        """Bytes in memory-mapped files, beyond the memory budget."""
        return 0 if self.learner.budget is None else self.learner.budget.mapped_bytes

    def learn(self, events: Events) -> Learned:
        """Predict a batch of events, then learn it."""
        learned, unfit = self.learner.learn(events.frame)
        self._rejected.add([*events.rejected, *unfit])
        self.rejected += len(events.rejected) + len(unfit)
        self.offset = events.offset
        return learned

    def learn_journal(self, events: Events) -> Learned:
        """The same for events of the journal."""
        offset = self.offset
        learned = self.learn(events)
        self.offset, self.journal = offset, events.offset["next"]
        return learned

    def journalled(self) -> list[int]:
        """The positions in the journal of all checkpoints."""
        return [one.get("journal", 0) for one in self._checkpoints.noted()]

    def checkpoint(self, notes: Mapping[str, Any] | None = None) -> bool:
        """Write a checkpoint with `notes`; return whether there was anything new.

        When it returns, all is on disk, and the source may release events before `offset`.
        """
        position = self._position()
        if position == self._saved:
            return False
        about = {
            "offset": self.offset,
            "journal": self.journal,
            "rejected_bytes": self._rejected.flush(),
        }
        kept = dict(notes or {})
        with self._checkpoints.writing(self.events, about) as folder:
            about["seen"] = self._seen_log.write()
            self.learner.write(folder, self.source, self._result(), kept)
        self._seen_log.tidy(one.get("seen") for one in self._checkpoints.noted())
        self._saved, self.notes = position, kept
        return True

    def snapshot(self) -> Run:
        """A copy of the run, as `load_run` reads it from a checkpoint.

        Other threads can read it while the run goes on learning.

        >>> from tempfile import mkdtemp
        >>> import polars as pl
        >>> first = pl.DataFrame({"user": [1], "item": ["lamp"], "target": [5.0]})
        >>> more = pl.DataFrame({"user": [1], "item": ["desk"], "target": [5.0]})
        >>> plan = Plan(embedding="cel-lite", compression="4", model="mf")
        >>> with OnlineRun.start(Path(mkdtemp(), "run"), plan) as run:
        ...     _ = run.learn(Events(first, {}))
        ...     before = run.snapshot()
        ...     _ = run.learn(Events(more, {}))
        >>> before.items["id"].to_list(), before.known.item_ids.encode(["desk"]), len(before.seen)
        (['lamp'], array([-1], dtype=int32), 1)
        """
        live = self.learner.run(self.source, self._result())
        known = live.known
        columns = {name: column.ids.copy() for name, column in known.columns.items()}
        return replace(
            live,
            model=deepcopy(live.model),
            known=known.without_rows(known.user_ids.copy(), known.item_ids.copy(), columns),
            users=_own_counts(live.users),
            items=_own_counts(live.items),
            columns={name: _own_counts(table) for name, table in live.columns.items()},
            seen=self.seen.frozen(),
        )

    def _result(self) -> dict[str, int]:
        return {"events": self.events, "rejected": self.rejected, "late": self.late}

    def close(self) -> None:
        """Unlock the folder; events after the last checkpoint are discarded."""
        self._rejected.close()
        self._lock.release()

    def __enter__(self) -> OnlineRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _position(self) -> tuple[object, ...]:
        return self.events, self.rejected, self.journal, json.dumps(self.offset)


def _own_counts(table: pl.DataFrame) -> pl.DataFrame:
    counts = table.get_column("interactions").to_numpy().copy()
    return table.with_columns(interactions=pl.Series(counts))
