"""Tables as bytes, for other processes."""

from __future__ import annotations

from io import BytesIO

import polars as pl


def to_bytes(frame: pl.DataFrame) -> bytes:
    """The table in Arrow's format.

    >>> from_bytes(to_bytes(pl.DataFrame({"id": ["a", None]}))).to_series().to_list()
    ['a', None]
    """
    file = BytesIO()
    frame.write_ipc(file)
    return file.getvalue()


def from_bytes(data: bytes) -> pl.DataFrame:
    """What `to_bytes` was given."""
    return pl.read_ipc(BytesIO(data))
