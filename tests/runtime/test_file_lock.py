import multiprocessing
import sys
import types

import pytest

from celrec.runtime import atomic
from celrec.runtime.atomic import lock_file


@pytest.fixture
def windows(monkeypatch):
    """Locks as on Windows, with a stand-in for its module: no fcntl, ranges of bytes."""
    locked = set()

    def locking(number, mode, length):
        assert (mode, length) == (2, 1)
        if locked:
            raise OSError(13, "Permission denied")
        locked.add(number)

    module = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", module)
    monkeypatch.setattr(atomic, "fcntl", None)
    return locked


def test_a_second_lock_is_refused_until_the_first_file_is_closed(tmp_path):
    with (tmp_path / "lock").open("ab") as first, (tmp_path / "lock").open("ab") as second:
        lock_file(first, wait=False)
        with pytest.raises(OSError, match="unavailable"):
            lock_file(second, wait=False)
        first.close()
        lock_file(second, wait=False)


def _lock_and_write(path, text):
    with path.open("ab") as file:
        lock_file(file, wait=True)
        file.write(text)


def test_another_process_waits_for_the_lock(tmp_path):
    path = tmp_path / "lock"
    with path.open("ab") as file:
        lock_file(file, wait=True)
        other = multiprocessing.get_context("spawn").Process(
            target=_lock_and_write, args=(path, b"second")
        )
        other.start()
        other.join(0.2)
        file.write(b"first ")
    other.join(60)
    assert path.read_bytes() == b"first second"


def test_windows_locks_a_byte_beyond_the_end_and_leaves_the_position(tmp_path, windows):
    with (tmp_path / "lock").open("wb+") as first, (tmp_path / "lock").open("rb") as second:
        first.write(b"four")
        lock_file(first, wait=False)
        assert first.tell() == 4
        assert windows == {first.fileno()}
        with pytest.raises(OSError, match="Permission"):
            lock_file(second, wait=False)


def test_windows_tries_again_while_it_waits(tmp_path, windows, monkeypatch):
    windows.add(-1)
    monkeypatch.setattr(atomic.time, "sleep", lambda _: windows.clear())
    with (tmp_path / "lock").open("ab") as file:
        lock_file(file, wait=True)
        assert windows == {file.fileno()}
