import gzip
import subprocess
import sys
import zipfile
from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celrec import UNSEEN, CelrecError, read
from celrec.data import text_source

ROWS = [("ann", "x", 5.0, 10), ("bob", "y", 3.5, 11), ("ann", "y", 1.0, 12)]
FRAME = pl.DataFrame(ROWS, schema=["user_id", "item_id", "rating", "timestamp"], orient="row")


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def assert_is_rows(log):
    frame = log.to_frame()
    assert frame.rows() == ROWS
    assert (log.user.dtype, log.item.dtype) == (np.int32, np.int32)
    assert (log.target.dtype, log.timestamp.dtype) == (np.float32, np.int64)


def csv_text(separator=","):
    lines = [separator.join(FRAME.columns)]
    return "\n".join(lines + [separator.join(map(str, row)) for row in ROWS]) + "\n"


@pytest.mark.parametrize("separator", [",", "\t", ";", "|", "::"])
def test_reads_text_with_any_common_separator(tmp_path, separator):
    assert_is_rows(read(write(tmp_path / "log.txt", csv_text(separator))))


def test_reads_text_without_a_header_by_position(tmp_path):
    body = csv_text().partition("\n")[2]
    assert_is_rows(read(write(tmp_path / "log.csv", body)))


def test_reads_gzip_and_zip(tmp_path):
    write(tmp_path / "log.csv.gz", gzip.compress(csv_text().encode()))
    assert_is_rows(read(tmp_path / "log.csv.gz"))
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.writestr("deep/log.csv", csv_text())
    assert_is_rows(read(tmp_path / "one.zip"))
    assert_is_rows(read(tmp_path / "one.zip/deep/log.csv"))


def test_reads_parquet_polars_pandas_arrow_and_dicts(tmp_path):
    FRAME.write_parquet(tmp_path / "log.parquet")
    pandas = pd.DataFrame(FRAME.to_dict(as_series=False))
    sources = [tmp_path / "log.parquet", FRAME, FRAME.lazy(), pandas, FRAME.to_arrow()]
    for source in [*sources, FRAME.to_dict(as_series=False), pa.Table.from_pandas(pandas)]:
        assert_is_rows(read(source))


def test_carriage_returns_byte_order_marks_and_empty_lines_do_no_harm(tmp_path):
    text = "\ufeff" + csv_text().replace("\n", "\r\n\r\n") + "\r\n\r\n"
    assert_is_rows(read(write(tmp_path / "log.csv", text)))


def test_quoted_fields_may_hold_separators_quotes_and_line_breaks(tmp_path):
    text = 'user,item,rating\n"a,1","say ""hi""\nthere",4\nb,c,2\n'
    frame = read(write(tmp_path / "log.csv", text)).to_frame()
    assert frame.select("user", "item").rows() == [("a,1", 'say "hi"\nthere'), ("b", "c")]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
            st.integers(-(2**70), 2**70),
            st.floats(-1e6, 1e6, width=32),
        ),
        min_size=1,
    ),
    size=st.integers(1, 200),
)
def test_what_is_written_is_read_whatever_the_block_size(tmp_path, monkeypatch, rows, size):
    monkeypatch.setattr(text_source, "BLOCK", size)
    blocks = text_source.TextSource.blocks
    monkeypatch.setattr(
        text_source.TextSource,
        "blocks",
        lambda self, **options: blocks(self, **{**options, "size": size}),
    )
    frame = pl.DataFrame(
        [("u" + user, str(item), rating) for user, item, rating in rows],
        schema=["user", "item", "rating"],
        orient="row",
    )
    frame.write_csv(tmp_path / "log.csv")
    log = read(tmp_path / "log.csv", user="user", item="item", target="rating")
    back = log.to_frame()
    assert back["user"].to_list() == frame["user"].to_list()
    assert back["item"].cast(pl.String).to_list() == frame["item"].to_list()
    assert np.array_equal(log.target, frame["rating"].to_numpy().astype(np.float32))


def test_integer_ids_in_text_come_back_as_integers_unless_a_zero_leads(tmp_path):
    text = "user,item,rating\n1,01,5\n2,1,4\n"
    log = read(write(tmp_path / "log.csv", text))
    assert log.user_ids.ids.to_list() == [1, 2]
    assert log.item_ids.ids.to_list() == ["01", "1"]


