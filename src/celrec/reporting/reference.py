"""A full embedding to compare a run with, trained once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from celrec.data.atomic import atomic_file
from celrec.reporting.figures import Figures
from celrec.reporting.run_data import RunData
from celrec.reporting.yardstick import Recommend, Yardstick
from celrec.training.fit import fit
from celrec.training.judgement import Watcher
from celrec.training.model import Model
from celrec.training.plan import Plan

NAME = "reference.json"
"""The file in the run folder."""
FULL = "full"
_FORMAT = 1
Watched: TypeAlias = Callable[[Plan], AbstractContextManager[Watcher]]
"""Somebody who watches training, given its plan."""


def unwatched(plan: Plan) -> AbstractContextManager[Watcher]:
    """Nobody watches."""
    del plan
    return nullcontext(lambda _, __: None)


def full_plan(plan: Plan) -> Plan:
    """The same with a row for each id; what is learned online stays so.

    >>> plan = full_plan(Plan(embedding="cel-lite", personalise="all", seed=3))
    >>> plan.embedding, plan.preset, plan.personalise, plan.seed
    ('full', 'online', 'none', 3)
    """
    return replace(
        plan,
        embedding=FULL,
        compression="1%",  # which a full table does not look at
        rank=plan.dim,
        preset="online" if plan.online else plan.preset,
        start="one",
        frozen=False,
        personalise="none",
    )


class Reference:
    """The figures of a full embedding for the data of a run, kept in its folder as JSON.

    They are found again if the run, the data and what is measured are the same.
    """

    def __init__(self, folder: Path, data: RunData) -> None:
        self._path, self._data = folder / NAME, data

    def kept(self, yardstick: Yardstick) -> Figures | None:
        """What was measured before; None if nothing was, or of something else."""
        try:
            found = json.loads(self._path.read_text())
            if found["about"] == self._about(yardstick):
                return Figures.from_dict(found["figures"])
        except (OSError, ValueError, LookupError, TypeError):
            pass  # it can be made anew
        return None

    def train(
        self, plan: Plan, yardstick: Yardstick, recommend: Recommend, watched: Watched = unwatched
    ) -> Figures:
        """Train one with the settings and the data of the run, measure it, and keep that."""
        with watched(full_plan(plan)) as watch:
            fitted = fit(self._data.split, full_plan(plan), watch)
        return self.keep(fitted.model, yardstick, recommend)

    def keep(self, model: Model, yardstick: Yardstick, recommend: Recommend) -> Figures:
        """Measure one that was trained elsewhere, and keep that."""
        figures = yardstick.of_model(model, recommend)
        content = {"about": self._about(yardstick), "figures": figures.as_dict()}
        with atomic_file(self._path) as temporary:
            temporary.write_text(json.dumps(content, indent=2))
        return figures

    def _about(self, yardstick: Yardstick) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "data": self._data.fingerprint,
            "metric": yardstick.metric,
            "items": yardstick.items.labels,
            "users": yardstick.users.labels,
        }
