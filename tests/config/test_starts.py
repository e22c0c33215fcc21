from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, load_dataset, read
from celrec.config.building import CLUSTERINGS, starting_clusters
from tests.data.logs import logs

SIDES = st.sampled_from(["items", "users"])


def size(log, side):
    return log.num_items if side == "items" else log.num_users


def partition(clusters):
    """The clusters as sets of ids, whatever their numbers."""
    return {frozenset(np.flatnonzero(clusters == cluster)) for cluster in set(clusters)}


def assert_numbered(clusters, log, side):
    assert clusters.shape == (size(log, side),)
    assert clusters.dtype == np.int64
    assert sorted(set(clusters.tolist())) == list(range(len(set(clusters.tolist()))))


@given(logs(), SIDES, st.integers(0, 3))
def test_one_puts_all_ids_together(log, side, seed):
    assert starting_clusters("one", log, side, seed).tolist() == [0] * size(log, side)


# At random.


@given(logs(), SIDES, st.integers(1, 12), st.integers(0, 5))
def test_random_clusters_are_as_many_as_asked_for_and_none_is_empty(log, side, count, seed):
    clusters = starting_clusters(f"random:{count}", log, side, seed)
    assert_numbered(clusters, log, side)
    assert clusters.max() + 1 == min(count, size(log, side))
    again = starting_clusters(f"random:{count}", log, side, seed)
    assert clusters.tolist() == again.tolist()


def test_random_clusters_depend_on_the_seed_alone_and_are_of_like_size():
    log = Planted(rows=5000, users=20, items=1000).interactions()
    one, other = (starting_clusters("random:10", log, "items", seed) for seed in (0, 1))
    assert np.mean(one == other) < 0.2
    assert np.bincount(one).min() > 50
    shuffled = replace(log, target=-log.target)
    assert (starting_clusters("random:10", shuffled, "items", 0) == one).all()


# By rating.


