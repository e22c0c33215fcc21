import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from celrec import Planted, read
from celrec.embeddings import hash_code as hash_gnn
from celrec.embeddings.hash_code import HashCodeEmbedding, HashGnn, StraightThrough, hash_codes
from celrec.embeddings.registry import METHODS, Request

QUICK = HashGnn(dim=8, steps=30)
LONG = HashGnn()
PLANTED = Planted(
    rows=6000,
    users=60,
    items=50,
    dim=3,
    item_clusters=4,
    user_clusters=4,
    noise=0.2,
    item_skew=0.2,
    user_skew=0.2,
)


def log_of(users, items, ratings):
    return read(pl.DataFrame({"user": users, "item": items, "rating": ratings}))


def test_the_sign_of_nothing_is_one():
    values = torch.tensor([-2.0, -1e-30, -0.0, 0.0, 1e-30, 3.0])
    assert StraightThrough.apply(values).tolist() == [-1, -1, 1, 1, 1, 1]


def test_the_gradient_passes_straight_through():
    values = torch.randn(5, 3, requires_grad=True)
    slope = torch.randn(5, 3)
    (StraightThrough.apply(values) * slope).sum().backward()
    assert torch.equal(values.grad, slope)


@pytest.mark.parametrize("side", ["users", "items"])
@pytest.mark.parametrize(("rows", "bits"), [(1, 4), (2, 4), (3, 5), (8, 6), (9, 7)])
def test_each_id_has_three_bits_more_than_the_rows_call_for(side, rows, bits):
    log = PLANTED.interactions()
    codes, _ = hash_codes(log, side, rows, 0, replace(QUICK, steps=1))
    assert codes.dtype == torch.bool
    assert codes.shape == ({"users": 60, "items": 50}[side], bits)


def test_the_seed_decides_the_codes_and_nothing_else_does():
    log = PLANTED.interactions()
    torch.manual_seed(1)
    first, _ = hash_codes(log, "items", 8, 3, QUICK)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, _ = hash_codes(log, "items", 8, 3, QUICK)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    other, _ = hash_codes(log, "items", 8, 4, QUICK)
    assert not torch.equal(other, first)


def agreement(codes, clusters):
    """The mean share of equal bits, of pairs in one cluster and of pairs in two."""
    equal = (codes[:, None] == codes[None]).float().mean(-1)
    same = torch.tensor(clusters[:, None] == clusters[None])
    others = ~torch.eye(len(codes), dtype=torch.bool)
    return float(equal[same & others].mean()), float(equal[~same].mean())


@pytest.mark.parametrize("side", ["users", "items"])
@pytest.mark.parametrize("seed", [0, 1])
def test_ids_of_one_planted_cluster_agree_in_more_bits(side, seed):
    log = PLANTED.interactions()
    codes, _ = hash_codes(log, side, 8, seed, LONG)
    truth = {"users": PLANTED.user_cluster, "items": PLANTED.item_cluster}[side]
    ids = {"users": log.user_ids, "items": log.item_ids}[side].ids.to_numpy()
    within, across = agreement(codes, truth[ids])
    untrained, _ = hash_codes(log, side, 8, seed, replace(LONG, steps=1, learning_rate=1e-9))
    first, second = agreement(untrained, truth[ids])
    assert within > across + 0.2
    assert within - across > first - second


def test_rows_are_shared_by_ids_of_one_planted_cluster_more_often_than_by_chance():
    log = PLANTED.interactions()
    request = Request(log, "items", log.num_items, 4, 8, 0)
    table = METHODS["hashgnn"].make(request)
    assert isinstance(table, HashCodeEmbedding)
    rows = table.row_of(torch.arange(log.num_items))
    truth = torch.tensor(PLANTED.item_cluster[log.item_ids.ids.to_numpy()])
    shared = (rows[:, None] == rows[None]).triu(1)
    alike = (truth[:, None] == truth[None]).triu(1)
    chance = float(alike.sum()) / (50 * 49 / 2)
    assert float((shared & alike).sum() / shared.sum()) > 1.8 * chance


def test_the_two_sides_are_guided_apart():
    log = PLANTED.interactions()
    users, _ = hash_codes(log, "users", 8, 0, QUICK)
    items, _ = hash_codes(log, "items", 8, 0, QUICK)
    assert (len(users), len(items)) == (60, 50)
    for codes in (users, items):
        assert 0.05 < float(codes.float().mean()) < 0.95


# The graph.


def dense(neighbours, others):
    """The shares as a matrix of ids × neighbours."""
    matrix = torch.zeros(len(neighbours.starts) - 1, others)
    for own in range(len(matrix)):
        for p in range(neighbours.starts[own], neighbours.starts[own + 1]):
            matrix[own, neighbours.partners[p]] += neighbours.shares[p]
    return matrix


def graph_of(log):
    return {side: hash_gnn.Neighbours(log, side) for side in ("users", "items")}


