"""The mapping between original ids and dense ids."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from celrec.data.fingerprint_table import FingerprintTable
from celrec.errors import CelrecError
from celrec.runtime.atomic import atomic_file
from celrec.runtime.memory_budget import MemoryBudget

Ids: TypeAlias = pl.Series | Any
"""A polars or pandas series, a numpy or Arrow array, or a sequence."""

UNSEEN = -1
"""The dense id of original ids that are not in a map."""

_LARGEST = 2**31 - 1  # dense ids are int32
_CHUNK = 1 << 18  # ids inserted at once, which bounds the over-allocation of the table
_PENDING = 1 << 15  # rows whose new ids are collected together
_EXACT_FLOAT = 2.0**53


class IdMap:
    """Original ids (integers or strings) ↔ dense ids 0, 1, 2 …, in order of first appearance.

    A map can grow during a stream; ids keep their numbers until `keep` drops others. Integers are
    compared exactly, strings by a 96-bit fingerprint with a random key: the probability that any
    two of a billion strings collide is below 1e-11. A map of integers that gets a non-integer id
    becomes a map of strings; integers beyond 64 bits are stored as strings from the start. With a
    `budget`, the hash table is in a file if it exceeds the budget; the original ids stay in
    memory.

    >>> items = IdMap(["tt01", "tt02"])
    >>> items.extend(["tt02", "tt09", "tt09"])
    array([1, 2, 2], dtype=int32)
    >>> items.encode(["tt09", "never seen"])
    array([ 2, -1], dtype=int32)
    >>> items.decode([0, -1]).to_list()
    ['tt01', None]
    """

    def __init__(self, ids: Ids = (), budget: MemoryBudget | None = None) -> None:
        self._keys = (secrets.randbits(64), secrets.randbits(64))
        self._budget, self._table = budget, FingerprintTable(budget)
        self._ids = pl.Series("id", [], dtype=pl.Null)
        self._parts: list[pl.Series] = []
        self._pending: list[tuple[pl.Series, NDArray[np.int64]]] = []
        self._pending_rows = 0
        if len(series := _as_ids(ids)):
            self.extend(series)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"IdMap({len(self):,} {'strings' if self._kind == pl.String else 'integers'})"

    @property
    def ids(self) -> pl.Series:
        """The original ids in dense order: Int64 or String."""
        self._collect()
        if self._parts:
            parts = [self._ids, *self._parts] if len(self._ids) else self._parts
            self._ids = pl.concat(parts, rechunk=True)
            self._parts = []
        return self._ids

    @property
    def nbytes(self) -> int:
        """Bytes of the hash table and the original ids."""
        self._collect()
        parts = [self._ids, *self._parts]
        return self._table.nbytes + sum(int(part.estimated_size()) for part in parts)

    def extend(self, ids: Ids) -> NDArray[np.int32]:
        """The dense ids of `ids`; new ids get the next free numbers."""
        series = _as_ids(ids)
        if series.null_count():
            raise CelrecError(
                f"ids: {series.null_count():,} of {len(series):,} are missing; "
                "drop these rows or give them an id"
            )
        series = self._agree(series)
        dense = np.empty(len(series), np.int32)
        for start in range(0, len(series), _CHUNK):
            part = series[start : start + _CHUNK]
            if len(self) + len(part) > _LARGEST:
                raise CelrecError(f"ids: more than {_LARGEST:,} different ones do not fit in int32")
            dense[start : start + len(part)], first_rows = self._table.insert(*self._prints(part))
            if len(first_rows):
                self._pending.append((part, first_rows))
                self._pending_rows += len(part)
        if self._pending_rows > _PENDING:
            self._collect()
        return dense

    def encode(self, ids: Ids) -> NDArray[np.int32]:
        """The dense ids of `ids`; UNSEEN for missing and unknown ids."""
        series = _as_ids(ids)
        if self._kind == pl.Int64 and series.dtype == pl.String:
            series = _canonical_integers(series)
        elif self._kind == pl.String and series.dtype == pl.Int64:
            series = series.cast(pl.String)
        if self._kind is None:
            return np.full(len(series), UNSEEN, np.int32)
        dense = self._table.find(*self._prints(series))
        if series.null_count():
            dense[series.is_null().to_numpy()] = UNSEEN
        return dense

    def decode(self, dense: ArrayLike) -> pl.Series:
        """The original ids of `dense`; null for UNSEEN."""
        codes = np.asarray(dense)
        if codes.size and (codes.min() < UNSEEN or codes.max() >= len(self)):
            raise CelrecError(
                f"dense ids must lie in -1 … {len(self) - 1}, got {codes.min()} … {codes.max()}"
            )
        rows = pl.Series(codes.astype(np.int64))
        return self.ids.gather(rows.set(rows == UNSEEN, None))

    def copy(self) -> IdMap:
        """An independent copy, which other threads can read while this map grows."""
        other = IdMap()
        other._keys, other._table, other._ids = self._keys, self._table.copy(), self.ids
        return other

    def keep(self, dense: NDArray[np.int64]) -> None:
        """Keep only these ids, renumbered in this order; all others become unknown."""
        self._become(IdMap(self.decode(dense), self._budget))

    def save(self, path: str | Path) -> None:
        """Write the ids to a parquet file, atomically."""
        with atomic_file(Path(path)) as temporary:
            self.ids.to_frame("id").write_parquet(temporary)

    @classmethod
    def load(cls, path: str | Path) -> IdMap:
        """Read a map written by `save`."""
        try:
            ids = pl.read_parquet(path).get_column("id")
        except FileNotFoundError as error:
            raise CelrecError(f"{path}: no such file") from error
        except pl.exceptions.PolarsError as error:
            raise CelrecError(f"{path}: not a file that IdMap.save wrote ({error})") from error
        loaded = cls(ids)
        if len(loaded) != len(ids):
            raise CelrecError(f"{path}: {len(ids) - len(loaded):,} ids occur twice; file damaged")
        return loaded

    def with_integers(self) -> IdMap:
        """The map with integer ids, if every id is the decimal form of an integer.

        Text files do not say whether `17` is a number. "007" and "7" are different ids, so one id
        with a leading zero keeps the whole map as strings.
        """
        if self._kind != pl.String or _canonical_integers(self.ids[:1000]).null_count():
            return self  # a sample decides most cases
        integers = _canonical_integers(self.ids)
        return self if integers.null_count() else IdMap(integers)

    @property
    def _kind(self) -> pl.DataType | None:
        if len(self._ids):
            return self._ids.dtype
        if self._parts:
            return self._parts[0].dtype
        return self._pending[0][0].dtype if self._pending else None

    def _collect(self) -> None:
        """Extract the new ids from the pending series, in one operation for speed."""
        if not self._pending:
            return
        parts = [part for part, _ in self._pending]
        before = np.cumsum([0, *map(len, parts)])
        rows = np.concatenate(
            [rows + start for (_, rows), start in zip(self._pending, before, strict=False)]
        )
        self._parts.append(_compact(pl.concat(parts)[pl.Series(rows.astype(np.uint32))]))
        self._pending, self._pending_rows = [], 0

    def _agree(self, series: pl.Series) -> pl.Series:
        """`series` in the dtype of the map, which becomes String if an id is not an integer."""
        if self._kind == pl.String and series.dtype == pl.Int64:
            return series.cast(pl.String)
        if self._kind == pl.Int64 and series.dtype == pl.String:
            integers = _canonical_integers(series)
            if not integers.null_count():
                return integers
            self._become(IdMap(self.ids.cast(pl.String), self._budget))
        return series

    def _become(self, other: IdMap) -> None:
        self._keys, self._table = other._keys, other._table
        self._ids, self._parts, self._pending, self._pending_rows = other.ids, [], [], 0

    def _prints(self, series: pl.Series) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        if series.dtype == pl.Int64:
            known = series.fill_null(0) if series.null_count() else series
            values = known.to_numpy().view(np.uint64)
            return values, np.zeros_like(values)
        table = series.to_frame()  # four times as fast as `Series.hash` for a few ids
        return table.hash_rows(self._keys[0]).to_numpy(), table.hash_rows(self._keys[1]).to_numpy()


def _as_ids(values: Ids) -> pl.Series:
    """`values` as a flat series of Int64 or String, with null for missing ids."""
    try:
        series = values if isinstance(values, pl.Series) else pl.Series(values, strict=False)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise CelrecError(
            f"ids must be integers or strings; pass them as strings ({error})"
        ) from error
    series = series.alias("id")
    dtype = series.dtype
    if dtype in (pl.String, pl.Int64):
        return series
    if dtype in (pl.Categorical, pl.Enum):
        return series.cast(pl.String)
    if dtype == pl.Null:
        return series.cast(pl.String)
    if dtype.is_integer():
        integers = series.cast(pl.Int64, strict=False)
        return integers if integers.null_count() == series.null_count() else series.cast(pl.String)
    if dtype.is_float():
        whole = series.fill_nan(None)
        if ((whole == whole.floor()) & (whole.abs() <= _EXACT_FLOAT)).all():
            return whole.cast(pl.Int64)
        raise CelrecError("ids: floats with fractions or beyond 2**53; pass integers or strings")
    raise CelrecError(f"ids must be integers or strings, not {dtype}; cast the column first")


def _canonical_integers(texts: pl.Series) -> pl.Series:
    """Int64 where the text is the decimal form of an integer, else null."""
    integers = texts.cast(pl.Int64, strict=False)
    same = (integers.cast(pl.String) == texts).fill_null(False)
    return integers.set(~same, None)


def _compact(ids: pl.Series) -> pl.Series:
    """`ids` without references to the buffers of the series that they were gathered from."""
    # Concatenation copies the bytes; gathering alone keeps the source's buffers alive.
    return ids + "" if ids.dtype == pl.String else ids


def whole_numbers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """`values` as a flat int64 array; an error about `name` if they are not integers.

    >>> whole_numbers("users", [3, -1])
    array([ 3, -1])
    """
    numbers = np.asarray(values)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise CelrecError(
            f"{name} must be a flat array of integers, not {numbers.dtype} of shape {numbers.shape}"
        )
    return numbers.astype(np.int64, copy=False)
