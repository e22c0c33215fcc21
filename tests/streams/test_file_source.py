import gzip
import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams.file_source import FileSource
from tests.streams.events_checks import assert_resumable, rejections, rows

IDS = st.sampled_from(["1", "007", "x y", "é", str(2**63)])
EVENTS = st.tuples(IDS, IDS, st.integers(-3, 3).map(float), st.integers(0, 20))
BAD_ROWS = [b",a,1,2", b"u,a,nan,2", b"u,a", b"u,a,1,2,3", b"\xff,a,1,2", b'u,"a,1,2', b"u,a,1,x"]
BAD_JSON = [
    b"{",
    b"[1]",
    b"\xff",
    b'{"user": "u"}',
    b'{"user":"u","item":"a","rating":"?","time":1}',
]


def csv_row(event):
    return ",".join([event[0], event[1], f"{event[2]:g}", str(event[3])]).encode()


def json_row(event):
    keys = ("user", "item", "rating", "time")
    return json.dumps(dict(zip(keys, event, strict=True))).encode()


def lines_of(write, bad):
    """Lines of events, and what is to come of them; None for those to be set aside."""
    good = EVENTS.map(lambda event: (write(event), event))
    return st.lists(good | st.sampled_from(bad).map(lambda line: (line, None)), max_size=12)


