import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import Planted
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.recommender.clusters import merge_similar
from celrec.recommender.model import Model
from tests.data.logs import logs


@pytest.fixture(autouse=True)
def seeded_rows():
    torch.manual_seed(0)


def error(model, log):
    return float(np.mean((model.predict(log).numpy() - log.target) ** 2))


def slow_merge(model, log, side, tolerance):
    """One pair after another, distances as they are written, tables made anew."""
    tables = {"users": model.user_rows, "items": model.item_rows}
    table, other = tables[side], tables["users" if side == "items" else "items"]
    partners = other(torch.arange(other.num_embeddings)).detach().double()
    rows = [row.double() for row in table.weight.detach()[: table.num_clusters]]
    cluster = table.assignment[:-1].tolist()
    limit = error(model, log) + tolerance
    while len(rows) > 1:
        pairs = itertools.combinations(range(len(rows)), 2)
        first, second = min(
            pairs, key=lambda pair: float(((partners @ (rows[pair[0]] - rows[pair[1]])) ** 2).sum())
        )
        sizes = [cluster.count(first), cluster.count(second)]
        row = (rows[first] * sizes[0] + rows[second] * sizes[1]) / sum(sizes)
        merged = [row if k == first else rows[k] for k in range(len(rows)) if k != second]
        moved = [first if k == second else k - (k > second) for k in cluster]
        trial = copy.deepcopy(model)
        inner = {"users": trial.user_rows, "items": trial.item_rows}[side]
        with torch.no_grad():
            inner.start_from(torch.tensor(moved))
            inner.weight[: len(merged)] = torch.stack(merged).float()
        if error(trial, log) > limit + 1e-9:
            break
        rows, cluster = merged, moved
    return rows, cluster


def clustered(ids, clusters, dim=3):
    table = ClusteredEmbedding(ids, dim, max_clusters=clusters)
    table.start_from(torch.arange(ids) % clusters)
    return table


@settings(max_examples=40)
@given(
    logs(),
    st.sampled_from(["users", "items"]),
    st.floats(0.01, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_merges_are_those_of_a_slow_search(log, side, tolerance, biased, seed):
    torch.manual_seed(seed)
    sides = [clustered(size, min(size, 5)) for size in (log.num_users, log.num_items)]
    model = Model(*map(BiasedEmbedding, sides)) if biased else Model(*sides)
    with torch.no_grad():
        for bias in model.biases or ():
            bias.normal_()
    table = {"users": model.user_rows, "items": model.item_rows}[side]
    before, count = error(model, log), table.num_clusters
    rows, cluster = slow_merge(copy.deepcopy(model), log, side, tolerance)
    merges = merge_similar(model, log, side, tolerance)
    assert merges == count - table.num_clusters
    assert error(model, log) <= before + tolerance + 1e-6
    assert table.num_clusters == len(rows)
    assert table.assignment[:-1].tolist() == cluster
    torch.testing.assert_close(
        table.weight.detach()[: len(rows)].double(), torch.stack(rows), rtol=1e-4, atol=1e-5
    )


def planted_model(copies):
    """Truth, with every cluster of either side in several copies."""
    planted = Planted(
        rows=3000, users=40, items=36, dim=3, item_clusters=4, user_clusters=5, noise=0.0
    )
    log = planted.interactions()
    tables = []
    for ids, cluster, rows in (
        (log.user_ids.ids.to_numpy(), planted.user_cluster, planted.user_rows),
        (log.item_ids.ids.to_numpy(), planted.item_cluster, planted.item_rows),
    ):
        assignment = torch.tensor(cluster[ids]).long()
        seen = [0] * len(rows)
        for j, k in enumerate(assignment.tolist()):  # members in turn to the copies
            assignment[j] = k + len(rows) * (seen[k] % copies)
            seen[k] += 1
        _, assignment = torch.unique(assignment, return_inverse=True)
        table = ClusteredEmbedding(len(ids), 3, max_clusters=int(assignment.max()) + 1)
        table.start_from(assignment)
        with torch.no_grad():
            for j, k in enumerate(assignment.tolist()):
                table.weight[k] = torch.tensor(rows[cluster[ids[j]]])
        tables.append(table)
    return log, Model(*tables)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_of_planted_clusters_are_found(copies):
    log, model = planted_model(copies)
    truth = {"users": len(set(map(tuple, model.users.weight.tolist()))), "items": 4}
    before = model.predict(log)
    for side, table in (("users", model.users), ("items", model.items)):
        spare = table.num_clusters - truth[side]
        assert merge_similar(model, log, side, 1e-6) == spare
        assert table.num_clusters == truth[side]
    torch.testing.assert_close(model.predict(log), before)


def test_copies_are_merged_at_no_tolerance_at_all():
    log, model = planted_model(2)
    assert merge_similar(model, log, "items", 0.0) == model.items.max_clusters - 4


def test_a_merge_that_costs_too_much_is_undone():
    log, model = planted_model(1)
    before = copy.deepcopy(model.state_dict())
    assert merge_similar(model, log, "items", 1e-6) == 0
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


def test_with_any_error_allowed_one_cluster_is_left():
    log, model = planted_model(2)
    assert merge_similar(model, log, "items", 1e9) == model.items.max_clusters - 1
    assert model.items.num_clusters == 1
    assert model.users.num_clusters == model.users.max_clusters


def test_rows_that_differ_where_no_user_looks_are_alike():
    log = Planted(rows=300, users=10, items=9, dim=2, item_clusters=3).interactions()
    model = Model(FullEmbedding(10, 3), clustered(9, 3))
    with torch.no_grad():
        model.users.weight[:, 2] = 0
        model.items.weight.copy_(torch.tensor([[1.0, 1, 0], [1, 1.2, 0], [1, 1, 50]]))
    log = replace(log, target=model.predict(log).numpy())
    assert merge_similar(model, log, "items", 1e-6) == 1
    assert model.items.assignment[:-1].tolist() == [0, 1, 0] * 3


def test_there_may_be_nothing_to_merge():
    log, model = planted_model(2)
    full = Model(FullEmbedding(40, 3), model.items)
    assert merge_similar(full, log, "users", 1e9) == 0
    single = Model(FullEmbedding(40, 3), ClusteredEmbedding(36, 3, max_clusters=5))
    assert merge_similar(single, log, "items", 1e9) == 0
    assert merge_similar(model, log[:0], "items", 1e9) == 0
    assert model.items.num_clusters == model.items.max_clusters
