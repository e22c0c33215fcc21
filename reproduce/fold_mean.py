"""A mean over folds and how sure it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class FoldMean:
    """A mean and its standard error, s / √n.

    >>> FoldMean.of([1.0, 2.0, 3.0]).told(2)
    '2.00 ± 0.58'
    >>> FoldMean.of([1.5]).told(2), FoldMean.of([1.5]).told(2, of=5), FoldMean.of([]).told(2)
    ('1.50', '1.50 (1 fold)', '–')
    """

    mean: float
    error: float
    """0 where there is but one fold, of which it cannot be told."""
    folds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> FoldMean:
        """What these values come to; NaN if there are none."""
        given = np.array(list(values), np.float64)
        if not len(given):
            return cls(np.nan, 0.0, 0)
        error = given.std(ddof=1) / len(given) ** 0.5 if len(given) > 1 else 0.0
        return cls(float(given.mean()), float(error), len(given))

    def told(self, digits: int = 4, sign: str = "", of: int = 0, unit: str = "fold") -> str:
        """As text, with so many digits after the point; a `sign` of + is for differences.

        With fewer than `of` there are to be, it is said how many there are.
        """
        if not self.folds:
            return "–"
        told = f"{self.mean:{sign}.{digits}f}"
        if self.folds > 1:
            told += f" ± {self.error:.{digits}f}"
        several = "" if self.folds == 1 else "s"
        return f"{told} ({self.folds} {unit}{several})" if self.folds < of else told
