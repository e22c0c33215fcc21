import polars as pl
import pytest

from celrec.data.columns import Columns
from celrec.streams.fields import json_objects
from celrec.streams.object_intake import ObjectIntake

GOOD = {"user": 1, "item": "a", "rating": 5}


def take(events, roles=None, after=None):
    intake = ObjectIntake(roles or Columns(), after or {})
    taken = intake.take(events, {}, lambda row: (str(row), ""))
    return intake, taken.frame, {int(event.place): event.reason for event in taken.rejected}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"user": None}, "no field 'user' (user)"),
        ({"user": ""}, "no user id"),
        ({"user": True}, "user id True is neither an integer nor a text"),
        ({"user": 1.5}, "user id 1.5 is neither an integer nor a text"),
        ({"item": [1]}, "item id [1] is neither an integer nor a text"),
        ({"item": "\ud800"}, "item id '\\ud800' is neither an integer nor a text"),
        ({"rating": float("nan")}, "target nan is not a finite number"),
        ({"rating": "5 stars"}, "target '5 stars' is not a finite number"),
        ({"rating": 1e39}, "target 1e+39 is not a finite number"),
        ({"rating": 10**400}, "target '100000000000000000000000000...0000000000000000000000000"),
        ({"rating": {}}, "target {} is not a finite number"),
    ],
)
def test_a_malformed_event_is_reported_and_leaves_the_others_alone(change, reason):
    _, frame, rejected = take([GOOD, {**GOOD, **change}, GOOD])
    assert list(rejected) == [1]
    assert rejected[1].startswith(reason[:40])
    assert frame["rating" if "rating" in frame.columns else "target"].to_list() == [5.0, 5.0]
    assert set(frame["user"].cast(pl.String)) == {"1"}


def test_ids_stay_what_they_are_and_become_text_only_beside_text():
    for ids, expected in (
        ([1, 2], [1, 2]),
        (["1", "02"], ["1", "02"]),
        ([1, "x"], ["1", "x"]),
        ([1.0, 2], ["1", "2"]),
        ([1.0, 2.0], [1, 2]),
        ([1, 2**63], ["1", "9223372036854775808"]),
    ):
        _, frame, rejected = take([{**GOOD, "user": user} for user in ids])
        assert frame["user"].to_list() == expected
        assert not rejected


def test_targets_may_be_numbers_truths_or_texts():
    _, frame, rejected = take([{**GOOD, "rating": r} for r in (1, 2.5, True, "3.5")])
    assert frame["target"].to_list() == [1.0, 2.5, 1.0, 3.5]
    assert frame["target"].dtype == pl.Float32
    assert not rejected


def test_the_first_valid_event_tells_the_keys_and_the_offset_remembers_them():
    heartbeat, named = {"status": "up"}, {"uid": 1, "asin": "a", "stars": 4, "ts": 9}
    broken = {**named, "stars": "?"}
    intake, frame, rejected = take([heartbeat, broken, named, {**named, "user": 7}, GOOD])
    assert frame.rows() == [(1, "a", 4.0, 9), (1, "a", 4.0, 9)]
    assert rejected[0].startswith("event: no user column among 'status'")
    assert rejected[1] == "target '?' is not a finite number"
    assert rejected[4] == "no field 'uid' (user)"
    both = {**GOOD, **named}
    assert take([both], after=intake.state())[1].rows() == [(1, "a", 4.0, 9)]
    assert take([both], Columns(user="user"), intake.state())[1].columns[0] == "user"
    assert take([heartbeat])[0].state() == {"columns": None, "dates": None}


def test_a_key_that_is_null_in_the_first_event_plays_no_role():
    _, frame, rejected = take([{**GOOD, "ts": None}, {**GOOD, "ts": 3}])
    assert frame.columns == ["user", "item", "target"]
    assert not rejected


def test_further_ids_may_be_missing_or_unusable():
    events = [GOOD, {**GOOD, "shop": 3}, {**GOOD, "shop": ["x"]}]
    _, frame, rejected = take(events, Columns(more=("shop",)))
    assert frame["ids:shop"].to_list() == [None, "3", None]
    assert not rejected


def test_values_that_are_only_json_side_by_side_are_reported_apart():
    values = [b'{"a": 1},{"a": 2}', b'{"a": [1', b"2]}", b'{"a": 3}', b"[" * 100_000, b"\xff", b"1"]
    objects, problems = json_objects(values)
    assert objects == [{}, {}, {}, {"a": 3}, {}, {}, {}]
    assert set(problems) == {0, 1, 2, 4, 5, 6}
    assert problems[5] == "not UTF-8 text"
    assert json_objects([b'{"a": 1},{"a": 2},{"a": 3}']) == ([{}], {0: "not JSON"})
