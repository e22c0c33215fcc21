import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted


@settings(max_examples=15)
@given(st.integers(1, 200_000), st.integers(1, 100_000), st.booleans())
def test_the_stream_does_not_depend_on_how_it_is_cut(rows, size, late):
    planted = Planted(rows=rows, late=0.5 if late else 0.0, drift=0.5)
    whole = pl.concat(planted.chunks(size=rows))
    cut = pl.concat(planted.chunks(size=max(size, rows // 20)))
    assert whole.equals(cut)
    start = rows // 3
    assert pl.concat(planted.chunks(start=start)).equals(whole[start:])
    assert len(whole) == rows


@pytest.mark.parametrize("user_clusters", [None, 7])
def test_without_noise_ratings_are_the_product_of_the_planted_rows(user_clusters):
    planted = Planted(noise=0.0, user_clusters=user_clusters, rows=5000)
    events = pl.concat(planted.chunks())
    user, item = events["user"].to_numpy(), events["item"].to_numpy()
    a = planted.user_rows[planted.user_cluster[user]]
    b = planted.item_rows[planted.item_cluster[item]]
    slow = np.array(
        [sum(x * y for x, y in zip(p, q, strict=True)) for p, q in zip(a, b, strict=True)]
    )
    assert np.allclose(events["target"].to_numpy(), slow, rtol=1e-5)
    assert np.allclose(planted.expected(events), slow, rtol=1e-5)


def test_noise_has_its_size_and_no_mean():
    planted = Planted(noise=0.7)
    events = pl.concat(planted.chunks())
    noise = events["target"].to_numpy() - planted.expected(events)
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 0.7) < 0.01


def test_the_mean_rating_is_about_three_and_a_half():
    assert abs(Planted(users=5000, items=5000).interactions().target.mean() - 3.5) < 0.4


@given(st.integers(1, 50), st.integers(0, 99))
def test_no_planted_cluster_is_empty(clusters, seed):
    planted = Planted(items=50, item_clusters=clusters, seed=seed)
    assert set(planted.item_cluster.tolist()) == set(range(clusters))


def test_popularity_follows_the_power_law():
    planted = Planted(rows=400_000, items=2000, item_skew=0.8)
    counts = np.sort(np.bincount(pl.concat(planted.chunks())["item"].to_numpy()))[::-1]
    ranks = np.arange(5, 500)
    slope = np.polyfit(np.log(ranks + 1), np.log(counts[5:500]), 1)[0]
    assert abs(slope + 0.8) < 0.05


def test_late_ids_appear_only_after_they_arrive_and_all_the_time():
    planted = Planted(rows=200_000, late=0.6)
    events = pl.concat(planted.chunks())
    first = events.with_row_index("row").group_by("item").agg(pl.col("row").min())
    late_firsts = (first["row"] > 40_000).sum()
    assert late_firsts > 0.3 * planted.items
    early = Planted(rows=200_000, late=0.0)
    firsts = (
        pl.concat(early.chunks()).with_row_index("row").group_by("item").agg(pl.col("row").min())
    )
    assert (firsts["row"] > 40_000).sum() < 0.05 * planted.items


def test_drift_moves_the_rows_from_one_end_to_the_other():
    planted = Planted(noise=0.0, drift=1.0, rows=50_000)
    events = pl.concat(planted.chunks())
    a = planted.user_rows[planted.user_cluster[events["user"].to_numpy()]]
    cluster = planted.item_cluster[events["item"].to_numpy()]
    start = np.einsum("ed,ed->e", a, planted.item_rows[cluster])
    end = np.einsum("ed,ed->e", a, planted.item_rows_at_end[cluster])
    rating = events["target"].to_numpy()
    assert np.allclose(rating[:100], start[:100], atol=0.05)
    assert np.allclose(rating[-100:], end[-100:], atol=0.05)


def test_time_never_runs_backwards():
    events = pl.concat(Planted(rows=150_000).chunks())
    assert (np.diff(events["timestamp"].to_numpy()) >= 0).all()


def test_seeds_reproduce_and_differ():
    one, same, other = (Planted(rows=1000, seed=s).interactions() for s in (1, 1, 2))
    assert one.to_frame().equals(same.to_frame())
    assert not one.to_frame().equals(other.to_frame())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"item_clusters": 0}, "item_clusters must lie in 1 … 1,700"),
        ({"user_clusters": 2000}, "user_clusters must lie in 1 … 1,000"),
        ({"rows": 0}, "rows must be positive"),
        ({"late": 1.0}, "late must be below 1"),
        ({"drift": 2.0}, "drift must lie in"),
    ],
)
def test_wrong_arguments_are_named(bad, message):
    with pytest.raises(CelrecError, match=message):
        Planted(**bad)


def stream_memory(rows):
    """Peak memory in MB of a process that runs through a stream."""
    # Not by getrusage, whose peak a child inherits from its parent.
    code = f"""
from celrec import Planted
seen = sum(len(chunk) for chunk in Planted(rows={rows}, users=100_000, items=100_000).chunks())
assert seen == {rows}
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_longer_stream_takes_no_more_memory():
    assert stream_memory(12_000_000) < stream_memory(3_000_000) * 1.15


@pytest.mark.slow
def test_a_hundred_million_events_never_sit_in_memory():
    assert stream_memory(100_000_000) < stream_memory(3_000_000) * 1.15
