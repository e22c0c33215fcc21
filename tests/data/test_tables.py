import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from celrec.data.columns import TableKind, as_polars, with_column
from celrec.errors import CelrecError

FRAME = pl.DataFrame({"id": ["a", "b"], "n": [1, 2]})
KINDS = {
    TableKind.POLARS: FRAME,
    TableKind.LAZY: FRAME.lazy(),
    TableKind.PANDAS: FRAME.to_pandas(),
    TableKind.ARROW: FRAME.to_arrow(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_goes_there_and_back(kind):
    assert TableKind.of(KINDS[kind]) is kind
    made = kind.made(FRAME)
    assert type(made) is type(KINDS[kind])
    assert as_polars(made, "table").lazy().collect().equals(FRAME)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_is_added_or_replaced(kind):
    for name in ("more", "n"):
        table = with_column(KINDS[kind], name, pl.Series([0.5, 1.5]))
        assert type(table) is type(KINDS[kind])
        expected = FRAME.with_columns(pl.Series(name, [0.5, 1.5]))
        assert as_polars(table, "table").lazy().collect().equals(expected)
    assert as_polars(KINDS[kind], "table").lazy().collect().equals(FRAME)  # as it was


def test_columns_in_a_dict_stay_one():
    message = with_column({"id": ["a", "b"]}, "more", pl.Series([1, 2]))
    assert message == {"id": ["a", "b"], "more": [1, 2]}


def test_anything_else_is_answered_in_polars():
    for other in ("path.csv", {"a": [1]}, 3, None):
        assert TableKind.of(other) is TableKind.POLARS


@pytest.mark.parametrize("table", [3, None, [1, 2], pd.Series([1])])
def test_what_is_no_table_is_reported(table):
    with pytest.raises(CelrecError, match="pairs: expected a path or a polars"):
        as_polars(table, "pairs")


def test_columns_of_other_lengths_are_reported_in_one_line():
    with pytest.raises(CelrecError, match="pairs: cannot turn this table into columns") as error:
        as_polars({"a": [1], "b": [1, 2]}, "pairs")
    assert "\n" not in str(error.value)
    assert isinstance(KINDS[TableKind.ARROW], pa.Table)
