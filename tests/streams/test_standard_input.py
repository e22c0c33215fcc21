import os
import subprocess
import sys
import time

import pytest

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams.file_source import StandardInput
from tests.streams.events_checks import rejections, rows


@pytest.fixture
def pipe():
    """Two ends of a pipe: a stream to read from, and a function that writes."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as target:
        yield stream, target


def events(content, size, after=None, **options):
    """The batches that come of `content`, after which nothing comes."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        source = StandardInput(stream=stream, linger=0.02, **options)
        return [b for b in source.batches(size, after) if len(b.frame) or b.rejected]


ROWS = b"user,item,rating\n1,a,1\n2,b\n\n3,c,3\n4,d,4\n"
JSON = b'{"user": 1, "item": "a", "rating": 1}\noops\n{"user": 3, "item": "c", "rating": 3}\n'


def test_either_format_is_reported_by_the_first_line():
    batches = events(ROWS, 10)
    assert rows(batches) == [("1", "a", 1.0), ("3", "c", 3.0), ("4", "d", 4.0)]
    assert rejections(batches) == [("standard input, line 3", "2 fields where 3 are expected")]
    batches = events(JSON, 10)
    assert rows(batches) == [(1, "a", 1.0), (3, "c", 3.0)]
    assert rejections(batches) == [("standard input, line 2", "not JSON")]
    batches = events(b"oops\n" + JSON, 10, written_as="jsonl")
    assert len(rejections(batches)) == 2


@pytest.mark.parametrize("content", [ROWS, JSON])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_same_events_piped_again_go_on_after_any_batch(content, size):
    batches = events(content, size)
    for number, batch in enumerate(batches, 1):
        rest = events(content, size, batch.offset)
        assert [b.frame.rows() for b in rest] == [b.frame.rows() for b in batches[number:]]
        assert rejections(rest) == rejections(batches[number:])
        assert [b.offset for b in rest] == [b.offset for b in batches[number:]]


def test_other_events_than_before_are_refused():
    (batch,) = events(ROWS, 10)
    with pytest.raises(
        CelrecError, match="standard input: the first line is not the one that was read before"
    ):
        events(JSON, 10, batch.offset)
    with pytest.raises(CelrecError, match="ends 3 rows before the position"):
        events(ROWS[:23], 10, batch.offset)


def test_what_there_is_comes_promptly_and_nothing_comes_regularly(pipe):
    stream, target = pipe
    batches = StandardInput(Columns(), stream=stream, linger=0.1).batches(100)
    started = time.monotonic()
    assert len(next(batches).frame) == 0
    target.write(b"user,item,rating\n1,a,1\n2,b")
    assert next(batches).frame.rows() == [("1", "a", 1.0)]
    assert len(next(batches).frame) == 0
    target.write(b",2\n3,c,3")
    assert next(batches).frame.rows() == [("2", "b", 2.0)]
    assert time.monotonic() - started < 5
    target.close()
    assert next(batches).frame.rows() == [("3", "c", 3.0)]
    assert list(batches) == []


def test_input_without_events_ends():
    assert events(b"", 3) == []


def test_the_real_standard_input_is_read():
    program = (
        "from celrec.streams.file_source import StandardInput\n"
        "print([b.frame.rows() for b in StandardInput().batches(9) if len(b.frame)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=ROWS, capture_output=True, check=True
    )
    assert b"('4', 'd', 4.0)" in done.stdout
