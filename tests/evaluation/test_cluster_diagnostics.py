import dataclasses
import math

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from celrec import CelrecError, load_dataset, read
from celrec.evaluation import cluster_diagnostics
from celrec.evaluation.cluster_diagnostics import ClusterDiagnostics, rating_spreads

LOG = read(
    {
        "user": [1, 2, 3, 1, 2, 1],
        "item": [0, 0, 0, 1, 1, 2],
        "rating": [1.0, 3.0, 5.0, 4.0, 2.0, 5.0],
    }
)
ROWS = torch.eye(3)
EACH = np.arange(3)


def diagnose(rows=ROWS, assignment=EACH, log=LOG, genres=None, **options):
    return ClusterDiagnostics.of(rows, assignment, log, genres, **options)


# The central region.


def outside_central(rows):
    """Of rows that need not have members."""
    return diagnose(torch.as_tensor(rows), np.zeros(3, int)).outside_central


@pytest.mark.parametrize(
    ("row", "outside"),
    [
        ([1.0, 1.0, 1.0, 1.0], 0),
        ([-1.0, -1.0, -1.0, -1.0], 1),  # the cone has one side only
        ([1.0, 0.0, 0.0, 0.0], 1),
        ([1.0, 1.0, 0.0, 0.0], 1),
        ([1.0, 1.0, 1.0, 0.0], 0),  # just on the border, which belongs to the region
        ([1.0, 1.0, 0.999, -0.001], 1),
        ([1.0, 1.0, 0.0], 0),
        ([0.3, 0.0, 0.3], 0),
        ([1.0, 0.0], 0),
        ([1.0, -0.001], 1),
        ([1e30, 0.0, 0.0], 1),
        ([0.0, 0.0, 0.0], 0),
        ([2.0], 0),
        ([0.0], 0),
        ([-2.0], 1),
    ],
)
def test_a_row_is_outside_of_the_central_region(row, outside):
    assert outside_central([row]) == outside


def test_the_share_of_rows_outside_is_given():
    assert (
        outside_central([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [3.0, 3.0, 2.0]])
        == 0.5
    )


numbers = st.floats(-100, 100, width=32)
tables = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=numbers
)


@given(tables, st.lists(st.integers(-20, 20), min_size=8, max_size=8))
def test_the_length_of_rows_does_not_decide_who_is_outside(table, powers):
    table = table.astype(np.float64)
    scaled = table * 2.0 ** np.array(powers[: len(table)])[:, None]
    assert outside_central(scaled) == outside_central(table)


@given(tables)
def test_outside_is_decided_row_by_row(table):
    dim = table.shape[1]
    margins = [math.fsum(row) - math.sqrt(dim - 1) * math.dist(row, [0] * dim) for row in table]
    sure = np.abs(margins) > 1e-9
    if sure.any():
        expected = np.mean([margin < 0 for margin in np.array(margins)[sure]])
        assert outside_central(table[sure]) == pytest.approx(expected)


# Rows that equal others.


def duplicates(rows, **options):
    return diagnose(torch.as_tensor(rows), np.zeros(3, int), **options).duplicate_rows


def reference_duplicates(rows, tolerance):
    """Groups merged pair by pair."""
    groups = [{i} for i in range(len(rows))]
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            longest = max(np.linalg.norm(one), np.linalg.norm(other))
            if np.linalg.norm(one - other) <= tolerance * longest:
                merged = {i, j}.union(*(group for group in groups if group & {i, j}))
                groups = [group for group in groups if not group & merged] + [merged]
    return len(rows) - len(groups)


@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(1, 3)),
        elements=st.sampled_from([0.0, 1.0, 1.1, 1.3, -1.0, 5.0]),
    ),
    st.sampled_from([0.0, 0.05, 0.125, 0.3]),
    st.sampled_from([2, 512]),
)
def test_groups_of_near_equals_are_those_of_merging_pairs(rows, tolerance, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_diagnostics, "CHUNK", chunk)
        assert duplicates(rows, tolerance=tolerance) == reference_duplicates(rows, tolerance)


@given(tables, st.data())
def test_every_copy_of_a_row_is_a_duplicate(table, data):
    distinct = np.unique(table, axis=0)
    copies = data.draw(st.lists(st.integers(0, len(distinct) - 1), max_size=9))
    everything = np.concatenate([distinct, distinct[copies]])
    order = data.draw(st.permutations(range(len(everything))))
    assert duplicates(everything[order], tolerance=0) == len(copies)


def test_nearness_is_relative_and_by_default_a_thousandth():
    assert duplicates([[100.0, 0.0], [100.0, 0.09]]) == 1
    assert duplicates([[100.0, 0.0], [100.0, 0.11]]) == 0
    assert duplicates([[0.001, 0.0], [0.001, 0.0000009]]) == 1
    assert duplicates([[0.001, 0.0], [0.001, 0.0000011]]) == 0
    assert duplicates([[0.0, 0.0], [1e-9, 0.0], [0.0, 0.0]]) == 1
    assert duplicates([[1000.0], [999.0], [998.0]]) == 1  # 1 of 1000 is near, 1 of 999 is not


