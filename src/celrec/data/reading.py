"""From files and tables to interactions."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from celrec.data._growing_array import GrowingArray
from celrec.data._raw_log import RawLog
from celrec.data._table_log import TableLog
from celrec.data._text_log import TextLog
from celrec.data.columns import Columns
from celrec.data.delimited import Delimited
from celrec.data.features import align_features
from celrec.data.id_map import IdMap
from celrec.data.interactions import Interactions
from celrec.data.text_source import Progress, TextSource
from celrec.errors import CelrecError

Table: TypeAlias = Any
"""A polars DataFrame or LazyFrame, a pandas DataFrame, an Arrow table, or a dict of columns."""

_NO_TIME = np.iinfo(np.int64).min


def read(
    source: str | Path | Table,
    *,
    user: str | None = None,
    item: str | None = None,
    target: str | None = None,
    timestamp: str | None = None,
    user_features: Table | None = None,
    item_features: Table | None = None,
    separator: str | None = None,
    drop_invalid: bool = False,
    like: Interactions | None = None,
    progress: Progress | None = None,
) -> Interactions:
    """Interactions from a file or a table.

    Files may be csv, tsv, `::`-separated or parquet, the text ones also gzipped
    or inside a zip archive (`log.zip/day1.csv`). They are read in blocks: what
    stays in memory is 12 bytes a row (20 with timestamps) and the distinct ids.

    Columns are guessed from common names (`user_id`, `asin`, `rating`, …) unless
    they are named by `user`, `item`, `target` and `timestamp`. Ids may be
    integers or strings; text files give integers if all ids are written as such.
    Timestamps are integers, taken as they are, or dates, which become
    microseconds since 1970. Repeated pairs are kept.

    A row without a user, an item or a finite target raises an error that names
    the row, or is left out and counted in `dropped` with `drop_invalid`.

    `user_features` and `item_features` are tables whose id column is named like
    the user or item column of the log. With `like`, the ids of that log are used,
    and ids it does not hold become UNSEEN: for test data in a file of their own.

    >>> read({"uid": [1, 1, 2], "movie": ["a", "b", "a"], "stars": [5, 3, 4]})
    Interactions(3 rows, 2 users, 2 items)
    """
    columns = Columns(user, item, target, timestamp)
    log: RawLog
    if isinstance(source, str | Path):
        text = TextSource.at(source)
        if text.magic() == b"PAR1":
            log = TableLog(pl.scan_parquet(text.path), columns, str(source))
        else:
            log = TextLog(Delimited.at(text, separator=separator), columns, progress)
    else:
        log = TableLog(_as_polars(source, "source").lazy(), columns, "table")
    collector = _Collector(log, like, drop_invalid)
    for batch in log.batches(drop_invalid):
        collector.add(batch)
    return collector.finish(user_features, item_features)


class _Collector:
    """Encodes the batches of a log and gathers them."""

    def __init__(self, log: RawLog, like: Interactions | None, drop_invalid: bool) -> None:
        self._log, self._like, self._drop = log, like, drop_invalid
        self._user_ids = like.user_ids if like else IdMap()
        self._item_ids = like.item_ids if like else IdMap()
        self._user, self._item = GrowingArray(np.int32), GrowingArray(np.int32)
        self._target, self._time = GrowingArray(np.float32), GrowingArray(np.int64)
        self._dropped = 0
        self._first_without_time: str | None = None

    def add(self, batch: pl.DataFrame) -> None:
        """Take the rows of `batch`."""
        valid = batch.select(
            _is_id("user", batch) & _is_id("item", batch) & pl.col("target").is_finite()
        ).to_series()
        if not (valid := valid.fill_null(False)).all():
            if not self._drop:
                raise self._explain(int(valid.not_().arg_true()[0]))
            batch = batch.filter(valid)
            self._dropped += len(valid) - len(batch)
        encode = IdMap.encode if self._like else IdMap.extend
        with ThreadPoolExecutor(1) as beside:
            users = beside.submit(encode, self._user_ids, batch.get_column("user"))
            self._item.append(encode(self._item_ids, batch.get_column("item")))
            self._user.append(users.result())
        self._target.append(batch.get_column("target").to_numpy())
        if "timestamp" in batch.columns:
            time = batch.get_column("timestamp")
            if time.null_count() and self._first_without_time is None:
                self._first_without_time = self._log.locate(int(time.is_null().arg_true()[0]))[0]
            self._time.append(time.fill_null(_NO_TIME).to_numpy())

    def finish(self, user_features: Table | None, item_features: Table | None) -> Interactions:
        """All that was added."""
        if not len(self._user):
            dropped = f" ({self._dropped:,} invalid ones left out)" if self._dropped else ""
            raise CelrecError(f"{self._log.name}: no interactions in it{dropped}")
        if self._like is None:
            self._user_ids = self._user_ids.with_integers()
            self._item_ids = self._item_ids.with_integers()
        user, item, target = self._user.finish(), self._item.finish(), self._target.finish()
        time = self._time.finish() if len(self._time) else None
        if time is not None and self._first_without_time is not None:
            keep = time != _NO_TIME
            if not keep.any():
                time = None
            elif self._drop:
                user, item, target, time = user[keep], item[keep], target[keep], time[keep]
                self._dropped += len(keep) - len(time)
            else:
                raise CelrecError(
                    f"{self._first_without_time}: no timestamp, or not one like those before; "
                    "mend the row or leave such rows out (--drop-invalid)"
                )
        return Interactions(
            user=user,
            item=item,
            target=target,
            timestamp=time,
            user_ids=self._user_ids,
            item_ids=self._item_ids,
            user_features=self._features(user_features, "user", self._user_ids),
            item_features=self._features(item_features, "item", self._item_ids),
            dropped=self._dropped,
        )

    def _features(self, table: Table | None, role: str, ids: IdMap) -> pl.DataFrame | None:
        if table is None:
            return getattr(self._like, f"{role}_features") if self._like else None
        frame = _as_polars(table, f"{role}_features").lazy().collect()
        return align_features(frame, ids, self._log.columns.roles()[role])

    def _explain(self, row: int) -> CelrecError:
        where, values = self._log.locate(row)
        for role in ("user", "item"):
            if values.get(role) in (None, "", "None", "nan"):
                problem = f"no {role} id"
                break
        else:
            problem = f"target {values.get('target', '')!r} is not a finite number"
        return CelrecError(
            f"{where}: {problem}; mend the row or leave such rows out (--drop-invalid)"
        )


def _is_id(role: str, batch: pl.DataFrame) -> pl.Expr:
    dtype = batch.schema[role]
    if dtype == pl.String:
        return pl.col(role).is_not_null() & (pl.col(role) != "")
    return pl.col(role).is_not_nan() if dtype.is_float() else pl.col(role).is_not_null()


def _as_polars(table: Table, argument: str) -> pl.DataFrame | pl.LazyFrame:
    if isinstance(table, pl.DataFrame | pl.LazyFrame):
        return table
    try:
        if type(table).__module__.partition(".")[0] == "pandas":
            frame = pl.from_pandas(table)
            if isinstance(frame, pl.DataFrame):
                return frame
        elif isinstance(table, Mapping) or hasattr(table, "__arrow_c_stream__"):
            return pl.DataFrame(table)
    except ModuleNotFoundError as error:
        raise CelrecError(f"{argument}: {error.name} is needed to read a pandas table") from error
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise CelrecError(f"{argument}: cannot turn this table into columns ({error})") from error
    raise CelrecError(
        f"{argument}: expected a path or a polars, pandas or Arrow table, "
        f"got {type(table).__name__}"
    )
