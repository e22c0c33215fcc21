"""Many small requests, one write to the disk."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from celrec.data.streams.journal import Journal

_MOST_WAITING = 64 << 20  # bytes


class BusyError(Exception):
    """More is waiting for the disk than should be in memory."""


class GroupCommit:
    """Appends to a journal what has come while the disk was busy with what came before, at once.

    So the fewer flushes an event costs, the more of them come.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._waiting: list[tuple[bytes, int, asyncio.Future[int]]] = []
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    async def commit(self, lines: bytes, events: int) -> int:
        """Returns when the lines are on the disk: the number of events in the journal up to them.

        Raises OSError if the disk does not take them.
        """
        if self._bytes + len(lines) > _MOST_WAITING:
            raise BusyError
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._waiting.append((lines, events, done))
        self._bytes += len(lines)
        if self._task is None:
            self._task = loop.create_task(self._work())
        return await done

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting, self._bytes = self._waiting, [], 0
            lines = b"".join(lines for lines, _, _ in group)
            events = sum(count for _, count, _ in group)
            try:
                last = await loop.run_in_executor(self._thread, self._journal.append, lines, events)
            except OSError as error:
                for _, _, done in group:
                    if not done.done():  # whoever asked may have gone
                        done.set_exception(OSError(error.errno, error.strerror))
                continue
            last -= events
            for _, count, done in group:
                last += count
                if not done.done():
                    done.set_result(last)
        self._task = None

    async def close(self) -> None:
        """When all is done."""
        while self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown()
