import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from celrec import UNSEEN, Histories, read
from tests.data.logs import logs


def slow_history(log, user, moment, length):
    """The obvious history: sort what the user did earlier, take the end."""
    times = range(len(log)) if log.timestamp is None else log.timestamp
    earlier = [
        (time, row)
        for row, time in enumerate(times)
        if log.user[row] == user and (moment is None or time < moment)
    ]
    items = [int(log.item[row]) for _, row in sorted(earlier)][-length:] if length else []
    return [UNSEEN] * (length - len(items)) + items


@given(logs(), st.integers(0, 6))
def test_rows_of_the_log_agree_with_the_obvious_way(log, length):
    rows = np.arange(len(log))
    times = rows if log.timestamp is None else log.timestamp
    expected = [slow_history(log, log.user[r], times[r], length) for r in rows]
    assert Histories(log).at_rows(rows, length).tolist() == expected


@given(logs(), logs(), st.integers(1, 6))
def test_events_from_outside_agree_with_the_obvious_way(log, others, length):
    events = read(others.to_frame(), like=log)
    timed = log.timestamp is not None and events.timestamp is not None
    expected = [
        slow_history(log, events.user[n], events.timestamp[n] if timed else None, length)
        if events.user[n] >= 0
        else [UNSEEN] * length
        for n in range(len(events))
    ]
    assert Histories(log).before(events, length).tolist() == expected


@given(logs(timed=True), st.integers(1, 4))
def test_neither_the_event_nor_its_moment_leaks(log, length):
    histories = Histories(log).at_rows(np.arange(len(log)), length)
    for row, history in enumerate(histories):
        same_moment = (log.user == log.user[row]) & (log.timestamp >= log.timestamp[row])
        earlier = (log.user == log.user[row]) & ~same_moment
        assert set(history.tolist()) - {UNSEEN} <= set(log.item[earlier].tolist())


def test_rows_may_be_asked_for_in_any_order_and_number():
    log = read({"user": [1, 1, 1], "item": [5, 6, 7], "rating": [1.0] * 3})
    histories = Histories(log)
    assert histories.at_rows(np.array([2, 0, 2]), 2).tolist() == [[0, 1], [-1, -1], [0, 1]]
    assert histories.at_rows(np.array([], np.int64), 2).shape == (0, 2)


def test_users_without_a_past_have_an_empty_history():
    log = read({"user": [1], "item": [5], "rating": [1.0], "time": [3]})
    unknown = read({"user": [2], "item": [5], "rating": [1.0], "time": [9]}, like=log)
    assert Histories(log).before(unknown, 2).tolist() == [[-1, -1]]
