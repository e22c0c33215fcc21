import pytest
import torch
from torch import nn, optim

import celrec
from celrec.cel.autograd_evidence import BagEvidence
from celrec.embeddings.clustered_bag import ClusteredEmbeddingBag

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of TorchRec, by TorchRec
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
USERS, ITEMS, ROWS, DIM = 6, 11, 4, 3


@pytest.fixture
def torchrec():
    return pytest.importorskip("torchrec")


def config(torchrec, name, rows, features=None, pooling="SUM"):
    return torchrec.EmbeddingBagConfig(
        name=name,
        feature_names=features or [name],
        embedding_dim=DIM,
        num_embeddings=rows,
        pooling=torchrec.PoolingType[pooling],
    )


class Model(nn.Module):
    def __init__(self, torchrec, pooling="SUM"):
        from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
        from torchrec.modules.mc_modules import ManagedCollisionCollection

        from celrec.cel.torchrec import ClusterCollisionModule

        super().__init__()
        torch.manual_seed(0)
        tables = [
            config(torchrec, "user", USERS, pooling=pooling),
            config(torchrec, "item", ROWS, pooling=pooling),
        ]
        self.bags = torchrec.EmbeddingBagCollection(tables=tables)
        with torch.no_grad():
            for bag in self.bags.embedding_bags.values():
                bag.weight.normal_()
        self.collisions = {
            "user": ClusterCollisionModule(self.bags, "user", num_ids=USERS),
            "item": ClusterCollisionModule(self.bags, "item", num_ids=ITEMS),
        }
        self.clusters = self.collisions["item"].table
        self.clusters.start_from(torch.arange(ITEMS) % 3)
        self.collisions["user"].table.start_from(torch.arange(USERS))
        collection = ManagedCollisionCollection(self.collisions, tables)
        self.vectors = ManagedCollisionEmbeddingBagCollection(self.bags, collection)

    def forward(self, batch):
        ids, target = batch
        found, _ = self.vectors(ids)
        return ((found["user"] * found["item"]).sum(-1).tanh() - target) ** 2


