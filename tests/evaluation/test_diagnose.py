from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pytest
import torch

from celrec import CelrecError, ClusteredEmbedding, Planted, load_dataset
from celrec.cel.split import eigenvalue_ratio
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.evaluation.cluster_diagnostics import ClusterDiagnostics, diagnose
from celrec.recommender.model import Model

DIM = 3


@pytest.fixture(scope="module")
def log():
    return Planted(rows=3000, users=30, items=60, dim=3, item_clusters=4).interactions()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def clustered(log, clusters=4):
    table = ClusteredEmbedding(log.num_items, DIM, max_clusters=clusters + 2)
    table.start_from(torch.arange(log.num_items) % clusters)
    return table


def model_of(log, items, biased=False):
    users = FullEmbedding(log.num_users, DIM)
    return Model(*map(BiasedEmbedding, (users, items))) if biased else Model(users, items)


def ratio_slowly(model, log, rows, skip=()):
    """The median over shared rows of what a gradient for each of their ids gives."""
    vectors = {j: model.items(torch.tensor(j)).detach().requires_grad_() for j in range(len(rows))}
    for user, item, target in zip(log.user, log.item, log.target, strict=True):
        if user >= 0 and item >= 0:
            who = model.users(torch.tensor(int(user))).detach()
            loss = (model.model(who, vectors[int(item)]) - float(target)) ** 2
            loss.backward()
    ratios = []
    for row in sorted(set(rows) - set(skip)):
        members = [j for j in range(len(rows)) if rows[j] == row]
        if len(members) > DIM:
            pulls = torch.stack([_slope(vectors[j]) for j in members])
            ratios.append(eigenvalue_ratio(pulls[:, :DIM]))
    return float(np.median(ratios)) if ratios else None


def _slope(vector):
    return torch.zeros_like(vector) if vector.grad is None else vector.grad


@pytest.mark.parametrize("biased", [False, True])
def test_clusters_are_diagnosed_with_the_median_ratio_of_their_gradients(log, biased):
    log = log[:400]
    table = clustered(log)
    model = model_of(log, table, biased)
    if biased:
        model.model.mean.fill_(3.0)
        with torch.no_grad():
            model.items.bias.normal_()
    rows = table.assignment[:-1].tolist()
    found = diagnose(model, log)
    ratio = found.pop("eigenvalue_ratio")
    assert ratio == pytest.approx(ratio_slowly(model, log, rows), rel=1e-3)
    assert ratio > 1
    assert found == asdict(ClusterDiagnostics.of(table.weight[:4], np.array(rows), log))


def test_rows_that_no_item_has_do_not_count(log):
    # Six ids and forty rows: most rows are for nobody.
    few = log[log.item < 6].compact()
    table = ModuloEmbedding(few.num_items, DIM, rows=6, seed=1)
    used, rows = np.unique(table.row_of(torch.arange(6)).numpy(), return_inverse=True)
    assert len(used) < 6
    found = diagnose(model_of(few, table), few)
    expected = ClusterDiagnostics.of(table.weight[torch.from_numpy(used)], rows, few)
    assert found == {**asdict(expected), "eigenvalue_ratio": None}


def test_rows_that_ids_have_alone_count_as_clusters(log):
    warm = torch.arange(log.num_items) < 20
    table = MixedEmbedding.personalise(clustered(log), warm)
    model = model_of(log, table)
    rows = table.row_of(torch.arange(log.num_items))
    found = diagnose(model, log)
    expected = asdict(ClusterDiagnostics.of(table.weight, rows, log))
    assert found["duplicate_rows"] == expected["duplicate_rows"] == 20  # copies until they move
    assert found["rating_spread"] == expected["rating_spread"]
    assert found["eigenvalue_ratio"] is not None


def test_of_several_levels_the_first_is_measured(log):
    torch.manual_seed(0)
    users, items = (
        FullEmbedding(log.num_users, 2),
        LevelledEmbedding(log.num_items, 2, max_clusters=3),
    )
    model = Model(users, items)
    for number, level in enumerate(items.clustered_levels, 1):
        level.start_from(torch.arange(log.num_items) // number % 3)
        torch.nn.init.normal_(level.weight)
    found, first = diagnose(model, log), items.clustered_levels[0]
    expected = ClusterDiagnostics.of(first.weight, first.assignment[:-1], log)
    assert {name: found[name] for name in asdict(expected)} == asdict(expected)
    assert found["eigenvalue_ratio"] >= 1


def test_where_nothing_is_shared_there_is_no_ratio(log):
    found = diagnose(model_of(log, FullEmbedding(log.num_items, DIM)), log)
    assert found["eigenvalue_ratio"] is None
    assert found["rating_spread"] is not None


def test_clusters_without_data_do_not_hide_the_ratio_of_others(log):
    half = log[log.item < 30]
    table = ClusteredEmbedding(log.num_items, DIM, max_clusters=3)
    table.start_from((torch.arange(log.num_items) >= 30).long() + (torch.arange(60) >= 50).long())
    model = model_of(half, table)
    rows = table.assignment[:-1].tolist()
    found = diagnose(model, half)["eigenvalue_ratio"]
    assert found == pytest.approx(ratio_slowly(model, half, rows, skip=(1, 2)), rel=1e-3)
    nobody = diagnose(model, log[:0])
    assert nobody["eigenvalue_ratio"] is None
    assert nobody["rating_spread"] is None


def test_where_all_ids_pull_in_one_direction_there_is_no_ratio(log):
    alone = replace(log, user=np.zeros(len(log), np.int32))
    assert diagnose(model_of(log, clustered(log)), alone)["eigenvalue_ratio"] is None


def test_unseen_ids_tell_nothing(log):
    user, item = log.user.copy(), log.item.copy()
    item[::7] = -1
    model = model_of(log, clustered(log))
    unseen = diagnose(model, replace(log, item=item))
    assert unseen == pytest.approx(diagnose(model, log[item >= 0]))
    user[::5] = -1
    unseen = diagnose(model, replace(log, user=user))["eigenvalue_ratio"]
    assert unseen == pytest.approx(diagnose(model, log[user >= 0])["eigenvalue_ratio"])


def test_genres_are_looked_at_where_there_are_any(log):
    assert diagnose(model_of(log, clustered(log)), log)["genre_entropy"] is None
    labels = [["even"] if j % 2 else ["odd"] for j in range(log.num_items)]
    labelled = replace(log, item_features=pl.DataFrame({"genres": labels}))
    table = clustered(log, 2)
    assert diagnose(model_of(log, table), labelled)["genre_entropy"] == 0.0
    titled = replace(log, item_features=pl.DataFrame({"title": ["x"] * log.num_items}))
    assert diagnose(model_of(log, table), titled)["genre_entropy"] is None


def test_a_log_with_other_items_is_told(log):
    with pytest.raises(CelrecError, match="one integer for each of the 60 items"):
        diagnose(model_of(log, FullEmbedding(61, DIM)), log)


@pytest.mark.usefixtures("data_folder")
def test_movies_can_be_diagnosed():
    log = load_dataset("ml-100k")
    found = diagnose(model_of(log, clustered(log, 17)), log)
    assert all(isinstance(value, float | int) for value in found.values())
    assert found["genre_entropy_normalised"] > 0.9  # clusters by number say nothing about genres
