import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from celrec.reporting.frequency import Frequency


def holds(label, count):
    """Whether a class as it is called holds a number of interactions."""
    if label.startswith(">"):
        return count > int(label[1:].replace(",", ""))
    ends = [int(end.replace(",", "")) for end in label.split("–")]
    return ends[0] <= count <= ends[-1]


@given(
    st.lists(st.integers(0, 30_000), min_size=1, max_size=20),
    st.lists(st.integers(-1, 19), max_size=30),
)
def test_each_id_and_each_row_is_in_the_class_that_is_written_on_it(counts, rows):
    rows = [row for row in rows if row < len(counts)]
    frequency = Frequency.of(np.array(counts), np.array(rows, np.int64))
    for number, label in enumerate(frequency.labels):
        of_rows = [holds(label, counts[row] if row >= 0 else 0) for row in rows]
        assert frequency.ids[number] == sum(holds(label, count) for count in counts)
        assert frequency.rows[number] == sum(of_rows)
        assert (frequency.class_of_row == number).tolist() == of_rows
    assert sum(frequency.ids) == len(counts)
    assert sum(frequency.rows) == len(rows)