def make_batch(torchrec, seed=0):
    """Three samples with a user each, and 2, 0 and 3 items of which one is unseen."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.cat(
        [
            torch.randint(USERS, (3,), generator=rng),
            torch.tensor([7, 7]),
            torch.randint(ITEMS, (2,), generator=rng),
            torch.tensor([2**40]),
        ]
    )
    lengths = torch.tensor([1, 1, 1, 2, 0, 3])
    given = torchrec.KeyedJaggedTensor.from_lengths_sync(["user", "item"], ids, lengths)
    return given, torch.randn(3, generator=rng)


def items_of(batch):
    """Ids and offsets of the items of a batch, and its users."""
    parts = batch[0].to_dict()
    return parts["item"].values(), parts["item"].offsets()[:-1], parts["user"].values()


@pytest.mark.parametrize("pooling", ["SUM", "MEAN"])
def test_a_collection_looks_up_the_rows_of_clusters(torchrec, pooling):
    model, batch = Model(torchrec, pooling), make_batch(torchrec)
    model.clusters.unseen_cluster = 2
    ids, offsets, users = items_of(batch)
    found, _ = model.vectors(batch[0])
    bags = ClusteredEmbeddingBag(model.clusters, mode=pooling.lower())
    torch.testing.assert_close(found["item"], bags(ids, offsets))
    torch.testing.assert_close(found["user"], model.bags.embedding_bags["user"].weight[users])
    assert found["item"][1].eq(0).all()


@pytest.mark.parametrize("pooling", ["SUM", "MEAN"])
def test_evidence_through_a_collection_is_that_of_bags(torchrec, pooling):
    model = Model(torchrec, pooling)
    batches = [make_batch(torchrec, seed) for seed in range(3)]
    weight = model.bags.embedding_bags["item"].weight
    bags = ClusteredEmbeddingBag(model.clusters, mode=pooling.lower())

    def plain(batch):
        ids, offsets, users = items_of(batch)
        rows = model.bags.embedding_bags["user"].weight[users]
        return ((rows * bags(ids, offsets)).sum(-1).tanh() - batch[1]) ** 2

    found = BagEvidence(model.collisions["item"], model, data=batches)
    expected = BagEvidence(bags, plain, data=batches)
    members = torch.arange(ITEMS)
    torch.testing.assert_close(found.gradients(members), expected.gradients(members))
    torch.testing.assert_close(found.losses(), expected.losses())
    torch.testing.assert_close(found.own_losses(), expected.own_losses())
    assert torch.equal(found.interactions(), expected.interactions())
    assert found.gradients(members).abs().sum() > 0.1
    assert model.bags.embedding_bags["item"].weight is weight  # as it was before


def test_a_clusterer_changes_the_map_and_the_collection_trains(torchrec):
    model = Model(torchrec)
    model.clusters.start_from(torch.zeros(ITEMS, dtype=torch.int64))
    batches = [make_batch(torchrec, seed) for seed in range(8)]
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    clusterer = celrec.Clusterer(
        model.collisions["item"], optimizer, model, split_every=5, reassign_every=10
    )
    assert model.collisions["item"].open_slots().tolist() == [ROWS - 1]
    before = sum(float(model(batch).detach().sum()) for batch in batches)
    for step in range(40):
        batch = batches[step % 8]
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        predicted = [model(one).detach() for one in batches]
        moves = clusterer.step(batch)
        if [move.kind for move in moves] == ["split"]:
            assert all(
                torch.equal(model(one), was) for one, was in zip(batches, predicted, strict=True)
            )
    assert model.clusters.num_clusters == ROWS
    assert model.collisions["item"].open_slots().tolist() == [0]
    assert sum(float(model(batch).detach().sum()) for batch in batches) < 0.8 * before


def test_a_saved_map_is_restored_and_one_that_fits_no_rows_is_told(torchrec):
    model, batch = Model(torchrec), make_batch(torchrec)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    fresh = Model(torchrec)
    fresh.clusters.start_from(torch.zeros(ITEMS, dtype=torch.int64))
    with torch.no_grad():
        fresh.clusters.weight.zero_()
    fresh.load_state_dict(saved)
    assert torch.equal(fresh(batch), model(batch))
    (name,) = (name for name in saved if "item" in name and name.endswith("assignment"))
    saved[name] = saved[name] + 1
    with pytest.raises(celrec.CelrecError, match="an id is in cluster 3, but there are 3"):
        fresh.load_state_dict(saved)


def test_the_module_tells_its_sizes(torchrec):
    module = Model(torchrec).collisions["item"]
    assert (module.input_size(), module.output_size(), module.buckets()) == (ITEMS, ROWS, 1)
    assert module.evict() is None
    with pytest.raises(celrec.CelrecError, match="not sharded by row"):
        module.rebuild_with_output_id_range((0, 2), [0, 2])


def test_what_cannot_be_clustered_is_refused(torchrec):
    from celrec.cel.torchrec import ClusterCollisionModule

    bags = torchrec.EmbeddingBagCollection(
        tables=[config(torchrec, "item", ROWS, ["seen", "bought"])]
    )
    with pytest.raises(celrec.CelrecError, match="no table 'user'; it has item"):
        ClusterCollisionModule(bags, "user", num_ids=ITEMS)
    with pytest.raises(celrec.CelrecError, match="features seen, bought; give each its own"):
        ClusterCollisionModule(bags, "item", num_ids=ITEMS)


def test_a_collection_can_be_clusterized_without_managed_collisions_too(torchrec):
    torch.manual_seed(0)
    bags = torchrec.EmbeddingBagCollection(
        tables=[config(torchrec, "user", USERS), config(torchrec, "item", ITEMS)]
    )
    batch, _ = make_batch(torchrec)
    known = torchrec.KeyedJaggedTensor.from_lengths_sync(
        ["user", "item"], batch.values() % USERS, batch.lengths()
    )
    before = bags(known).values()
    celrec.clusterize(bags, {"embedding_bags.item": ITEMS})
    assert torch.equal(bags(known).values(), before)
