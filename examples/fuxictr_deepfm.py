"""DeepFM of FuxiCTR: a trained model whose tables are clustered, and trained on.

`make hosts` sets up what it needs.
"""

from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

import celrec
from celrec.cel.reassignment import Reassignment
from clicks import Result, batches_of, columns, load_clicks, show

EPOCHS_BEFORE, EPOCHS_AFTER = 3, 3


class DeepFM(BaseModel):
    """As in its model zoo, of which the released package has but the layers."""

    def __init__(self, feature_map, **options):
        super().__init__(feature_map, model_id="DeepFM", **options)
        self.embedding_layer = FeatureEmbedding(feature_map, 16)
        self.fm = FactorizationMachine(feature_map)
        self.mlp = MLP_Block(
            input_dim=feature_map.sum_emb_out_dim(), output_dim=1, hidden_units=[64, 32]
        )
        self.compile("adam", "binary_crossentropy", lr=0.001)
        self.reset_parameters()

    def forward(self, inputs):
        known = self.get_inputs(inputs)
        vectors = self.embedding_layer(known)
        predicted = self.fm(known, vectors) + self.mlp(vectors.flatten(start_dim=1))
        return {"y_pred": self.output_activation(predicted)}


class Clicks(Dataset):
    """Whole batches of a log, as FuxiCTR's models want them."""

    def __init__(self, log):
        self.user, self.item, self.clicked = columns(log)

    def __len__(self):
        return len(self.user)

    def __getitem__(self, rows):
        columns = {"user": self.user, "item": self.item, "clicked": self.clicked}
        return {name: column[rows] for name, column in columns.items()}

    def loader(self, kind, size):
        return DataLoader(self, sampler=BatchSampler(kind(self), size, False), batch_size=None)


def make_model(log, folder):
    feature_map = FeatureMap("clicks", folder)
    sizes = {"user": log.num_users, "item": log.num_items}
    feature_map.features = OrderedDict(
        (name, {"type": "categorical", "source": "", "vocab_size": size})
        for name, size in sizes.items()
    )
    feature_map.labels = ["clicked"]
    feature_map.default_emb_dim = 16
    feature_map.num_fields = feature_map.get_num_fields()
    Path(folder, "clicks").mkdir()
    torch.manual_seed(0)
    return DeepFM(
        feature_map,
        model_root=folder,
        metrics=["AUC"],
        verbose=0,
        # Fixed epochs, and the last weights are those that count.
        save_best_only=False,
        early_stop_patience=1000,
        reduce_lr_on_plateau=False,
    )


def train(*, clustered: bool) -> Result:
    log, test = load_clicks()
    known, asked = Clicks(log), Clicks(test)
    training = known.loader(RandomSampler, 256)
    testing = asked.loader(SequentialSampler, 4096)
    with TemporaryDirectory() as folder:
        model = make_model(log, folder)
        model.fit(training, epochs=EPOCHS_BEFORE, validation_data=testing)

        if clustered:

            def objective(rows):
                batch = known[rows]
                predicted = model(batch)["y_pred"].squeeze(1)
                return functional.binary_cross_entropy(
                    predicted, batch["clicked"], reduction="none"
                )

            tables = "embedding_layer.embedding_layer.embedding_layers"
            clusterers = celrec.clusterize(
                model,
                {f"{tables}.user": "5%", f"{tables}.item": "5%"},
                objective,
                model.optimizer,
                interactions={
                    f"{tables}.user": torch.bincount(known.user, minlength=log.num_users),
                    f"{tables}.item": torch.bincount(known.item, minlength=log.num_items),
                },
                data=batches_of(log),
                reassign_every=400,
                reassignment=Reassignment(evidence=20, margin=0.02),
            )
            steps = [clusterer.step for clusterer in clusterers.values()]
            model.optimizer.register_step_post_hook(lambda *_: [step() for step in steps] and None)

        model.fit(training, epochs=EPOCHS_AFTER, validation_data=testing)
        return Result.of(model, model.predict(testing), asked.clicked.numpy())


if __name__ == "__main__":
    show("DeepFM of FuxiCTR", train(clustered=False), train(clustered=True))