def test_a_chain_of_near_equals_is_one_group():
    chain = 1.0005 ** np.random.default_rng(0).permutation(40)
    assert duplicates(chain[:, None]) == 39
    assert duplicates(np.delete(np.sort(chain), [10, 11])[:, None]) == 36


def test_long_chains_take_few_rounds(monkeypatch):
    rounds = []
    distances = torch.cdist
    monkeypatch.setattr(torch, "cdist", lambda *a, **k: rounds.append(1) or distances(*a, **k))
    chain = 1.0005 ** np.random.default_rng(0).permutation(500)
    assert duplicates(chain[:, None]) == 499
    assert len(rounds) < 20


def test_thousands_of_rows_are_compared():
    rows = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    rows[2000:] = rows[:1000]
    assert duplicates(rows, tolerance=0) == 1000
    assert duplicates(torch.ones(3000, 8)) == 2999


# The spread of ratings.


def test_the_spread_of_ratings_is_weighted_by_interactions():
    found = diagnose(assignment=torch.tensor([0, 1, 1], dtype=torch.uint8))
    in_0, in_1 = np.std([1, 3, 5]), np.std([4, 2, 5])
    assert found.rating_spread == pytest.approx((3 * in_0 + 3 * in_1) / 6)
    assert found.rating_spread_overall == pytest.approx(np.std([1, 3, 5, 4, 2, 5]))
    found = diagnose(assignment=[2, 2, 0])
    assert found.rating_spread == pytest.approx(5 / 6 * np.std([1, 3, 5, 4, 2]))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32, np.uint64, np.int64])
def test_clusters_are_numbered_by_integers_of_any_width(dtype):
    assignment = EACH.astype(dtype)
    assignment.flags.writeable = False
    assert diagnose(assignment=assignment) == diagnose()


def test_the_spread_of_each_cluster_is_given():
    spreads = rating_spreads(torch.tensor([3, 1, 3]), LOG, clusters=4)
    assert spreads == pytest.approx(
        [np.nan, np.std([4, 2]), np.nan, np.std([1, 3, 5, 5])], nan_ok=True
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), numbers), min_size=1))
def test_the_spread_within_clusters_is_at_most_that_of_all(events):
    items = sorted({item for item, _, _ in events})
    cluster = {item: cluster for item, cluster, _ in events}
    log = read(
        {
            "user": [1] * len(events),
            "item": [item for item, _, _ in events],
            "rating": [rating for _, _, rating in events],
        }
    )
    assignment = np.array([cluster[item] for item in log.item_ids.decode(np.arange(len(items)))])
    found = diagnose(torch.eye(4), assignment, log)
    of_cluster = {
        k: [rating for item, _, rating in events if cluster[item] == k] for k in cluster.values()
    }
    expected = sum(len(r) * np.std(np.float64(r)) for r in of_cluster.values()) / len(events)
    assert found.rating_spread == pytest.approx(expected, abs=1e-9)
    assert found.rating_spread <= found.rating_spread_overall + 1e-9
    assert diagnose(ROWS, np.zeros_like(assignment), log).rating_spread == pytest.approx(
        found.rating_spread_overall, abs=1e-9
    )


def test_large_ratings_keep_their_spread():
    log = read({"user": [1, 2, 3], "item": [0, 0, 0], "rating": [8e6, 8e6 + 1, 8e6 + 2]})
    found = diagnose(assignment=[0], log=log)
    assert found.rating_spread == pytest.approx(np.std([0, 1, 2]))
    assert found.rating_spread_overall == pytest.approx(np.std([0, 1, 2]))


def test_unseen_items_are_left_out():
    known = read({"user": [1, 2, 3], "item": [0, 0, 9], "rating": [1.0, 3.0, 5.0]}, like=LOG)
    found = diagnose(log=known)
    assert found.rating_spread == found.rating_spread_overall == 1
    unknown = diagnose(log=known[2:])
    assert unknown.rating_spread is None
    assert unknown.rating_spread_overall is None
    assert np.isnan(rating_spreads(EACH, known[2:], 3)).all()


def test_a_log_without_interactions_leaves_the_rest_to_look_at():
    found = diagnose(log=LOG[:0])
    assert found.rating_spread is None
    assert found.outside_central == 1


# The entropy of genres.


def reference_entropy(genres, assignment):
    places = {}
    for labels, cluster in zip(genres, assignment, strict=True):
        for label in set(labels or ()):
            places.setdefault(label, []).append(cluster)
    entropies = []
    for clusters in places.values():
        shares = [clusters.count(cluster) / len(clusters) for cluster in set(clusters)]
        entropies.append(-sum(share * math.log(share) for share in shares))
    return sum(entropies) / len(entropies) if entropies else None


labels = st.none() | st.lists(st.sampled_from("abcdef"), max_size=4)


