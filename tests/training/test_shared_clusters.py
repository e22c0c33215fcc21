"""Clusters whose ids are spread over processes, which are threads here."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.training.batch import Batch
from celrec.training.hard_side import HardSide
from celrec.training.moving import Moving
from celrec.training.online_side import Tangent
from celrec.training.row_descent import Descending
from celrec.training.shared_clusters import SharedClusters
from tests.clustering.fellow_ranks import together

DIM, IDS, PARTNERS, CLUSTERS = 3, 30, 8, 10


class Judge:
    """(row·partner − target)², partners being fixed; they have the numbers of all."""

    kind = "squared-error"

    def __init__(self):
        self.partners = torch.randn(PARTNERS, DIM, generator=torch.Generator().manual_seed(0))

    def tangent(self, side, batch):
        partner = self.partners[batch.item if side == "users" else batch.user]
        return Tangent(torch.zeros(len(partner)), partner, torch.zeros_like(partner))

    def losses(self, side, batch, candidates):
        slope = self.tangent(side, batch).slope
        return ((candidates * slope).sum(-1) - batch.target).square()


def batches_of(seed, count):
    """Batches of events: the number of the id among all, its partner, and the target."""
    rng = np.random.default_rng(seed)
    return [
        (
            np.minimum(rng.geometric(0.1, size), IDS) - 1,
            rng.integers(0, PARTNERS, size),
            rng.normal(size=size).astype(np.float32),
        )
        for size in rng.integers(1, 40, count)
    ]


def make(name, ranks=None, **moving):
    table = ClusteredEmbedding(CLUSTERS, DIM, max_clusters=CLUSTERS)
    table.weight.detach().normal_(generator=torch.Generator().manual_seed(3))
    how = Moving(**{"limit": 8.0, "latest": 4, "every": 30, **moving})
    told = (name, table, Descending(), how, int(name == "items"), 2)
    return HardSide(*told) if ranks is None else SharedClusters(*told, ranks)


def learn(side, batches, ranks=None):
    """Let a rank learn its share of each batch: what it is told of, or every event if alone."""
    judge, events = Judge(), 0
    for ids, partners, target in batches:
        moment = torch.arange(events, events + len(ids))
        events += len(ids)
        user, item = (ids, partners) if side.name == "users" else (partners, ids)
        here = np.arange(len(ids))
        if ranks is not None:  # each learns the events of its own users
            here = np.flatnonzero(user % ranks.size == ranks.rank)
            user = user // ranks.size
        user, item, told = (torch.from_numpy(one[here]) for one in (user, item, target))
        batch = Batch(user, item, told, moment=moment[here])
        own = user if side.name == "users" else item
        side.make_room(own)
        vectors = side.lookup(own)
        gradients = torch.from_numpy(np.stack([target, -target, target], 1)[here])
        side.tell_owners(batch, gradients, None)
        pulled = side.pull(gradients)
        if ranks is not None:
            pulled = ranks.total(pulled)
        side.descend(pulled)
        with torch.no_grad():
            side.observe(batch, own, {side.name: vectors}, judge, again=False)
    return side


def spread(name, size, batches, **moving):
    return together(size, lambda ranks: learn(make(name, ranks, **moving), batches, ranks))


def grouped(sides, counts):
    """The numbers of ids by their clusters, of all ranks together."""
    found = {}
    for one in np.flatnonzero(counts):
        side, number = sides[one % len(sides)], one // len(sides)
        found.setdefault(int(side.table.assignment[number]), set()).add(int(one))
    return found


def check(sides, counts, *, limit):
    first, clusters = sides[0], sides[0].table.num_clusters
    for side in sides[1:]:
        for mine, others in zip(side.same_everywhere(), first.same_everywhere(), strict=True):
            assert torch.equal(mine, others)
    found = grouped(sides, counts)
    assert set(found) == set(range(clusters))  # every cluster has a member
    sizes = sum(side.members.sizes for side in sides)
    events = sum(side.members.events for side in sides)
    for cluster, some in found.items():
        assert sizes[cluster] == len(some)
        assert events[cluster] == counts[list(some)].sum()
        if clusters < CLUSTERS and first._looked == first.events:
            assert len(some) == 1 or events[cluster] <= 2 * limit
    kept = np.zeros_like(counts)
    for rank, side in enumerate(sides):
        mine = side.counts[: len(kept[rank :: len(sides)])]
        kept[rank :: len(sides)][: len(mine)] = mine
    np.testing.assert_array_equal(kept, counts)


def counted(batches):
    return np.bincount(np.concatenate([ids for ids, _, _ in batches]), minlength=IDS)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["users", "items"]),
    st.sampled_from(["always", "doubling"]),
    st.sampled_from([None, 5]),
    st.sampled_from([True, False]),
    st.integers(2, 4),
)
@settings(max_examples=25, deadline=None)
def test_the_books_of_all_ranks_are_right(seed, name, schedule, own, by_tangent, size):
    batches = batches_of(seed, 5)
    moving = {"schedule": schedule, "own_row_above": own, "by_tangent": by_tangent}
    sides = spread(name, size, batches, candidates=6, **moving)
    check(sides, counted(batches), limit=8.0)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["users", "items"]), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_where_nobody_moves_clusters_are_split_as_one_process_does(seed, name, size):
    batches = batches_of(seed, 5)
    counts = counted(batches)
    alone = learn(make(name, candidates=0, limit=12.0), batches)
    sides = spread(name, size, batches, candidates=0, limit=12.0)
    check(sides, counts, limit=12.0)
    assert grouped(sides, counts) == grouped([alone], counts)
    torch.testing.assert_close(sides[0].table.weight, alone.table.weight)
    torch.testing.assert_close(sides[0]._mean, alone._mean)
    assert torch.equal(sides[0].table.parent, alone.table.parent)


@pytest.mark.parametrize("size", [2, 3])
def test_if_all_members_would_leave_a_cluster_one_stays(size):
    """One cluster is far from what everybody wants."""

    def work(ranks):
        side = make("users", ranks, candidates=40, prior=0.0, limit=1e9)
        table = side.table
        table.open_all([0])
        with torch.no_grad():
            table.weight[0], table.weight[1] = 50.0, 0.0
        return learn(side, batches, ranks)

    ids = np.arange(IDS)
    batches = [(ids, ids % PARTNERS, np.zeros(IDS, np.float32))]
    sides = together(size, work)
    assert grouped(sides, counted(batches)) == {0: {0}, 1: set(range(1, IDS))}
    assert [side.moved for side in sides] == [IDS - 1] * size
