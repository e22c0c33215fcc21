"""MovieLens-100k as clicks, for the examples with other people's models.

A rating of 4 or 5 is a click. Fold 2 of 5 is for testing, all the rest for training. Learning
rates, epochs and schedules were tried out on the test part of fold 1, so it is not shown.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

from celrec import ClusteredEmbedding, Interactions, Split, load_dataset


def load_clicks() -> tuple[Interactions, Interactions]:
    """The logs for training and for testing."""
    split = Split.fold(load_dataset("ml-100k"), 2, of=5, seed=0)
    return split.train_and_valid(), split.test


def columns(log: Interactions) -> tuple[Tensor, Tensor, Tensor]:
    """Users, items, and whether they clicked."""
    ids = (torch.from_numpy(ids.astype(np.int64)) for ids in (log.user, log.item))
    return *ids, torch.from_numpy((log.target >= 4).astype(np.float32))


def batches_of(log: Interactions, size: int = 8192) -> tuple[Tensor, ...]:
    """All rows of the log in random order, in batches."""
    order = torch.randperm(len(log), generator=torch.Generator().manual_seed(0))
    return torch.split(order, size)


@dataclass(frozen=True)
class Result:
    """Errors on test data, and bytes of tables."""

    auc: float
    log_loss: float
    table: int
    index: int

    @classmethod
    def of(cls, model: nn.Module, predicted: np.ndarray, clicked: np.ndarray) -> "Result":
        """Bytes are those of all tables of ids in the model, and of what leads to their rows."""
        tables = [module for module in model.modules() if isinstance(module, ClusteredEmbedding)]
        shared = {table.weight for table in tables}  # which a collection of bags may hold as well
        plain = [
            module.weight.nbytes
            for module in model.modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.weight not in shared
        ]
        table = sum(plain) + sum(table.memory().table for table in tables)
        index = sum(table.memory().index for table in tables)
        auc = float(roc_auc_score(clicked, predicted))
        return cls(auc, float(log_loss(clicked, predicted)), table, index)


def show(host: str, full: Result, clustered: Result) -> None:
    """Both, one under the other."""
    print(f"{host} on clicks of MovieLens-100k")
    print(f"{'tables':10} {'AUC':>7} {'log loss':>9} {'bytes':>9} {'of them index':>14}")
    for name, result in (("full", full), ("clustered", clustered)):
        total = result.table + result.index
        print(f"{name:10} {result.auc:7.4f} {result.log_loss:9.4f} {total:9,} {result.index:14,}")
