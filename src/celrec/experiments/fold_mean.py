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
    >>> FoldMean.of([1.5]).told(2), FoldMean.of([]).told(2)
    ('1.50', '–')
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

    def told(self, digits: int = 4, sign: str = "") -> str:
        """As text, with so many digits after the point; a `sign` of + is for differences."""
        if not self.folds:
            return "–"
        mean = f"{self.mean:{sign}.{digits}f}"
        return mean if self.folds == 1 else f"{mean} ± {self.error:.{digits}f}"
