"""Clusters as managed collisions in a model that TorchRec spreads over two processes."""

import subprocess
import sys

import pytest
import torch
from torch import nn, optim

pytestmark = pytest.mark.hosts
USERS, ITEMS, ROWS, DIM, SAMPLES, BATCHES = 40, 60, 6, 4, 64, 4
WORKER = """
import os, sys
import torch
from torch import distributed
from tests.hosts import test_distributed_model_parallel as here

rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size
)
torch.save(here.trained(rank, size), f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


class Model(nn.Module):
    """Users have a table of their own, items share rows: the logit is their dot product."""

    def __init__(self):
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
        from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
        from torchrec.modules.mc_modules import ManagedCollisionCollection

        from celrec.cel.torchrec import ClusterCollisionModule

        super().__init__()

        def collection(name, rows):
            config = EmbeddingBagConfig(
                name=name, feature_names=[name], embedding_dim=DIM, num_embeddings=rows
            )
            return EmbeddingBagCollection(tables=[config]), config

        self.users, _ = collection("user", USERS)
        bags, config = collection("item", ROWS)
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for bag in (self.users.embedding_bags["user"], bags.embedding_bags["item"]):
                bag.weight.normal_(0, 0.3, generator=rng)
        self.clusters = ClusterCollisionModule(bags, "item", num_ids=ITEMS)
        self.items = ManagedCollisionEmbeddingBagCollection(
            bags, ManagedCollisionCollection({"item": self.clusters}, [config])
        )

    def forward(self, batch):
        ids, target = batch
        users = self.users(ids)["user"]
        items = self.items(ids)[0]["item"]
        return ((users * items).sum(-1) - target) ** 2


def batches(rank, size):
    """This process's samples of each batch: of two, each has half."""
    from torchrec import KeyedJaggedTensor

    rng = torch.Generator().manual_seed(1)
    truth = torch.randn(3, USERS, generator=rng)  # three kinds of items
    found = []
    for _ in range(BATCHES):
        user = torch.randint(USERS, (SAMPLES,), generator=rng)
        item = torch.randint(ITEMS, (SAMPLES,), generator=rng)
        mine = slice(rank * SAMPLES // size, (rank + 1) * SAMPLES // size)
        target, user, item = truth[item % 3, user][mine], user[mine], item[mine]
        ids = KeyedJaggedTensor.from_lengths_sync(
            ["user", "item"], torch.cat([user, item]), torch.ones(2 * len(user), dtype=torch.int64)
        )
        found.append((ids, target))
    return found


def begin_with(collection, rows):
    """Let a collection, whose rows are spread over processes, begin with these."""
    for shard in collection.state_dict()["embedding_bags.user.weight"].local_shards():
        first, count = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
        shard.tensor.copy_(rows[first : first + count])


def trained(rank, size):
    """The clusters of items, their rows and the mean loss of this process, step by step."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingPlan

    from celrec import Clusterer
    from celrec.cel.autograd_evidence import BagEvidence
    from celrec.cel.evidence import DistributedEvidence

    model = Model()
    users = model.users.embedding_bags["user"].weight.detach().clone()
    sharder = EmbeddingBagCollectionSharder(  # whose rows descend while gradients are found
        fused_params={"learning_rate": 1.0, "optimizer": EmbOptimType.EXACT_SGD}
    )
    plan = construct_module_sharding_plan(
        model.users, {"user": row_wise(compute_kernel="fused")}, sharder, size, size, "cpu"
    )
    wrapped = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan({"users": plan}), sharders=[sharder]
    )
    begin_with(wrapped.module.users, users)
    optimizer = optim.Adam(wrapped.module.items.parameters(), lr=0.05)
    clusters = wrapped.module.clusters
    evidence = BagEvidence(clusters, wrapped.module, window=BATCHES)
    clusterer = Clusterer(
        clusters.table,
        optimizer,
        DistributedEvidence(evidence),
        split_every=8,
        reassign_every=16,
    )
    losses, kinds = [], []
    for step in range(120):
        batch = batches(rank, size)[step % BATCHES]
        loss = wrapped(batch)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        losses.append(loss.detach())
        kinds += [move.kind for move in clusterer.step(batch)]
    return {
        "losses": torch.stack(losses),
        "clusters": clusters.table.assignment.clone(),
        "rows": clusters.table.weight.detach().clone(),
        "kinds": kinds,
        "sharded": sum(p.numel() for p in wrapped.module.users.parameters()),
    }


def together(folder, size):
    folder.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, str(rank), str(size), folder]
        )
        for rank in range(size)
    ]
    assert [process.wait(timeout=240) for process in processes] == [0] * size
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


def test_two_processes_move_items_as_one_does(tmp_path):
    pytest.importorskip("torchrec")
    (alone,) = together(tmp_path / "one", 1)
    first, second = together(tmp_path / "two", 2)
    assert alone["kinds"] == first["kinds"] == second["kinds"]
    assert {"split", "reassign"} <= set(alone["kinds"])
    assert torch.equal(first["clusters"], second["clusters"])
    assert torch.equal(first["rows"], second["rows"])
    assert torch.equal(alone["clusters"], first["clusters"])
    torch.testing.assert_close(alone["rows"], first["rows"], rtol=1e-3, atol=1e-4)
    losses = torch.cat([first["losses"], second["losses"]], 1)
    torch.testing.assert_close(alone["losses"], losses, rtol=1e-3, atol=1e-4)
    assert float(losses[-BATCHES:].mean()) < 0.3 * float(losses[:BATCHES].mean())
    # Users are spread over both: neither has all of them.
    assert first["sharded"] < alone["sharded"]
