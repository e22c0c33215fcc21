import json
import time

import pytest

from celrec.config.plan import Plan
from celrec.errors import CelrecError
from celrec.service.events import EventWriter
from celrec.service.messages import Event

RATINGS = Plan(embedding="cel-lite", model="mf")
CLICKS = Plan(embedding="cel-lite", model="mf", loss="cross-entropy")
LIKES = Plan(embedding="cel-lite", model="mf", loss="cross-entropy", positive=4)


def line(plan, known=(), first=False, **event):
    written = EventWriter(plan, known).lines([Event(user="a", item=1, **event)], first=first)
    return json.loads(written)


def test_an_event_without_a_time_gets_that_of_its_arrival_in_microseconds():
    before = time.time() * 1e6
    assert before - 1e6 < line(RATINGS, target=1)["timestamp"] < before + 60e6
    assert line(RATINGS, target=1, timestamp=-5)["timestamp"] == -5


@pytest.mark.parametrize(
    ("plan", "target", "expected"),
    [(CLICKS, None, 1), (CLICKS, 0, 0), (LIKES, None, 4), (LIKES, 2.5, 2.5), (RATINGS, -3, -3)],
)
def test_targets_are_what_the_run_learns(plan, target, expected):
    assert line(plan, target=target)["target"] == expected
    assert EventWriter(plan).needs_target is (plan is RATINGS)


def test_what_the_run_cannot_learn_is_refused():
    with pytest.raises(CelrecError, match=r"events\.0\.target: is missing"):
        line(RATINGS)
    with pytest.raises(CelrecError, match=r"must be 0 or 1 for this run, not 0\.5"):
        line(CLICKS, target=0.5)
    nmf = Plan(embedding="cel-lite", model="nmf")
    with pytest.raises(CelrecError, match="must be positive at first"):
        line(nmf, target=0, first=True)
    assert line(nmf, target=0)["target"] == 0


def test_further_ids_are_those_of_the_run():
    assert line(RATINGS, ["shop"], target=1, columns={"shop": 7})["ids:shop"] == 7
    with pytest.raises(CelrecError, match=r"'shop' is not a column of this run; it has none"):
        line(RATINGS, target=1, columns={"shop": 7})


def test_a_line_is_one_line_whatever_an_id_holds():
    for user in ("a\nb", "a\r\u2028\u0085b", "é", '"', "\\"):
        written = EventWriter(RATINGS).lines([Event(user=user, item=1, target=1)])
        assert written.count(b"\n") == 1
        assert len(written.splitlines()) == 1
        assert json.loads(written)["user"] == user
