"""PreHash: mixtures of a few anchor rows with learned weights."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Embedding, Memory, TableOptions, Traits, table_options
from celrec.embeddings.id_rows import narrowest_dtype, reset_entries
from celrec.errors import CelrecError

_NOISE = 0.1  # standard deviation of the initial logits


class PreHashEmbedding(Embedding):
    """PreHash: each anchor has its own row; every other id mixes `k` of these rows.

    v_j = Σ_c softmax(w_j)_c · weight[bucket_jc] over the k buckets of id j. The anchors are the
    most frequent ids, one per row, and are set by `bind`. With k = `rows` every id mixes all
    rows. With a smaller k, k weights and buckets are stored per id, and better buckets are
    searched for: the gradients of training estimate the change of the loss if one of `tries`
    random rows replaced the row with the least weight. `adapt` makes the best replacement of each
    id that lowers the loss, at its first `explorations` calls.

    `pull`/2·Σ w² is added to the loss, so that ids with few interactions mix evenly. An unseen
    id has the mean of all rows.

    >>> table = PreHashEmbedding(6, 2, rows=2, k=2)
    >>> bool((table(torch.tensor(1)) == table.weight[1]).all())
    True
    >>> table.memory()
    Memory(table=16, index=54)
    """

    bucket: Tensor
    """The k rows that each id mixes, if k is below `rows`."""
    own: Tensor
    """The row of each id that is an anchor, `rows` for all others."""
    explored: Tensor
    """The number of explorations so far."""
    gain: Tensor
    """The estimated change of the loss for each id and each candidate row."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        k: int | None = None,
        tries: int = 8,
        explorations: int = 40,
        pull: float = 0.3,
        seed: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        padding_idx, device, dtype = table_options(**options)
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        self.k = rows if k is None else min(k, rows)
        if self.k < 1:
            raise CelrecError(f"k must be positive, not {k}")
        if tries < 1:
            raise CelrecError(f"tries must be positive, not {tries}")
        if not pull >= 0:
            raise CelrecError(f"pull must not be negative, not {pull}")
        self.tries, self.explorations, self.pull, self.seed = tries, explorations, pull, seed
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        self.logit = nn.Parameter(torch.empty(num_embeddings, self.k, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)
        nn.init.normal_(self.logit, std=_NOISE)
        if self.k < rows:
            drawn = _different(num_embeddings, self.k, rows, seed)
            self.register_buffer("bucket", drawn.to(device, narrowest_dtype(rows)))
            gain = torch.zeros(num_embeddings, tries, device=device, dtype=self.weight.dtype)
            self.register_buffer("gain", gain)
        self.register_buffer("explored", torch.zeros((), dtype=torch.int64, device=device))
        own = torch.arange(num_embeddings, device=device).clamp_(max=rows)
        self.register_buffer("own", own.to(narrowest_dtype(rows + 1)))

    @property
    def observes_lookups(self) -> bool:
        """True if other rows are searched for, with k below `rows`."""
        return self.k < len(self.weight)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Time and memory are low if k is below `rows`; new ids need weights to be trained."""
        few = self.k < len(self.weight)
        return Traits(low_time=few, low_memory=few, incremental=False)

    @torch.no_grad()
    def bind(self, anchors: Tensor) -> None:
        """Make these ids, most frequent first, the anchors; ids beyond the rows are ignored."""
        rows = len(self.weight)
        self.own.fill_(rows)
        first = anchors[:rows]
        self.own[first] = torch.arange(len(first), device=self.own.device).to(self.own.dtype)

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of anchors, the mixtures of other ids, the mean row of unseen ones."""
        seen = (ids >= 0) & (ids < self.num_embeddings)
        known = torch.where(seen, ids, 0)
        share = torch.where(seen.unsqueeze(-1), self.logit[known], 0.0).softmax(-1)
        rows = len(self.weight)
        if self.k == rows:
            mixed = share @ self.weight
        else:
            # Three times as fast as batched matrix products or indexing.
            bucket = self.bucket[known].long()
            chosen = self.weight.index_select(0, bucket.reshape(-1))
            mixed = (share.unsqueeze(-1) * chosen.view(*bucket.shape, self.embedding_dim)).sum(-2)
            if self.training and mixed.requires_grad and not torch.compiler.is_compiling():
                estimate = partial(self._estimate_gain, known.reshape(-1), seen.reshape(-1))
                mixed.register_hook(estimate)  # type: ignore[no-untyped-call]
            mixed = torch.where(seen.unsqueeze(-1), mixed, self.weight.mean(0))
        own = self.own[known].long()
        anchored = (seen & (own < rows)).unsqueeze(-1)
        return torch.where(anchored, self.weight[own.clamp(max=rows - 1)], mixed)

    def non_negative_parameters(self) -> list[nn.Parameter]:
        return [self.weight]

    def penalty(self) -> Tensor:
        """`pull`/2·Σ w², which makes ids with few interactions mix their rows evenly."""
        return self.pull / 2 * self.logit.square().sum()

    @torch.no_grad()
    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Replace the row with the least weight of each id by a candidate that lowers the loss."""
        if self.k == len(self.weight) or int(self.explored) >= self.explorations:
            return
        best = self.gain.min(1)
        ids = torch.nonzero(best.values < 0).squeeze(1)
        drawn = self.candidates()[best.indices[ids]].to(self.bucket)
        new = (self.bucket[ids] != drawn.unsqueeze(1)).all(1)  # no row twice in a mixture
        ids, drawn = ids[new], drawn[new]
        place = self.logit[ids].argmin(1)
        self.bucket[ids, place] = drawn
        self.gain.zero_()
        self.explored += 1
        # The state of these weights belongs to the replaced rows.
        reset_entries(optimizer, self.logit, (ids, place))

    def candidates(self) -> Tensor:
        """The random rows of the current exploration."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(self.explored))
        drawn = torch.randperm(len(self.weight), generator=generator)[: self.tries]
        return drawn.to(self.weight.device)

    @torch.no_grad()
    def _estimate_gain(self, ids: Tensor, seen: Tensor, gradient: Tensor) -> None:
        if int(self.explored) >= self.explorations:
            return
        gradient = gradient.reshape(-1, self.embedding_dim) * seen.unsqueeze(-1)
        least = self.bucket[ids, self.logit[ids].argmin(1)].long()
        gain = gradient @ self.weight[self.candidates()].T
        gain -= (gradient * self.weight[least]).sum(-1, keepdim=True)
        self.gain[:, : gain.shape[1]].index_add_(0, ids, gain)

    def memory(self, *, training: bool = False) -> Memory:
        """The rows; as index the anchors, the weights and, if k is below `rows`, the buckets."""
        index = self.logit.nbytes + self.own.nbytes
        if self.k < len(self.weight):
            index += self.bucket.nbytes
        if training:
            index += self.explored.nbytes
            index += self.gain.nbytes if self.k < len(self.weight) else 0
        return Memory(self.weight.nbytes, index)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.k} of {len(self.weight)} rows"


def _different(ids: int, k: int, rows: int, seed: int) -> Tensor:
    """For each id k distinct random rows, by Floyd's algorithm."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.empty(ids, k, dtype=torch.int64)
    for place in range(k):
        last = rows - k + place
        drawn = torch.randint(last + 1, (ids,), generator=generator)
        repeated = (chosen[:, :place] == drawn.unsqueeze(1)).any(1)
        chosen[:, place] = torch.where(repeated, last, drawn)
    return chosen
