"""How the time that learning online takes depends on events and on clusters.

    python benchmarks/scale.py events        # from 10⁵ to 10⁸, some 40 minutes
    python benchmarks/scale.py clusters      # from 10³ to 10⁵

Streams of conversions with original ids, in the order of time, of which one user in ten events
and one item in a hundred is new; matrix factorisation with rows of 8 numbers and a bias, one
thread, processor time without what makes the stream. For the scale of the paper's business see
`celrec reproduce table4`.
"""

import argparse
import time

import numpy as np
import torch

from celrec.config.plan import Plan
from celrec.runs.online_learner import OnlineLearner
from online import batches_of, prepared_trainer
from reproduce.conversion_stream import ConversionStream

_PRESETS = {
    "modulo": ("modulo", "online"),
    "cel-lite": ("cel-lite", "default"),
    "cel-lite hard": ("cel-lite", "hard"),
}
_BATCH = 1024


def make_stream(events: int, users: int, items: int) -> ConversionStream:
    """Most ids appear in the course of it."""
    return ConversionStream(
        events, users, items, user_clusters=20, item_clusters=20, late=0.9, own=0.5
    )


def learn(method: str, events: int) -> tuple[float, OnlineLearner]:
    """The seconds that a whole stream takes, ids, counts and what was seen included."""
    embedding, preset = _PRESETS[method]
    plan = Plan(
        embedding=embedding,
        preset=preset,
        model="mf",
        compression="1000",
        side="both",
        rank=8,
        loss="cross-entropy",
        features=False,
    )
    learner, seconds = OnlineLearner.start(plan), 0.0
    for frame in make_stream(events, events // 10, events // 100).frames():
        begun = time.process_time()
        for part in frame.iter_slices(_BATCH):
            learner.learn(part)
        seconds += time.process_time() - begun
    return seconds, learner


def against_events() -> None:
    print("| method | events | users, items | seconds | µs an event | slope |\n" + "|---" * 6 + "|")
    for method in _PRESETS:
        known: dict[int, float] = {}
        learn(method, 10**4)  # compiles what is not compiled yet
        for events in (10**5, 10**6, 10**7, 10**8):
            known[events], learner = learn(method, events)
            slope = ""
            if len(known) > 1:
                slope = f"{np.polyfit(np.log(list(known)), np.log(list(known.values())), 1)[0]:.3f}"
            users, items = list(learner.known.values())[:2]
            taken, each = known[events], 1e6 * known[events] / events
            told = f"{events:,} | {users:,}, {items:,} | {taken:.1f} | {each:.2f} | {slope}"
            print(f"| {method} | {told} |", flush=True)


def against_clusters() -> None:
    """Ids are as many on both sides, so that there are clusters of both."""
    print("| clusters at most | users', items' clusters | µs an event |\n|---|---|---|")
    for clusters in (10**3, 10**4, 10**5):
        trainer = prepared_trainer("cel-lite hard", "mf", compression=str(clusters), limit=10)
        *before, last = make_stream(10**7, 10**6, 10**6).batches(10**6)
        for part in before:
            for batch in batches_of(part):
                trainer.step(batch)
        begun = time.process_time()
        for batch in batches_of(last):
            trainer.step(batch)
        taken = time.process_time() - begun
        there = ", ".join(f"{side.table.num_rows:,}" for side in trainer.sides.values())
        print(f"| {clusters:,} | {there} | {1e6 * taken / len(last.user):.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("against", choices=("events", "clusters"))
    torch.set_num_threads(1)
    against_events() if parser.parse_args().against == "events" else against_clusters()
