"""Events that a loss can be told of."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.streams.rejected import Rejected
from celrec.errors import CelrecError
from celrec.training.plan import Plan


class FittingEvents(NamedTuple):
    """Those of some events whose targets suit the loss, and all others.

    >>> plan = Plan(embedding="cel-lite", model="mf", loss="cross-entropy", positive=4)
    >>> FittingEvents.of(pl.DataFrame({"target": [5.0, 2.0]}), plan, learned=0).targets
    array([1., 0.], dtype=float32)
    """

    frame: pl.DataFrame
    targets: NDArray[np.float32]
    """What the loss is told."""
    unfit: list[Rejected]

    @classmethod
    def of(cls, frame: pl.DataFrame, plan: Plan, learned: int) -> FittingEvents:
        """For cross-entropy, targets are conversions, or 0 or 1. Beside negatives, what did not
        happen (no conversion, or a target of 0) is passed over.

        `learned` is how many events were learned before. If none of the first events fits,
        the plan is wrong and not the events.
        """
        targets = frame.get_column("target").cast(pl.Float32).to_numpy(writable=True)
        if plan.negatives:
            happened = targets > 0 if plan.positive is None else targets >= plan.positive
            frame = frame.filter(happened)
            return cls(frame, np.ones(len(frame), np.float32), [])
        if plan.loss != "cross-entropy":
            return cls(frame, targets, [])
        if plan.positive is not None:
            return cls(frame, (targets >= plan.positive).astype(np.float32), [])
        fits = (targets == 0) | (targets == 1)
        if fits.all():
            return cls(frame, targets, [])
        reason = "a target that is neither 0 nor 1 needs a `positive` one (--positive 4)"
        if not learned and not fits.any():
            raise CelrecError(f"loss 'cross-entropy': {reason}, as in {targets[0]:g}")
        unfit = [
            Rejected(
                f"row {row + 1} of the batch after {learned:,} events",
                json.dumps(frame.row(row, named=True), default=str, ensure_ascii=False),
                reason,
            )
            for row in np.flatnonzero(~fits).tolist()
        ]
        return cls(frame.filter(fits), targets[fits], unfit)
