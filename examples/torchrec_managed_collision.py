"""An EmbeddingBagCollection of TorchRec whose ids are turned into clusters on the way.

A two-tower model with a small layer on top; the clusters are managed collisions, and all ids
begin in one. `make hosts` sets up what it needs.
"""

import torch
from torch import nn
from torch.nn import functional
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection

import celrec
from celrec.cel.autograd_evidence import BagEvidence
from celrec.cel.reassignment import Reassignment
from celrec.cel.torchrec import ClusterCollisionModule
from clicks import Result, batches_of, columns, load_clicks, show

EPOCHS, DIM = 5, 16


class Towers(nn.Module):
    def __init__(self, vectors: nn.Module) -> None:
        super().__init__()
        self.vectors = vectors
        self.layers = nn.Sequential(nn.Linear(3 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user, item):
        ids = KeyedJaggedTensor.from_lengths_sync(
            ["user", "item"],
            torch.cat([user, item]),
            torch.ones(2 * len(user), dtype=torch.int64),
        )
        found = self.vectors(ids)
        if isinstance(found, tuple):  # of vectors and, if that was asked for, rows
            found = found[0]
        first, second = found["user"], found["item"]
        return self.layers(torch.cat([first, second, first * second], 1)).squeeze(1)


def train(*, clustered: bool) -> Result:
    log, test = load_clicks()
    user, item, clicked = columns(log)
    torch.manual_seed(0)
    ids = {"user": log.num_users, "item": log.num_items}
    tables = [
        EmbeddingBagConfig(
            name=name,
            feature_names=[name],
            embedding_dim=DIM,
            num_embeddings=round(0.05 * count) if clustered else count,
            init_fn=lambda weight: nn.init.normal_(weight, std=0.1),
        )
        for name, count in ids.items()
    ]
    bags = EmbeddingBagCollection(tables=tables)
    collisions = {}
    if clustered:
        collisions = {
            name: ClusterCollisionModule(bags, name, num_ids=count) for name, count in ids.items()
        }
        collection = ManagedCollisionCollection(collisions, tables)
        model = Towers(ManagedCollisionEmbeddingBagCollection(bags, collection))
    else:
        model = Towers(bags)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def objective(rows):
        predicted = model(user[rows], item[rows])
        return functional.binary_cross_entropy_with_logits(
            predicted, clicked[rows], reduction="none"
        )

    clusterers = [
        celrec.Clusterer(
            collision,
            optimizer,
            BagEvidence(collision, objective, data=batches_of(log), model=model),
            split_every=40,
            growth=0.5,
            reassign_every=600,
            reassignment=Reassignment(evidence=20, margin=0.02),
        )
        for collision in collisions.values()
    ]
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(log)), 256):
            objective(rows).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for clusterer in clusterers:
                clusterer.step()

    user, item, clicked = columns(test)
    with torch.no_grad():
        predicted = model(user, item).sigmoid()
    return Result.of(model, predicted.numpy(), clicked.numpy())


if __name__ == "__main__":
    show("EmbeddingBagCollection of TorchRec", train(clustered=False), train(clustered=True))
