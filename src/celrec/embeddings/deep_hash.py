"""Deep hash embeddings: a network computes vectors from hashes of the id."""

from __future__ import annotations

from itertools import pairwise
from typing import Unpack

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, TableOptions, Traits, table_options
from celrec.embeddings.hashing import hash_ids
from celrec.errors import CelrecError


class DeepHashEmbedding(Embedding):
    """Deep hash embedding: v(id) = W·relu(… relu(A·x(id) + a) …) + b, x(id) in [−1, 1]^k.

    x(id) are k hashes of the id, computed and not stored: (a_i·h(id) + b_i) mod 2^31, scaled,
    where h mixes the bits. There are `hidden` layers of w units. w is the largest width for which
    a network with k = min(`hashes`, 2·w) has at most `rows` × `embedding_dim` parameters; the
    remaining parameters go to more hashes, up to `hashes`. The smallest network has w = 1 and
    k = min(`hashes`, 2).

    There is no batch normalisation: it would make a vector depend on the other ids of the batch,
    and differ between training and serving.

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
        **options: Unpack[TableOptions],
    ) -> None:
        padding_idx, device, dtype = table_options(**options)
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        for name, value in {"hashes": hashes, "hidden": hidden}.items():
            if value < 1:
                raise CelrecError(f"{name} must be positive, not {value}")
        self.hashes, self.hidden, self.seed = hashes, hidden, seed
        budget = rows * embedding_dim

        def parameter_count(width: int, inputs: int) -> int:
            sizes = [inputs, *[width] * hidden, embedding_dim]
            return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes))

        self.width = 1
        while parameter_count(self.width + 1, min(hashes, 2 * (self.width + 1))) <= budget:
            self.width += 1
        least = min(hashes, 2 * self.width)
        more = max(0, budget - parameter_count(self.width, least)) // self.width
        self.num_hashes = min(hashes, least + more)
        sizes = [self.num_hashes, *[self.width] * hidden]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out, device=device, dtype=dtype), nn.ReLU()]
        self.network = nn.Sequential(*layers)
        self.last = nn.Linear(self.width, embedding_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise weights so that pre-activations have a mean square of 1; biases are 0.

        A hash has a mean square of 1/3 and a relu halves it, so the variances are 3/n for n
        inputs in the first layer, 2/n in the following, and 2/(n·dim) in the last, which gives
        vectors with a norm of about 1.
        """
        layers = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        for number, layer in enumerate([*layers, self.last]):
            variance = (2 if number else 3) / layer.in_features
            if layer is self.last:
                variance /= self.embedding_dim
            nn.init.normal_(layer.weight, std=variance**0.5)
            nn.init.zeros_(layer.bias)

    def code(self, ids: Tensor) -> Tensor:
        """The hashes of each id, between −1 and 1, along the last axis."""
        number = torch.arange(self.num_hashes, device=ids.device)
        factor, offset = hash_ids(number, self.seed + 1) | 1, hash_ids(number, self.seed + 2)
        bits = (hash_ids(ids, self.seed).unsqueeze(-1) * factor + offset) & (2**31 - 1)
        # Scale in single precision, since 31 bits overflow half precision.
        return (bits.float() / 2**30 - 1).to(self.last.weight.dtype)

    def vectors(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.last(self.network(self.code(ids)))
        return vectors

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """The parameters of the last layer, whose inputs are non-negative."""
        return list(self.last.parameters())

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids are hashed like all others."""
        self._grow_ids(num_embeddings)

    def memory(self, *, training: bool = False) -> Memory:
        """The network; hashes are computed and not stored."""
        return Memory(sum(parameter.nbytes for parameter in self.parameters()), 0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, hashes={self.num_hashes}, width={self.width}"
