import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from celrec.streams.events import ParsedRows, Rejected


def taken_of(good):
    """What came of rows of which some were good."""
    bad = [row for row, fine in enumerate(good) if not fine]
    frame = pl.DataFrame({"user": [row for row, fine in enumerate(good) if fine]})
    return ParsedRows(frame, tuple(Rejected(str(row), "", "bad") for row in bad), bad)


@given(st.lists(st.booleans()), st.integers(1, 9))
def test_batches_hold_the_rows_that_stood_there(good, size):
    taken = taken_of(good)
    assert len(taken) == len(good)
    batches = list(taken.batches(size))
    starts = range(0, max(len(good), 1), size)
    assert len(batches) == len(starts)
    for start, batch in zip(starts, batches, strict=True):
        rows = range(start, min(start + size, len(good)))
        assert batch.frame["user"].to_list() == [row for row in rows if good[row]]
        assert [int(event.place) for event in batch.rejected] == [r for r in rows if not good[r]]
        assert list(batch.places) == [row - start for row in rows if not good[row]]
