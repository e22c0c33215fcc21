"""What users have seen, on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError

_NAME = "seen.parquet"


def seen_in(log: Interactions) -> SeenItems:
    """What each user of a log has seen."""
    seen = SeenItems()
    if log.timestamp is None:
        seen.add(log.user, log.item)
    else:
        order = np.argsort(log.timestamp, kind="stable")
        seen.add(log.user[order], log.item[order])
    return seen


def write_seen(folder: Path, seen: SeenItems) -> None:
    """Write the dense ids of all events that count, in the order of time; 8 bytes each at most."""
    users, items = seen.events()
    pl.DataFrame({"user": users, "item": items}).write_parquet(folder / _NAME)


def read_seen(folder: Path, known: Interactions) -> SeenItems | None:
    """What `write_seen` wrote of ids that are `known`; None if earlier versions wrote nothing."""
    path = folder / _NAME
    if not path.is_file():
        return None
    seen = SeenItems()
    try:
        pairs = pl.read_parquet(path)
        users, items = (pairs.get_column(name).to_numpy() for name in ("user", "item"))
        if users.max(initial=-1) >= known.num_users or items.max(initial=-1) >= known.num_items:
            raise CelrecError("there are ids that nobody knows")
        seen.add(users, items)
    except (pl.exceptions.PolarsError, CelrecError, TypeError) as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(f"{path}: damaged ({problem}); train again") from error
    return seen
