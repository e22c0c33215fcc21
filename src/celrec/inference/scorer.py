"""A trained model as a module from id tensors to predictions, for export."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.data.id_map import UNSEEN
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model


class Scorer(nn.Module):
    """Maps ids to predictions, like `predict`, in a form that torch.export and ONNX can trace.

    Ids are the dense numbers of users and items; −1 and any number out of range are unseen ids.
    Cluster assignments and features of ids are part of the module. With several tasks, the first
    one is predicted. The model is put into evaluation mode.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> users, items = FullEmbedding(2, 3), ClusteredEmbedding(5, 3, max_clusters=2)
    >>> scorer = Scorer(Model(users, items))
    >>> scorer(torch.tensor([0, 1, -1]), torch.tensor([4, -1, 99])).shape
    torch.Size([3])
    >>> {name: tuple(ids.shape) for name, ids in scorer.example(7).items()}
    {'user': (7,), 'item': (7,)}
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Tensor:
        """The prediction for each pair, (batch,).

        `history` is (batch, length), for models with histories: earlier items, oldest first,
        padded with −1 in front. `columns` is (batch, columns), for models with further id columns.
        """
        pairs = Batch.pairs(user, item)
        output: Tensor = self.model(pairs._replace(history=history, columns=columns))
        return self.model.loss.prediction(output)

    def example(self, batch: int) -> dict[str, Tensor]:
        """Example inputs of `forward` for this model, by name: tensors of unseen ids."""
        shapes: dict[str, tuple[int, ...]] = {"user": (batch,), "item": (batch,)}
        if self.model.history_length:
            shapes["history"] = (batch, self.model.history_length)
        if self.model.column_names:
            shapes["columns"] = (batch, len(self.model.column_names))
        return {name: torch.full(shape, UNSEEN) for name, shape in shapes.items()}
