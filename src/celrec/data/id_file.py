"""Files of ids."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from celrec.errors import CelrecError

_TABLES = {".csv": ",", ".tsv": "\t"}


def read_id_file(path: str | Path) -> pl.Series:
    r"""The ids in a file: one in a line, or the first column of a csv, tsv or parquet file.

    The first line of a csv or tsv file holds the names of the columns. Empty lines are left out,
    as are missing values.

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
        problem = str(error).partition("\n")[0]
        raise CelrecError(f"{path}: cannot be read as ids ({problem})") from error
    ids = frame.to_series(0) if frame.width else pl.Series([], dtype=pl.String)
    if ids.dtype == pl.String:
        ids = ids.filter(ids != "")
    ids = ids.drop_nulls().alias("id")
    if not len(ids):
        raise CelrecError(f"{path}: no ids in it; write one in a line")
    return ids
