"""A run that answers requests, and learns new events if it is an online run."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from celrec.errors import CelrecError
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.following import Pace
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.service.events import BusyError, EventWriter, GroupCommit
from celrec.service.guard import Refusal
from celrec.service.learning import FolderWatcher, JournalLearner
from celrec.service.messages import Accepted, Event, Health
from celrec.service.version import Version, Versions
from celrec.streams.journal import Journal

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Service:
    """The state behind the endpoints. Requests run in one event loop, learning in one thread.

    An online run is opened for learning and locked against other processes, unless `read_only`.
    Events of the service are stored in a journal, apart from the event source of `celrec online`,
    whose offset stays unchanged: `celrec online` can continue the run later.
    """

    def __init__(
        self, folder: Path, pace: Callable[[int], Pace] = Pace, *, read_only: bool = False
    ) -> None:
        """`pace` makes the learning pace from the batch size of the run."""
        self.folder = folder
        self._online = bool(CheckpointFolder(folder).whole()) and not read_only
        self.damaged: tuple[CelrecError, ...] = ()
        """Errors of checkpoints that were skipped as damaged."""
        if not self._online:
            run = load_run(folder, seen=True)
            self._no_events = (
                "the service only reads this run (--read-only); send events to the one that learns"
                if run.plan.online and read_only
                else f"{folder} was trained offline and takes no events; serve a run of "
                "`celrec online`, or begin one with `celrec serve NEW --new`"
            )
            self._versions = Versions(run)
            self._watcher = FolderWatcher(folder, self._versions)
            return
        self._run = OnlineRun.resume(folder)
        try:
            self.damaged = self._run.damaged
            self._journal = Journal(folder / "journal", self._run.journal)
            self._commit = GroupCommit(self._journal)
            self._writer = EventWriter(self._run.plan, self._run.model.column_names)
            self._versions = Versions(self._run.snapshot(), self._run.journal)
            self._learner = JournalLearner(
                self._run, self._journal, self._versions, pace(self._run.learner.batch)
            )
        except BaseException:
            self._run.close()
            raise

    @property
    def current(self) -> Version:
        """The model version that answers now."""
        return self._versions.current

    @property
    def online(self) -> bool:
        """Whether it accepts events."""
        return self._online

    @property
    def waiting(self) -> int:
        """Number of events that are not learned yet."""
        return self._learner.waiting if self._online else 0

    @property
    def last_checkpoint(self) -> float | None:
        """Time of the last checkpoint in seconds since 1970."""
        return self._learner.last_checkpoint if self._online else None

    @property
    def journal_bytes(self) -> int:
        """Size of the journal."""
        return self._journal.nbytes if self._online else 0

    def start(self) -> None:
        """Start the thread that learns, or that watches for new versions."""
        if self._online:
            self._learner.start()
        else:
            self._watcher.start()

    async def stop(self) -> None:
        """Learn the remaining events, write a checkpoint and unlock the folder.

        To be called after the last request.
        """
        if not self._online:
            self._watcher.stop()
            return
        await self._commit.close()
        self._learner.stop()
        self._journal.close()
        self._run.close()

    async def take(self, events: list[Event]) -> Accepted:
        """Write events to the journal; returns when they are on disk."""
        if not self._online:
            raise Refusal(409, self._no_events)
        if self._learner.problem is not None:
            raise Refusal(503, f"learning has stopped: {self._learner.problem}")
        lines = self._writer.lines(events, first=not self._run.events)
        try:
            last = await self._commit.commit(lines, len(events))
        except BusyError:
            raise Refusal(503, "too many events wait for the disk; try again later") from None
        except OSError as error:
            full = error.errno in _FULL
            advice = "make room" if full else "check the disk"
            raise Refusal(
                507 if full else 503,
                f"the journal cannot be written ({error.strerror}), and no event of the request "
                f"was accepted; {advice}, and send it again",
            ) from None
        return Accepted.model_construct(accepted=len(events), last=last)

    def health(self, *, needs_key: bool) -> Health:
        """The state of the service."""
        version = self.current
        problem = self._problem()
        return Health(
            status="ok" if problem is None else "degraded",
            problem=problem,
            run=str(self.folder),
            kind="online" if self._online else "offline",
            version=version.number,
            since=version.since,
            events=version.run.result.get("events"),
            learned=version.learned,
            waiting=self.waiting,
            users=len(version.run.users),
            items=len(version.run.items),
            takes=list(self._writer.columns) if self._online else [],
            needs_target=self._online and self._writer.needs_target,
            needs_key=needs_key,
        )

    def _problem(self) -> str | None:
        if not self._online:
            return self._watcher.problem
        return self._learner.problem or self._learner.checkpoint_problem
