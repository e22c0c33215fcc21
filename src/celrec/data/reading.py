"""Reading interactions and ids from files and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.columns import Columns, Table, as_polars, further
from celrec.data.delimited import Delimited
from celrec.data.id_map import UNSEEN, IdMap
from celrec.data.interactions import IdColumn, Interactions, align_features
from celrec.data.raw_log import Batch, RawLog, TableLog, TextLog
from celrec.data.text_source import Progress, TextSource
from celrec.errors import CelrecError, first_line
from celrec.runtime.memory_budget import GrowingArray

_NO_TIME = np.iinfo(np.int64).min


def read(
    source: str | Path | Table,
    *,
    user: str | None = None,
    item: str | None = None,
    target: str | None = None,
    timestamp: str | None = None,
    columns: Sequence[str] = (),
    user_features: Table | None = None,
    item_features: Table | None = None,
    separator: str | None = None,
    drop_invalid: bool = False,
    need_target: bool = False,
    like: Interactions | None = None,
    progress: Progress | None = None,
) -> Interactions:
    """Read interactions from a file or a table.

    Files are csv, tsv, `::`-separated or parquet; text files may be gzipped or inside a zip
    archive (`log.zip/day1.csv`). They are read in blocks: 12 bytes per row (20 with timestamps)
    and the distinct ids stay in memory.

    Columns are guessed from common names (`user_id`, `asin`, `rating`, …) unless `user`, `item`,
    `target` and `timestamp` name them. Ids may be integers or strings; in text files they are
    integers if all of them are. Timestamps are integers, or dates, which become microseconds
    since 1970. Repeated pairs are kept. A log without a target column is implicit feedback with
    all targets 1.

    A row without a user, an item or a finite target raises an error that names the row.

    Args:
        source: A path, or a polars, pandas or Arrow table or a dict of columns.
        user: The column of users.
        item: The column of items.
        target: The column of targets.
        timestamp: The column of timestamps.
        columns: Further columns of ids, such as shops or search words; missing ids are UNSEEN.
        user_features: A table of features, with an id column named like the user column.
        item_features: The same for items.
        separator: The separator of a text file, if it cannot be guessed.
        drop_invalid: Drop invalid rows and count them in `dropped`.
        need_target: Raise an error if there is no target column.
        like: Use the ids of this log, for test data in a separate file; others become UNSEEN.
        progress: Called with the bytes read so far and in total.

    >>> read({"uid": [1, 1, 2], "movie": ["a", "b", "a"], "stars": [5, 3, 4]})
    Interactions(3 rows, 2 users, 2 items)

    """
    roles = Columns(user, item, target, timestamp, tuple(columns), need_target)
    log: RawLog
    if isinstance(source, str | Path):
        text = TextSource.at(source)
        if text.magic() == b"PAR1":
            log = TableLog(pl.scan_parquet(text.path), roles, str(source))
        else:
            log = TextLog(Delimited.at(text, separator=separator), roles, progress)
    else:
        log = TableLog(as_polars(source, "source").lazy(), roles, "table")
    collector = _Collector(log, like, drop_invalid)
    with ThreadPoolExecutor(1) as executor:
        for batch in log.batches(drop_invalid):
            collector.add(batch, executor)
    return collector.finish(user_features, item_features)


class _Collector:
    """Encodes the ids of batches and concatenates them."""

    def __init__(self, log: RawLog, like: Interactions | None, drop_invalid: bool) -> None:
        self._log, self._like, self._drop = log, like, drop_invalid
        self._user_ids = like.user_ids if like is not None else IdMap()
        self._item_ids = like.item_ids if like is not None else IdMap()
        rows = log.expected_rows()
        self._user, self._item = GrowingArray(np.int32, rows), GrowingArray(np.int32, rows)
        self._target, self._time = GrowingArray(np.float32, rows), GrowingArray(np.int64, rows)
        self._more_ids = {name: self._map_of(name) for name in log.columns.more}
        self._more = {name: GrowingArray(np.int32, rows) for name in self._more_ids}
        self._dropped = 0
        self._first_without_time: str | None = None

    def add(self, batch: Batch, executor: Executor) -> None:
        """Append the rows of `batch`; users are encoded in the executor, parallel to items."""
        self._dropped += batch.dropped
        columns = batch.frame.to_dict()
        target = columns["target"].to_numpy()  # null becomes NaN
        valid = np.isfinite(target)
        for role in ("user", "item"):
            if (missing := _missing(columns[role])) is not None:
                valid &= ~missing
        if not valid.all():
            if not self._drop:
                raise _explain(batch, int(np.argmin(valid)))
            target = target[valid]
            columns = batch.frame.filter(valid).to_dict()
            self._dropped += len(valid) - len(target)
        encode = IdMap.encode if self._like is not None else IdMap.extend
        users = executor.submit(encode, self._user_ids, columns["user"])
        self._item.append(encode(self._item_ids, columns["item"]))
        self._user.append(users.result())
        self._target.append(target)
        for name, ids in self._more_ids.items():
            self._more[name].append(_encoded(encode, ids, columns[further(name)]))
        if (time := columns.get("timestamp")) is not None:
            if time.null_count():
                if self._first_without_time is None:
                    row = int(np.argmax(time.is_null().to_numpy()))
                    self._first_without_time = batch.locate(row)[0]
                time = time.fill_null(_NO_TIME)
            self._time.append(time.to_numpy())

    def finish(self, user_features: Table | None, item_features: Table | None) -> Interactions:
        """The interactions of all batches."""
        if not len(self._user):
            dropped = f" ({self._dropped:,} invalid ones left out)" if self._dropped else ""
            raise CelrecError(f"{self._log.name}: no interactions in it{dropped}")
        self._user_ids = self._finished(self._user_ids)
        self._item_ids = self._finished(self._item_ids)
        user, item, target = self._user.finish(), self._item.finish(), self._target.finish()
        time = self._time.finish() if len(self._time) else None
        more = {name: values.finish() for name, values in self._more.items()}
        if time is not None and self._first_without_time is not None:
            keep = time != _NO_TIME
            if not keep.any():
                time = None
            elif self._drop:
                user, item, target, time = user[keep], item[keep], target[keep], time[keep]
                more = {name: values[keep] for name, values in more.items()}
                self._dropped += len(keep) - len(time)
            else:
                raise CelrecError(
                    f"{self._first_without_time}: no timestamp, or not one like those before; "
                    "fix it, or leave such rows out with drop_invalid (--drop-invalid)"
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
            columns={
                name: IdColumn(values, self._finished(self._more_ids[name]))
                for name, values in more.items()
            },
            dropped=self._dropped,
        )

    def _map_of(self, name: str) -> IdMap:
        if self._like is None:
            return IdMap()
        if name not in self._like.columns:
            raise CelrecError(
                f"columns: {name!r} is none of those that `like` was read with: "
                f"{', '.join(self._like.columns) or 'none'}"
            )
        return self._like.columns[name].ids

    def _finished(self, ids: IdMap) -> IdMap:
        return ids.with_integers() if self._like is None else ids

    def _features(self, table: Table | None, role: str, ids: IdMap) -> pl.DataFrame | None:
        if table is None:
            return getattr(self._like, f"{role}_features") if self._like is not None else None
        frame = as_polars(table, f"{role}_features").lazy().collect()
        return align_features(frame, ids, self._log.columns.roles()[role])


def _encoded(
    encode: Callable[[IdMap, pl.Series], NDArray[np.int32]], ids: IdMap, values: pl.Series
) -> NDArray[np.int32]:
    if (missing := _missing(values)) is None:
        return encode(ids, values)
    dense = np.full(len(values), UNSEEN, np.int32)
    dense[~missing] = encode(ids, values.filter(~missing))
    return dense


def _explain(batch: Batch, row: int) -> CelrecError:
    where, values = batch.locate(row)
    for role in ("user", "item"):
        if values.get(role) in (None, "", "None", "nan"):
            problem = f"no {role} id"
            break
    else:
        problem = f"target {values.get('target', '')!r} is not a finite number"
    return CelrecError(
        f"{where}: {problem}; fix it, or leave such rows out with drop_invalid (--drop-invalid)"
    )


def _missing(ids: pl.Series) -> NDArray[np.bool_] | None:
    """A mask of ids that are null, NaN or empty strings; None if there are none."""
    missing = ids.is_null() if ids.null_count() else None
    if ids.dtype == pl.String or ids.dtype.is_float():
        empty = ids == "" if ids.dtype == pl.String else ids.is_nan()
        if empty.any():
            missing = empty.fill_null(True) if missing is None else missing | empty.fill_null(True)
    return None if missing is None else missing.to_numpy()


_TABLES = {".csv": ",", ".tsv": "\t"}


def read_id_file(path: str | Path) -> pl.Series:
    r"""Read ids from a file: one per line, or the first column of a csv, tsv or parquet file.

    The first line of a csv or tsv file is a header. Empty lines and missing values are ignored.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "banned.txt")
    >>> _ = path.write_text("tt01\n\n007\n")
    >>> read_id_file(path).to_list()
    ['tt01', '007']
    """
    place = Path(path)
    try:
        if place.suffix.lower() == ".parquet":
            frame = pl.read_parquet(place)
        elif place.suffix.lower() in _TABLES:
            separator = _TABLES[place.suffix.lower()]
            frame = pl.read_csv(place, separator=separator, infer_schema=False)
        else:
            lines = place.read_text(encoding="utf-8-sig").splitlines()
            frame = pl.DataFrame({"id": [line.strip() for line in lines]}, {"id": pl.String})
    except FileNotFoundError as error:
        raise CelrecError(f"{path}: no such file") from error
    except OSError as error:
        raise CelrecError(f"{path}: cannot be read ({error.strerror})") from error
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise CelrecError(f"{path}: cannot be read as ids ({first_line(error)})") from error
    ids = frame.to_series(0) if frame.width else pl.Series([], dtype=pl.String)
    if ids.dtype == pl.String:
        ids = ids.filter(ids != "")
    ids = ids.drop_nulls().alias("id")
    if not len(ids):
        raise CelrecError(f"{path}: no ids in it; write one per line")
    return ids
