"""Estimators on disk: run folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from celrec.data.streams.events import Offset
from celrec.errors import CelrecError
from celrec.training.checkpoint_folder import CheckpointFolder
from celrec.training.online_learner import OnlineLearner
from celrec.training.run_folder import Run, load_run
from celrec.training.seen_log import LATEST_SEEN, SeenLog


class Kept(NamedTuple):
    """What a folder holds."""

    run: Run
    learner: OnlineLearner | None
    """What can go on to learn, if anything can."""
    offset: Offset | None
    """Where a source of events goes on that was read before."""
    notes: Mapping[str, Any]


def load_kept(path: str | Path) -> Kept:
    """Read the folder of a run that was trained, or of one that learns online.

    The latter may go on meanwhile: what is read is its latest checkpoint.
    """
    place = Path(path)
    found = CheckpointFolder(place).latest()
    if found is None:
        return Kept(load_run(place, seen=True), None, None, {})
    run = load_run(found.folder)
    try:
        seen = SeenLog.resume(place, found.about.get("seen"), run.known, LATEST_SEEN).seen
        learner, notes = OnlineLearner.load(found.folder, run, seen)
        offset = found.about["offset"]
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(
            f"{path}: does not fit this version of celrec ({problem}); load it with the one that "
            "wrote it"
        ) from error
    return Kept(learner.run(run.source, run.result), learner, offset, notes)
