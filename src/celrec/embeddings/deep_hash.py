"""Vectors that a network works out from hashes of the id."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.hashing import mixed
from celrec.errors import CelrecError


class DeepHashEmbedding(Embedding):
    """Deep hash embedding: v(id) = W·relu(… relu(A·x(id) + a) …) + b, x(id) in [−1, 1]^k.

    x(id) are k hashes of the id, worked out and not stored: (a_i·h(id) + b_i) mod 2^31,
    scaled, with h a mixture of the bits. There are `hidden` layers of w units each. w is
    the largest number for which a network with k = min(`hashes`, 2·w) holds at most
    `rows` × `embedding_dim` numbers; what is left then goes to more hashes, up to
    `hashes`. There is no smaller network than with w = 1 and k = min(`hashes`, 2).

    There is no batch normalisation: with it a vector would depend on which other ids
    are in the batch, and differ between training and serving.

    Unseen ids are hashed like any other.

    Kang et al., Learning to Embed Categorical Features without Embedding Tables for
    Recommendation, KDD 2021.

    >>> table = DeepHashEmbedding(3952, 64, rows=40)
    >>> table.num_hashes, table.width
    (46, 19)
    >>> table.memory().table <= 40 * 64 * 4
    True
    """

    traits = Traits(low_time=False, low_memory=True, incremental=True)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        hashes: int = 1024,
        hidden: int = 2,
        seed: int = 0,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        for name, value in {"hashes": hashes, "hidden": hidden}.items():
            if value < 1:
                raise CelrecError(f"{name} must be positive, not {value}")
        self.hashes, self.hidden, self.seed = hashes, hidden, seed
        budget = rows * embedding_dim

        def numbers(width: int, inputs: int) -> int:
            sizes = [inputs, *[width] * hidden, embedding_dim]
            return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes))

        self.width = 1
        while numbers(self.width + 1, min(hashes, 2 * (self.width + 1))) <= budget:
            self.width += 1
        least = min(hashes, 2 * self.width)
        left = max(0, budget - numbers(self.width, least)) // self.width
        self.num_hashes = min(hashes, least + left)
        sizes = [self.num_hashes, *[self.width] * hidden]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out, device=device, dtype=dtype), nn.ReLU()]
        self.network = nn.Sequential(*layers)
        self.last = nn.Linear(self.width, embedding_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights that keep the mean square of what goes into each relu at 1, no biases.

        That of a hash is 1/3 and a relu halves it, so weights of n inputs have the variance
        3/n, then 2/n, and 2/(n·dim) in the last layer, for vectors with a norm of about 1.
        """
        layers = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        for number, layer in enumerate([*layers, self.last]):
            variance = (2 if number else 3) / layer.in_features
            if layer is self.last:
                variance /= self.embedding_dim
            nn.init.normal_(layer.weight, std=variance**0.5)
            nn.init.zeros_(layer.bias)

    def code(self, ids: Tensor) -> Tensor:
        """The hashes of each id, between −1 and 1: one more axis."""
        number = torch.arange(self.num_hashes, device=ids.device)
        factor, offset = mixed(number, self.seed + 1) | 1, mixed(number, self.seed + 2)
        bits = (mixed(ids, self.seed).unsqueeze(-1) * factor + offset) & (2**31 - 1)
        # 31 bits are too large for half precision until they have been scaled.
        return (bits.float() / 2**30 - 1).to(self.last.weight.dtype)

    def vectors(self, ids: Tensor) -> Tensor:
        """What the network makes of the hashes of `ids`."""
        vectors: Tensor = self.last(self.network(self.code(ids)))
        return vectors

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """Those of the last layer, whose inputs are never negative."""
        return list(self.last.parameters())

    def grow(self, num_embeddings: int) -> None:
        """Nothing but the number changes: new ids are hashed like all others."""
        self._grown(num_embeddings)

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        return {
            **super().settings(),
            "rows": self.rows_asked,
            "hashes": self.hashes,
            "hidden": self.hidden,
            "seed": self.seed,
        }

    def memory(self, *, training: bool = False) -> Memory:
        """The network alone: hashes are worked out."""
        del training
        return Memory(sum(parameter.nbytes for parameter in self.parameters()), 0)

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        return f"{super().extra_repr()}, hashes={self.num_hashes}, width={self.width}"
