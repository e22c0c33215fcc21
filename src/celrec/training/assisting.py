"""What all but the first of several processes do."""

from __future__ import annotations

from pathlib import Path

from celrec.clustering.ranks import Ranks
from celrec.data.seen_items import SeenItems
from celrec.data.table_bytes import from_bytes
from celrec.errors import CelrecError
from celrec.training.crew import Crew
from celrec.training.online_learner import OnlineLearner
from celrec.training.plan import Plan
from celrec.training.run_folder import load_run
from celrec.training.seen_log import LATEST_SEEN, read_seen_log
from celrec.training.whole_learner import whole_learner


def assist(ranks: Ranks) -> None:
    """Learn with the first process, which has an `OnlineRun`, until it has closed that.

    All processes must see the folder of the run.
    """
    crew = Crew(ranks)
    learner: OnlineLearner | None = None
    while (word := crew.heard()).what != "end":
        if word.what == "start":
            plan = Plan(**word.about["plan"])
            learner = OnlineLearner.start(plan, word.about["columns"], ranks=ranks)
        elif word.what == "go on":
            learner = _loaded(Path(word.about["folder"]), word.about["seen"]).among(ranks)
        elif learner is None:
            raise CelrecError(f"{word.what!r} was said before there was anything to learn")
        elif word.what == "learn":
            learner.learn(from_bytes(word.data))
        else:
            whole_learner(learner)


def _loaded(folder: Path, noted: dict[str, object] | None) -> OnlineLearner:
    """The learner of a checkpoint, and what was noted of what was seen."""
    run = load_run(folder)
    try:
        seen = read_seen_log(folder.parent.parent, noted, run.known)
    except CelrecError:  # the first process tells of it
        seen = None
    return OnlineLearner.load(folder, run, seen or SeenItems(LATEST_SEEN))[0]
