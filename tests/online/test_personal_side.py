import copy

import numpy as np
import pytest
import torch

from celrec.config.online import OnlineClusterConfig, OnlineConfig, RowDescentConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.models.dot_product import DotProduct
from celrec.online.make_trainer import make_trainer
from celrec.online.plain_tables import Shifted
from celrec.online.table_trainer import Observation
from celrec.recommender.batch import Batch, FeatureTables
from celrec.recommender.model import Model

USERS, ITEMS, DIM = 6, 8, 3
SGD = RowDescentConfig(rule="sgd", learning_rate=0.05)


def recommender(kind="soft"):
    torch.manual_seed(0)
    shared = {
        "soft": lambda: PosteriorEmbedding(ITEMS, DIM, rows=3),
        "hard": lambda: ClusteredEmbedding(ITEMS, DIM, max_clusters=3),
    }[kind]()
    none = FeatureTables([], DIM), FeatureTables([], DIM)
    return Model(FullEmbedding(USERS, DIM), PersonalEmbedding(shared), DotProduct(), *none)


def trainer(model, above=2, **changes):
    settings = {"shared": SGD, "plain": SGD, "own": SGD, **changes}
    made = make_trainer(
        OnlineConfig(own_above=above, moving=OnlineClusterConfig(limit=4), **settings), model
    )
    for side in made.sides.values():
        side.begin()
    return made


def events(count=12, seed=0):
    rng = np.random.default_rng(seed)
    ids = (torch.from_numpy(rng.integers(size, size=count)) for size in (USERS, ITEMS))
    return Batch(*ids, torch.from_numpy(rng.normal(3, 1, count).astype(np.float32)))


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_ids_get_rows_of_their_own_once_they_have_more_events_than_the_limit(kind):
    model = recommender(kind)
    learning, seen = trainer(model), []
    for number in range(4):
        batch = events(seed=number)
        learning.step(batch)
        seen += batch.item.tolist()
        warm = {item for item in range(ITEMS) if seen.count(item) > 2}
        assert {i for i in range(ITEMS) if model.items.own[i] >= 0} == warm
    assert model.items.own_rows == len(warm) > 0
    assert learning.sides["items"].counts[:ITEMS].sum() == len(seen)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_to_get_a_row_changes_no_vector_at_that_moment(kind):
    model = recommender(kind)
    learning, everyone = trainer(model, above=0), torch.arange(ITEMS)
    before = model.items.shared(everyone)
    model.items.give(everyone)
    assert torch.equal(model.items(everyone), before)
    learning.step(events())
    assert not torch.equal(model.items.offset, torch.zeros_like(model.items.offset))


def test_what_an_id_differs_by_takes_the_mean_gradient_and_is_drawn_to_nothing():
    model = recommender()
    pulled = RowDescentConfig(rule="sgd", learning_rate=0.5, l2=0.2)
    learning = trainer(model, above=0, own=pulled)
    learning.step(events())  # all items of these have rows from now on
    side, ids = learning.sides["items"], events().item
    before = model.items.offset.detach().clone()
    side.lookup(ids)
    gradients = torch.randn(len(ids), DIM, generator=torch.Generator().manual_seed(1))
    side.learn(gradients)
    for item in set(ids.tolist()):
        row = int(model.items.own[item])
        mean = gradients[ids == item].mean(0)
        expected = before[row] - 0.5 * (mean + 0.2 * before[row])
        torch.testing.assert_close(model.items.offset[row].detach(), expected)


def test_shared_rows_are_judged_with_what_the_id_differs_by():
    model = recommender()
    learning = trainer(model, above=0)
    learning.step(events())
    batch = events(seed=1)
    side, evidence = learning.sides["items"], model.items.shared.evidence
    vectors = {name: one.lookup(getattr(batch, name[:-1])) for name, one in learning.sides.items()}
    before, item = evidence.clone(), int(batch.item[0])
    single = batch.at(torch.tensor([0]))
    first = {name: vector[:1] for name, vector in vectors.items()}
    with torch.no_grad():
        side.observe(Observation(single, single.item, first), learning)
        rows = model.items.shared.weight + model.items.offsets(single.item)
        losses = (rows @ vectors["users"][0] - single.target).square()
    added = before[item] + losses * 16 / np.log(2)
    added = (added - added.min()).clamp(max=254)
    assert (evidence[item] - added).abs().max() <= 1
    others = torch.arange(ITEMS) != item
    assert torch.equal(evidence[:-1][others], before[:-1][others])


def test_tangents_are_those_of_what_is_shared():
    model = recommender("hard")
    learning = trainer(model, above=0)
    for number in range(3):
        learning.step(events(seed=number))
    batch = events(seed=1)
    probe = Shifted(learning, model.items, 1)
    with torch.no_grad():
        output, slope, vector = probe.tangent("items", batch)
        for row in model.items.shared.weight:
            outputs = output + (slope * (row - vector)).sum(1)
            expected = probe.losses("items", batch, row.view(1, 1, DIM))[0]
            torch.testing.assert_close((outputs - batch.target).square(), expected)
        plain = learning.tangent("items", batch)
    assert not torch.equal(vector, plain.vector)


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("again", [False, True])
def test_a_state_goes_on_as_if_nothing_had_happened(kind, again):
    def run(stop):
        model = recommender(kind)
        learning = trainer(model)
        for number in range(6):
            if number == stop:
                kept = [{k: v.clone() for k, v in model.state_dict().items()}]
                kept.append(copy.deepcopy(learning.state_dict()))
                model = recommender(kind)
                model.load_state_dict(kept[0])
                learning = trainer(model)
                model.load_state_dict(kept[0])
                learning.load_state_dict(kept[1])
            learning.step(events(seed=number % 4), again=again and number > 3)
        return model.state_dict()

    whole = run(stop=-1)
    for stop in (1, 3, 5):
        found = run(stop)
        assert all(torch.equal(found[name], value) for name, value in whole.items())


def test_ids_may_come_late():
    model = recommender()
    learning = trainer(model, above=0)
    late = events()._replace(item=torch.arange(12) * 3)
    learning.step(late)
    assert model.items.num_embeddings > 33
    assert (model.items.own[torch.arange(12) * 3] >= 0).all()
    assert model.items.own_rows == 12
    assert learning.nbytes > 0
