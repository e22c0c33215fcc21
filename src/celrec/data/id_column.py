"""A further column of ids in a log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap


@dataclass(frozen=True, slots=True, eq=False)
class IdColumn:
    """Ids besides users and items: a shop, a brand, a search word.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2], "item": [5, 6], "rating": [3.0, 4.0],
    ...                    "shop": ["north", None]}, columns=["shop"])
    >>> log.columns["shop"].values, len(log.columns["shop"].ids)
    (array([ 0, -1], dtype=int32), 1)
    """

    values: NDArray[np.int32]
    """Dense ids, UNSEEN where there is none or it was not known."""
    ids: IdMap

    def __post_init__(self) -> None:
        values = np.asarray(self.values, np.int32).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __getitem__(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> IdColumn:
        """The ids at some rows of the log."""
        return IdColumn(self.values[rows], self.ids)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many interactions each id has."""
        return np.bincount(self.values[self.values > UNSEEN], minlength=len(self.ids))
