import numpy as np
import polars as pl
import pytest

import celrec
from celrec.data.datasets.library import open_data
from celrec.data.split import Split
from celrec.reporting.cluster_view import ClusterView
from celrec.runs.run_folder import load_run


@pytest.mark.parametrize(
    ("kind", "side"), [("cel", "items"), ("users", "users"), ("soft", "users")]
)
def test_clusters_are_told_as_a_slow_count_has_them(runs, kind, side):
    run = load_run(runs(kind))
    whole = open_data(run.source["data"], columns=[])
    learned = Split.named(whole, run.source["fold"], run.source["seed"]).train_and_valid()
    view = ClusterView.of(run, side, learned)
    dense = learned.item if side == "items" else learned.user
    ids, clusters = (getattr(run, side).get_column(name) for name in ("id", "cluster"))
    assert view.of_targets
    assert view.count == clusters.n_unique()
    for cluster in view.clusters:
        members = {n for n, own in enumerate(clusters) if own == cluster.number}
        targets = learned.target[[row for row, n in enumerate(dense) if n in members]]
        assert cluster.size == len(members) == len(cluster.members)
        assert {member[0] for member in cluster.members} == {str(ids[n]) for n in members}
        assert cluster.interactions == len(targets)
        assert cluster.mean == pytest.approx(np.mean(targets, dtype=np.float64), rel=1e-5)
        assert cluster.spread == pytest.approx(np.std(targets, dtype=np.float64), rel=1e-5)
        counts = [member[2] for member in cluster.members]
        assert counts == sorted(counts, reverse=True)


def test_without_data_the_spread_is_that_of_the_means_of_members(runs):
    run = load_run(runs("cel"))
    view = ClusterView.of(run, "items", None)
    table = run.items.filter(pl.col("cluster") == 0)
    means, weights = (table.get_column(n).to_numpy() for n in ("mean_target", "interactions"))
    mean = np.average(means, weights=weights)
    expected = np.sqrt(np.average((means - mean) ** 2, weights=weights))
    assert view.clusters[0].spread == pytest.approx(expected, rel=1e-6)
    assert not view.of_targets


def test_only_the_most_active_are_kept_where_there_is_no_room(runs):
    run = load_run(runs("cel"))
    every = ClusterView.of(run, "items", None)
    view = ClusterView.of(run, "items", None, most_clusters=2, most_members=8)
    active = sorted(every.clusters, key=lambda one: -one.interactions)[:2]
    assert {one.number for one in view.clusters} == {one.number for one in active}
    assert (view.count, view.ids) == (every.count, every.ids)
    assert view.shown == sum(min(one.size, 4) for one in active)
    for cluster in view.clusters:
        whole = next(one for one in every.clusters if one.number == cluster.number)
        assert cluster.members == whole.members[:4]


def test_of_personalised_ids_those_that_share_rows_are_left(runs):
    run = load_run(runs("warm"))
    view = ClusterView.of(run, "items", None)
    private = run.items.get_column("private")
    assert view.alone == private.sum() > 0
    assert view.ids == (~private).sum() > 0
    cold = set(run.items.filter(~pl.col("private")).get_column("id").cast(pl.String))
    assert {member[0] for one in view.clusters for member in one.members} == cold


def test_ids_with_rows_of_their_own_from_the_start_are_in_no_clusters(runs):
    assert ClusterView.of(load_run(runs("modulo")), "items", None) is None
    assert ClusterView.of(load_run(runs("all")), "items", None) is None
    assert ClusterView.of(load_run(runs("cel")), "users", None) is None


def test_long_titles_are_cut(tmp_path):
    from celrec.runs.run_folder import save_run, trained_run

    frame = {"user": [1, 2, 1, 2], "item": [5, 5, 6, 6], "rating": [1.0, 2.0, 3.0, 4.0]}
    titles = pl.DataFrame({"item": [5, 6], "title": ["x" * 500, "y"]})
    log = celrec.read(frame, item_features=titles)
    plan = celrec.Plan(compression="1", rank=2)
    model = celrec.fit(Split.random(log, test=0.0, valid=0.0), plan).model
    save_run(tmp_path / "run", trained_run(log, model, plan, {}, {}, {}))
    view = ClusterView.of(load_run(tmp_path / "run"), "items", None)
    assert view.titled
    assert sorted(map(len, view.clusters[0].names)) == [1, 100]
