"""Background threads: one learns the journal, one watches a run that others write."""

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
from celrec.service.version import Versions
from celrec.streams.events import Events
from celrec.streams.journal import Journal, JournalReader

_POLL = 0.1  # seconds between two reads of the journal
_SHORTEST, _LONGEST = 0.2, 1.0  # seconds between two versions
_STOP = 5.0  # seconds to learn the remaining events when stopping
RETRY_AFTER = 10.0  # seconds until a failed checkpoint is tried again
_MICROSECONDS = 10**6


class Worker:
    """A background thread that runs `work` until `stop`."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.work, name=name, daemon=True)
        self.problem: str | None = None
        """Why it does not work, in one line."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread finish its work, and wait for its end."""
        self._stop.set()
        self._thread.join()

    def work(self) -> None:
        """The loop of the thread."""
        raise NotImplementedError


class JournalLearner(Worker):
    """Learns the events of the journal, publishes new versions and writes checkpoints.

    A checkpoint has the position in the journal, so that after a crash exactly the later events
    are learned again. Journal files before the position of all checkpoints are removed.

    A version is a copy of the model; `pause` decides how often one is made. `stop` learns remaining
    events for a few seconds and writes a checkpoint.
    """

    def __init__(self, run: OnlineRun, journal: Journal, versions: Versions, pace: Pace) -> None:
        super().__init__("learner")
        self._run, self._journal, self._versions, self._pace = run, journal, versions, pace
        self._reader = JournalReader(journal, run.journal, run.model.column_names)
        self._saved_events, self._saved_at, self._next_try = run.events, time.monotonic(), 0.0
        self._published, self._not_before = run.journal, 0.0
        self.checkpoint_problem: str | None = None
        """Why the last checkpoint could not be written, in one line."""
        self.last_checkpoint = time.time()
        """Time of the last checkpoint in seconds since 1970."""

    @property
    def learned(self) -> int:
        """Number of events of the journal that were learned."""
        return self._run.journal

    @property
    def waiting(self) -> int:
        """Number of events that are not learned yet."""
        return self._journal.committed.events - self._run.journal

    def work(self) -> None:
        try:
            deadline = float("inf")
            while time.monotonic() < deadline:
                stopping = self._stop.is_set()
                if stopping:
                    deadline = min(deadline, time.monotonic() + _STOP)
                rows = self._learn()
                self._publish()
                self._checkpoint(force=False)
                if stopping and not rows:
                    break
                if rows < self._pace.batch:  # wait, unless stopping
                    self._stop.wait(_POLL)
            self._checkpoint(force=True)
        except CelrecError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"internal error, {type(error).__name__}: {error}"
            raise

    def _learn(self) -> int:
        if self._reader.next >= self._journal.committed.events:
            return 0
        events = self._reader.take(self._pace.batch)
        self._run.learn_journal(
            Events(self._with_times(events.frame), events.offset, events.rejected)
        )
        return len(events.frame) + len(events.rejected)

    def _with_times(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Timestamps in the unit of the run; none if the run does not need them."""
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
        self._versions.publish(self._run.snapshot(), self._run.journal)
        self._published = self._run.journal
        self._not_before = begun + pause(time.monotonic() - begun)

    def _checkpoint(self, *, force: bool) -> None:
        now = time.monotonic()
        due = now - self._saved_at >= self._pace.checkpoint_seconds
        due |= self._run.events - self._saved_events >= self._pace.checkpoint_every
        if not force and (not due or now < self._next_try):
            return
        try:
            if self._run.checkpoint(self._run.notes):
                self.last_checkpoint = time.time()
                with suppress(OSError):  # they are removed the next time
                    self._journal.tidy(self._run.journalled())
            self.checkpoint_problem = None
        except CelrecError as error:  # the journal has the events; there may be room later
            self.checkpoint_problem, self._next_try = str(error), time.monotonic() + RETRY_AFTER
            return
        self._saved_events, self._saved_at = self._run.events, time.monotonic()


def pause(cost: float) -> float:
    """Seconds to wait before the next version, given the seconds that the last one took.

    The cost of a version grows with the number of ids. A tenth of the time goes into versions;
    more if events would otherwise take over a second to show, but never more than a third.

    >>> [pause(cost) for cost in (0.005, 0.05, 0.2, 0.4, 3.0)]
    [0.2, 0.5, 0.8, 0.8, 6.0]
    """
    return max(_SHORTEST, 2 * cost, min(10 * cost, _LONGEST - cost))


class FolderWatcher(Worker):
    """Publishes a new version when a run folder is replaced or gets a new checkpoint.

    A folder that cannot be read, for example while it is being replaced, is tried again later;
    the old version answers meanwhile.
    """

    def __init__(self, folder: Path, versions: Versions, seconds: float = 1.0) -> None:
        super().__init__("watcher")
        self._folder, self._versions, self._seconds = folder, versions, seconds
        self._known = _fingerprint(folder)

    def work(self) -> None:
        while not self._stop.wait(self._seconds):
            found = _fingerprint(self._folder)
            if found in (self._known, None):
                continue
            try:
                self._versions.publish(load_run(self._folder, seen=True))
            except CelrecError as error:
                if _fingerprint(self._folder) == found:
                    self.problem, self._known = str(error), found
                continue
            self.problem, self._known = None, found


def _fingerprint(folder: Path) -> tuple[object, ...] | None:
    """Identifies the files of a run; None if the folder has none."""
    whole = CheckpointFolder(folder).whole()
    place = whole[0] if whole else folder
    try:
        files = [(place / name).stat() for name in ("config.json", "model.safetensors")]
    except OSError:
        return None
    return (place.name, *((one.st_ino, one.st_mtime_ns, one.st_size) for one in files))
