"""The one thread that learns, and the one that watches a run that others write."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import polars as pl

from celrec.data.raw_log import in_unit, ticks_per_second
from celrec.errors import CelrecError
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.following import Pace
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.runs.snapshot import snapshot
from celrec.service.version import Versions
from celrec.streams.events import Events
from celrec.streams.journal import Journal, JournalReader

_LOOK = 0.1  # seconds between two looks at the journal: then more is learned at once
_LEAST, _MOST = 0.2, 1.0  # seconds between two versions
_LAST = 5.0  # seconds for what is left to learn when it is to stop
_AGAIN = 10.0  # seconds until a checkpoint that failed is tried again
_MICROSECONDS = 10**6


class JournalLearner:
    """Learns what comes into the journal, publishes it, and keeps it in checkpoints.

    A checkpoint holds how far the journal was learned. So after a crash exactly what came later
    is learned again. Files of the journal that all checkpoints are past are removed.

    Versions are copies of what was learned: see `pause` for how often they are made.
    """

    def __init__(self, run: OnlineRun, journal: Journal, versions: Versions, pace: Pace) -> None:
        self._run, self._journal, self._versions, self._pace = run, journal, versions, pace
        self._reader = JournalReader(journal, run.journal, run.model.column_names)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="learner", daemon=True)
        self._kept_events, self._kept_at, self._next_try = run.events, time.monotonic(), 0.0
        self._published, self._not_before = run.journal, 0.0
        self.problem: str | None = None
        """Why nothing is learned any more, in one line."""
        self.late: str | None = None
        """Why the last checkpoint could not be written."""
        self.kept = time.time()
        """When the last checkpoint was written."""

    @property
    def learned(self) -> int:
        """How many events of the journal were learned."""
        return self._run.journal

    @property
    def waiting(self) -> int:
        """How many are still to be learned."""
        return self._journal.committed.events - self._run.journal

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Learn what is left, as far as that is quick; keep it."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            deadline = float("inf")
            while time.monotonic() < deadline:
                stopping = self._stop.is_set()
                if stopping:
                    deadline = min(deadline, time.monotonic() + _LAST)
                rows = self._learn()
                self._publish()
                self._keep(force=False)
                if stopping and not rows:
                    break
                if rows < self._pace.batch:  # wait, unless it is to stop
                    self._stop.wait(_LOOK)
            self._keep(force=True)
        except CelrecError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"internal error, {type(error).__name__}: {error}"
            raise

    def _learn(self) -> int:
        """The next batch; how many events there were."""
        if self._reader.next >= self._journal.committed.events:
            return 0
        events = self._reader.take(self._pace.batch)
        self._run.learn_journal(Events(self._timed(events.frame), events.offset, events.rejected))
        return len(events.frame) + len(events.rejected)

    def _timed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """With timestamps of the unit that those of the run have; without any if it needs none."""
        eviction = self._run.learner.eviction
        if eviction.after is None or eviction.after.unit is None:
            return frame.drop("timestamp")
        ticks = _MICROSECONDS if eviction.now is None else ticks_per_second(eviction.now)
        times = in_unit(frame.get_column("timestamp").to_numpy(), ticks)
        return frame.with_columns(timestamp=pl.Series(times))

    def _publish(self) -> None:
        begun = time.monotonic()
        if self._published == self._run.journal or begun < self._not_before:
            return
        self._versions.publish(snapshot(self._run), self._run.journal)
        self._published = self._run.journal
        self._not_before = begun + pause(time.monotonic() - begun)

    def _keep(self, *, force: bool) -> None:
        now = time.monotonic()
        due = now - self._kept_at >= self._pace.checkpoint_seconds
        due |= self._run.events - self._kept_events >= self._pace.checkpoint_every
        if not force and (not due or now < self._next_try):
            return
        try:
            if self._run.checkpoint(self._run.notes):
                self.kept = time.time()
                with suppress(OSError):  # to be removed next time
                    self._journal.tidy(self._run.journalled())
            self.late = None
        except CelrecError as error:  # all is in the journal; there may be room later
            self.late, self._next_try = str(error), time.monotonic() + _AGAIN
            return
        self._kept_events, self._kept_at = self._run.events, time.monotonic()


def pause(cost: float) -> float:
    """How many seconds after a version that took so many to make the next one is begun.

    To make one takes time for all ids. A tenth of the time is spent on it; more if what was
    learned could not be seen within a second otherwise, but never more than half.

    >>> [pause(cost) for cost in (0.005, 0.05, 0.2, 0.4, 3.0)]
    [0.2, 0.5, 0.8, 0.8, 6.0]
    """
    return max(_LEAST, 2 * cost, min(10 * cost, _MOST - cost))


class FolderWatcher:
    """Publishes what stands in a folder when that is replaced by a new training or checkpoint.

    What cannot be read, such as a folder that is being replaced at this moment, is looked at again
    later; meanwhile the old version answers.
    """

    def __init__(self, folder: Path, versions: Versions, seconds: float = 1.0) -> None:
        self._folder, self._versions, self._seconds = folder, versions, seconds
        self._known = _mark(folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watcher", daemon=True)
        self.problem: str | None = None
        """Why the latest version could not be read, in one line."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self._seconds):
            mark = _mark(self._folder)
            if mark in (self._known, None):
                continue
            try:
                self._versions.publish(load_run(self._folder, seen=True))
            except CelrecError as error:
                if _mark(self._folder) == mark:
                    self.problem, self._known = str(error), mark
                continue
            self.problem, self._known = None, mark


def _mark(folder: Path) -> tuple[object, ...] | None:
    """What differs when something else stands there; None if nothing is there now."""
    whole = CheckpointFolder(folder).whole()
    place = whole[0] if whole else folder
    try:
        found = [(place / name).stat() for name in ("config.json", "model.safetensors")]
    except OSError:
        return None
    return (place.name, *((one.st_ino, one.st_mtime_ns, one.st_size) for one in found))
