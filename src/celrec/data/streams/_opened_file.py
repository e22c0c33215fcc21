"""From a path to the file of events there."""

from __future__ import annotations

from pathlib import Path

from celrec.data.columns import Columns
from celrec.data.streams._event_file import EventFile
from celrec.data.streams._parquet_file import ParquetFile
from celrec.data.streams._text_file import TextFile
from celrec.data.text_source import TextSource
from celrec.errors import CelrecError

_PARQUET = b"PAR1"


def opened_file(path: str | Path, roles: Columns) -> EventFile:
    """The file at `path`: parquet if it begins like one, else text, perhaps compressed."""
    source = TextSource.at(path)
    try:
        magic = source.magic()
    except OSError as error:
        raise CelrecError(f"{path}: cannot read ({error.strerror})") from error
    if magic == _PARQUET:
        return ParquetFile(source.path, roles)
    if source.path.suffix.lower() == ".parquet":
        raise CelrecError(f"{path}: not a parquet file, in spite of its name")
    return TextFile(source, roles)
