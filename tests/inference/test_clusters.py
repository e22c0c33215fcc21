import numpy as np
import polars as pl
import pytest

import celrec
from celrec.errors import CelrecError
from celrec.inference.explanation import cluster_summary
from celrec.runs.run_folder import trained_run


@pytest.fixture(scope="module")
def log():
    return celrec.Planted(1_500, 40, 30, dim=2, item_clusters=4).interactions()


@pytest.fixture(scope="module")
def run(log):
    plan = celrec.Plan(compression="4", rank=3, side="items")
    return trained_run(
        log, celrec.fit(celrec.Split.random(log, test=0), plan).model, plan, {}, {}, {}
    )


def test_each_cluster_has_the_counts_and_means_of_its_members(log, run):
    found = cluster_summary(run, members=3)
    assert found["mean_target"].is_sorted(descending=True)
    cluster = run.model.item_rows.assignment[:-1].numpy()
    ids, counts = log.item_ids.ids.to_numpy(), log.item_counts
    assert sorted(found["cluster"]) == sorted(set(cluster.tolist()))
    for row in found.iter_rows(named=True):
        mine = np.flatnonzero(cluster == row["cluster"])
        rows = np.isin(log.item, mine)
        assert row["members"] == len(mine)
        assert row["interactions"] == rows.sum()
        assert row["mean_target"] == pytest.approx(log.target[rows].mean(), rel=1e-5)
        best = sorted(counts[mine], reverse=True)[:3]
        shown = [int(np.flatnonzero(ids == int(name))[0]) for name in row["examples"]]
        assert counts[shown].tolist() == best
        assert set(shown) <= set(mine)


def test_titles_are_shown_where_there_are_any(run):
    titles = pl.Series("title", [None if n % 5 == 0 else f"film {n}" for n in range(30)])
    titled = run.__class__(**{**fields_of(run), "items": run.items.with_columns(titles)})
    names = cluster_summary(titled, members=99)["examples"].explode()
    assert sum(name.startswith("film") for name in names) == 24
    assert names.null_count() == 0


def fields_of(run):
    return {name: getattr(run, name) for name in run.__dataclass_fields__}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"side": "users"}, "the users are not clustered; look at the other side"),
        ({"side": "shops"}, "side must be one of items, users, not 'shops'"),
        ({"members": -1}, "members must not be negative"),
    ],
)
def test_wrong_arguments_raise(run, arguments, message):
    with pytest.raises(CelrecError, match=message):
        cluster_summary(run, **arguments)
