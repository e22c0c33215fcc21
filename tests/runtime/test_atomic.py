import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from celrec import CelrecError
from celrec.runtime.atomic import atomic_file, atomic_folder


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_no_trace(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_replaces_the_old_one_whole(tmp_path):
    path = tmp_path / "run"
    for word in ("old", "new"):
        with atomic_folder(path) as temporary:
            (temporary / word).write_text(word)
    assert [p.name for p in path.iterdir()] == ["new"]
    with pytest.raises(RuntimeError), atomic_folder(path) as temporary:
        (temporary / "half").write_text("half")
        raise RuntimeError
    assert [p.name for p in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_in_mid_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = f"""
import os, signal
from pathlib import Path
from celrec.runtime.atomic import atomic_file
with atomic_file(Path({str(path)!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_full_disk_loses_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="No space"), atomic_file(path) as temporary:
        temporary.write_text("half")
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("writer", [atomic_file, atomic_folder])
def test_an_unwritable_folder_is_named(tmp_path, writer):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CelrecError, match="cannot write in folder"),
        writer(tmp_path / "file" / "x"),
    ):
        pass


def test_others_may_read_what_is_written(tmp_path):
    path: Path = tmp_path / "a.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("x")
    assert path.stat().st_mode & 0o444 == 0o444
