"""A trained model as a function of tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.data.id_map import UNSEEN
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model


class Scorer(nn.Module):
    """Ids to predictions, as `predict` gives them: what torch and ONNX can take as one graph.

    Ids are the numbers that the model knows users and items by, −1 or any other number for
    unseen ones. What tables hold of ids, such as their clusters, and what is known of them
    besides is inside. Of several tasks, the first is what is predicted. The model is put into
    evaluation mode.

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

        `history` is (batch, length), for models that look at it: the items before, oldest first,
        −1 in places without one, which come first. `columns` is (batch, columns), for models with
        ids in further columns of the log.
        """
        pairs = Batch.pairs(user, item)
        output: Tensor = self.model(pairs._replace(history=history, columns=columns))
        return self.model.loss.prediction(output)

    def example(self, batch: int) -> dict[str, Tensor]:
        """Unseen ids in the shapes of all that `forward` wants for this model, by name."""
        shapes: dict[str, tuple[int, ...]] = {"user": (batch,), "item": (batch,)}
        if self.model.history_length:
            shapes["history"] = (batch, self.model.history_length)
        if self.model.column_names:
            shapes["columns"] = (batch, len(self.model.column_names))
        return {name: torch.full(shape, UNSEEN) for name, shape in shapes.items()}
