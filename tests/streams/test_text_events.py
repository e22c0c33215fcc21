import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams import text_events as _text_events
from celrec.streams.file_source import FileSource
from celrec.streams.intake import Intake
from celrec.streams.object_intake import ObjectIntake
from celrec.streams.records import Records
from celrec.streams.text_events import TextEvents
from tests.streams.events_checks import assert_same

ROLES = Columns(more=("shop",))
TEXTS = st.sampled_from(["1", "007", "", '"two\nlines"', '"a,b"', "é", 'x"y'])
TARGETS = st.sampled_from(["1", "2.5", "", "?", "inf", "1e39"])
TIMES = st.sampled_from(["7", "9.5", "", "soon", "2020-01-02", "2020-01-02 03:04:05", "5"])
BAD = [b"", b"1,2", b"\xff,a,1,2,3", b"\x1f,a,1,2,3", b'"left open,a,1,2,3']
ROWS = st.tuples(TEXTS, TEXTS, TARGETS, TIMES, TEXTS).map(lambda row: ",".join(row).encode())
LINES = st.one_of(ROWS, ROWS, ROWS, st.sampled_from(BAD))
PLAIN = st.sampled_from([b"1,a,5,7,x", b"2,b,4,soon,", b'3,"c",1,2020-01-02,y', b"4,d,2,later,"])
CSV = st.lists(PLAIN | LINES, max_size=40)

VALUES = st.sampled_from([1, 2, 2**70, "1", "x", "", 1.0, 1.5, None, True, [1]])
NUMBERS = st.sampled_from([1, 2.5, True, "3", "?", None, float("inf"), 2**70, 2**62 + 1])
MOMENTS = st.sampled_from([7, 9.5, "8", "2020-01-02", None, "soon", 2**70])
ANY = st.fixed_dictionaries(
    {"user": VALUES, "item": VALUES, "rating": NUMBERS, "time": MOMENTS}, optional={"shop": VALUES}
)
USUAL = st.fixed_dictionaries(
    {"user": st.integers(0, 3), "item": st.sampled_from("ab"), "rating": st.just(1.0)},
    optional={"time": st.sampled_from([7, "soon", "2020-01-02", "8"]), "shop": st.integers(0, 2)},
)
JSON = st.lists((USUAL | ANY).map(lambda event: json.dumps(event).encode()) | st.just(b"{"))


@contextmanager
def one_batch_at_a_time():
    """Nothing is parsed before it is asked for."""

    def next_batch(self):
        records = []
        while self._parts and len(records) < self._size:
            part = self._parts.popleft()
            records.append(part.part(0, 1))
            if len(part) > 1:
                self._parts.appendleft(part.part(1, len(part)))
        return Records.joined(records)

    with (
        patch.object(TextEvents, "_block", next_batch),
        patch.object(Intake, "settled", lambda *_: False),
        patch.object(ObjectIntake, "_settled", lambda *_: False),  # so each is taken alone
    ):
        yield


def all_taken(pieces, size, roles, after, *, written_as=None):
    """What is taken of a text that comes in pieces, each with whether one waits for more."""
    events, found = TextEvents("log", roles, written_as, after, size), []

    def take():
        found.append((events.take(), events.place(), events.pending))

    for piece, patient in pieces:
        events.feed(piece)
        while events.pending >= size:
            take()
        if not patient:
            take()
    try:
        events.finish()
    except CelrecError as error:
        found.append(str(error))
    while events.pending:
        take()
    return found


def assert_alike(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, str):
            assert one == other
            continue
        (taken, *place), (other_taken, *other_place) = one, other
        assert place == other_place
        assert taken.rejected == other_taken.rejected
        assert_frame_equal(taken.frame, other_taken.frame)


def pieces_of(text, cuts):
    """The text, cut at some places."""
    places = sorted({place % (len(text) + 1) for place, _ in cuts})
    patience = [patient for _, patient in cuts]
    ends = zip([0, *places], [*places, len(text)], strict=True)
    pieces = [text[start:end] for start, end in ends]
    return [(piece, patient) for piece, patient in zip(pieces, [*patience, True], strict=False)]


CUTS = st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), max_size=6)


@settings(max_examples=60)
@given(CSV, st.integers(1, 7), CUTS, st.integers(0, 10), st.booleans(), st.integers(1, 40))
def test_delimited_rows_parsed_in_blocks_are_what_they_are_one_batch_at_a_time(
    lines, size, cuts, skipped, timed, block
):
    head = b"user,item,rating,time,shop" if timed else b"user,item,rating,kind,shop"
    check_blocks(b"\n".join([head, *lines]), size, cuts, skipped, block)


