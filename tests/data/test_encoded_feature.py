import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec.data.interactions import EncodedFeature

labels = st.one_of(st.none(), st.text("abc", max_size=2))


@given(st.lists(st.one_of(st.none(), st.lists(labels, max_size=4)), min_size=1, max_size=8))
def test_numbers_stand_for_the_distinct_values_of_each_id(rows):
    table = pl.DataFrame({"x": pl.Series(rows, dtype=pl.List(pl.String))})
    known = sorted({label for row in rows for label in row or [] if label is not None})
    features = EncodedFeature.all_of(table)
    if not known:
        assert features == []
        return
    [feature] = features
    assert (feature.name, feature.size) == ("x", len(known))
    for row, values in zip(rows, feature.values.tolist(), strict=True):
        mine = list(dict.fromkeys(label for label in row or [] if label is not None))
        padding = [-1] * (len(values) - len(mine))
        assert values == [known.index(label) for label in mine] + padding


@pytest.mark.parametrize("values", [["F", "M", None, "F"], [3, 1, None, 3]])
def test_a_single_value_is_a_list_of_one(values):
    [feature] = EncodedFeature.all_of(pl.DataFrame({"x": values}))
    known = sorted({value for value in values if value is not None})
    assert feature.values.tolist() == [[-1 if v is None else known.index(v)] for v in values]


def test_columns_with_many_values_or_none_are_left_out():
    table = pl.DataFrame(
        {"title": [f"t{n}" for n in range(30)], "kind": ["a", "b"] * 15, "empty": [None] * 30}
    )
    assert [feature.name for feature in EncodedFeature.all_of(table, most=10)] == ["kind"]
    assert EncodedFeature.all_of(None) == []
