"""Ids by how often they were seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_FIRST = (0, 1, 6, 11, 21, 51, 101, 201, 501, 1001, 5001, 20001)
"""The least number of training interactions in each class; the last one has no end."""


@dataclass(frozen=True, slots=True)
class Frequency:
    """Test rows in classes by the training interactions of their user, or of their item.

    >>> frequency = Frequency.of(np.array([0, 3, 300]), np.array([1, 2, 2, -1]))
    >>> frequency.labels, frequency.ids, frequency.rows
    (['0', '1–5', '201–500'], [1, 1, 1], [1, 1, 2])
    >>> frequency.each(lambda rows: float(rows.sum()))
    [1.0, 1.0, 2.0]
    """

    labels: list[str]
    ids: list[int]
    """How many ids are in each class; those that were never seen are not counted."""
    rows: list[int]
    """How many test rows are in each."""
    class_of_row: NDArray[np.int64]

    @classmethod
    def of(cls, counts: NDArray[np.int64], dense: NDArray[np.integer]) -> Frequency:
        """Given the training interactions of each id, and the id of each test row, −1 if unseen.

        Classes that nobody is in are left out.
        """
        seen = np.where(dense < 0, 0, np.append(counts, 0)[dense])
        ids = np.bincount(_class(counts), minlength=len(_FIRST))
        rows = np.bincount(_class(seen), minlength=len(_FIRST))
        kept = np.flatnonzero((ids > 0) | (rows > 0))
        number = np.zeros(len(_FIRST), np.int64)
        number[kept] = np.arange(len(kept))
        labels = [_label(first, after) for first, after in pairwise((*_FIRST, None))]
        return cls(
            [labels[place] for place in kept],
            ids[kept].tolist(),
            rows[kept].tolist(),
            number[_class(seen)],
        )

    def each(self, metric: Callable[[NDArray[np.bool_]], float | None]) -> list[float | None]:
        """A metric of the test rows in each class, None where there are none."""
        masks = (self.class_of_row == number for number in range(len(self.labels)))
        return [metric(mask) if mask.any() else None for mask in masks]


def _class(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.searchsorted(_FIRST, counts, side="right") - 1


def _label(first: int | None, after: int | None) -> str:
    if after is None:
        return f"> {first - 1:,}" if first else ""
    return f"{first:,}" if after - 1 == first else f"{first:,}–{after - 1:,}"
