"""Recommendations and similar items of a run, by original ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import IdMap, Ids
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError
from celrec.inference.search import Best
from celrec.inference.top_k import TopK
from celrec.recommender.model import Model
from celrec.runs.run_folder import Run

TIES = ("popularity", "recency")
USERS_AT_ONCE = 1 << 13  # per part


class TopItems:
    """Recommendations of a run, with original ids in and out, and titles where there are any.

    Ties, as between the members of a cluster, are broken by popularity, the number of training
    interactions, or with `ties="recency"` by the latest interaction. `TopK` does the search.
    """

    def __init__(
        self,
        run: Run,
        *,
        ties: str = "popularity",
        allowed: Ids | None = None,
        banned: Ids | None = None,
    ) -> None:
        """Return only `allowed` items (all if None) and no `banned` ones.

        Unknown ids among them are ignored.
        """
        self._run = run
        if ties not in TIES:
            raise CelrecError(f"ties must be one of {', '.join(TIES)}, not {ties!r}")
        if ties == "popularity":
            priority = run.items.get_column("interactions").to_numpy()
        elif run.seen is not None:
            priority = run.seen.recency(len(run.items))
        else:
            raise CelrecError(
                "ties 'recency': the run has no record of when items were seen; train again"
            )
        encode = run.known.item_ids.encode
        self.top_k = TopK(run.model, priority).within(**item_filters(encode, allowed, banned))

    def recommend(self, users: Ids, k: int = 10, *, with_seen: bool = False) -> pl.DataFrame:
        """The k best unseen items for each user, as one table with the columns of `in_parts`."""
        return pl.concat(self.in_parts(users, k, with_seen=with_seen))

    def in_parts(
        self, users: Ids, k: int = 10, *, with_seen: bool = False
    ) -> Iterator[pl.DataFrame]:
        """The same in tables of some thousand users, for any number of users.

        Columns: user, place (from 1), item, score, and title where there are titles. Unknown
        users get the recommendations for a new user.
        """
        if self._run.seen is None and not with_seen:
            raise CelrecError(
                "seen: the run has no record of what users have seen, since an earlier version of "
                "celrec wrote it; train again, or include seen items (--with-seen)"
            )
        ids = self._run.known.user_ids
        dense, shown = ids.encode(users), _as_known(users, ids)
        for start in range(0, max(len(dense), 1), USERS_AT_ONCE):
            part = slice(start, start + USERS_AT_ONCE)
            seen = None if with_seen else self._run.seen
            best = self.top_k.recommend(dense[part], k, seen=seen)
            yield self._table("user", shown[part], "item", best)

    def similar(self, items: Ids, k: int = 10) -> pl.DataFrame:
        """The k most similar items to each item, by the cosine of their vectors.

        Columns: item, place (from 1), similar, score, and title where there are titles.
        """
        known = self._run.known.item_ids
        dense, shown = known.encode(items), _as_known(items, known)
        if (dense < 0).any():
            unknown = shown.filter(pl.Series(dense < 0))[0]
            raise CelrecError(f"item {unknown!r} is not known; name one that is in the data")
        return self._table("item", shown, "similar", self.top_k.similar(dense, k))

    def _table(self, query: str, ids: pl.Series, answer: str, best: Best) -> pl.DataFrame:
        rows, places = np.nonzero(best.items >= 0)
        items = pl.Series(best.items[rows, places])
        table = self._run.items
        columns = {
            query: ids.gather(rows),
            "place": (places + 1).astype(np.int32),
            answer: table.get_column("id").gather(items),
            "score": best.scores[rows, places],
        }
        if "title" in table.columns:
            columns["title"] = table.get_column("title").gather(items)
        return pl.DataFrame(columns)


def item_filters(
    encode: Callable[[Any], NDArray[np.int32]], allowed: Any, banned: Any
) -> dict[str, NDArray[np.int32]]:
    """The arguments of `TopK.within` for original ids; unknown ids are ignored."""
    given = {"allowed": allowed, "banned": banned}
    numbers = {name: encode(ids) for name, ids in given.items() if ids is not None}
    filters = {name: found[found >= 0] for name, found in numbers.items()}
    if allowed is not None and not len(filters["allowed"]):
        raise CelrecError("allowed: none of these items is known; check that they are ids")
    return filters


def _as_known(ids: Ids, known: IdMap) -> pl.Series:
    """Ids cast to the type of the id map if all can be: the command line has strings only."""
    given = ids if isinstance(ids, pl.Series) else pl.Series(ids)
    cast = given.cast(known.ids.dtype, strict=False)
    return cast if cast.null_count() == given.null_count() else given


def best_items(
    model: Model,
    priority: NDArray[np.int64],
    users: NDArray[np.int64],
    k: int,
    seen: SeenItems,
) -> NDArray[np.int32]:
    """The k best unseen items of each user, as item numbers.

    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> model = Model(FullEmbedding(2, 2), FullEmbedding(3, 2))
    >>> best_items(model, np.zeros(3, np.int64), np.array([0, 1]), 2, SeenItems()).shape
    (2, 2)
    """
    return TopK(model, priority).recommend(users, k, seen=seen).items