@settings(max_examples=60)
@given(JSON, st.integers(1, 7), CUTS, st.integers(0, 10), st.integers(1, 40))
def test_json_lines_parsed_in_blocks_are_what_they_are_one_batch_at_a_time(
    lines, size, cuts, skipped, block
):
    check_blocks(b"\n".join(lines), size, cuts, skipped, block, written_as="jsonl")


def check_blocks(text, size, cuts, skipped, block, **options):
    """Batches, places and what is pending after each are the same, from any row on."""
    pieces = pieces_of(text, cuts)
    with one_batch_at_a_time():
        whole = all_taken([(text, True)], size, ROLES, {}, **options)
    places = [one[1] for one in whole if not isinstance(one, str)]
    after = places[skipped % len(places)] if places and skipped else {}
    with one_batch_at_a_time():
        expected = all_taken(pieces, size, ROLES, after, **options)
    with patch.object(_text_events, "BLOCK", block):
        assert_alike(all_taken(pieces, size, ROLES, after, **options), expected)


def test_malformed_lines_are_reported_where_they_stand_in_a_block():
    events = [json.dumps({"user": n, "item": "a", "rating": 2}).encode() for n in range(12)]
    events[5], events[6], events[11] = b"{", b'{"user": 1}', b"7"
    found = all_taken([(b"\n".join(events), True)], 2, Columns(), {})
    assert [[row[0] for row in taken.frame.rows()] for taken, *_ in found] == [
        *([0, 1], [2, 3], [4], [7], [8, 9], [10]),
    ]
    assert [(event.place, event.reason) for taken, *_ in found for event in taken.rejected] == [
        ("log, line 6", "not JSON"),
        ("log, line 7", "no field 'item' (item)"),
        ("log, line 12", "JSON, but not an object"),
    ]


def test_a_column_of_times_that_is_named_later_is_read_alike():
    times = ["soon", "later", "2020-01-02", "7", "2020-01-03"]
    events = [{"user": 1, "item": "a", "rating": 2, "when": time} for time in times]
    text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    before = TextEvents("log", Columns(), None, {}, 1)
    before.feed(text)
    before.take()
    options = (1, Columns(timestamp="when"), before.place())
    with one_batch_at_a_time():
        expected = all_taken([(text, True)], *options)
    found = all_taken([(text, True)], *options)
    assert_alike(found, expected)
    reasons = [event.reason for taken, *_ in found for event in taken.rejected]
    assert reasons == [
        "timestamp 'later' is neither a number nor a date",
        "timestamp '7' is not a date",
    ]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 9) | st.integers(2**63, 2**63 + 2),
            st.sampled_from(["a", "", None, "é"]),
            st.sampled_from([1.0, None, float("nan")]),
            st.sampled_from(["7", "2020-01-02", None, "soon"]),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 7),
    st.sampled_from([pl.UInt64, pl.Float64, pl.String]),
    st.booleans(),
)
def test_parquet_rows_taken_in_blocks_are_what_they_are_one_batch_at_a_time(
    events, size, kind, timed
):
    names = ["user", "item", "rating", "time" if timed else "kind"]
    table = pl.DataFrame(
        events,
        orient="row",
        schema=dict(zip(names, [pl.UInt64, pl.String, pl.Float64, pl.String], strict=True)),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.parquet")
        table.with_columns(pl.col("user").cast(kind)).write_parquet(path)
        with one_batch_at_a_time():
            expected = list(FileSource(path).batches(size))
        assert_same(list(FileSource(path).batches(size)), expected)


def test_a_block_is_parsed_at_once_and_a_batch_never_waits_for_one():
    calls = []

    def counted(self, *args):
        calls.append(len(args[0]))
        return take(self, *args)

    take = Intake.take
    rows = [f"{row},a,1".encode() for row in range(1000)]
    with patch.object(Intake, "take", counted):
        events = TextEvents("log", Columns(), None, {}, 10)
        events.feed(b"\n".join([b"user,item,rating", *rows[:995]]) + b"\n")
        batches = [events.take() for _ in range(99)]
        assert calls == [990]
        events.feed(b"\n".join(rows[995:999]) + b"\n")
        assert events.pending == 9
        batches.append(events.take())
        assert calls == [990, 9]
    assert [row[0] for batch in batches for row in batch.frame.rows()] == [
        str(row) for row in range(999)
    ]
    assert events.place()["row"] == 999


def test_nothing_is_taken_where_there_is_nothing():
    events = TextEvents("log", Columns(), None, {}, 3)
    assert len(events.take()) == 0
    events.feed(b"user,item,rating\n")
    assert len(events.take()) == 0
    with pytest.raises(CelrecError, match="no item column"):
        TextEvents("log", Columns(), None, {}, 3).feed(b"user,thing,rating\n")
