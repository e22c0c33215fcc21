"""Ids that somebody asks about."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import polars as pl

from celrec.data.id_map import Ids
from celrec.errors import CelrecError

OneOrMany: TypeAlias = int | str | Ids
"""An id, or a sequence, an array or a column of ids."""


def asked_ids(argument: str, given: OneOrMany) -> pl.Series:
    """The ids that are given, one or many, as a column.

    >>> asked_ids("users", "ann").to_list(), asked_ids("users", [7, 8]).to_list()
    (['ann'], [7, 8])
    """
    values: Any = [given] if isinstance(given, int | str | np.integer | np.str_) else given
    try:
        if type(values).__module__.partition(".")[0] == "pandas":
            ids: Any = pl.from_pandas(values)
        else:
            there = isinstance(values, pl.Series | pl.DataFrame | pl.LazyFrame)
            ids = values if there else pl.Series(values, strict=False)
    except ImportError as error:
        raise CelrecError(f"{argument}: pyarrow is needed to read this column") from error
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise CelrecError(
            f"{argument}: expected an id or a column of ids, got {type(given).__name__}"
        ) from error
    if not isinstance(ids, pl.Series):
        raise CelrecError(f"{argument}: expected a column of ids, got a table; name its column")
    if ids.null_count() or (ids.dtype.is_float() and ids.is_nan().any()):
        raise CelrecError(f"{argument}: some ids are missing; leave these out")
    return ids
