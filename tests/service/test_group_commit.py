import asyncio
import threading

import pytest

from celrec.service.events import BusyError, GroupCommit
from celrec.streams.journal import Journal, JournalReader


class SlowDisk(Journal):
    """Counts flushes, which take their time."""

    def __init__(self, path):
        super().__init__(path)
        self.flushes, self.fails = 0, set()
        self.go = threading.Event()
        self.go.set()

    def append(self, lines, events):
        self.go.wait(10)
        self.flushes += 1
        if self.flushes in self.fails:
            raise OSError(28, "No space left on device")
        return super().append(lines, events)


def line(number):
    return b'{"user": %d, "item": 1, "target": 1.0, "timestamp": 1}\n' % number


def test_what_comes_while_the_disk_is_busy_is_written_at_once_and_numbered(tmp_path):
    journal = SlowDisk(tmp_path / "journal")

    async def work():
        commit = GroupCommit(journal)
        journal.go.clear()
        first = asyncio.create_task(commit.commit(line(0), 1))
        await asyncio.sleep(0.05)
        others = [
            asyncio.create_task(commit.commit(line(number) * 2, 2)) for number in range(1, 200)
        ]
        await asyncio.sleep(0.05)
        journal.go.set()
        numbers = await asyncio.gather(first, *others)
        await commit.close()
        return numbers

    assert asyncio.run(work()) == list(range(1, 400, 2))
    assert journal.flushes == 2
    frame = JournalReader(journal, 0).take(1000).frame
    assert frame["user"].to_list() == [0, *(n for n in range(1, 200) for _ in range(2))]


def test_all_of_a_group_that_the_disk_refuses_hear_of_it_and_later_ones_are_taken(tmp_path):
    journal = SlowDisk(tmp_path / "journal")
    journal.fails = {1}

    async def work():
        commit = GroupCommit(journal)
        tasks = [commit.commit(line(number), 1) for number in range(3)]
        refused = await asyncio.gather(*tasks, return_exceptions=True)
        taken = await commit.commit(line(7), 1)
        await commit.close()
        return refused, taken

    refused, taken = asyncio.run(work())
    assert all(isinstance(one, OSError) and one.errno == 28 for one in refused)
    assert taken == 1


def test_who_goes_away_does_not_disturb_others(tmp_path):
    journal = SlowDisk(tmp_path / "journal")

    async def work():
        commit = GroupCommit(journal)
        journal.go.clear()
        gone = asyncio.create_task(commit.commit(line(0), 1))
        stays = asyncio.create_task(commit.commit(line(1), 1))
        await asyncio.sleep(0.05)
        gone.cancel()
        journal.go.set()
        last = await stays
        await commit.close()
        return last

    assert asyncio.run(work()) == 2


def test_more_than_memory_should_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("celrec.service.events.MOST_WAITING", 100)
    journal = SlowDisk(tmp_path / "journal")

    async def work():
        commit = GroupCommit(journal)
        with pytest.raises(BusyError):
            await commit.commit(line(0) * 10, 10)
        last = await commit.commit(line(0), 1)
        await commit.close()
        return last

    assert asyncio.run(work()) == 1