def check(name, content, lines, size, before):
    """Every event of a file is delivered or set aside, and reading can go on anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        batches = assert_resumable(lambda: FileSource(path), size)
    expected = [event for _, event in lines if event is not None]
    found = pl.DataFrame(rows(batches), orient="row").rows()
    assert found == expected
    assert all(len(batch.frame) + len(batch.rejected) == size for batch in batches[:-1])
    bad = [number for number, (_, event) in enumerate(lines) if event is None]
    assert [place for place, _ in rejections(batches)] == [
        f"{path}, line {number + before + 1}" for number in bad
    ]


@settings(max_examples=30)
@given(
    lines_of(csv_row, BAD_ROWS),
    st.integers(1, 5),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_delimited_files_are_read_whole_and_on_from_anywhere(lines, size, end, mark, zipped, last):
    content = end.join([b"user,item,rating,time", *(line for line, _ in lines)])
    content = (b"\xef\xbb\xbf" if mark else b"") + content + (end if last else b"")
    check("log.csv", gzip.compress(content) if zipped else content, lines, size, before=1)


@settings(max_examples=30)
@given(EVENTS, lines_of(json_row, BAD_JSON), st.integers(1, 5), st.booleans(), st.booleans())
def test_json_lines_are_read_whole_and_on_from_anywhere(first, lines, size, zipped, mark):
    lines = [(json_row(first), first), *lines]
    content = (b"\xef\xbb\xbf" if mark else b"") + b"\n".join(line for line, _ in lines)
    name, content = (".jsonl.gz", gzip.compress(content)) if zipped else (".ndjson", content)
    check("log" + name, content, lines, size, before=0)


@settings(max_examples=15)
@given(st.lists(EVENTS, min_size=1, max_size=20), st.integers(1, 7), st.integers(1, 8))
def test_parquet_files_are_read_whole_and_on_from_anywhere(events, size, group):
    table = pl.DataFrame(events, orient="row", schema=["user", "item", "rating", "time"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.parquet")
        table.write_parquet(path, row_group_size=group)
        batches = assert_resumable(lambda: FileSource(path), size)
    assert rows(batches) == events
    assert all(len(batch.frame) == size for batch in batches[:-1])


def test_rows_of_a_parquet_file_are_set_aside(tmp_path):
    path = tmp_path / "log.parquet"
    table = {
        "user": [1.0, None, 2.5, 4.0, 5.0],
        "item": ["a", "b", "c", "", "e"],
        "rating": [1.0, 2.0, 3.0, 4.0, float("inf")],
        "shop": [2**63, 1, 1, 1, 1],
    }
    pl.DataFrame(table, schema_overrides={"shop": pl.UInt64}).write_parquet(path)
    (batch,) = FileSource(path, Columns(more=("shop",))).batches(10)
    assert batch.frame.rows() == [(1, "a", 1.0, str(2**63))]
    assert rejections([batch]) == [
        (f"{path}, row 2", "no user id"),
        (f"{path}, row 3", "user id 2.5 is neither an integer nor a text"),
        (f"{path}, row 4", "no item id"),
        (f"{path}, row 5", "target inf is not a finite number"),
    ]
    assert json.loads(batch.rejected[1].raw)["user"] == 2.5


def test_every_kind_of_malformed_row_is_set_aside_with_its_line_and_reason(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(
        b'user,item,rating,text\n1,a,5,"two\nlines"\n\n,a,5,t\n1,,5,t\n1,a,inf,t\n1,a,,t\n'
        b'1,a\n1,a,5,t,more\n1,\xff,5,t\n1,a,5,"left open\n2,b,4,5" disk\n'
    )
    (batch,) = FileSource(path).batches(100)
    assert batch.frame.rows() == [("1", "a", 5.0), ("2", "b", 4.0)]
    assert rejections([batch]) == [
        (f"{path}, line 5", "no user id"),
        (f"{path}, line 6", "no item id"),
        (f"{path}, line 7", "target 'inf' is not a finite number"),
        (f"{path}, line 8", "no target"),
        (f"{path}, line 9", "2 fields where 4 are expected"),
        (f"{path}, line 10", "5 fields where 4 are expected"),
        (f"{path}, line 11", "not UTF-8 text"),
        (f"{path}, line 12", "a double quote is left open"),
    ]
    assert batch.rejected[4].raw == "1,a"
    assert batch.rejected[6].raw == "1,�,5,t"


def test_files_without_a_header_and_with_other_separators_are_read(tmp_path):
    (tmp_path / "log.tsv").write_text("7\ta\t5\t99\n8\tb\t4\t98\n")
    (tmp_path / "ratings.dat").write_text("7::a::5::99\n")
    source = FileSource([tmp_path / "log.tsv", tmp_path / "ratings.dat"])
    batches = list(source.batches(10))
    assert [batch.frame.rows() for batch in batches] == [
        [("7", "a", 5.0, 99), ("8", "b", 4.0, 98)],
        [("7", "a", 5.0, 99)],
    ]
    assert source.late == 1


def test_several_files_are_read_in_the_given_order(tmp_path):
    (tmp_path / "b.csv").write_text("user,item,rating\n1,a,1\n2,a,1\n3,a,1\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "a.jsonl").write_text('{"uid": 4, "asin": "b", "stars": 2}\n')
    paths = [tmp_path / name for name in ("b.csv", "empty.csv", "a.jsonl")]
    batches = assert_resumable(lambda: FileSource(paths), 2)
    assert rows(batches) == [("1", "a", 1.0), ("2", "a", 1.0), ("3", "a", 1.0), (4, "b", 2.0)]
    assert str(FileSource(paths)) == f"{paths[0]} and 2 more"
    with pytest.raises(CelrecError, match=r"file 1 was 'b.csv' when it was read"):
        list(FileSource(paths[1:]).batches(2, batches[0].offset))


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "log.parquet"])
def test_whether_times_are_dates_is_remembered_in_the_offset(tmp_path, name):
    times = ["2020-01-02", "7", "8", "2020-01-03"]
    table = pl.DataFrame({"user": [1] * 4, "item": [2] * 4, "rating": [3] * 4, "time": times})
    writers = {"csv": table.write_csv, "jsonl": table.write_ndjson, "parquet": table.write_parquet}
    writers[name.partition(".")[2]](tmp_path / name)
    batches = assert_resumable(lambda: FileSource(tmp_path / name), 1)
    assert [len(batch.frame) for batch in batches] == [1, 0, 0, 1]
    assert batches[1].rejected[0].reason == "timestamp '7' is not a date"


def test_late_rows_are_counted_across_resumptions(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,rating,time\n" + "".join(f"1,a,1,{t}\n" for t in (5, 3, 7, 6, 7, 2)))
    whole, resumed = FileSource(path), FileSource(path)
    first, *_ = whole.batches(3)
    assert whole.late == 3
    list(resumed.batches(3, first.offset))
    assert resumed.late == 3


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b"user,item,rating\n"])
def test_a_file_without_events_gives_none(tmp_path, content):
    (tmp_path / "log.csv").write_bytes(content)
    assert list(FileSource(tmp_path / "log.csv").batches(3)) == []


def test_a_file_may_grow_after_it_was_read(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,rating\n1,a,1\n")
    (batch,) = FileSource(path).batches(5)
    with path.open("a") as file:
        file.write("2,b,2\n")
    assert rows(FileSource(path).batches(5, batch.offset)) == [("2", "b", 2.0)]


def test_another_file_in_its_place_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,rating\n1,a,1\n2,a,1\n3,a,1\n")
    offset = next(FileSource(path).batches(2)).offset
    for content, problem in (
        ("user,item,rating\n1,a,1\n", "the file has 23 bytes and had 35"),
        ("user,item,stars\n1,a,1\n2,a,1\n3,a,1\n4,a,1\n", "the first line is not the one"),
        ("user,item,rating\n" + "x" * 50, "ends 1 rows before"),
    ):
        path.write_text(content)
        with pytest.raises(CelrecError, match=problem):
            list(FileSource(path).batches(2, offset))
    table = pl.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [1, 2]})
    table.write_parquet(tmp_path / "log.parquet")
    offset = next(FileSource(tmp_path / "log.parquet").batches(1)).offset
    table[::-1].write_parquet(tmp_path / "log.parquet")
    with pytest.raises(CelrecError, match="has changed since"):
        list(FileSource(tmp_path / "log.parquet").batches(1, offset))


def test_what_is_readable_of_a_damaged_archive_is_delivered(tmp_path):
    lines = [f"{user},a,{user % 5}" for user in range(100_000)]
    content = gzip.compress("\n".join(["user,item,rating", *lines]).encode())
    path = tmp_path / "log.csv.gz"
    path.write_bytes(content[: len(content) // 2])
    batches, source = [], FileSource(path)
    with pytest.raises(CelrecError, match=r"log\.csv\.gz: damaged archive"):
        for batch in source.batches(100_000):
            batches.append(batch)  # noqa: PERF402  (what came before the error is to be kept)
    found = [row[0] for row in rows(batches)]
    assert found == [str(user) for user in range(len(found))]
    assert len(found) > 30_000
    path.write_bytes(content)  # mended: reading goes on where it stopped
    rest = [row[0] for row in rows(FileSource(path).batches(1000, batches[-1].offset))]
    assert found + rest == [str(user) for user in range(100_000)]


def test_large_files_are_read_in_pieces(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,rating\n" + "".join(f"{n},a,1\n" for n in range(300_000)))
    sizes = [len(batch.frame) for batch in FileSource(path).batches(7_000)]
    assert sizes == [7_000] * 42 + [6_000]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("log.csv", b"user,thing,rating\n", "no item column among"),
        ("log.csv", b"nothing here\n", "one column only"),
        ("log.csv", b"\xff,item\n", "line 1: not UTF-8 text"),
        ("log.parquet", b"user,item,rating\n1,2,3\n", "not a parquet file"),
        ("log.parquet", b"PAR1 and no more", "damaged parquet file"),
        ("log.csv.gz", b"\x1f\x8b nonsense", "damaged archive"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CelrecError, match=problem):
        list(FileSource(tmp_path / name).batches(3))


def test_mistakes_in_the_arguments_are_reported(tmp_path):
    with pytest.raises(CelrecError, match="no such file"):
        FileSource(tmp_path / "nothing.csv")
    with pytest.raises(CelrecError, match="no files given"):
        FileSource([])
    (tmp_path / "log.csv").write_text("user,item,rating\n1,a,1\n")
    source = FileSource(tmp_path / "log.csv")
    with pytest.raises(CelrecError, match="size must be at least 1"):
        next(source.batches(0))
    with pytest.raises(CelrecError, match="another source before, with source 'redis'"):
        next(source.batches(1, {"source": "redis"}))
    pl.DataFrame({"user": [[1]], "item": [1], "rating": [1]}).write_parquet(tmp_path / "l.parquet")
    with pytest.raises(CelrecError, match="column for 'user' is List"):
        next(FileSource(tmp_path / "l.parquet").batches(1))
