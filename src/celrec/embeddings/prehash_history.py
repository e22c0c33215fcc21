"""Mixtures of rows, with weights that come from what an id met last."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.hashing import mixed
from celrec.embeddings.id_rows import narrowest
from celrec.errors import CelrecError

_EMPTY = -1
_LEAST = -10.0  # a weight of less would hardly ever come back
_MOST = torch.iinfo(torch.int32).max
_SHORT = 64  # bytes of a history that are little beside a row of 64 floats


class HistoryPreHashEmbedding(Embedding):
    """PreHash for streams: a network weighs the rows by the latest partners of an id.

    Of each id the latest `length` partners are kept, the items of a user or the users of an
    item, in the order in which `remember` is told of them. With a small table of partners p,
    hashed into `partner_rows` rows (`rows`, unless told otherwise), and n partners kept,

        h = Σ partner[hash(p) mod partner_rows] / √n,
        w = U·relu(V·h + b), but at least −10,
        v = Σ_c softmax(w)_c · weight[c] over the k largest w.

    Ids that `bind` names, the warmest ones, have a row to themselves. An id without partners
    mixes as the network says for h = 0, and so does an unseen one; both have weights of their
    own as soon as they have met somebody. Tell of interactions after they were trained on, lest
    the network know what it is to predict.

    Left out of the original: its attention over partners by the item that is judged, since a
    table does not see it; its attention between v and h; and the two losses on h and v alone.
    Without these the table of partners learns from v. The network weighs all rows in one layer,
    not in a tree of two, so a lookup takes more time the more rows there are, whatever k is.

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

    history: Tensor
    """The partners of every id, the latest one last, −1 in places that are empty."""
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
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        partner_rows = rows if partner_rows is None else partner_rows
        sizes = {"k": k, "length": length, "partner_rows": partner_rows, "hidden": hidden}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise CelrecError(f"{name} must be positive, not {value}")
        self.k = rows if k is None else min(k, rows)
        self.length, self.seed = length, seed
        self.weight, self.partner = (
            nn.Parameter(torch.empty(count, embedding_dim, device=device, dtype=dtype))
            for count in (rows, partner_rows)
        )
        self.first = nn.Linear(embedding_dim, hidden, device=device, dtype=dtype)
        self.last = nn.Linear(hidden, rows, bias=False, device=device, dtype=dtype)
        self.reset_parameters()
        history = torch.full((num_embeddings, length), _EMPTY, dtype=torch.int32, device=device)
        self.register_buffer("history", history)
        own = torch.full((num_embeddings,), rows, dtype=narrowest(rows + 1), device=device)
        self.register_buffer("own", own)

    def reset_parameters(self) -> None:
        """Rows and histories with a norm of about 1, and w of about N(0, 1).

        h and b have a half each in what goes into the relu, so that ids without partners, too,
        have units that learn.
        """
        for table in (self.weight, self.partner):
            nn.init.normal_(table, std=self.embedding_dim**-0.5)
        for inner in self.first.parameters():
            nn.init.normal_(inner, std=0.5**0.5)
        nn.init.normal_(self.last.weight, std=(2 / self.last.in_features) ** 0.5)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Short histories take little beside long rows; new ids have weights at once."""
        short = self.length * self.history.element_size() <= _SHORT
        return Traits(low_time=False, low_memory=short, incremental=True)

    @torch.no_grad()
    def bind(self, anchors: Tensor) -> None:
        """Let these ids, warmest first, have the rows to themselves, as far as there are rows."""
        first = anchors[: len(self.weight)]
        known = (first >= 0) & (first < self.num_embeddings)
        if not bool(known.all()):
            raise CelrecError(f"anchors: {int(first[~known][0])} is no known id; leave it out")
        if len(torch.unique(first)) < len(first):
            raise CelrecError("anchors: one is named twice; name each id once")
        self.own.fill_(len(self.weight))
        self.own[first] = torch.arange(len(first), device=self.own.device).to(self.own.dtype)

    @torch.no_grad()
    def remember(self, ids: Tensor, partners: Tensor) -> None:
        """Add the partner of each id to its history, in this order; the oldest ones leave.

        Pairs with an unseen id, or with a partner below 0, say nothing and are left out.
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
                f"partners must lie below {_MOST + 1:,}, not {int(partners.max()):,}; "
                "number them anew"
            )
        order = ids.argsort(stable=True)
        found, count = torch.unique_consecutive(ids[order], return_counts=True)
        # What is told of an id joins what is known of it, and the last places are kept.
        kept = count.clamp(max=self.length).unsqueeze(1)
        place = torch.arange(self.length, device=ids.device) + kept
        old = self.history[found].gather(1, place.clamp(max=self.length - 1))
        first = count.cumsum(0).unsqueeze(1) - kept
        new = partners[order][(first + place - self.length).clamp(min=0)]
        self.history[found] = torch.where(place < self.length, old, new.int())

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of anchors, the mixtures of all others."""
        seen = (ids >= 0) & (ids < self.num_embeddings)
        known = torch.where(seen, ids, 0).reshape(-1)
        history = torch.where(seen.reshape(-1, 1), self.history[known], _EMPTY)
        logits = self.last(self.first(self._summary(history)).relu()).clamp(min=_LEAST)
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
        """The rows; their weights in a mixture are never negative."""
        return [self.weight]

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """New ids have no partners yet."""
        more = num_embeddings - self.num_embeddings
        self._grown(num_embeddings)
        empty = self.history.new_full((more, self.length), _EMPTY)
        self.history = torch.cat([self.history, empty])
        self.own = torch.cat([self.own, self.own.new_full((more,), len(self.weight))])

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        return {
            **super().settings(),
            "rows": len(self.weight),
            "k": self.k,
            "length": self.length,
            "partner_rows": len(self.partner),
            "hidden": self.first.out_features,
            "seed": self.seed,
        }

    def memory(self, *, training: bool = False) -> Memory:
        """The rows; for the index histories, anchors, the table of partners and the network."""
        del training
        held = sum(tensor.nbytes for tensor in (*self.parameters(), *self.buffers()))
        return Memory(self.weight.nbytes, held - self.weight.nbytes)

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        return f"{super().extra_repr()}, {self.k} of {len(self.weight)} rows"

    def _summary(self, history: Tensor) -> Tensor:
        """What a network sees of each line of partners: h."""
        filled = (history != _EMPTY).to(self.partner.dtype)
        share = filled * filled.sum(-1, keepdim=True).clamp(min=1).rsqrt()
        rows = mixed(history, self.seed) % len(self.partner)
        return _sums(self.partner, rows, share)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A saved table may have grown: its number of ids is that of the saved histories.
        saved = state_dict.get(f"{prefix}history")
        if saved is not None and len(saved) > len(self.history):
            self.grow(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _sums(table: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """Σ share·table[row] of each line, without a copy of all the rows."""
    return F.embedding_bag(rows, table, mode="sum", per_sample_weights=shares)