def bins_slowly(log, side, count):
    """The bin of every id: those with lower means first, the earlier ones among equals."""
    ids = log.item if side == "items" else log.user
    ratings = {j: [] for j in range(size(log, side))}
    for j, rating in zip(ids.tolist(), log.target.tolist(), strict=True):
        ratings[j].append(rating)
    everything = log.target.tolist()
    mean = sum(everything) / len(everything)
    means = {j: sum(own) / len(own) if own else mean for j, own in ratings.items()}
    order = sorted(means, key=lambda j: (means[j], j))
    place = {j: order.index(j) * count // len(order) for j in order}
    names = sorted(set(place.values()))
    return [names.index(place[j]) for j in range(len(order))], means


@given(logs(), SIDES, st.integers(1, 12))
def test_rating_bins_are_those_of_a_slow_sort(log, side, count):
    part = log[::2]  # so that some ids have no ratings
    expected, means = bins_slowly(part, side, count)
    clusters = starting_clusters(f"ratings:{count}", part, side, 0)
    assert_numbered(clusters, part, side)
    assert clusters.tolist() == expected
    counts = np.bincount(clusters)
    assert counts.max() - counts.min() <= 1
    assert len(counts) == min(count, size(part, side))
    for low in range(len(counts) - 1):
        below = max(means[j] for j in np.flatnonzero(clusters == low))
        assert below <= min(means[j] for j in np.flatnonzero(clusters == low + 1))


@pytest.mark.parametrize("side", ["items", "users"])
def test_rows_with_unseen_ids_do_not_count(side):
    log = Planted(rows=300, users=12, items=10, item_clusters=3).interactions()
    user, item = log.user.copy(), log.item.copy()
    user[::7], item[::5] = -1, -1
    unseen = replace(log, user=user, item=item)
    expected = starting_clusters("ratings:3", log[(user >= 0) & (item >= 0)], side, 0)
    assert starting_clusters("ratings:3", unseen, side, 0).tolist() == expected.tolist()
    assert len(starting_clusters("random:3", unseen, side, 0)) == size(log, side)


# By genre.


def with_genres(genres):
    ids = list(range(len(genres)))
    features = pl.DataFrame({"item": ids, "genres": pl.Series(genres, dtype=pl.List(pl.String))})
    table = {"user": [0] * len(ids), "item": ids, "rating": [1.0] * len(ids)}
    return read(table, item_features=features)


def test_genres_are_first_genres_in_the_order_of_their_names_and_none_is_one_too():
    pl.Series(["War", "Drama", "Action"]).cast(pl.Categorical)  # what was seen before is no matter
    log = with_genres([["War", "Drama"], ["Drama"], None, ["Action", "War"], [], ["War"]])
    assert starting_clusters("genres", log, "items", 0).tolist() == [3, 2, 0, 1, 0, 3]


@pytest.mark.usefixtures("data_folder")
def test_genres_of_movies_are_their_first_ones():
    log = load_dataset("ml-100k")
    firsts = [
        labels[0] if labels else ""
        for labels in log.item_features["genres"].fill_null([]).to_list()
    ]
    clusters = starting_clusters("genres", log, "items", 0)
    assert_numbered(clusters, log, "items")
    assert 17 <= clusters.max() + 1 == len(set(firsts)) <= 19
    assert len(set(zip(clusters.tolist(), firsts, strict=True))) == len(set(firsts))


def test_without_genres_there_is_one_line():
    log = Planted(rows=50, users=5, items=4, item_clusters=2).interactions()
    with pytest.raises(CelrecError, match="the data have no genres of items to start from"):
        starting_clusters("genres", log, "items", 0)
    with pytest.raises(CelrecError, match="no genres of users"):
        starting_clusters("genres", with_genres([["War"], None]), "users", 0)


# Of a run.


def run_with(folder, ids, clusters, side="items"):
    pl.DataFrame({"id": ids, "cluster": pl.Series(clusters, dtype=pl.Int32)}).write_parquet(
        folder / f"{side}.parquet"
    )
    return str(folder)


@given(
    st.dictionaries(st.integers(0, 12), st.integers(0, 4), min_size=1),
    st.lists(st.integers(0, 12), min_size=1, unique=True),
    SIDES,
    st.booleans(),
)
@settings(max_examples=40)
def test_clusters_of_a_run_go_by_the_original_ids(tmp_path_factory, known, ids, side, named):
    kind = "item {}".format if named else int
    folder = tmp_path_factory.getbasetemp() / "run"
    folder.mkdir(exist_ok=True)
    run = run_with(folder, [kind(j) for j in known], list(known.values()), side)
    one, other = ("item", "user") if side == "items" else ("user", "item")
    log = read({one: [kind(j) for j in ids], other: [1] * len(ids), "rating": [1.0] * len(ids)})
    sizes = Counter(known.values())
    largest = min(sizes, key=lambda cluster: (-sizes[cluster], cluster))
    expected = np.array([known.get(j, largest) for j in ids])
    clusters = starting_clusters(run, log, side, 0)
    assert_numbered(clusters, log, side)
    assert partition(clusters) == partition(expected)


def test_ids_of_another_kind_are_told(tmp_path):
    run = run_with(tmp_path, ["a", "b"], [0, 1])
    log = read({"user": [1, 1], "item": [5, 6], "rating": [1.0, 2.0]})
    with pytest.raises(CelrecError, match=r"the ids of .* are of another kind than these"):
        starting_clusters(run, log, "items", 0)


# Wrong words.


@pytest.mark.parametrize(
    "start", ["", "two", "One", "genres:x", "genres:3", "one:3", "nowhere/run"]
)
def test_an_unknown_start_is_told(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = with_genres([["War"], ["Drama"]])
    with pytest.raises(CelrecError) as told:
        starting_clusters(start, log, "items", 0)
    line = str(told.value)
    assert line.startswith("start must be one of one, random, ratings, genres or a run folder")
    assert line.endswith(f"not {start!r}")


def test_a_run_without_clusters_is_told(tmp_path):
    log = read({"user": [1, 1], "item": [5, 6], "rating": [1.0, 2.0]})
    pl.DataFrame({"id": [5, 6]}).write_parquet(tmp_path / "items.parquet")
    with pytest.raises(CelrecError, match="a run folder with clustered items, not"):
        starting_clusters(str(tmp_path), log, "items", 0)
    (tmp_path / "items.parquet").write_bytes(b"PAR1")
    with pytest.raises(CelrecError, match="a run folder with clustered items, not"):
        starting_clusters(str(tmp_path), log, "items", 0)


@pytest.mark.parametrize("name", ["random", "ratings"])
@pytest.mark.parametrize("number", ["", ":", ":0", ":-3", ":many", ":2.5", ":nan"])
def test_a_start_without_a_number_of_clusters_is_told(name, number):
    log = with_genres([["War"], ["Drama"]])
    with pytest.raises(CelrecError, match=f"as in {name}:20, not '{name}{number}'"):
        starting_clusters(name + number, log, "items", 0)


@pytest.mark.parametrize("name", ["random", "ratings"])
def test_more_clusters_than_ids_are_as_many_as_ids(name):
    log = Planted(rows=50, users=5, items=4, item_clusters=2).interactions()
    for count in (5, 10**30):
        clusters = starting_clusters(f"{name}:{count}", log, "items", 0)
        assert sorted(clusters.tolist()) == [0, 1, 2, 3]


def test_every_clustering_has_a_name():
    assert list(CLUSTERINGS) == ["random", "ratings", "genres"]
