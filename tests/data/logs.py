"""Small random logs for property tests."""

import polars as pl
from hypothesis import strategies as st

from celrec import read


@st.composite
def logs(draw, min_rows=1, timed=None):
    """A log of up to 60 rows with few users, items and moments, so that all of them repeat."""
    rows = draw(st.integers(min_rows, 60))

    def column(largest):
        return draw(st.lists(st.integers(0, largest), min_size=rows, max_size=rows))

    table = {"user": column(6), "item": column(8), "rating": column(5)}
    if draw(st.booleans()) if timed is None else timed:
        table["time"] = column(10)
    return read(pl.DataFrame(table))
