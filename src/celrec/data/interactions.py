"""`Interactions`, the data type of logs that all packages share, and features of its ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True, eq=False)
class IdColumn:
    """A column of further ids, such as shops, brands or search words.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2], "item": [5, 6], "rating": [3.0, 4.0],
    ...                    "shop": ["north", None]}, columns=["shop"])
    >>> log.columns["shop"].values, len(log.columns["shop"].ids)
    (array([ 0, -1], dtype=int32), 1)
    """

    values: NDArray[np.int32]
    """Dense ids; UNSEEN where the id is missing or unknown."""
    ids: IdMap

    def __post_init__(self) -> None:
        values = np.asarray(self.values, np.int32).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __getitem__(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> IdColumn:
        """The column at some rows of the log."""
        return IdColumn(self.values[rows], self.ids)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of interactions of each id."""
        return np.bincount(self.values[self.values > UNSEEN], minlength=len(self.ids))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interactions:
    """An immutable log of interactions with dense ids, stored by column.

    `user` and `item` are int32 dense ids (UNSEEN if unknown), `target` is float32 (a rating, or
    0/1), `timestamp` int64 or None. `user_ids` and `item_ids` map dense ids to original ids.
    `columns` are further columns of ids with their own maps. Features are tables whose row j
    belongs to dense id j, with nulls for missing values.

    A slice shares memory with the log; an index array or a mask copies the columns and shares
    the maps and features.

    >>> import polars as pl, celrec
    >>> log = celrec.read(pl.DataFrame({"user": ["ann", "bob", "ann"], "item": [7, 7, 9],
    ...                                 "rating": [4.0, 3.0, 5.0]}))
    >>> log
    Interactions(3 rows, 2 users, 2 items)
    >>> log.user, log.item_ids.decode(log.item).to_list()
    (array([0, 1, 0], dtype=int32), [7, 7, 9])
    >>> log[log.target >= 4]
    Interactions(2 rows, 2 users, 2 items)
    """

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    target: NDArray[np.float32]
    timestamp: NDArray[np.int64] | None
    user_ids: IdMap
    item_ids: IdMap
    user_features: pl.DataFrame | None = None
    item_features: pl.DataFrame | None = None
    columns: Mapping[str, IdColumn] = field(default_factory=dict)
    dropped: int = 0
    """The number of invalid rows of the source that were dropped."""
    num_users: int = field(default=-1)
    num_items: int = field(default=-1)

    @classmethod
    def without_rows(
        cls, user_ids: IdMap, item_ids: IdMap, columns: Mapping[str, IdMap], **sizes: Any
    ) -> Interactions:
        """A log that holds the ids only, which other logs are read `like`."""
        none = np.empty(0, np.int32)
        more = {name: IdColumn(none, ids) for name, ids in columns.items()}
        target = none.astype(np.float32)
        return cls(none, none, target, None, user_ids, item_ids, columns=more, **sizes)

    def __post_init__(self) -> None:
        # A stream may share the maps and let them grow; the sizes of this log do not change.
        if self.num_users < 0:
            object.__setattr__(self, "num_users", len(self.user_ids))
        if self.num_items < 0:
            object.__setattr__(self, "num_items", len(self.item_ids))
        self._freeze("user", np.int32, self.num_users)
        self._freeze("item", np.int32, self.num_items)
        self._freeze("target", np.float32)
        if self.timestamp is not None:
            self._freeze("timestamp", np.int64)
        for name, column in self.columns.items():
            if name in ("user", "item", "target", "timestamp"):
                raise CelrecError(f"columns: every log has its own {name!r}; rename this one")
            if column.values.shape != self.user.shape:
                raise CelrecError(
                    f"column {name!r} has shape {column.values.shape}, "
                    f"but user has {self.user.shape}"
                )
        for name, size in (("user_features", self.num_users), ("item_features", self.num_items)):
            features = getattr(self, name)
            if features is not None and len(features) != size:
                raise CelrecError(
                    f"{name} must have one row per id ({size:,}), not {len(features):,}"
                )

    def _freeze(self, name: str, dtype: type[np.generic], size: int | None = None) -> None:
        column = np.asarray(getattr(self, name), dtype)
        if column.shape != self.user.shape or column.ndim != 1:
            raise CelrecError(f"{name} has shape {column.shape}, but user has {self.user.shape}")
        if (
            size is not None
            and len(column)
            and not (column.min() >= UNSEEN and column.max() < size)
        ):
            raise CelrecError(f"{name} ids must lie in -1 … {size - 1}")
        column = column.view()
        column.flags.writeable = False
        object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        return (
            f"Interactions({len(self):,} rows, {self.num_users:,} users, {self.num_items:,} items)"
        )

    def __getitem__(self, rows: slice | NDArray[Any]) -> Interactions:
        """The interactions at `rows` (a slice, an index array or a mask), with the same ids."""
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            target=self.target[rows],
            timestamp=None if self.timestamp is None else self.timestamp[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
            dropped=0,
        )

    @property
    def user_counts(self) -> NDArray[np.int64]:
        """The number of interactions of each user, by dense id."""
        return np.bincount(self.user[self.user >= 0], minlength=self.num_users)

    @property
    def item_counts(self) -> NDArray[np.int64]:
        """The number of interactions of each item, by dense id."""
        return np.bincount(self.item[self.item >= 0], minlength=self.num_items)

    def seen(self) -> Interactions:
        """The rows with a known user and a known item."""
        known = (self.user >= 0) & (self.item >= 0)
        return self if known.all() else self[known]

    def compact(self) -> Interactions:
        """The same rows with only the ids that occur in them, renumbered in order."""
        user, user_ids, user_features = _compact(self.user, self.user_ids, self.user_features)
        item, item_ids, item_features = _compact(self.item, self.item_ids, self.item_features)
        return Interactions(
            user=user,
            item=item,
            target=self.target,
            timestamp=self.timestamp,
            user_ids=user_ids,
            item_ids=item_ids,
            user_features=user_features,
            item_features=item_features,
            columns={
                name: IdColumn(*_compact(column.values, column.ids, None)[:2])
                for name, column in self.columns.items()
            },
        )

    def to_frame(self) -> pl.DataFrame:
        """A polars table with the original ids."""
        columns = {
            "user": self.user_ids.decode(self.user),
            "item": self.item_ids.decode(self.item),
            "target": pl.Series(self.target),
        }
        if self.timestamp is not None:
            columns["timestamp"] = pl.Series(self.timestamp)
        for name, column in self.columns.items():
            columns[name] = column.ids.decode(column.values)
        return pl.DataFrame(columns)


