"""CEL in tables of several levels: splits, reassignment, trained tables, and restarts."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from celrec import CelrecError, Clusterer, LevelledClusterer, clusterize, declusterize
from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.cel.learned_clusters import learned_clusters, learned_levels
from celrec.cel.reassignment import Reassignment
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.runtime.threads import one_thread

USERS, ITEMS, DIM = 20, 30, 4


@pytest.fixture(autouse=True)
def alone():
    """For tensors this small, several threads mostly wait for each other."""
    with one_thread():
        yield


class Dot(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, DIM), items

    def forward(self, batch):
        users, items, targets = batch
        return ((self.users(users) * self.items(items)).sum(-1) - targets) ** 2


def make_batches(seed=0, count=4, size=100):
    rng = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randint(USERS, (size,), generator=rng),
            torch.randint(ITEMS, (size,), generator=rng),
            torch.randn(size, generator=rng),
        )
        for _ in range(count)
    ]


def make_model(levels=2, parts=1, padding_idx=None, max_clusters=4):
    torch.manual_seed(0)
    shape = {"levels": levels, "parts": parts, "padding_idx": padding_idx}
    return Dot(LevelledEmbedding(ITEMS, DIM, max_clusters=max_clusters, **shape))


def make_clusterer(model, batches, optimizer=None, **options):
    return LevelledClusterer(model.items, optimizer, model, data=batches, **options)


def train(model, optimizer, clusterers, batches, steps):
    """The plain loop; the moves that were made."""
    moves = []
    for step in range(steps):
        batch = batches[step % len(batches)]
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for clusterer in clusterers:
            moves += clusterer.step(batch)
    return moves


@torch.no_grad()
def loss_of(model, batches):
    return sum(float(model(batch).sum()) for batch in batches)


SHAPES = [(2, 1, None), (3, 1, 5), (1, 2, None), (2, 2, 0)]


@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
@pytest.mark.parametrize(("levels", "parts", "padding"), SHAPES)
def test_splits_leave_predictions_unchanged_and_no_cluster_empty(levels, parts, padding, optimiser):
    model, batches = make_model(levels, parts, padding), make_batches()
    optimizer = optimiser(model.parameters(), lr=0.1)
    clusterer = make_clusterer(model, batches, optimizer, split_every=0, reassign_every=0)
    tables = model.items.clustered_levels
    order = sorted(range(len(tables)), key=lambda number: number % levels)
    for clusters in range(len(tables) + 1, 4 * len(tables) + 1):
        train(model, optimizer, [clusterer], batches, 3)
        before = [model(batch) for batch in batches]
        (move,) = clusterer.split()
        assert all(torch.equal(model(b), loss) for b, loss in zip(batches, before, strict=True))
        assert move.clusters == model.items.num_clusters == clusters
        counts = [tables[number].num_clusters for number in order]
        full = (clusters - len(tables) - 1) // 3  # the first level that has rows left is split
        assert counts[:full] == [4] * full
        assert move.level == order[full] + 1
        assert all(bool(level.sizes().all()) for level in tables)
    assert clusterer.split() == []


def test_the_rows_of_a_split_keep_the_momentum():
    model, batches = make_model(), make_batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    clusterer = make_clusterer(model, batches, optimizer, split_every=0, reassign_every=0)
    for _ in range(3):
        clusterer.split()
    train(model, optimizer, [clusterer], batches, 5)
    (move,) = clusterer.split()
    weight = model.items.clustered_levels[1].weight
    assert (move.level, move.cluster) == (2, 0)
    for _ in range(3):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert torch.equal(weight[0], weight[1])


@pytest.mark.parametrize(("levels", "parts", "padding"), SHAPES)
def test_a_reassignment_never_raises_the_loss_and_empties_no_cluster(levels, parts, padding):
    model, batches = make_model(levels, parts, padding), make_batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    clusterer = make_clusterer(
        model,
        batches,
        optimizer,
        split_every=1,
        reassign_every=0,
        reassignment=Reassignment(keep=0.2),
    )
    moved = 0
    for _ in range(15):
        train(model, optimizer, [clusterer], batches, 2)
        before = loss_of(model, batches)
        codes = model.items.codes(torch.arange(ITEMS))
        move = clusterer.reassign()
        assert loss_of(model, batches) <= before * (1 + 1e-6)
        changed = (model.items.codes(torch.arange(ITEMS)) != codes).any(-1)
        assert (move.kind, move.moved) == ("reassign", int(changed.sum()))
        assert all(bool(level.sizes().all()) for level in model.items.clustered_levels)
        moved += move.moved
    assert moved > 0


def states(model, optimizer, clusterer):
    parts = model.state_dict(), optimizer.state_dict(), clusterer.state_dict()
    return copy.deepcopy(parts)


def equal(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(v, second[n]) for n, v in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


def begin(batches):
    model = make_model(levels=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = {"split_every": 2, "reassign_every": 3, "seed": 5}
    return model, optimizer, make_clusterer(model, batches, optimizer, **schedule)


def test_a_seed_gives_one_result_and_a_restart_changes_nothing(tmp_path):
    batches = make_batches()
    results = []
    for stop in (None, None, 7):
        model, optimizer, clusterer = begin(batches)
        if stop is not None:
            train(model, optimizer, [clusterer], batches[:1] * stop, stop)
            torch.save(states(model, optimizer, clusterer), tmp_path / "state.pt")
            model, optimizer, clusterer = begin(batches)
            saved = torch.load(tmp_path / "state.pt", weights_only=True)
            for one, state in zip((model, optimizer, clusterer), saved, strict=True):
                one.load_state_dict(state)
            train(model, optimizer, [clusterer], batches[:1] * 18, 18)
        else:
            train(model, optimizer, [clusterer], batches[:1] * 25, 25)
        results.append(states(model, optimizer, clusterer))
    assert equal(results[0], results[1])
    assert equal(results[0], results[2])
    assert results[0][2]["steps"] == 25


def test_evidence_may_be_given_for_each_level():
    model, batches = make_model(), make_batches()
    levels = model.items.clustered_levels
    evidence = [AutogradEvidence(level, model, data=batches) for level in levels]
    LevelledClusterer(model.items, None, evidence).split()
    assert levels[0].num_clusters == 2
    with pytest.raises(CelrecError, match="1 kinds of evidence for 2 levels"):
        LevelledClusterer(model.items, None, evidence[:1])
    with pytest.raises(CelrecError, match="take a LevelledClusterer"):
        Clusterer(model.items, None, model)


@pytest.mark.parametrize(("levels", "parts", "padding"), SHAPES)
def test_the_rows_of_a_level_are_tried_all_at_once(levels, parts, padding):
    model, batches = make_model(levels, parts, padding), make_batches()
    for level in model.items.clustered_levels:
        level.start_from(torch.arange(ITEMS) % 4)
        nn.init.normal_(level.weight)
    calls = []

    def objective(batch):
        calls.append(batch)
        return model(batch)

    for level in model.items.clustered_levels:
        evidence = AutogradEvidence(level, objective, data=batches)
        evidence.losses()
        calls.clear()
        losses = evidence.losses()
        assert len(calls) == 2 * len(batches)  # as they are, and with all rows
        for row in range(4):
            before = level.assignment.clone()
            level.assignment.fill_(row)
            torch.testing.assert_close(losses[:, row], evidence.own_losses())
            level.assignment.copy_(before)


# Trained tables.


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=25)
def test_levels_of_trained_rows_lose_less_than_one_after_the_other(seed, clusters, levels):
    vectors = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed))
    interactions = torch.randint(1, 50, (40,), generator=torch.Generator().manual_seed(seed))
    left = vectors
    for _ in range(levels):
        assignment, rows = learned_clusters(left, clusters, interactions)
        left = left - rows[assignment]
    found = learned_levels(vectors, clusters, levels, interactions)
    together = vectors - sum(rows[assignment] for assignment, rows in found)
    for assignment, _ in found:
        assert torch.bincount(assignment, minlength=clusters).all()
    loss = [(interactions * one.square().sum(1)).sum() for one in (together, left)]
    assert loss[0] <= loss[1] * (1 + 1e-5)


def test_sums_that_are_there_are_found():
    generator = torch.Generator().manual_seed(0)
    coarse, fine = torch.randn(6, 4, generator=generator) * 10, torch.randn(5, 4)
    codes = torch.cartesian_prod(torch.arange(6), torch.arange(5)).repeat(3, 1)
    vectors = coarse[codes[:, 0]] + fine[codes[:, 1]]
    (first, rows), (second, more) = learned_levels(vectors, 6, 2)
    gap = (vectors - rows[first] - more[second]).square().sum()
    assert gap < 0.2 * (vectors - rows[first]).square().sum()


def host():
    torch.manual_seed(1)
    return Dot(nn.Embedding(ITEMS, DIM, padding_idx=3))


@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
@pytest.mark.parametrize("start", ["learned", "one"])
def test_a_model_of_anybody_trains_on_with_levels(optimiser, start):
    model, batches = host(), make_batches()
    optimizer = optimiser(model.parameters(), lr=0.05)
    train(model, optimizer, [], batches, 20)
    parameter = model.items.weight
    clusterers = clusterize(
        model, {"items": 8}, model, optimizer, levels=2, start=start, data=batches, split_every=2
    )
    table = model.items
    assert isinstance(table, LevelledEmbedding)
    assert table.clustered_levels[0].weight is parameter
    assert [len(level.weight) for level in table.clustered_levels] == [4, 4]
    assert clusterers["items"].optimizer is optimizer
    assert table(torch.tensor([3])).eq(0).all()
    before = [level.weight.detach().clone() for level in table.clustered_levels]
    first = loss_of(model, batches)
    train(model, optimizer, clusterers.values(), batches, 60)
    assert table.num_clusters == 8
    assert loss_of(model, batches) < first
    for level, rows in zip(table.clustered_levels, before, strict=True):
        assert not torch.equal(level.weight, rows)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    vectors = table(torch.arange(ITEMS))
    plain = declusterize(model).items
    assert type(plain) is nn.Embedding
    assert plain.weight is parameter
    assert torch.equal(plain(torch.arange(ITEMS)), vectors)


def test_with_as_many_rows_levels_keep_more_of_what_was_learned():
    torch.manual_seed(0)
    vectors, gaps = torch.randn(500, 8), []
    for levels in (1, 2, 3):
        model = nn.ModuleDict({"item": nn.Embedding.from_pretrained(vectors, freeze=False)})
        clusterize(model, {"item": 48}, levels=levels)
        gaps.append(float((model["item"](torch.arange(500)) - vectors).norm().detach()))
    assert gaps == sorted(gaps, reverse=True)


def test_mistakes_are_told():
    model = nn.ModuleDict({"item": nn.Embedding(9, 2), "tags": nn.EmbeddingBag(9, 2)})
    with pytest.raises(CelrecError, match="levels must be positive, not 0"):
        clusterize(model, {"item": 4}, levels=0)
    with pytest.raises(CelrecError, match=r"'tags' is an nn.EmbeddingBag; take levels=1"):
        clusterize(model, {"tags": 4}, levels=2)
    with pytest.raises(CelrecError, match="is a LevelledEmbedding itself"):
        declusterize(LevelledEmbedding(9, 2, max_clusters=2))
