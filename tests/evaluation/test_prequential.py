import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.errors import CelrecError
from celrec.evaluation.prequential import SLICES, Measured, Prequential
from celrec.online.trainer import Learned
from celrec.runtime.state_file import load_state, save_state


def slow_mse(events):
    return sum((p - t) ** 2 for p, t, *_ in events) / len(events) if events else None


def slow_log_loss(events):
    if not events or any(t not in (0, 1) or not 0 <= p <= 1 for p, t, *_ in events):
        return None
    chances = [p if t == 1 else 1 - p for p, t, *_ in events]
    return sum(-math.log(max(chance, 1e-7)) for chance in chances) / len(events)


def slow_auc(events):
    """Over all pairs of a 1 and a 0; None where a target is another, or there are no pairs."""
    if any(t not in (0, 1) for _, t, *_ in events):
        return None
    ones, zeros = ([p for p, t, *_ in events if t == wanted] for wanted in (1, 0))
    pairs = [(one > zero) + (one == zero) / 2 for one in ones for zero in zeros]
    return sum(pairs) / len(pairs) if pairs else None


def slice_of(events, name, cold):
    chosen = {
        "all": lambda *_: True,
        "cold": lambda user, item: user <= cold or item <= cold,
        "warm": lambda user, item: user > cold and item > cold,
    }
    return [event for event in events if chosen[name](*event[2:])]


def slow_overall_auc(events, name, window, cold):
    total = weight = 0
    for start in range(0, len(events), window):
        part = slice_of(events[start : start + window], name, cold)
        if any(t not in (0, 1) for _, t, *_ in part):
            return None
        if (auc := slow_auc(part)) is not None:
            total, weight = total + len(part) * auc, weight + len(part)
    return total / weight if weight else None


def learned(events):
    columns = list(zip(*events, strict=True)) or [(), (), (), ()]
    kinds = (np.float32, np.float32, np.int64, np.int64)
    return Learned(*(np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)))


def assert_same(measured, expected):
    assert measured.events == expected.events
    for one, other in zip(measured[1:], expected[1:], strict=True):
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other, rel=1e-9, abs=1e-12)


counts = st.integers(0, 12)
halves = st.integers(0, 64).map(lambda n: n / 64)  # exact in any precision
clicks = st.tuples(halves, st.sampled_from([0.0, 1.0]), counts, counts)
scores = st.tuples(halves.map(lambda n: 4 * n - 1), st.sampled_from([0.0, 1.0]), counts, counts)
ratings = st.tuples(halves, st.sampled_from([1.0, 2.5, 5.0]), counts, counts)
streams = st.one_of(
    *(st.lists(st.lists(kind, max_size=30), max_size=6) for kind in (clicks, scores, ratings))
)


@given(batches=streams, window=st.integers(1, 40), cold=st.integers(0, 6))
@settings(max_examples=150)
def test_windows_and_the_whole_are_as_the_slow_way_has_them(batches, window, cold):
    metrics = Prequential(window, cold)
    found = [one for batch in batches for one in metrics.add(learned(batch))]
    events = [event for batch in batches for event in batch]
    assert [one.end for one in found] == list(range(window, len(events) + 1, window))
    assert metrics.events == len(events)
    for one in found:
        for name in SLICES:
            part = slice_of(events[one.end - window : one.end], name, cold)
            expected = Measured(len(part), slow_mse(part), slow_log_loss(part), slow_auc(part))
            assert_same(one.measured[name], expected)
    for name, measured in metrics.overall().items():
        part = slice_of(events, name, cold)
        auc = slow_overall_auc(events, name, window, cold)
        assert_same(measured, Measured(len(part), slow_mse(part), slow_log_loss(part), auc))


@given(batches=streams, window=st.integers(1, 40))
@settings(max_examples=40)
def test_stopped_anywhere_it_goes_on_the_same(batches, window, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "metrics"
    whole, parts = Prequential(window, 3), Prequential(window, 3)
    for batch in batches:
        found = whole.add(learned(batch))
        assert parts.add(learned(batch)) == found
        save_state(path, parts.state_dict())
        parts = Prequential()
        parts.load_state_dict(load_state(path))
        assert parts.overall() == whole.overall()
        assert parts.events == whole.events


def test_what_is_kept_does_not_grow_with_the_stream():
    metrics = Prequential(window=100)
    for number in range(50):
        metrics.add(learned([(0.5, number % 2, 9, 9)] * 77))
        state = metrics.state_dict()
        assert all(len(values) < 100 for values in state["open"].values())
    assert metrics.overall()["all"].events == 50 * 77


def test_a_sure_and_wrong_prediction_costs_much_but_not_everything():
    metrics = Prequential()
    metrics.add(learned([(1.0, 0.0, 9, 9)]))
    assert metrics.overall()["all"].log_loss == pytest.approx(-math.log(1e-7))


def test_nothing_measured_is_told_as_nothing():
    assert set(Prequential().overall().values()) == {Measured(0, None, None, None)}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"window": 0}, "window must be at least 1 event, not 0"),
        ({"cold": -1}, "cold must not be negative, not -1"),
    ],
)
def test_mistakes_are_told(options, told):
    with pytest.raises(CelrecError, match=told):
        Prequential(**options)