def _compact(
    dense: NDArray[np.int32], ids: IdMap, features: pl.DataFrame | None
) -> tuple[NDArray[np.int32], IdMap, pl.DataFrame | None]:
    kept = np.unique(dense[dense >= 0])
    renumbered = np.full(len(ids) + 1, UNSEEN, np.int32)  # the last entry is for UNSEEN
    renumbered[kept] = np.arange(len(kept), dtype=np.int32)
    return renumbered[dense], IdMap(ids.decode(kept)), None if features is None else features[kept]


@dataclass(frozen=True, slots=True)
class EncodedFeature:
    """A categorical feature of all users or items: category numbers, padded with UNSEEN.

    >>> genres = pl.DataFrame({"genres": [["Drama", "War"], None, ["War"]]})
    >>> [feature] = EncodedFeature.all_of(genres)
    >>> feature.values.tolist(), feature.size
    ([[0, 1], [-1, -1], [1, -1]], 2)
    """

    name: str
    values: NDArray[np.int32]
    """(ids, largest number of values of an id)."""
    size: int
    """The number of categories."""

    @classmethod
    def all_of(cls, table: pl.DataFrame | None, most: int = 100) -> list[EncodedFeature]:
        """The columns of a feature table with at most `most` categories.

        Columns with more, such as titles, identify ids instead of grouping them, and their tables
        would be as large as those of the ids.
        """
        columns = [] if table is None else table.get_columns()
        encoded = (cls._of(column, most) for column in columns)
        return [feature for feature in encoded if feature is not None]

    @classmethod
    def _of(cls, column: pl.Series, most: int) -> EncodedFeature | None:
        lists = (
            column if isinstance(column.dtype, pl.List) else column.reshape((-1, 1)).arr.to_list()
        )
        frame = pl.DataFrame({"id": np.arange(len(column)), "value": lists})
        known = frame.explode("value").drop_nulls("value").unique(maintain_order=True)
        size = known.get_column("value").n_unique()
        if not 0 < size <= most:
            return None
        numbered = known.with_columns(
            number=pl.col("value").rank("dense") - 1,
            place=pl.int_range(pl.len()).over("id"),
        )
        width = int(numbered.get_column("place").max()) + 1  # type: ignore[arg-type]
        values = np.full((len(column), width), UNSEEN, np.int32)
        place = (numbered.get_column("id").to_numpy(), numbered.get_column("place").to_numpy())
        values[place] = numbered.get_column("number").to_numpy()
        return cls(column.name, values, size)


def align_features(table: pl.DataFrame, ids: IdMap, id_column: str) -> pl.DataFrame:
    """`table` without its id column; row j belongs to dense id j, with nulls for missing ids.

    >>> genres = pl.DataFrame({"item": [9, 7], "genre": ["Drama", "Comedy"]})
    >>> align_features(genres, IdMap([7, 8]), "item")["genre"].to_list()
    ['Comedy', None]
    """
    if id_column not in table.columns:
        raise CelrecError(
            f"features: no column {id_column!r} with the ids; the columns are {table.columns}"
        )
    dense = ids.encode(table.get_column(id_column))
    known = np.flatnonzero(dense >= 0)
    rows = np.full(len(ids), -1, np.int64)
    rows[dense[known]] = known
    if len(np.unique(dense[known])) < len(known):
        twice = dense[known][np.bincount(dense[known])[dense[known]] > 1][:1]
        raise CelrecError(
            f"features: id {ids.decode(twice)[0]!r} occurs twice; keep one row per id"
        )
    index = pl.Series(rows)
    index = index.set(index < 0, None)
    return table.drop(id_column).select(pl.all().gather(index))
