import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import celrec

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.filterwarnings("ignore"),  # Lightning has advice about everything
]


def test_a_callback_of_a_few_lines_is_enough(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.item = nn.Embedding(40, 4)
            self.layer = nn.Linear(4, 1)

        def objective(self, batch):
            ids, target = batch
            return (self.layer(self.item(ids)).squeeze(-1) - target) ** 2

        def training_step(self, batch):
            return self.objective(batch).mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    class Clusters(lightning.Callback):
        def on_train_start(self, trainer, module):
            (optimizer,) = trainer.optimizers
            self.clusterer = celrec.clusterize(
                module, {"item": 4}, module.objective, optimizer, start="one", split_every=5
            )["item"]

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.clusterer.step(batch)

    lightning.seed_everything(0)
    ids = torch.randint(40, (800,))
    data = DataLoader(TensorDataset(ids, (ids % 4).float()), batch_size=40, shuffle=True)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=10,
        accelerator="cpu",
        callbacks=[Clusters()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, data)
    assert isinstance(module.item, celrec.ClusteredEmbedding)
    assert module.item.num_clusters == 4
    assert module.objective((torch.arange(40), torch.arange(40) % 4)).mean() < 0.1
