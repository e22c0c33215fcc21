from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from celrec import read
from celrec.streams.intake import as_times

DATES = {
    "2020-01-02": datetime(2020, 1, 2),
    "2020/01/02": datetime(2020, 1, 2),
    "02/01/2020": datetime(2020, 1, 2),
    "2020-01-02 03:04": datetime(2020, 1, 2, 3, 4),
    "2020-01-02T03:04:05": datetime(2020, 1, 2, 3, 4, 5),
    "2020-01-02T03:04:05.25": datetime(2020, 1, 2, 3, 4, 5, 250_000),
    "2020-01-02T03:04:05Z": datetime(2020, 1, 2, 3, 4, 5),
    "2020-01-02 03:04:05.5+02:00": datetime(2020, 1, 2, 1, 4, 5, 500_000),
}


def times(values, dates=None):
    series = values if isinstance(values, pl.Series) else pl.Series(values)
    found, dates = as_times(series, np.ones(len(series), bool), dates)
    return found.to_list(), dates


def microseconds(moment):
    return round(moment.replace(tzinfo=UTC).timestamp() * 1e6)


def test_dates_of_all_forms_are_read_beside_each_other_and_beside_nonsense():
    found, dates = times(["nonsense", *DATES, None])
    assert found == [None, *map(microseconds, DATES.values()), None]
    assert dates


@pytest.mark.parametrize("text", [text for text in DATES if text[-1] != "Z" and "+" not in text])
def test_a_date_is_what_the_reader_of_logs_takes_it_for(text):
    log = read({"user": [1], "item": [1], "rating": [1.0], "time": [text]})
    assert times([text])[0] == log.timestamp.tolist()


def test_the_first_time_decides_whether_they_are_numbers_or_dates():
    assert times(["x", "7", "2020-01-02", "8.9"]) == ([None, 7, None, 8], False)
    assert times(["2020-01-02", "7"], dates=False) == ([None, 7], False)
    assert times([7, 8], dates=True) == ([None, None], True)
    assert times([7.5, float("nan")]) == ([7, None], False)
    assert times([None, None]) == ([None, None], None)
    assert times([True]) == ([None], None)
    assert times([datetime(1970, 1, 1, 0, 0, 1)]) == ([1_000_000], True)


def test_a_row_that_is_bad_anyhow_does_not_decide():
    found, dates = as_times(pl.Series(["2020-01-02", "7"]), np.array([False, True]), None)
    assert (found.to_list(), dates) == ([None, 7], False)
