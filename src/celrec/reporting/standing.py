"""How a run stands among its rivals: what is measured, and why something is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from celrec.errors import CelrecError
from celrec.reporting.contender import REFERENCE, RUN, Contender, baselines
from celrec.reporting.plan_words import method_name
from celrec.reporting.reference import FULL, Reference, Watched, unwatched
from celrec.reporting.run_data import RunData
from celrec.reporting.yardstick import Recommend, Yardstick
from celrec.training.run_folder import Run


@dataclass(frozen=True, slots=True)
class Standing:
    """The run and what it is compared with, the plainest first, the run last."""

    contenders: list[Contender]
    yardstick: Yardstick | None
    """None if nothing could be measured."""
    missing: str | None
    """Why that is."""
    no_reference: str | None
    """Why there is no full embedding among them; None if there is."""

    @classmethod
    def of(
        cls,
        run: Run,
        folder: Path,
        recommend: Recommend,
        *,
        reference: bool = True,
        watched: Watched = unwatched,
    ) -> Standing:
        """Measure a run in a folder, with a full embedding beside it unless that is left out.

        That is trained if no figures of one are kept in the folder.
        """
        try:
            data = RunData.of(run)
        except CelrecError as error:
            return cls([], None, str(error).rstrip("."), "there are no data to train it on")
        if not len(data.test):
            return cls([], None, "no rows were left to test on", "there are no test data")
        yardstick = Yardstick(run.plan, data)
        own = yardstick.of_model(run.model, recommend)
        found = [*baselines(run.plan, data, yardstick)]
        why: str | None = None
        if run.plan.embedding == FULL:
            why = "this run is one itself"
        elif not reference:
            why = "it was left out (--no-reference)"
        else:
            kept = Reference(folder, data)
            figures = kept.kept(yardstick)
            if figures is None:
                figures = kept.train(run.plan, yardstick, recommend, watched)
            hint = "a row for each id, the same model, data and settings"
            found.append(Contender(REFERENCE, "Full embedding", hint, figures))
        found.append(Contender(RUN, f"{method_name(run.plan)}, this run", "", own))
        return cls(found, yardstick, None, why)

    def kind(self, kind: str) -> Contender | None:
        """The contender of a kind, if there is one."""
        return next((one for one in self.contenders if one.kind == kind), None)