@given(st.lists(st.tuples(labels, st.integers(0, 4)), min_size=1, max_size=30))
def test_the_entropy_of_genres_over_clusters(items):
    genres, assignment = map(list, zip(*items, strict=True))
    log = read({"user": [1] * len(items), "item": range(len(items)), "rating": [1.0] * len(items)})
    found = diagnose(torch.eye(5), assignment, log, pl.Series(genres, dtype=pl.List(pl.String)))
    expected = reference_entropy(genres, assignment)
    if expected is None:
        assert found.genre_entropy is None
        assert found.genre_entropy_normalised is None
    else:
        assert found.genre_entropy == pytest.approx(expected, abs=1e-12)
        assert found.genre_entropy_normalised == pytest.approx(expected / math.log(5), abs=1e-12)
        assert -1e-12 <= found.genre_entropy <= math.log(5) + 1e-12


def test_genre_entropies_by_hand():
    genres = pl.Series([["War", "Drama"], ["Drama", "Drama"], None])
    found = diagnose(assignment=[0, 1, 1], genres=genres)
    assert found.genre_entropy == pytest.approx(math.log(2) / 2)  # War 0, Drama ln 2
    assert found.genre_entropy_normalised == pytest.approx(math.log(2) / 2 / math.log(3))
    each = pl.Series([["War"], ["War"], ["War"]])
    assert diagnose(genres=each).genre_entropy_normalised == pytest.approx(1)
    assert diagnose(assignment=[2, 2, 2], genres=each).genre_entropy == 0


def test_with_one_cluster_there_is_nothing_to_normalise_by():
    found = diagnose(torch.ones(1, 2), [0, 0, 0], genres=pl.Series([["a"], ["a"], ["b"]]))
    assert found.genre_entropy == 0
    assert found.genre_entropy_normalised is None


@pytest.mark.parametrize("genres", [None, pl.Series([[], [], []]), pl.Series([[None], [], None])])
def test_without_labels_there_is_no_entropy(genres):
    found = diagnose(genres=genres)
    assert found.genre_entropy is None
    assert found.genre_entropy_normalised is None


@pytest.mark.usefixtures("data_folder")
def test_the_genres_of_ml_100k():
    log = load_dataset("ml-100k")
    genres = log.item_features["genres"]
    assignment = np.random.default_rng(0).integers(10, size=log.num_items)
    by_chance = diagnose(torch.eye(10), assignment, log, genres)
    expected = reference_entropy(genres.to_list(), assignment.tolist())
    assert by_chance.genre_entropy == pytest.approx(expected)
    assert by_chance.genre_entropy_normalised > 0.9
    assert by_chance.rating_spread == pytest.approx(by_chance.rating_spread_overall, rel=0.01)
    assert by_chance.rating_spread_overall == pytest.approx(1.1257, abs=1e-4)
    by_drama = genres.list.contains("Drama").cast(pl.Int64).to_numpy()
    assert diagnose(torch.eye(10), by_drama, log, genres).genre_entropy < math.log(2) * 0.7
    means = np.bincount(log.item, log.target) / log.item_counts
    by_rating = diagnose(torch.eye(10), np.digitize(means, np.linspace(1.4, 4.6, 9)), log, genres)
    assert by_rating.rating_spread < by_chance.rating_spread * 0.93


# What is given.


def test_training_goes_on_with_the_same_rows():
    rows = torch.nn.Parameter(torch.eye(3))
    found = diagnose(rows)
    assert rows.requires_grad
    assert torch.equal(rows, torch.eye(3))
    assert found == diagnose()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.duplicate_rows = 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": torch.ones(3)}, r"rows must be clusters × dim.* \(3,\)"),
        ({"rows": torch.ones(0, 3)}, r"rows must be clusters × dim.* \(0, 3\)"),
        ({"rows": torch.tensor([[1.0, math.nan]])}, "rows must be finite"),
        ({"assignment": np.zeros(4, int)}, r"each of the 3 items .*\(4,\); leave out the place"),
        ({"assignment": np.zeros(3)}, "not float64 of shape"),
        ({"assignment": np.array([0, 1, 3])}, "clusters 0 … 2, not 0 … 3"),
        ({"assignment": np.array([-1, 1, 2])}, "clusters 0 … 2, not -1 … 2"),
        ({"genres": pl.Series(["a", "b", "c"])}, "a list of labels .* not 3 of String"),
        ({"genres": pl.Series([["a"], ["b"]])}, "3 items, not 2 of List"),
        ({"tolerance": -1.0}, "tolerance must be at least 0, not -1"),
        ({"tolerance": math.nan}, "tolerance must be at least 0, not nan"),
    ],
)
def test_what_cannot_be_measured_is_refused(given, message):
    with pytest.raises(CelrecError, match=message):
        diagnose(**given)


def test_clusters_beyond_those_asked_for_are_refused():
    with pytest.raises(CelrecError, match="clusters 0 … 1, not 0 … 2"):
        rating_spreads(EACH, LOG, clusters=2)
