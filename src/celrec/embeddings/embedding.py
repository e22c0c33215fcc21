"""What every embedding method has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.memory import Memory
from celrec.errors import CelrecError


class Embedding(nn.Module, ABC):
    """Id to vector, able to stand where `nn.Embedding` stands.

    Ids of any shape give vectors of that shape plus one axis. An id outside
    0 … `num_embeddings` − 1 is unseen and gets a finite vector all the same, by
    the one policy of the method. The vector of `padding_idx` is zero and takes
    no gradient.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None
    ) -> None:
        super().__init__()
        for name, value in (("num_embeddings", num_embeddings), ("embedding_dim", embedding_dim)):
            if value < 1:
                raise CelrecError(f"{name} must be positive, not {value}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise CelrecError(
                f"padding_idx must be an id below {num_embeddings}, not {padding_idx}"
            )
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`."""
        ids = ids.long()  # narrower integers cannot be compared with every id
        vectors = self.vectors(ids)
        if self.padding_idx is None:
            return vectors
        return torch.where((ids == self.padding_idx).unsqueeze(-1), 0.0, vectors)

    @abstractmethod
    def vectors(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`, padding not yet blanked."""

    def settings(self) -> dict[str, Any]:
        """What its class has to be called with to make one of the same shape."""
        return {
            "num_embeddings": self.num_embeddings,
            "embedding_dim": self.embedding_dim,
            "padding_idx": self.padding_idx,
        }

    @abstractmethod
    def memory(self, *, training: bool = False) -> Memory:
        """Bytes held for serving, or while training; optimiser state not included."""

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
