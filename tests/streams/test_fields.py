import csv
import io
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.data.delimited import Delimited
from celrec.data.text_source import TextSource
from celrec.streams.fields import fields
from celrec.streams.records import RecordSplitter

FIELDS = st.text(st.sampled_from('ab,";é\n:'), max_size=6)
NAMES = ("p", "q", "r")


def table(separator=",", quoted=True):
    return Delimited(TextSource(Path("x")), separator, NAMES, quoted=quoted)


def records(data, separator=b","):
    splitter = RecordSplitter("x", separator)
    splitter.feed(b"")
    return splitter.feed(data + b"\n")


@settings(max_examples=50)
@given(
    st.lists(st.lists(FIELDS, min_size=1, max_size=5).filter(any), min_size=1, max_size=8),
    st.sets(st.sampled_from(NAMES), min_size=1),
)
def test_fields_are_those_that_the_csv_module_wrote(written, wanted):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(written)
    frame, problems = fields(records(out.getvalue().encode()), table(), tuple(wanted))
    assert frame.columns == [name for name in NAMES if name in wanted]
    for row, (expected, found) in enumerate(zip(written, frame.iter_rows(), strict=True)):
        if len(expected) == len(NAMES):
            places = [NAMES.index(name) for name in frame.columns]
            assert list(found) == [expected[place] or None for place in places]
            assert row not in problems
        else:
            count = f"{len(expected)} field{'s' if len(expected) > 1 else ''}"
            assert problems[row] == f"{count} where 3 are expected"
            assert set(found) == {None}


def test_each_malformed_record_is_reported_and_leaves_the_others_alone():
    lines = [
        b"1,2,3",
        b'1,"2"x,3',
        b'1,2,"3',
        b"1,\xff,3",
        b"1,\x1e,3",
        b'5" disk,a""b,',
        b",,",
    ]
    frame, problems = fields(records(b"\n".join(lines)), table(), NAMES)
    assert problems == {
        1: "text after a closing double quote",
        2: "a double quote is left open",
        3: "not UTF-8 text",
        4: "a control character (1e or 1f) in a field",
    }
    assert frame.rows()[0] == ("1", "2", "3")
    assert frame.rows()[5:] == [('5" disk', 'a""b', None), (None, None, None)]


def test_separators_of_several_characters_know_no_quotes():
    data = b'1::"a::3\n1:2::3:::4\n::::'
    frame, problems = fields(records(data, None), table("::", quoted=False), NAMES)
    assert (frame.rows(), problems) == (
        [("1", '"a', "3"), ("1:2", "3", ":4"), (None, None, None)],
        {},
    )
