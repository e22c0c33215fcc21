import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted
from reproduce.conversion_stream import ConversionStream, _noise
from reproduce.planted_conversions import planted_conversions

SIZES = {"users": 40, "items": 25, "user_clusters": 5, "item_clusters": 4}


def slow_noise(key):
    """The sum of four numbers from 0 to 1, scaled to variance 1."""
    bits = (key + 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    bits ^= bits >> 31
    parts = [(bits >> shift) % 2**16 / 65535 for shift in (0, 16, 32, 48)]
    return (sum(parts) - 2) * math.sqrt(3)


def slow_conversions(stream):
    """The targets of all events, one after the other."""
    planted = Planted(
        rows=stream.events,
        users=stream.users,
        items=stream.items,
        user_clusters=stream.user_clusters,
        item_clusters=stream.item_clusters,
        user_skew=stream.user_skew,
        item_skew=stream.item_skew,
        late=stream.late,
        seed=stream.seed,
    )
    rng = np.random.default_rng(stream.seed)
    spread = [stream.biases, *[stream.vectors] * stream.dim]
    rows = []
    for count in (stream.user_clusters, stream.item_clusters):
        biases = rng.normal(scale=stream.biases, size=count).tolist()
        vectors = rng.normal(scale=stream.vectors, size=(count, stream.dim)).tolist()
        rows.append([[bias, *vector] for bias, vector in zip(biases, vectors, strict=True)])
    clusters = planted.user_cluster.tolist(), planted.item_cluster.tolist()
    targets = []
    for event in pl.concat(planted.chunks()).iter_rows(named=True):
        values = []
        for side, one in enumerate((event["user"], event["item"])):
            first = (stream.seed << 40) + side
            values.append(
                [
                    value
                    + stream.own * scale * slow_noise(first + 2 * (one * (stream.dim + 1) + d))
                    for d, (value, scale) in enumerate(
                        zip(rows[side][clusters[side][one]], spread, strict=True)
                    )
                ]
            )
        (user_bias, *user), (item_bias, *item) = values
        logit = user_bias + item_bias + sum(a * b for a, b in zip(user, item, strict=True))
        targets.append(float(rng.random() < 1 / (1 + math.exp(-logit))))
    return targets


@settings(max_examples=15)
@given(
    st.integers(1, 300),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.7]),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_conversions_are_those_of_a_loop_over_events(events, late, own, dim, seed):
    stream = ConversionStream(
        events, **SIZES, late=late, own=own, dim=dim, biases=0.7, vectors=1.2, seed=seed
    )
    made = pl.concat(stream.frames())
    assert made["target"].to_list() == slow_conversions(stream)


@settings(max_examples=15)
@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(0, 2))
def test_the_stream_does_not_depend_on_how_it_is_cut(events, size, seed):
    stream = ConversionStream(events, **SIZES, late=0.5, own=0.3, seed=seed)
    size = max(size, events // 20)
    assert pl.concat(stream.frames(size)).equals(pl.concat(stream.frames(events)))
    parts, whole = list(stream.batches(size)), next(stream.batches(events))
    for name in ("user", "item", "target"):
        joined = [value for part in parts for value in getattr(part, name).tolist()]
        assert joined == getattr(whole, name).tolist()


def test_ids_are_numbered_as_they_appear():
    stream = ConversionStream(500, **SIZES, late=0.5)
    frame, batch = next(stream.frames()), next(stream.batches())
    for name in ("user", "item"):
        numbers = {}
        for one in frame[name].to_list():
            numbers.setdefault(one, len(numbers))
        assert getattr(batch, name).tolist() == [numbers[one] for one in frame[name].to_list()]
    assert batch.target.tolist() == frame["target"].to_list()


def test_a_long_stream_is_not_made_before_it_is_asked_for():
    stream = ConversionStream(10**9, **SIZES)
    assert len(next(stream.batches(1000)).user) == 1000


def test_noise_is_near_a_normal_distribution_and_not_repeated():
    values = np.array([_noise(np.uint64(key)) for key in range(20_000)])
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.02
    assert abs((np.abs(values) < 1).mean() - 0.68) < 0.03
    assert len(np.unique(values.round(9))) > 18_000  # of 262,141 that there are
    assert abs(np.corrcoef(values[::2], values[1::2])[0, 1]) < 0.03


def test_a_log_of_planted_conversions_is_such_a_stream():
    log = planted_conversions(rows=400, users=50, items=30)
    stream = ConversionStream(400, 50, 30, user_clusters=20, item_clusters=15, late=1 / 3)
    assert log.target.tolist() == slow_conversions(stream)
    assert log.user.tolist() == next(stream.batches()).user.tolist()
    assert log.timestamp is not None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"own": -1.0}, "own must not be negative, not -1.0"),
        ({"biases": -0.5}, "biases must not be negative, not -0.5"),
        ({"user_clusters": 41}, "user_clusters must lie in 1 … 40, not 41"),
        ({"dim": 0}, "dim must be positive, not 0"),
    ],
)
def test_wrong_sizes_are_told(wrong, told):
    with pytest.raises(CelrecError, match=told):
        ConversionStream(10, **{**SIZES, **wrong})