def test_the_graph_holds_the_mean_of_neighbours_weighted_by_how_far_ratings_are_above_the_mean():
    log = log_of([0, 0, 1, 2], ["a", "b", "a", "a"], [1.0, 3.0, 5.0, 3.0])
    graph = graph_of(log)
    # The mean is 3, and ratings are 1 away from it on average.
    expected = torch.tensor([[-1.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(dense(graph["users"], 2), expected)
    expected = torch.tensor([[-2 / 3, 2 / 3, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(dense(graph["items"], 3), expected)


def test_interactions_that_repeat_are_all_neighbours():
    once = log_of([0, 1], ["a", "a"], [1.0, 5.0])
    twice = log_of([0, 1, 0, 1], ["a"] * 4, [1.0, 5.0, 1.0, 5.0])
    for side, others in (("users", 1), ("items", 2)):
        one, two = (dense(graph_of(log)[side], others) for log in (once, twice))
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("asked", [slice(None), slice(3, 20, 2), slice(0, 0)])
def test_means_and_gradients_of_some_ids_are_those_of_a_dense_matrix(asked):
    log = PLANTED.interactions()
    for side, neighbours in graph_of(log).items():
        matrix = dense(neighbours, {"users": 50, "items": 60}[side])
        ids = torch.arange(len(matrix))[asked]
        vectors = torch.randn(matrix.shape[1], 4, requires_grad=True)
        weights = torch.randn(len(ids), 4)
        means = hash_gnn.NeighbourMeans.apply(neighbours, ids, vectors)
        torch.testing.assert_close(means, matrix[ids] @ vectors)
        (means * weights).sum().backward()
        torch.testing.assert_close(vectors.grad, matrix[ids].T @ weights)


def test_ids_that_are_not_asked_for_make_no_difference_to_the_others():
    log = PLANTED.interactions()
    encoders = {"users": hash_gnn.Encoder(60, 8, 5), "items": hash_gnn.Encoder(50, 8, 5)}
    everyone = {"users": torch.arange(60), "items": torch.arange(50)}
    some = {"users": torch.tensor([3, 5, 59]), "items": torch.tensor([0, 49])}
    whole, part = (hash_gnn.encode(encoders, graph_of(log), ids) for ids in (everyone, some))
    for side, ids in some.items():
        torch.testing.assert_close(part[side], whole[side][ids])


def test_rows_with_unseen_ids_do_not_count():
    log = PLANTED.interactions()
    user, item = log.user.copy(), log.item.copy()
    user[::5], item[::7] = -1, -1
    seen = (user >= 0) & (item >= 0)
    with_unseen, _ = hash_codes(replace(log, user=user, item=item), "items", 8, 0, QUICK)
    without, _ = hash_codes(log[seen], "items", 8, 0, QUICK)
    assert torch.equal(with_unseen, without)


# Odd logs.


@pytest.mark.parametrize("side", ["users", "items"])
def test_an_empty_log_gives_codes_all_the_same(side):
    log = PLANTED.interactions()[:0]
    codes, _ = hash_codes(log, side, 8, 0, QUICK)
    assert codes.shape == ({"users": 60, "items": 50}[side], 6)
    assert torch.equal(hash_codes(log, side, 8, 0, QUICK)[0], codes)


@pytest.mark.parametrize(
    ("users", "items", "ratings"),
    [
        ([0, 0, 1, 1], ["a", "b", "a", "b"], [3.0] * 4),
        ([0, 0, 0, 0], ["a", "b", "c", "d"], [1.0, 2.0, 4.0, 5.0]),
        ([0, 1, 2, 3], ["a"] * 4, [1.0, 2.0, 4.0, 5.0]),
        ([0], ["a"], [4.0]),
        ([0, 0], ["a", "a"], [-1e30, 1e30]),
    ],
    ids=["equal ratings", "one user", "one item", "one interaction", "huge ratings"],
)
@pytest.mark.parametrize("side", ["users", "items"])
def test_odd_logs_give_codes_from_a_network_that_is_finite(
    users, items, ratings, side, monkeypatch
):
    log, seen = log_of(users, items, ratings), []
    encode = hash_gnn.encode

    def watched(*given):
        seen.append(encode(*given))
        return seen[-1]

    monkeypatch.setattr(hash_gnn, "encode", watched)
    codes, _ = hash_codes(log, side, 4, 0, QUICK)
    assert len(codes) == {"users": log.num_users, "items": log.num_items}[side]
    assert all(bool(numbers.isfinite().all()) for found in seen for numbers in found.values())
    assert torch.equal(codes, seen[-1][side] >= 0)


# What it took.


@pytest.mark.parametrize("side", ["users", "items"])
def test_the_bytes_are_those_of_both_sides_of_the_network(side):
    log = PLANTED.interactions()
    _, held = hash_codes(log, side, 8, 0, replace(QUICK, steps=1))
    bits, dim = math.ceil(math.log2(8)) + 3, 8
    layers = (2 * dim + 1) * dim + (dim + 1) * bits
    assert held == 4 * ((60 + 50) * dim + 2 * layers)


def test_the_table_tells_what_preparing_it_took_and_serves_without():
    log = PLANTED.interactions()
    request = Request(log, "items", log.num_items, 4, 8, 0)
    table = METHODS["hashgnn"].make(request)
    assert table.preparation_bytes == hash_codes(log, "items", 8, 0)[1]
    assert table.preparation_bytes > 10 * table.memory(training=True).total
    assert table.memory() == table.memory(training=True)


@pytest.mark.parametrize("steps", [1, 2])
def test_signs_take_over_in_the_course_of_training(steps, monkeypatch):
    """In the last step all numbers of the guided side are signs."""
    log, seen = PLANTED.interactions(), []
    where = torch.where

    def watched(condition, one, other):
        if isinstance(one, torch.Tensor) and one.shape == (50, 6):
            seen.append(float(condition.float().mean()))
        return where(condition, one, other)

    monkeypatch.setattr(hash_gnn.torch, "where", watched)
    hash_codes(log, "items", 8, 0, replace(QUICK, steps=steps))
    assert len(seen) == steps
    assert seen[-1] == 1
    assert np.all(np.diff(seen) >= 0)
