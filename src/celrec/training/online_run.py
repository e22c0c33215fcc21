"""Learning from a stream, for as long as there is one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.data.columns import further
from celrec.data.seen_items import SeenItems
from celrec.data.streams.events import Events, Offset
from celrec.errors import CelrecError
from celrec.training.batch import Batch
from celrec.training.checkpoint_folder import CheckpointFolder
from celrec.training.fitting_events import FittingEvents
from celrec.training.forgetting import Forgetting
from celrec.training.known_ids import KnownIds
from celrec.training.learned import Learned
from celrec.training.plan import Plan
from celrec.training.recommender import Recommender
from celrec.training.rejected_file import RejectedFile
from celrec.training.run_folder import Run, ids_table, load_run, write_run
from celrec.training.run_lock import RunLock, lock_run
from celrec.training.seen_log import SeenLog
from celrec.training.silence import Silence
from celrec.training.state_file import load_state, save_state
from celrec.training.stream_model import online_settings, stream_model, stream_plan

_STATE = "training.safetensors"
_SEEN = 1_000  # of the latest events of each user: so that memory is bounded


class OnlineRun:
    """A recommender that learns from events with original ids, and a folder that it survives in.

    The folder holds `checkpoints`, of which the latest two are kept; `rejected.jsonl`, the
    events that could not be used; `seen`, what users have seen; and `lock`, since one
    process at a time may work on it.
    Whatever happens to the process, `resume` goes on as of the last checkpoint. Reading is
    then to go on after `offset`. The same events in the same batches give the same state, to
    the last bit, however often the run was stopped between them. Of what users have
    seen, the latest 1,000 events of each are kept.

    >>> from tempfile import mkdtemp
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
    ...     run.events, run.offset, run.tables["users"].ids.ids.to_list()
    (2, {'row': 2}, ['ann', 'bob'])
    """

    def __init__(
        self,
        folder: Path,
        lock: RunLock,
        plan: Plan,
        model: Recommender,
        source: dict[str, Any],
        tables: dict[str, KnownIds],
        forgetting: Forgetting,
        rejected_bytes: int = 0,
    ) -> None:
        """See `start` and `resume`."""
        self.folder, self._lock = folder, lock
        self.plan, self.model, self.source, self.tables = plan, model, source, tables
        self._how = online_settings(plan)
        self.trainer = self._how.trainer(model)
        self.offset: Offset | None = None
        """Where the source goes on; None if nothing was read yet."""
        self.rejected = 0
        """How many events could not be used."""
        self._seen_log = SeenLog(folder, _SEEN)
        self.notes: dict[str, Any] = {}
        """What was given to the last checkpoint."""
        self.damaged: tuple[CelrecError, ...] = ()
        """What was wrong with checkpoints that had to be passed over, and with what was seen."""
        self._checkpoints = CheckpointFolder(folder)
        self._rejected = RejectedFile(folder / "rejected.jsonl", rejected_bytes)
        self._forgetting = forgetting
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
        forget_after: Silence | None = None,
    ) -> OnlineRun:
        """A run that has learned nothing yet, in a new folder.

        `columns` are the names of further columns of ids; `source` is noted in the checkpoints.
        `compression` must be a number of rows, or a share of the `expected_ids` of a table. Ids
        that are silent for longer than `forget_after` are dropped in time; None: no id is.
        """
        place = Path(folder)
        plan = stream_plan(plan, expected_ids)
        model = stream_model(plan, columns)
        forgetting = Forgetting(forget_after)
        forgetting.check(model, plan.embedding)
        lock = lock_run(place)
        try:
            if CheckpointFolder(place).whole():
                raise CelrecError(f"{folder}: holds a run already; resume it, or name a new folder")
            CheckpointFolder(place).tidy()
            moments = None if forget_after is None else np.empty(0, np.int64)
            tables = {name: KnownIds(moments=moments) for name in model.whole_tables}
            run = cls(place, lock, plan, model, dict(source or {}), tables, forgetting)
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def resume(cls, folder: str | Path) -> OnlineRun:
        """Go on as of the latest checkpoint that is not damaged."""
        place, missing = Path(folder), f"{folder}: holds no online run to go on with; start one"
        checkpoints = CheckpointFolder(place)
        if not checkpoints.whole():  # before a folder is made for the lock
            raise CelrecError(missing)
        lock = lock_run(place)
        try:
            found = checkpoints.latest()
            if found is None:
                raise CelrecError(missing)
            known, state = load_run(found.folder), load_state(found.folder / _STATE)
            run = cls._from(place, lock, known, state, found.about)
            run._seen_log = SeenLog.resume(place, found.about.get("seen"), known.known, _SEEN)
            run.damaged = (*found.damaged, *run._seen_log.damaged)
            checkpoints.tidy(found.folder)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            lock.release()
            problem = str(error).partition("\n")[0]
            raise CelrecError(
                f"{folder}: does not fit this version of celrec ({problem}); go on with the one "
                "that wrote it, or start a new run"
            ) from error
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def _from(
        cls, place: Path, lock: RunLock, known: Run, state: dict[str, Any], about: dict[str, Any]
    ) -> OnlineRun:
        if not isinstance(known.model, Recommender) or not known.plan.online:
            raise CelrecError(f"{place}: not an online run; name another folder")
        known.model.remember(known.known)  # nothing: the trainer has the latest items of users
        frames = {"users": known.users, "items": known.items, **known.columns}
        maps = {"users": known.known.user_ids, "items": known.known.item_ids}
        maps |= {name: column.ids for name, column in known.known.columns.items()}
        moments = {name: part.numpy() for name, part in state.get("moments", {}).items()}
        tables = {
            name: KnownIds(
                maps[name],
                frame.get_column("interactions").to_numpy(),
                state["sums"][name].numpy(),
                moments.get(name),
            )
            for name, frame in frames.items()
        }
        run = cls(
            *(place, lock, known.plan, known.model, known.source, tables),
            Forgetting.from_state(state.get("forgetting", {})),
            about["rejected_bytes"],
        )
        run.trainer.load_state_dict(state["trainer"])
        run.offset, run.rejected = about["offset"], known.result["rejected"]
        run.notes = state["notes"]
        run._saved = run._position()
        return run

    @property
    def events(self) -> int:
        """How many events were learned."""
        return self.trainer.events

    @property
    def seen(self) -> SeenItems:
        """What users have seen, so that it need not be recommended again."""
        return self._seen_log.seen

    @property
    def late(self) -> int:
        """How many events had a lower timestamp than one before them."""
        return int((self.offset or {}).get("late", 0))

    @property
    def dropped(self) -> dict[str, int]:
        """How many ids of each kind were dropped."""
        return {name: self._forgetting.dropped.get(name, 0) for name in self.tables}

    @property
    def rows(self) -> dict[str, int]:
        """How many rows the table of each kind of ids has in use."""
        return {name: table.num_rows for name, table in self.model.whole_tables.items()}

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of the model, of what learning needs besides, of ids, and of what was seen."""
        return {
            "model": sum(tensor.nbytes for tensor in self.model.state_dict().values()),
            "training": self.trainer.nbytes,
            "ids": sum(table.nbytes for table in self.tables.values()),
            "seen": self.seen.nbytes,
        }

    def learn(self, events: Events) -> Learned:
        """Predict a batch of events, then learn it, as one batch."""
        frame, targets, unfit = FittingEvents.of(events.frame, self.plan, self.events)
        names = ["user", "item", *map(further, self.model.column_names)]
        if missing := [name for name in names if name not in frame.columns]:
            raise CelrecError(f"events have no column {missing[0]!r}; name it to the source")
        moments = self._forgetting.moments(frame, self.events)
        ids = [
            table.numbers(frame.get_column(name))
            for name, table in zip(names, self.tables.values(), strict=True)
        ]
        before = [
            table.counts_of(numbers)
            for table, numbers in zip(self.tables.values(), ids[:2], strict=False)
        ]
        predictions = np.empty(0, np.float32)
        if len(targets):
            if not self.events:
                self._begin(targets)
            batch = Batch.of([torch.from_numpy(one) for one in ids], torch.from_numpy(targets))
            outputs = self.trainer.step(batch)
            predictions = self.model.loss.prediction(outputs).numpy()
            if not np.isfinite(predictions).all():
                raise CelrecError(
                    f"{self.folder}: after {self.events:,} events predictions are not finite any "
                    "more; look for targets far from all others, and start a new run without them"
                )
            for table, numbers in zip(self.tables.values(), ids, strict=True):
                table.add(numbers, targets, moments)
            self.seen.add(*ids[:2])
            if kept := self._forgetting.look(self.tables, self.trainer):
                self.seen.keep(kept.get("users"), kept.get("items"))
        self._rejected.add([*events.rejected, *unfit])
        self.rejected += len(events.rejected) + len(unfit)
        self.offset = events.offset
        return Learned(predictions, targets, *before)

    def checkpoint(self, notes: Mapping[str, Any] | None = None) -> bool:
        """Keep all that is known, and `notes` with it; whether there was anything new.

        When it returns, all is on the disk, and the source may forget what is before `offset`.
        """
        position = self._position()
        if position == self._saved:
            return False
        about = {"offset": self.offset, "rejected_bytes": self._rejected.flush()}
        result = {"events": self.events, "rejected": self.rejected, "late": self.late}
        state = {
            "trainer": self.trainer.state_dict(),
            "sums": {name: torch.from_numpy(table.sums) for name, table in self.tables.items()},
            "moments": {
                name: torch.from_numpy(table.moments)
                for name, table in self.tables.items()
                if table.moments is not None
            },
            "forgetting": self._forgetting.state_dict(),
            "notes": dict(notes or {}),
        }
        rows = self.model.whole_tables
        shown = {
            name: ids_table(table.ids.ids, table.counts, table.sums, rows[name])
            for name, table in self.tables.items()
        }
        with self._checkpoints.writing(self.events, about) as folder:
            about["seen"] = self._seen_log.write()
            write_run(folder, self.model, self.plan, self.source, result, shown, self._past())
            save_state(folder / _STATE, state)
        self._seen_log.tidy(one.get("seen") for one in self._checkpoints.noted())
        self._saved, self.notes = position, dict(notes or {})
        return True

    def close(self) -> None:
        """Let other processes work on the run. What came after the last checkpoint is gone."""
        self._rejected.close()
        self._lock.release()

    def __enter__(self) -> OnlineRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _position(self) -> tuple[object, ...]:
        return self.events, self.rejected, json.dumps(self.offset)

    def _begin(self, targets: NDArray[np.float32]) -> None:
        """Let the first batch tell what targets are like."""
        mean = float(targets.mean(dtype=np.float64))
        if self.plan.model == "nmf" and mean <= 0:
            raise CelrecError(
                f"target: the first have a mean of {mean:g}, and model 'nmf' is for positive ones; "
                "take model 'mf'"
            )
        self._how.begin(self.model, mean)
        for side in self.trainer.sides.values():
            side.begin()

    def _past(self) -> pl.DataFrame | None:
        """The latest items of each user, for a model that looks back at them."""
        if not self.model.history_length:
            return None
        latest = self.trainer.history
        owner, columns = latest.events(np.arange(latest.num_ids))
        past = pl.DataFrame({"user": owner.astype(np.int32), "item": columns["item"]})
        return past.filter(pl.col("item") >= 0)  # others were dropped