def test_negative_and_huge_ids_in_text_are_kept(tmp_path):
    text = f"user,item,rating\n-4,{2**80},5\n{2**63 - 1},7,4\n"
    log = read(write(tmp_path / "log.csv", text))
    assert log.user_ids.ids.to_list() == [-4, 2**63 - 1]
    assert log.item_ids.ids.to_list() == [str(2**80), "7"]


def test_columns_can_be_named_and_others_are_ignored(tmp_path):
    text = "rating,who,what,how_much\n9,u,i,3\n"
    log = read(write(tmp_path / "log.csv", text), user="who", item="what", target="how_much")
    assert log.to_frame().rows() == [("u", "i", 3.0)]


def test_columns_without_a_header_are_named_by_number(tmp_path):
    log = read(write(tmp_path / "log.csv", "5,u,i\n4,v,i\n"), user="2", item="3", target="1")
    assert log.to_frame().rows() == [("u", "i", 5.0), ("v", "i", 4.0)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2020-01-01", 1577836800_000000),
        ("2020-01-01T00:00:01", 1577836801_000000),
        ("2020-01-01 00:00:01.5", 1577836801_500000),
        ("1577836800", 1577836800),
        ("1577836800.7", 1577836800),
    ],
)
def test_times_in_text(tmp_path, written, expected):
    text = f"user,item,rating,date\nu,i,1,{written}\n"
    assert read(write(tmp_path / "log.csv", text)).timestamp.tolist() == [expected]


def test_times_in_tables():
    base = {"user": [1], "item": [1], "rating": [1.0]}
    for value in (date(2020, 1, 1), datetime(2020, 1, 1), "2020-01-01"):
        assert read({**base, "time": [value]}).timestamp.tolist() == [1577836800_000000]
    with pytest.raises(CelrecError, match="not a time"):
        read({**base, "time": [[1]]})


def test_a_column_of_missing_times_is_no_time_but_a_single_gap_is_an_error(tmp_path):
    base = {"user": [1, 2], "item": [1, 1], "rating": [1.0, 2.0]}
    assert read({**base, "time": pl.Series([None, None], dtype=pl.Int64)}).timestamp is None
    with pytest.raises(CelrecError, match="table, row 2: no timestamp"):
        read({**base, "time": [5, None]})
    log = read({**base, "time": [5, None]}, drop_invalid=True)
    assert (len(log), log.dropped) == (1, 1)
    with pytest.raises(CelrecError, match="line 3: no timestamp"):
        read(write(tmp_path / "log.csv", "user,item,rating,time\nu,i,1,5\nu,i,1,later\n"))


def test_repeated_rows_are_kept():
    assert len(read({"user": [1, 1, 1], "item": [2, 2, 2], "rating": [3.0, 3.0, 4.0]})) == 3


def test_one_user_one_item_and_equal_ratings_are_fine():
    log = read({"user": [1], "item": [2], "rating": [3.0]})
    assert (log.num_users, log.num_items) == (1, 1)


def test_features_are_aligned_with_the_dense_ids():
    items = pl.DataFrame({"item_id": ["z", "y", "x"], "genre": ["?", "Drama", "War"]})
    log = read(FRAME, item_features=items)
    assert log.item_features["genre"].to_list() == ["War", "Drama"]
    assert log.user_features is None
    with pytest.raises(CelrecError, match="'y' occurs twice"):
        read(FRAME, item_features=pl.concat([items, items[1:2]]))
    with pytest.raises(CelrecError, match="no column 'item_id'"):
        read(FRAME, item_features=items.rename({"item_id": "sku"}))


def test_like_uses_the_ids_of_another_log_and_leaves_them_alone():
    train = read(FRAME)
    test = read({"user": ["bob", "eve"], "item": ["x", "q"], "rating": [1, 2]}, like=train)
    assert test.user.tolist() == [1, UNSEEN]
    assert test.item.tolist() == [0, UNSEEN]
    assert (len(train.user_ids), test.num_users) == (2, 2)


