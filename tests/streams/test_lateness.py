import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.streams.events import Lateness


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(-5, 5), max_size=6), max_size=6))
def test_late_rows_are_counted_as_the_obvious_way_does(batches):
    lateness = Lateness()
    for times in batches:
        lateness = Lateness.after(lateness.state())
        lateness.add(pl.DataFrame({"timestamp": times}, schema={"timestamp": pl.Int64}))
    times = [time for batch in batches for time in batch]
    late = sum(time < max(times[:place], default=time) for place, time in enumerate(times))
    assert (lateness.count, lateness.latest) == (late, max(times, default=None))
