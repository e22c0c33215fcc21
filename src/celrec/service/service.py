"""A run that answers, and learns if it is an online one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from celrec.errors import CelrecError
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.following import Pace
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.runs.snapshot import snapshot
from celrec.service.events import BusyError, EventWriter, GroupCommit
from celrec.service.guard import Refusal
from celrec.service.learning import FolderWatcher, JournalLearner
from celrec.service.messages import Accepted, Event, Health
from celrec.service.version import Version, Versions
from celrec.streams.journal import Journal

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Service:
    """What the endpoints ask. Requests come by one event loop; learning is a thread of its own.

    An online run is opened for learning, and no other process may work on it meanwhile, unless
    it is `read_only`. Events of the service are beside those of the source of `celrec online`: that
    can go on later where it was, and what the service has learned stays.
    """

    def __init__(
        self, folder: Path, pace: Callable[[int], Pace] = Pace, *, read_only: bool = False
    ) -> None:
        """`pace` is told the size of the run's batches."""
        self.folder = folder
        self._online = bool(CheckpointFolder(folder).whole()) and not read_only
        self.damaged: tuple[CelrecError, ...] = ()
        """What was wrong with checkpoints that had to be passed over."""
        if not self._online:
            run = load_run(folder, seen=True)
            self._why = (
                "the service only reads this run (--read-only); send events to where it learns"
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
            self._door = EventWriter(self._run.plan, self._run.model.column_names)
            self._versions = Versions(snapshot(self._run), self._run.journal)
            self._learner = JournalLearner(
                self._run, self._journal, self._versions, pace(self._run.learner.batch)
            )
        except BaseException:
            self._run.close()
            raise

    @property
    def current(self) -> Version:
        """The version that answers now."""
        return self._versions.current

    @property
    def online(self) -> bool:
        """Whether it takes events."""
        return self._online

    @property
    def waiting(self) -> int:
        """Events that are still to be learned."""
        return self._learner.waiting if self._online else 0

    @property
    def kept(self) -> float | None:
        """When the last checkpoint was written since the start, in seconds since 1970."""
        return self._learner.kept if self._online else None

    @property
    def journal_bytes(self) -> int:
        """Bytes of the journal."""
        return self._journal.nbytes if self._online else 0

    def start(self) -> None:
        """Begin to learn, or to look for new versions."""
        if self._online:
            self._learner.start()
        else:
            self._watcher.start()

    async def stop(self) -> None:
        """When the last request is answered: learn what is left, keep it, let go of the folder."""
        if not self._online:
            self._watcher.stop()
            return
        await self._commit.close()
        self._learner.stop()
        self._journal.close()
        self._run.close()

    async def take(self, events: list[Event]) -> Accepted:
        """Returns when the events are on the disk."""
        if not self._online:
            raise Refusal(409, self._why)
        if self._learner.problem is not None:
            raise Refusal(503, f"learning has stopped: {self._learner.problem}")
        lines = self._door.lines(events, first=not self._run.events)
        try:
            last = await self._commit.commit(lines, len(events))
        except BusyError:
            raise Refusal(503, "too many events wait for the disk; try again later") from None
        except OSError as error:
            full = error.errno in _FULL
            advice = "make room" if full else "look after the disk"
            raise Refusal(
                507 if full else 503,
                f"the journal cannot be written ({error.strerror}), and nothing of the request "
                f"was taken; {advice}, and send it again",
            ) from None
        return Accepted.model_construct(accepted=len(events), last=last)

    def health(self, *, needs_key: bool) -> Health:
        """Whether it is well."""
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
            takes=list(self._door.columns) if self._online else [],
            needs_target=self._online and self._door.needs_target,
            needs_key=needs_key,
        )

    def _problem(self) -> str | None:
        if not self._online:
            return self._watcher.problem
        return self._learner.problem or self._learner.late