BAD_TEXT = {
    "empty file": ("", "empty"),
    "blank file": ("\n\n", "empty"),
    "header only": ("user,item,rating\n", "no interactions"),
    "missing column": ("user,colour,rating\nu,red,1\n", "no item column among 'user', 'colour'"),
    "one column": ("user\nu\n", "one column only"),
    "text target": ("user,item,rating\nu,i,1\nu,i,good\n", "line 3: target 'good' is not a finite"),
    "missing target": ("user,item,rating\n\nu,i,1\nu,i\n", "line 4: target '' is not a finite"),
    "first row short": ("user,item,rating\n\nu,i\nu,i,1\n", "line 3: target '' is not a finite"),
    "NaN": ("user,item,rating\nu,i,NaN\n", "line 2: target 'NaN' is not a finite number"),
    "infinite": ("user,item,rating\nu,i,-inf\n", "line 2: target '-inf' is not a finite number"),
    "beyond float32": ("user,item,rating\nu,i,1e300\n", "line 2: target '1e300' is not a finite"),
    "missing user": ("user,item,rating\n,i,1\n", "line 2: no user id"),
    "quoted empty item": ('user,item,rating\nu,"",1\n', "line 2: no item id"),
    "too many fields": ("user,item,rating\nu,i,1\nu,i,1,9\n", "line 3: 4 fields where 3"),
    "after a quoted break": ('user,item,rating\n"u\n",i,1\nu,i,x\n', "line 4: target 'x'"),
    "two equal names": ("user,user,rating\nu,i,1\n", "two columns are named 'user'"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text_is_explained_with_its_line(tmp_path, name):
    text, message = BAD_TEXT[name]
    with pytest.raises(CelrecError) as caught:
        read(write(tmp_path / "log.csv", text))
    assert message in str(caught.value)
    assert str(tmp_path / "log.csv") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_line_is_right_far_into_a_large_and_compressed_file(tmp_path):
    lines = ["user,item,rating"] + [f"user{n},item{n % 7},{n % 5}" for n in range(400_000)]
    lines[312_345] = "user,item,broken"
    text = "\n".join(lines)
    write(tmp_path / "log.csv", text)
    write(tmp_path / "log.csv.gz", gzip.compress(text.encode(), 1))
    for name in ("log.csv", "log.csv.gz"):
        with pytest.raises(CelrecError, match="line 312346: target 'broken'"):
            read(tmp_path / name)


def test_a_bad_dat_row_is_explained_with_its_line(tmp_path):
    with pytest.raises(CelrecError, match="line 2: target 'x'"):
        read(write(tmp_path / "r.dat", "1::2::3::4\n1::2::x::4\n"))
    with pytest.raises(CelrecError, match="line 2: 5 fields where 4"):
        read(write(tmp_path / "r.dat", "1::2::3::4\n1::2::3::4::5\n"))


@pytest.mark.parametrize("column", ["user", "item", "rating"])
def test_missing_values_in_tables_are_explained_with_their_row(column):
    table = {"user": ["u", "v"], "item": ["i", "j"], "rating": [1.0, 2.0]}
    table[column] = [table[column][0], None]
    with pytest.raises(CelrecError, match="table, row 2: "):
        read(table)
    log = read(table, drop_invalid=True)
    assert (len(log), log.dropped) == (1, 1)


def test_invalid_rows_can_be_left_out_and_are_counted(tmp_path):
    text = "user,item,rating\nu,i,1\nu,i,x\n,i,2\nu,i,3,3\nv,j,inf\nw,k,5\n"
    log = read(write(tmp_path / "log.csv", text), drop_invalid=True)
    assert log.to_frame().rows() == [("u", "i", 1.0), ("w", "k", 5.0)]
    assert log.dropped == 4
    with pytest.raises(CelrecError, match="no interactions in it"):
        read(write(tmp_path / "log.csv", "user,item,rating\nu,i,x\n"), drop_invalid=True)


def test_text_that_is_not_utf8_is_explained_with_its_line(tmp_path):
    path = write(tmp_path / "log.csv", b"user,item,rating\nu,i,1\ncaf\xe9,i,1\n")
    with pytest.raises(CelrecError, match="line 3: not UTF-8"):
        read(path)


def test_a_quote_that_is_never_closed_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(text_source, "LONGEST_LINE", 1000)
    text = 'user,item,rating\nu,i,1\n"u,i,1\n' + "v,j,2\n" * 1000
    with pytest.raises(CelrecError, match="line 3"):
        read(write(tmp_path / "log.csv", text))


def test_damaged_archives_are_reported(tmp_path):
    whole = gzip.compress(csv_text().encode() * 1000)
    for damaged in (whole[:-20], whole[:40] + b"\0\0\0\0" + whole[44:]):
        with pytest.raises(CelrecError, match="damaged archive"):
            read(write(tmp_path / "log.csv.gz", damaged))
    with zipfile.ZipFile(tmp_path / "log.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("log.csv", csv_text() * 100)
    content = (tmp_path / "log.zip").read_bytes()
    for damaged in (content[: len(content) // 2], content[:60] + b"\xff" * 20 + content[80:]):
        with pytest.raises(CelrecError, match="damaged archive"):
            read(write(tmp_path / "broken.zip", damaged))


def test_archives_with_several_files_need_a_path(tmp_path):
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", csv_text())
        archive.writestr("b.csv", csv_text())
    with pytest.raises(CelrecError, match=r"which file .* a.csv, b.csv"):
        read(tmp_path / "two.zip")
    with pytest.raises(CelrecError, match="no such file in the archive"):
        read(tmp_path / "two.zip/c.csv")
    assert_is_rows(read(tmp_path / "two.zip/b.csv"))


def test_a_damaged_parquet_file_is_reported(tmp_path):
    FRAME.write_parquet(tmp_path / "log.parquet")
    content = (tmp_path / "log.parquet").read_bytes()
    with pytest.raises(CelrecError, match="damaged parquet"):
        read(write(tmp_path / "log.parquet", content[:-30]))


def test_missing_files_folders_and_other_things_are_reported(tmp_path):
    with pytest.raises(CelrecError, match="no such file"):
        read(tmp_path / "absent.csv")
    with pytest.raises(CelrecError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(CelrecError, match="expected a path or a polars"):
        read(42)
    with pytest.raises(CelrecError, match="source: cannot turn"):
        read({"user": [1, 2], "item": [1]})


def test_wrong_column_names_are_reported():
    with pytest.raises(CelrecError, match="no column 'sku' for the item; the columns are"):
        read(FRAME, item="sku")
    with pytest.raises(CelrecError, match="two roles"):
        read(FRAME, item="user_id")


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    seen = []
    path = write(tmp_path / "log.csv", csv_text())
    read(path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_pandas_table_without_arrow_says_what_is_needed():
    # In a process of its own, whose import system cannot find pyarrow.
    code = (
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, path=None, target=None: (\n"
        "    None if name.split('.')[0] == 'pyarrow' else find(name, path, target))\n"
        "import pandas, celrec\n"
        "frame = pandas.DataFrame({'user': ['a'], 'item': ['b'], 'rating': [1.0]})\n"
        "try: print(celrec.read(frame))\n"
        "except celrec.CelrecError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "source: pyarrow is needed to read this pandas table\n"


def test_like_holds_for_a_log_without_rows():
    known = read(FRAME)[:0]
    events = read({"user": ["bob", "eve"], "item": ["x", "q"], "rating": [1, 2]}, like=known)
    assert events.user.tolist() == [1, UNSEEN]
    assert len(known.user_ids) == 2


# Logs that tell only what happened.


def bare(tmp_path, name):
    frame = pl.DataFrame({"uid": ["ann", "bob", "ann"], "movie": [7, 7, 9], "time": [3, 1, 2]})
    path = tmp_path / name
    if name.endswith(".csv"):
        frame.write_csv(path)
    elif name.endswith(".parquet"):
        frame.write_parquet(path)
    else:
        path.write_text("ann\t7\nbob\t7\nann\t9\n")
    return path if "." in name else frame


@pytest.mark.parametrize("name", ["log.csv", "log.parquet", "log.tsv", "table"])
def test_without_a_target_all_targets_are_1(tmp_path, name):
    log = read(bare(tmp_path, name))
    assert log.target.tolist() == [1.0, 1.0, 1.0]
    assert log.target.dtype == np.float32
    assert log.user_ids.ids.to_list() == ["ann", "bob"]
    assert log.item_ids.decode(log.item).to_list() == [7, 7, 9]
    if name != "log.tsv":
        assert log.timestamp.tolist() == [3, 1, 2]


@pytest.mark.parametrize("name", ["log.csv", "log.parquet", "log.tsv", "table"])
def test_a_target_can_be_asked_for(tmp_path, name):
    source = bare(tmp_path, name)
    with pytest.raises(CelrecError, match=r"no target column among .*name it with target="):
        read(source, need_target=True)
    with pytest.raises(CelrecError, match="no column 'stars' for the target"):
        read(source, target="stars")


def test_empty_lines_are_no_events(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item\nann,7\n\nbob,7\n,\n")
    assert len(read(path)) == 2
