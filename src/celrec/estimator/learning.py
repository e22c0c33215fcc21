"""Learning more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from celrec.data.columns import further
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.training.online_learner import OnlineLearner
from celrec.training.plan import Plan


def learn_events(learner: OnlineLearner, log: Interactions, options: Mapping[str, Any]) -> None:
    """Learn a log in the order of time, if there are times; before that, see whether it fits.

    `options` are what was asked for, so that all else in the plan was picked.
    """
    plan = learner.plan
    _check(plan, log, options)
    if plan.negatives and plan.positive is None:
        log = plan.prepared(log)
    frame = _in_order(log)
    for start in range(0, len(frame), learner.batch):
        learner.learn(frame[start : start + learner.batch])


def _check(plan: Plan, log: Interactions, options: Mapping[str, Any]) -> None:
    """Complain about events that the plan is not for."""
    if plan.positive is not None:
        return
    if plan.negatives and "negatives" not in options:
        if np.ptp(log.target):
            raise CelrecError(
                f"target: there are several, such as {log.target.min():g} and "
                f"{log.target.max():g}, but those of the first table were equal and taken for mere "
                "events; begin with a table that shows several, or with loss='squared-error'"
            )
    elif not plan.negatives:
        plan.check(log)


def _in_order(log: Interactions) -> pl.DataFrame:
    """Events in the order of time, with columns as in `Events`."""
    if log.timestamp is not None:
        log = log[np.argsort(log.timestamp, kind="stable")]
    return log.to_frame().rename({name: further(name) for name in log.columns})
