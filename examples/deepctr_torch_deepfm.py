"""DeepFM of DeepCTR-Torch, trained by its own `fit`, with clusters of users and items.

All ids begin in one cluster, which is split while the model is trained: a hook of the
optimiser is all that is added. `make hosts` sets up what it needs.
"""

from contextlib import redirect_stdout
from io import StringIO

import torch
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import DeepFM
from torch.nn import functional

import celrec
from celrec.cel.reassignment import Reassignment
from clicks import Result, batches_of, columns, load_clicks, show

EPOCHS = 6


def train(*, clustered: bool) -> Result:
    log, test = load_clicks()
    user, item, clicked = columns(log)
    features = [
        SparseFeat("user", log.num_users, embedding_dim=16),
        SparseFeat("item", log.num_items, embedding_dim=16),
    ]
    model = DeepFM(features, features, dnn_hidden_units=(64, 32), seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    model.compile(optimizer, "binary_crossentropy")

    def objective(rows):
        predicted = model(torch.stack([user[rows], item[rows]], 1).float()).squeeze(1)
        return functional.binary_cross_entropy(predicted, clicked[rows], reduction="none")

    if clustered:
        clusterers = celrec.clusterize(
            model,
            # The linear part has one number for each id, and nothing to share.
            {"embedding_dict.user": "5%", "embedding_dict.item": "5%"},
            objective,
            optimizer,
            start="one",
            data=batches_of(log),
            split_every=40,
            growth=0.5,
            reassign_every=600,
            reassignment=Reassignment(evidence=20, margin=0.02),
        )
        steps = [clusterer.step for clusterer in clusterers.values()]
        optimizer.register_step_post_hook(lambda *_: [step() for step in steps] and None)

    with redirect_stdout(StringIO()):  # it tells the device
        known = {"user": user.numpy(), "item": item.numpy()}
        model.fit(known, clicked.numpy(), batch_size=256, epochs=EPOCHS, verbose=0)
    user, item, clicked = columns(test)
    predicted = model.predict({"user": user.numpy(), "item": item.numpy()}, 4096)
    return Result.of(model, predicted, clicked.numpy())


if __name__ == "__main__":
    show("DeepFM of DeepCTR-Torch", train(clustered=False), train(clustered=True))
