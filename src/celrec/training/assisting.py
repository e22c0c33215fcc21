"""What all but the first of several processes do."""

from __future__ import annotations

from pathlib import Path

from celrec.clustering.ranks import Ranks
from celrec.data.seen_items import SeenItems
from celrec.data.table_bytes import from_bytes
from celrec.errors import CelrecError
from celrec.storage.room import Room
from celrec.training.crew import Crew, Word
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
            plan, room = Plan(**word.about["plan"]), _room(word)
            learner = OnlineLearner.start(plan, word.about["columns"], ranks=ranks, room=room)
        elif word.what == "go on":
            learner = _loaded(word, _room(word)).among(ranks)
        elif learner is None:
            raise CelrecError(f"{word.what!r} was said before there was anything to learn")
        elif word.what == "learn":
            learner.learn(from_bytes(word.data))
        else:
            whole_learner(learner)


def _room(word: Word) -> Room | None:
    """As much memory as the first process has."""
    memory = word.about["memory"]
    return None if memory is None else Room(memory, Path(word.about["run"]))


def _loaded(word: Word, room: Room | None) -> OnlineLearner:
    """The learner of a checkpoint, and what was noted of what was seen."""
    folder = Path(word.about["folder"])
    run = load_run(folder, room=room)
    try:
        seen = read_seen_log(folder.parent.parent, word.about["seen"], run.known, room)
    except CelrecError:  # the first process tells of it
        seen = None
    return OnlineLearner.load(folder, run, seen or SeenItems(LATEST_SEEN, room), room)[0]
