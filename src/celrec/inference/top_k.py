"""Top-k retrieval: the best items for users, and the most similar items."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from celrec.data.id_map import whole_numbers
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError
from celrec.inference.level_search import CodeTree, item_codes, search_levels, summed_items
from celrec.inference.scores import CosineScores, LinearScores, NetworkScores, UserScores
from celrec.inference.search import Best, ItemGroups, Skipped, search
from celrec.recommender.batch import Batch
from celrec.recommender.clusters import TiedItems
from celrec.recommender.model import Model

QueryBatch: TypeAlias = Callable[[Tensor], Batch]
"""Makes a sample for each of some users, without an item, as `Model.query_batch` does."""
EXACT_GROUPS = 10_000
"""A network scores all combinations of row and features if there are at most this many."""
CANDIDATES = 1_000
"""Default number of candidates per user, if there are more combinations."""
LEAST_USERS, MOST_USERS = 64, 1024  # per batch


class TopK:
    """The k best items for users, and the k items most similar to an item.

    Items with equal rows, such as the members of a cluster, are scored once as a group; members
    are visited only for groups that can win. Where vectors are sums of rows of several levels,
    each row is scored once, and groups are searched by branch and bound over their codes. Ties are
    broken by the higher `priority` (popularity or recency, for example), then by the lower item
    number.

    The result is exact for dot products and for networks without item features. Networks with
    item features are exact for up to `EXACT_GROUPS` combinations of row and features. With more,
    or with `candidates` given, search has two stages: clusters are ranked by the score of their
    first member, and that many of their items are scored individually for each user. The result
    is then exact among these candidates.

    Unseen users (−1) have the vector of unseen ids. Memory is bounded for any number of users,
    except for the result, and is at most about 50 bytes per item, or 110 with several levels.
    Precomputed groups belong to the current state of the model: create a new `TopK` after further
    training.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> users, items = FullEmbedding(2, 2), ClusteredEmbedding(5, 2, max_clusters=2)
    >>> _ = items.split(0, torch.tensor([1, 3]))
    >>> _ = users.weight.data.fill_(1.0)
    >>> _ = items.weight.data.copy_(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
    >>> top = TopK(Model(users, items), priority=[3, 1, 5, 8, 0])
    >>> top.recommend([0], k=3)
    Best(items=array([[3, 1, 2]], dtype=int32), scores=array([[4., 4., 2.]], dtype=float32))
    >>> seen = SeenItems()
    >>> seen.add([0, 0], [3, 2])
    >>> top.within(banned=[1]).recommend([0], k=3, seen=seen).items
    array([[ 0,  4, -1]], dtype=int32)
    >>> top.similar([3], k=2).items
    array([[1, 2]], dtype=int32)
    """

    def __init__(
        self,
        model: Model,
        priority: ArrayLike,
        *,
        candidates: int | None = None,
        query_batch: QueryBatch | None = None,
    ) -> None:
        """Group the items of a model.

        Args:
            model: The trained model.
            priority: One number per item, for breaking ties.
            candidates: Number of individually scored items per user; None chooses.
            query_batch: Gives the histories of users, for networks that read them; those that
                the model remembers if None.

        """
        weights = np.asarray(priority)
        if weights.ndim != 1 or (weights.size and weights.dtype.kind not in "iuf"):
            raise CelrecError(
                f"priority must be a number for each item, not {weights.dtype} of shape "
                f"{weights.shape}"
            )
        if len(weights) > model.items.num_embeddings:
            raise CelrecError(
                f"priority: {len(weights):,} numbers, but the model has "
                f"{model.items.num_embeddings:,} items; leave out the others"
            )
        if candidates is not None and candidates < 1:
            raise CelrecError(f"candidates must be positive, not {candidates}")
        self.model, self.num_items, self._query_batch = model, len(weights), query_batch
        # A stable sort of the reversed weights, so that the lower number wins ties.
        order = self.num_items - 1 - np.argsort(weights[::-1], kind="stable")[::-1]
        self._order = order.astype(np.int32)
        self._rank = np.empty(self.num_items, np.int32)
        self._rank[order] = np.arange(self.num_items)
        self._mask = np.ones(self.num_items, bool)
        tied = TiedItems.of(model, self.num_items)
        self._own_apart = tied.own is not None
        self._groups = ItemGroups.of(tied.score, self._order, tied.own)
        self._vector = tied.vector
        self._summed = summed_items(model)
        self._tree = self._tree_of(self._groups)
        self._by_vector: ItemGroups | None = None
        self.candidates: int | None = None
        """Number of items scored individually per user; None if the result is exact."""
        if not model.model.linear:
            self._choose_candidates(candidates, ItemGroups.of(tied.cluster, self._order))

    def _choose_candidates(self, requested: int | None, clusters: ItemGroups) -> None:
        exact = len(self._groups) <= EXACT_GROUPS
        if requested is not None:
            exact = requested >= self.num_items
        if exact or len(clusters) == len(self._groups):
            return
        self._groups, self.candidates = clusters, CANDIDATES if requested is None else requested

    def _tree_of(self, groups: ItemGroups) -> CodeTree | None:
        if self._summed is None:
            return None
        return CodeTree.of(groups, item_codes(self._summed, self.num_items), self._summed)

    def within(self, allowed: ArrayLike | None = None, banned: ArrayLike | None = None) -> TopK:
        """A view that returns only `allowed` items (all if None) and no `banned` ones."""
        mask = np.full(self.num_items, allowed is None)
        if allowed is not None:
            mask[self._items("allowed", allowed)] = True
        if banned is not None:
            mask[self._items("banned", banned)] = False
        narrower = copy(self)
        narrower._mask, narrower._by_vector = self._mask & mask, None
        narrower._groups = self._groups.only(mask)
        narrower._tree = self._tree_of(narrower._groups)
        return narrower

    @torch.no_grad()
    def recommend(self, users: ArrayLike, k: int = 10, *, seen: SeenItems | None = None) -> Best:
        """The k best items for each user, without the items that the user has `seen`."""
        k = _positive(k)

        def best(some: NDArray[np.int64]) -> Best:
            nothing = np.zeros(len(some) + 1, np.int64), np.empty(0, np.int32)
            skipped = Skipped(*(nothing if seen is None else seen.of(some)))
            return self._best(torch.from_numpy(some), k, skipped)

        at_once = LinearScores.at_once if self.model.model.linear else NetworkScores.at_once
        scored = len(self._groups) if self._summed is None else self._summed.num_rows
        return _in_parts(whole_numbers("users", users), at_once // max(scored, 1), best)

    @torch.no_grad()
    def similar(self, items: ArrayLike, k: int = 10) -> Best:
        """The k most similar items to each item by cosine, without the item itself.

        The other members of the item's own cluster come first, by priority, then the members of
        the cluster with the nearest row, and so on.
        """
        k = _positive(k)
        if self._by_vector is None:
            self._by_vector = ItemGroups.of(self._vector, self._order).only(self._mask)
        groups = self._by_vector

        def nearest(some: NDArray[np.int64]) -> Best:
            queries = CosineScores(self.model, torch.from_numpy(some))
            itself = Skipped(np.arange(len(some) + 1), some.astype(np.int32))
            return _with_predictions(queries, search(queries, groups, self._rank, k, itself))

        at_once = CosineScores.at_once // max(len(groups), 1)
        return _in_parts(self._items("items", items), at_once, nearest)

    def _best(self, users: Tensor, k: int, skipped: Skipped) -> Best:
        if self.model.model.linear:
            linear = LinearScores(self.model, users, own_apart=self._own_apart)
            if self._summed is not None and self._tree is not None:
                scores = linear.of_levels(self._summed).double().numpy()
                found = search_levels(scores, self._tree, self._rank, k, skipped)
                return _with_predictions(linear, found)
            return _with_predictions(linear, search(linear, self._groups, self._rank, k, skipped))
        network = NetworkScores(self.model, (self._query_batch or self.model.query_batch)(users))
        if self.candidates is None:
            return _with_predictions(network, search(network, self._groups, self._rank, k, skipped))
        count = max(self.candidates, k)
        items = search(network, self._groups, self._rank, count, skipped).items
        return _with_predictions(network, self._reranked(network, items, k))

    def _reranked(self, queries: NetworkScores, items: NDArray[np.int32], k: int) -> Best:
        """The k best candidates, each scored with its own features."""
        ids = torch.from_numpy(items.astype(np.int64))
        step = max(queries.at_once // max(len(items), 1), 1)
        starts = range(0, items.shape[1], step)
        scored = [queries.of_candidates(ids[:, start : start + step]) for start in starts]
        scores = np.where(items < 0, -np.inf, torch.cat(scored, 1).numpy())
        # Padding comes last: its rank is higher than that of any item.
        rank = np.where(items < 0, self.num_items, self._rank[items])
        order = np.lexsort((rank, -scores), 1)[:, :k]
        return Best(np.take_along_axis(items, order, 1), np.take_along_axis(scores, order, 1))

    def _items(self, name: str, values: ArrayLike) -> NDArray[np.int64]:
        numbers = whole_numbers(name, values)
        outside = numbers[(numbers < 0) | (numbers >= self.num_items)]
        if len(outside):
            raise CelrecError(
                f"{name} must lie in 0 … {self.num_items - 1}, not {outside[0]}; leave such out"
            )
        return numbers


def _in_parts(
    who: NDArray[np.int64], at_once: int, answer: Callable[[NDArray[np.int64]], Best]
) -> Best:
    """Answer queries in batches of at most `at_once`, within the limits on the batch size."""
    step = min(max(at_once, LEAST_USERS), MOST_USERS)
    parts = [answer(who[start : start + step]) for start in range(0, max(len(who), 1), step)]
    items, scores = zip(*parts, strict=True)
    return Best(np.concatenate(items), np.concatenate(scores))


def _with_predictions(queries: UserScores, found: Best) -> Best:
    predicted = queries.predictions(torch.from_numpy(found.scores.astype(np.float32))).numpy()
    return Best(found.items, np.where(found.items < 0, np.float32(-np.inf), predicted))


def _positive(k: int) -> int:
    if k < 1:
        raise CelrecError(f"k must be positive, not {k}")
    return k
