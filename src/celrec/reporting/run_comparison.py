"""A run compared with baselines and with a full embedding."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

from celrec.config.plan import Plan
from celrec.errors import CelrecError
from celrec.offline.fitting import fit
from celrec.offline.solver import Watcher
from celrec.recommender.model import Model
from celrec.reporting.compared_models import REFERENCE, RUN, ComparedModel, baselines
from celrec.reporting.evaluator import Evaluator, Figures, Recommend, RunData
from celrec.reporting.wording import method_name
from celrec.runs.run_folder import Run
from celrec.runtime.atomic import atomic_file

NAME = "reference.json"
"""The file in the run folder."""
FULL = "full"
_FORMAT = 1
Watched: TypeAlias = Callable[[Plan], AbstractContextManager[Watcher]]
"""Makes a context with a watcher of training, given the plan."""


def unwatched(plan: Plan) -> AbstractContextManager[Watcher]:
    """A context without progress."""
    del plan
    return nullcontext(lambda _, __: None)


def full_plan(plan: Plan) -> Plan:
    """The plan with a full embedding; a plan that is learned online stays online.

    >>> plan = full_plan(Plan(embedding="cel-lite", personalise="all", seed=3))
    >>> plan.embedding, plan.preset, plan.personalise, plan.seed
    ('full', 'online', 'none', 3)
    """
    return replace(
        plan,
        embedding=FULL,
        compression="1%",  # ignored by a full table
        rank=plan.dim,
        preset="online" if plan.online else plan.preset,
        start="one",
        frozen=False,
        personalise="none",
    )


class Reference:
    """The metrics of a full embedding for the data of a run, saved in its folder as JSON.

    They are reused if data and metrics are the same.
    """

    def __init__(self, folder: Path, data: RunData) -> None:
        self._path, self._data = folder / NAME, data

    def kept(self, evaluator: Evaluator) -> Figures | None:
        """The saved metrics; None if there are none for these data."""
        try:
            found = json.loads(self._path.read_text())
            if found["about"] == self._about(evaluator):
                return Figures(**found["figures"])
        except (OSError, ValueError, LookupError, TypeError):
            pass  # it is trained anew
        return None

    def train(
        self, plan: Plan, evaluator: Evaluator, recommend: Recommend, watched: Watched = unwatched
    ) -> Figures:
        """Train a full embedding with the settings and data of the run; save its metrics."""
        with watched(full_plan(plan)) as watch:
            fitted = fit(self._data.split, full_plan(plan), watch)
        return self.keep(fitted.model, evaluator, recommend)

    def keep(self, model: Model, evaluator: Evaluator, recommend: Recommend) -> Figures:
        """Save the metrics of a full embedding that was trained elsewhere."""
        figures = evaluator.of_model(model, recommend)
        content = {"about": self._about(evaluator), "figures": asdict(figures)}
        with atomic_file(self._path) as temporary:
            temporary.write_text(json.dumps(content, indent=2))
        return figures

    def _about(self, evaluator: Evaluator) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "data": self._data.fingerprint,
            "metric": evaluator.metric,
            "items": evaluator.items.labels,
            "users": evaluator.users.labels,
        }


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The run and the models it is compared with, the simplest first, the run last."""

    compared_models: list[ComparedModel]
    evaluator: Evaluator | None
    """None if the test data are not available."""
    missing: str | None
    """Why they are not."""
    no_reference: str | None
    """Why there is no full embedding; None if there is one."""

    @classmethod
    def of(
        cls,
        run: Run,
        folder: Path,
        recommend: Recommend,
        *,
        reference: bool = True,
        watched: Watched = unwatched,
    ) -> RunComparison:
        """Evaluate a run in a folder and, with `reference`, a full embedding.

        That is trained unless its metrics are saved in the folder.
        """
        try:
            data = RunData.of(run)
        except CelrecError as error:
            return cls([], None, str(error).rstrip("."), "there are no data to train it on")
        if not len(data.test):
            return cls([], None, "the run has no test rows", "there are no test data")
        evaluator = Evaluator(run.plan, data)
        own = evaluator.of_model(run.model, recommend)
        found = [*baselines(run.plan, data, evaluator)]
        why: str | None = None
        if run.plan.embedding == FULL:
            why = "this run is a full embedding itself"
        elif not reference:
            why = "it was left out (--no-reference)"
        else:
            kept = Reference(folder, data)
            figures = kept.kept(evaluator)
            if figures is None:
                figures = kept.train(run.plan, evaluator, recommend, watched)
            hint = "a row for each id, the same model, data and settings"
            found.append(ComparedModel(REFERENCE, "Full embedding", hint, figures))
        found.append(ComparedModel(RUN, f"{method_name(run.plan)}, this run", "", own))
        return cls(found, evaluator, None, why)

    def kind(self, kind: str) -> ComparedModel | None:
        """The model of a kind, if there is one."""
        return next((one for one in self.compared_models if one.kind == kind), None)
