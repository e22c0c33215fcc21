import gzip
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import UNSEEN, CelrecError, IdMap, Split, read
from celrec.data.interactions import IdColumn

ROWS = {
    "user": ["ann", "bob", "ann", "eve"],
    "item": ["x", "y", "y", "x"],
    "rating": [5.0, 3.5, 1.0, 2.0],
    "time": [10, 11, 12, 13],
    "shop": ["north", None, "south", "north"],
    "word": [7, 8, 7, None],
}


def text():
    lines = [
        ",".join("" if v is None else str(v) for v in row)
        for row in zip(*ROWS.values(), strict=True)
    ]
    return "\n".join([",".join(ROWS), *lines]) + "\n"


@st.composite
def logs_with_shops(draw):
    rows = draw(st.integers(1, 40))

    def column(values):
        return draw(st.lists(values, min_size=rows, max_size=rows))

    few = st.integers(0, 5)
    shop = st.one_of(st.none(), st.sampled_from(["", "north", "south", "7th"]))
    table = {"user": column(few), "item": column(few), "rating": column(few)}
    table |= {"shop": column(shop), "word": column(st.one_of(st.none(), few))}
    if draw(st.booleans()):
        table["time"] = column(few)
    return table


def known(values):
    """What counts as an id, as a log tells it."""
    return [None if value in (None, "") else value for value in values]


# Reading.


@pytest.mark.parametrize("source", ["csv", "gzip", "parquet", "table", "lazy"])
def test_further_columns_are_read_from_everything(tmp_path, source):
    frame, path = pl.DataFrame(ROWS), tmp_path / "log"
    if source == "csv":
        path.write_text(text())
    elif source == "gzip":
        path.write_bytes(gzip.compress(text().encode()))
    elif source == "parquet":
        frame.write_parquet(path)
    given_source = {"table": frame, "lazy": frame.lazy()}.get(source, path)
    log = read(given_source, columns=["shop", "word"])
    assert list(log.columns) == ["shop", "word"]
    shop, word = log.columns["shop"], log.columns["word"]
    assert shop.values.tolist() == [0, UNSEEN, 1, 0]
    assert shop.values.dtype == np.int32
    assert shop.ids.ids.to_list() == ["north", "south"]
    assert word.values.tolist() == [0, 1, 0, UNSEEN]
    assert word.ids.ids.to_list() == [7, 8]  # integers from text, too
    assert shop.counts.tolist() == [2, 1]
    assert len(log) == 4
    assert log.dropped == 0


@settings(max_examples=25)
@given(logs_with_shops())
def test_nulls_and_empty_strings_are_unseen_and_all_else_comes_back(table):
    log = read(table, columns=["shop", "word"])
    shop, word = log.columns["shop"], log.columns["word"]
    assert shop.ids.decode(shop.values).to_list() == known(table["shop"])
    assert word.ids.decode(word.values).to_list() == table["word"]
    frame = log.to_frame()
    assert frame["shop"].to_list() == known(table["shop"])
    assert frame["word"].to_list() == table["word"]
    for column, values in ((shop, known(table["shop"])), (word, table["word"])):
        names = column.ids.ids.to_list()
        assert column.counts.tolist() == [values.count(name) for name in names]


def test_without_asking_there_are_no_further_columns():
    assert read(ROWS).columns == {}
    assert read(ROWS).to_frame().columns == ["user", "item", "target", "timestamp"]


def test_a_column_of_nothing_has_no_ids():
    log = read({**ROWS, "shop": [None] * 4}, columns=["shop"])
    assert log.columns["shop"].values.tolist() == [UNSEEN] * 4
    assert len(log.columns["shop"].ids) == len(log.columns["shop"].counts) == 0
    assert log.to_frame()["shop"].to_list() == [None] * 4


def test_rows_that_are_left_out_leave_their_ids_in_further_columns_too(tmp_path):
    odd = {**ROWS, "rating": [5.0, None, 1.0, 2.0], "time": [10, 11, None, 13]}
    log = read(odd, columns=["shop", "word"], drop_invalid=True)
    assert (len(log), log.dropped) == (2, 2)
    assert log.to_frame()["shop"].to_list() == ["north", "north"]
    assert log.to_frame()["word"].to_list() == [7, None]
    lines = text().splitlines()
    lines[2] = lines[2].replace("3.5", "good")
    (tmp_path / "log.csv").write_text("\n".join([*lines, "too,many,1,2,3,4,5,6"]))
    log = read(tmp_path / "log.csv", columns=["shop"], drop_invalid=True)
    assert (len(log), log.dropped) == (3, 2)
    assert log.to_frame()["shop"].to_list() == ["north", "south", "north"]


