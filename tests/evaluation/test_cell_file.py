import errno
import json
import multiprocessing
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.evaluation.cell_file import CellFile

VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
CELLS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=8))
def test_what_is_kept_is_found_again_by_another_as_in_a_dictionary(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("cells") / "cells.jsonl"
    kept, known = CellFile(path), {}
    for cell, found in pairs:
        kept.keep(cell, found)
        known[json.dumps(cell, sort_keys=True)] = found
    for file in (kept, CellFile(path)):
        assert len(file) == len(known)
        assert all(file.get(cell) == known[json.dumps(cell, sort_keys=True)] for cell, _ in pairs)
        assert all(cell in file for cell, _ in pairs)


@given(st.lists(CELLS, min_size=1, max_size=4, unique_by=str), st.data())
def test_a_line_that_was_cut_off_is_as_if_it_were_not_there(tmp_path_factory, cells, data):
    path = tmp_path_factory.mktemp("cells") / "cells.jsonl"
    file = CellFile(path)
    for number, cell in enumerate(cells):
        file.keep(cell, {"number": number})
    whole = path.read_bytes()
    before = whole[:-1].rfind(b"\n") + 1
    path.write_bytes(whole[: data.draw(st.integers(before, len(whole) - 1))])
    again = CellFile(path)
    assert len(again) == len(cells) - 1
    assert cells[-1] not in again
    again.keep(cells[-1], {"number": len(cells) - 1})
    assert path.read_bytes() == whole


def test_what_is_there_is_not_made_again(tmp_path):
    file = CellFile(tmp_path / "new" / "cells.jsonl")
    assert file.get({"a": 1}) is None
    assert file.find({"a": 1}, lambda: {"b": (2, 3)}) == {"b": [2, 3]}
    assert file.find({"a": 1}, lambda: 1 / 0) == {"b": [2, 3]}


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = CellFile(None)
    file.keep({"a": 1}, {"b": 2})
    assert file.get({"a": 1}) == {"b": 2}
    assert not list(tmp_path.iterdir())


def test_older_cells_said_less(tmp_path):
    path = tmp_path / "cells.jsonl"
    CellFile(path).keep({"a": 1}, {"b": 2})
    assert CellFile(path, {"rate": 1}).get({"a": 1, "rate": 1}) == {"b": 2}
    assert CellFile(path, {"rate": 1}).get({"a": 1, "rate": 2}) is None


def _keep_some(path, name):
    file = CellFile(path)
    for number in range(100):
        file.keep({"name": name, "number": number}, {"text": name * 1000})


def test_several_processes_may_write(tmp_path):
    path = tmp_path / "cells.jsonl"
    spawn = multiprocessing.get_context("fork")
    processes = [spawn.Process(target=_keep_some, args=(path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(CellFile(path)) == 200


@pytest.mark.parametrize("text", ["nothing\n", '{"cell": 1}\n', "[1]\n", "my notes", '{"found": 1'])
def test_a_file_of_something_else_is_not_touched(tmp_path, text):
    path = tmp_path / "cells.jsonl"
    path.write_text(text)
    with pytest.raises(CelrecError, match=r"cells\.jsonl, line 1: not a cell of an experiment"):
        CellFile(path)
    assert path.read_text() == text


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CelrecError, match="cannot be written"):
        CellFile(tmp_path / "file" / "cells.jsonl").keep({}, {})


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = CellFile(tmp_path / "cells.jsonl")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CelrecError, match=r"cannot be written \(No space left on device\)"):
        file.keep({}, {})
    assert {} not in file
