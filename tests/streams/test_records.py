import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.errors import CelrecError
from celrec.streams import records as _records
from celrec.streams.records import Records, RecordSplitter

TEXTS = st.lists(st.sampled_from([b'"', b",", b"\n", b"\r\n", b"a", b" "]), max_size=40).map(
    b"".join
)


def quotes(record):
    """Whether the quotes of a record are "closed", "open" or "broken", the obvious way."""
    quoted = re.compile(rb'"(?:[^"]|"")*+"')
    while True:
        if record.startswith(b'"'):
            found = quoted.match(record)
            if not found:
                return "open"
            record = record[found.end() :]
            if record and record[:1] not in (b",", b"\r", b"\n"):
                return "broken"
        _, more, record = record.partition(b",")
        if not more:
            return "closed"


def slow_records(text):
    """Lines, put together as long as a quote is open, unless that comes to nothing."""
    lines, records, first = text.split(b"\n"), [], 0
    while first < len(lines):
        for last in range(first, len(lines)):
            state = quotes(b"\n".join(lines[first : last + 1]))
            if state != "open":
                break
        if state != "closed":
            last = first
        record = b"\n".join(lines[first : last + 1])
        if record.strip(b" \r"):
            records.append((first + 1, record.rstrip(b"\r")))
        first = last + 1
    return records


def cut(text, places, separator):
    splitter = RecordSplitter("text", separator)
    bounds = [0, *sorted(places), len(text)]
    parts = [splitter.feed(text[a:b]) for a, b in pairwise(bounds)]
    return [part for part in [*parts, splitter.finish()] if len(part)]


@given(TEXTS, st.data())
def test_records_are_the_obvious_ones_however_the_text_comes(text, data):
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=4))
    parts = cut(text, places, b",")
    found = [pair for part in parts for pair in zip(part.lines, part.values(), strict=True)]
    assert found == slow_records(text)
    if parts:
        joined = Records.joined(parts)
        assert list(zip(joined.lines, joined.values(), strict=True)) == found


@settings(max_examples=30)
@given(TEXTS)
def test_without_quotes_records_are_lines(text):
    found = [value for part in cut(text, [], None) for value in part.values()]
    lines = [line.rstrip(b"\r") for line in text.split(b"\n")]
    assert found == [line for line in lines if line.strip(b" \r")]


def test_a_quote_that_stays_open_for_long_spoils_its_own_line_only(monkeypatch):
    lines = [b'1,"a'] + [b"2,b"] * 400_000
    found = [v for part in cut(b"\n".join(lines), [1 << 20], b",") for v in part.values()]
    assert found == lines
    monkeypatch.setattr(_records, "LONGEST_LINE", 1 << 16)
    with pytest.raises(CelrecError, match="text, line 2: a line of over 0 MiB"):
        RecordSplitter("text", b",").feed(b"a\n" + b"x" * (1 << 17))