@settings(max_examples=25)
@given(logs_with_shops(), logs_with_shops())
def test_like_uses_the_ids_of_another_log_and_leaves_them_alone(train, test):
    first = read(train, columns=["shop", "word"])
    before = first.columns["shop"].ids.ids.to_list()
    second = read(test, columns=["shop", "word"], like=first)
    for name in ("shop", "word"):
        column = second.columns[name]
        seen = set(first.columns[name].ids.ids.to_list())
        expected = [value if value in seen else None for value in known(test[name])]
        assert column.ids.decode(column.values).to_list() == expected
        assert len(column.counts) == len(seen)
    assert first.columns["shop"].ids.ids.to_list() == before
    assert read(test, columns=["word"], like=first).columns.keys() == {"word"}


def test_like_must_know_the_column():
    with pytest.raises(CelrecError, match="'shop' is none of those that `like` was read with: wo"):
        read(ROWS, columns=["shop"], like=read(ROWS, columns=["word"]))
    with pytest.raises(CelrecError, match=r"'shop' is none of those .* with: none"):
        read(ROWS, columns=["shop"], like=read(ROWS))


# Names.


def test_a_column_that_is_not_there_is_reported(tmp_path):
    (tmp_path / "log.csv").write_text(text())
    for source in (ROWS, tmp_path / "log.csv"):
        with pytest.raises(CelrecError, match="no column 'brand'; the columns are 'user', 'item'"):
            read(source, columns=["shop", "brand"])


@pytest.mark.parametrize("columns", [["user"], ["time"], ["shop", "shop"]])
def test_one_column_has_one_role(columns):
    with pytest.raises(CelrecError, match="one column is given for two roles"):
        read(ROWS, columns=columns)


@pytest.mark.parametrize("name", ["user", "item", "target", "timestamp"])
def test_no_further_column_is_called_as_those_of_every_log(name):
    roles = {"user": "who", "item": "what", "target": "stars", "timestamp": "when"}
    table = {"who": [1, 2], "what": [5, 6], "stars": [3.0, 4.0], "when": [1, 2], name: ["a", "b"]}
    with pytest.raises(CelrecError, match=f"every log has its own '{name}'; rename this one"):
        read(table, **roles, columns=[name])


def test_a_column_may_be_called_as_readers_call_theirs():
    table = {**ROWS, "ids:shop": ["a", "b", "a", "b"]}
    log = read(table, columns=["shop", "ids:shop"])
    assert log.to_frame()["ids:shop"].to_list() == ["a", "b", "a", "b"]
    assert log.to_frame()["shop"].to_list() == ROWS["shop"]


# Parts of a log.


@settings(max_examples=25)
@given(logs_with_shops(), st.data())
def test_the_ids_of_some_rows_are_chosen_as_numpy_does(table, data):
    log = read(table, columns=["shop", "word"])
    start, stop = data.draw(st.integers(0, len(log))), data.draw(st.integers(0, len(log)))
    rows = np.array(data.draw(st.lists(st.integers(0, len(log) - 1))), np.int64)
    for chosen in (slice(start, stop), rows, log.target > 2):
        part = log[chosen]
        for name, column in part.columns.items():
            assert column.values.tolist() == log.columns[name].values[chosen].tolist()
            assert column.ids is log.columns[name].ids
        compact = part.compact()
        assert compact.to_frame().equals(part.to_frame())
        for column in compact.columns.values():
            assert (column.counts > 0).all()


@settings(max_examples=25)
@given(logs_with_shops(), st.integers(0, 50))
def test_what_may_be_learned_from_holds_the_columns_of_both_parts(table, seed):
    log = read(table, columns=["shop", "word"])
    split = Split.random(log, test=0.3, valid=0.3, seed=seed)
    both = split.train_and_valid()
    for name, column in both.columns.items():
        parts = [part.columns[name].values.tolist() for part in (split.train, split.valid)]
        assert column.values.tolist() == parts[0] + parts[1]
        assert column.ids is log.columns[name].ids


def test_rows_with_unseen_users_or_items_go_with_their_columns():
    log = read(ROWS, columns=["shop"])
    strange = replace(log, user=np.array([0, -1, 0, 1], np.int32))
    assert strange.seen().columns["shop"].values.tolist() == [0, 1, 0]


def test_columns_cannot_be_changed_and_leave_the_callers_array_alone():
    values = np.array([0, -1], np.int64)
    column = IdColumn(values, IdMap(["a"]))
    with pytest.raises(ValueError, match="read-only"):
        column.values[0] = 0
    values[0] = -1
    assert column.values.dtype == np.int32


def test_a_column_of_another_length_is_reported():
    log = read(ROWS, columns=["shop"])
    with pytest.raises(CelrecError, match=r"column 'shop' has shape \(3,\), but user has \(4,\)"):
        replace(log, columns={"shop": log.columns["shop"][:3]})
