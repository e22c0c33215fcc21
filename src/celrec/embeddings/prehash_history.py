"""PreHash for streams: mixture weights computed from the latest partners of an id."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, TableOptions, Traits, table_options
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.id_rows import narrowest_dtype
from celrec.errors import CelrecError

_EMPTY = -1
_LEAST = -10.0  # of a logit; below it the gradient vanishes
_MOST = torch.iinfo(torch.int32).max
_SHORT = 64  # bytes of a history that is small next to a row of 64 floats


class HistoryPreHashEmbedding(Embedding):
    """PreHash for streams: a network computes mixture weights from the latest partners of an id.

    The partners of a user are items, those of an item users. The latest `length` partners of
    each id are stored, in the order of the calls of `remember`. With a table of partners p of
    `partner_rows` hashed rows (default: `rows`) and n stored partners,

        h = Σ partner[hash(p) mod partner_rows] / √n,
        w = U·relu(V·h + b), but at least −10,
        v = Σ_c softmax(w)_c · weight[c] over the k largest w.

    The anchors set by `bind`, the most frequent ids, have their own rows. Ids without partners
    and unseen ids use h = 0. Call `remember` after training on an interaction, so that the
    network does not see its target.

    Not implemented from the original: the attention over partners by the candidate item, which a
    table does not see; the attention between v and h; and the separate losses on h and v. Without
    them the table of partners is trained through v. The network weighs all rows in one layer
    instead of a two-level tree, so the cost of a lookup grows with `rows`, whatever k is.

    Shi et al., Beyond User Embedding Matrix: Learning to Hash for Modeling Large-Scale Users in
    Recommendation, SIGIR 2020.

    >>> table = HistoryPreHashEmbedding(3, 2, rows=4, k=2)
    >>> bool((table(torch.tensor(0)) == table(torch.tensor(2))).all())
    True
    >>> table.remember(torch.tensor([2, 2]), torch.tensor([7, 5]))
    >>> table.history[2, -3:].tolist()
    [-1, 7, 5]
    >>> bool((table(torch.tensor(0)) == table(torch.tensor(2))).all())
    False
    """

    per_id = "history"
    history: Tensor
    """The partners of every id, the latest one last; −1 in empty places."""
    own: Tensor
    """The row of each id that is an anchor, `rows` for all others."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        k: int | None = None,
        length: int = 10,
        partner_rows: int | None = None,
        hidden: int = 32,
        seed: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        padding_idx, device, dtype = table_options(**options)
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        partner_rows = rows if partner_rows is None else partner_rows
        sizes = {"k": k, "length": length, "partner_rows": partner_rows, "hidden": hidden}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise CelrecError(f"{name} must be positive, not {value}")
        self.k = rows if k is None else min(k, rows)
        self.length, self.partner_rows, self.hidden, self.seed = length, partner_rows, hidden, seed
        self.weight, self.partner = (
            nn.Parameter(torch.empty(count, embedding_dim, device=device, dtype=dtype))
            for count in (rows, partner_rows)
        )
        self.first = nn.Linear(embedding_dim, hidden, device=device, dtype=dtype)
        self.last = nn.Linear(hidden, rows, bias=False, device=device, dtype=dtype)
        self.reset_parameters()
        history = torch.full((num_embeddings, length), _EMPTY, dtype=torch.int32, device=device)
        self.register_buffer("history", history)
        own = torch.full((num_embeddings,), rows, dtype=narrowest_dtype(rows + 1), device=device)
        self.register_buffer("own", own)

    def reset_parameters(self) -> None:
        """Initialise for rows and histories with a norm of about 1, and w of about N(0, 1).

        V·h and b have the same variance, so that relu units are active also for h = 0.
        """
        for table in (self.weight, self.partner):
            nn.init.normal_(table, std=self.embedding_dim**-0.5)
        for inner in self.first.parameters():
            nn.init.normal_(inner, std=0.5**0.5)
        nn.init.normal_(self.last.weight, std=(2 / self.last.in_features) ** 0.5)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Memory is low if histories are short; new ids get weights from the network."""
        short = self.length * self.history.element_size() <= _SHORT
        return Traits(low_time=False, low_memory=short, incremental=True)

    @torch.no_grad()
    def bind(self, anchors: Tensor) -> None:
        """Make these ids, most frequent first, the anchors; ids beyond the rows are ignored."""
        first = anchors[: len(self.weight)]
        known = (first >= 0) & (first < self.num_embeddings)
        if not bool(known.all()):
            raise CelrecError(f"anchors: {int(first[~known][0])} is no known id; leave it out")
        if len(torch.unique(first)) < len(first):
            raise CelrecError("anchors: an id occurs twice; pass each id once")
        self.own.fill_(len(self.weight))
        self.own[first] = torch.arange(len(first), device=self.own.device).to(self.own.dtype)

    @torch.no_grad()
    def remember(self, ids: Tensor, partners: Tensor) -> None:
        """Append partners to the histories of ids, in this order; the oldest are dropped.

        Pairs with an unseen id or a negative partner are ignored.
        """
        if ids.shape != partners.shape:
            raise CelrecError(
                f"partners must have the shape of ids, {tuple(ids.shape)}, "
                f"not {tuple(partners.shape)}"
            )
        known = (ids >= 0) & (ids < self.num_embeddings) & (partners >= 0)
        ids, partners = ids[known].long(), partners[known].long()
        if bool((partners > _MOST).any()):
            raise CelrecError(
                f"partners must lie below {_MOST + 1:,}, not {int(partners.max()):,}; renumber them"
            )
        order = ids.argsort(stable=True)
        found, count = torch.unique_consecutive(ids[order], return_counts=True)
        # Shift each history by its number of new partners, and fill the last places.
        kept = count.clamp(max=self.length).unsqueeze(1)
        place = torch.arange(self.length, device=ids.device) + kept
        old = self.history[found].gather(1, place.clamp(max=self.length - 1))
        first = count.cumsum(0).unsqueeze(1) - kept
        new = partners[order][(first + place - self.length).clamp(min=0)]
        self.history[found] = torch.where(place < self.length, old, new.int())

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of anchors, the mixtures of all other ids."""
        seen = (ids >= 0) & (ids < self.num_embeddings)
        known = torch.where(seen, ids, 0).reshape(-1)
        history = torch.where(seen.reshape(-1, 1), self.history[known], _EMPTY)
        logits = self.last(self.first(self.summary(history)).relu()).clamp(min=_LEAST)
        rows = len(self.weight)
        if self.k == rows:
            vectors = logits.softmax(-1) @ self.weight
        else:
            largest = logits.topk(self.k)
            vectors = _sums(self.weight, largest.indices, largest.values.softmax(-1))
        own = self.own[known].long()
        anchored = seen.reshape(-1) & (own < rows)
        rows_of_anchors = self.weight.index_select(0, own.clamp(max=rows - 1))
        vectors = torch.where(anchored.unsqueeze(-1), rows_of_anchors, vectors)
        return vectors.view(*ids.shape, self.embedding_dim)

    def non_negative_parameters(self) -> list[nn.Parameter]:
        return [self.weight]

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids have no partners."""
        more = num_embeddings - self.num_embeddings
        self._grow_ids(num_embeddings)
        empty = self.history.new_full((more, self.length), _EMPTY)
        self.history = torch.cat([self.history, empty])
        self.own = torch.cat([self.own, self.own.new_full((more,), len(self.weight))])

    def memory(self, *, training: bool = False) -> Memory:
        """The rows; as index the histories, the anchors, the partner table and the network."""
        total = sum(tensor.nbytes for tensor in (*self.parameters(), *self.buffers()))
        return Memory(self.weight.nbytes, total - self.weight.nbytes)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.k} of {len(self.weight)} rows"

    def summary(self, history: Tensor) -> Tensor:
        """The network's input h for histories, (ids, length)."""
        filled = (history != _EMPTY).to(self.partner.dtype)
        share = filled * filled.sum(-1, keepdim=True).clamp(min=1).rsqrt()
        rows = hash_ids(history, self.seed) % len(self.partner)
        return _sums(self.partner, rows, share)

    def _fit(self, length: int) -> None:
        if length > len(self.history):
            self.grow(length)


def _sums(table: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """Σ share·table[row] along the last axis, without gathering the rows."""
    return F.embedding_bag(rows, table, mode="sum", per_sample_weights=shares)
