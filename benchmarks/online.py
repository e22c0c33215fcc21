"""How fast the events of Book-Crossing are learned, beside hashing.

    python benchmarks/online.py

The same model code and the same row descent for all methods, rows of 8 numbers and a scalar, a
twentieth of a full table's, batches of 256 events, one thread. Times are those of the processor,
in turns, so that what else the machine does falls on all alike; what is told is the median of the
ratios to hashing in each turn.
"""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from celrec import Interactions, load_dataset
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.online.make_trainer import initialise_tables, make_trainer, stream_model
from celrec.online.trainer import OnlineTrainer
from celrec.recommender.batch import Batch

_METHODS = {
    "modulo": ("modulo", "online"),
    "full": ("full", "online"),
    "cel-lite": ("cel-lite", "default"),
    "cel-lite hard": ("cel-lite", "hard"),
    "cel-lite hard, all judged": ("cel-lite", "hard"),
}
_TURNS, _WARM_UP, _BATCH = 5, 20, 256


def prepared_trainer(
    method: str,
    model: str,
    log: Interactions | None = None,
    *,
    compression: str = "5%",
    limit: float = 100,
) -> OnlineTrainer:
    """For the ids of a log, or for any that will come."""
    embedding, preset = _METHODS[method]
    plan = Plan(
        embedding=embedding,
        preset=preset,
        model=model,
        compression=compression,
        side="both",
        rank=8,
        loss="cross-entropy",
        positive=8,
        features=False,
    )
    how = plan.settings().solver
    schedule = "always" if method.endswith("all judged") else "doubling"
    how = replace(how, batch=_BATCH, moving=replace(how.moving, schedule=schedule, limit=limit))
    recommender = stream_model(plan, ()) if log is None else make_model(log, plan)
    initialise_tables(how, recommender, 0.5)
    trainer = make_trainer(how, recommender)
    for side in trainer.sides.values():
        side.begin()
    return trainer


def batches_of(events: Batch) -> list[Batch]:
    parts = [torch.split(one, _BATCH) for one in (events.user, events.item, events.target)]
    return [Batch(*part) for part in zip(*parts, strict=True)]


def throughput() -> None:
    log = load_dataset("book-crossing")
    log = log[np.random.default_rng(0).permutation(len(log))]
    print("| model | method | µs an event | events a second | modulo's time over its |")
    print("|---|---|---|---|---|")
    for model in ("mf", "deepfm"):
        trainers = {name: prepared_trainer(name, model, log) for name in _METHODS}
        ids = [torch.from_numpy(one.astype(np.int64)) for one in (log.user, log.item)]
        target = torch.from_numpy((log.target >= 8).astype(np.float32))
        batches = batches_of(Batch(*ids, target))
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        ends = np.linspace(_WARM_UP, len(batches), _TURNS + 1).astype(int)
        for trainer in trainers.values():
            for batch in batches[:_WARM_UP]:
                trainer.step(batch)
        for first, last in pairwise(ends):
            for name, trainer in trainers.items():
                begun = time.process_time()
                for batch in batches[first:last]:
                    trainer.step(batch)
                seconds[name].append(time.process_time() - begun)
        events = len(log) - _BATCH * _WARM_UP
        for name, taken in seconds.items():
            ratio = np.median(np.array(seconds["modulo"]) / np.array(taken))
            each = sum(taken) / events
            print(f"| {model} | {name} | {1e6 * each:.2f} | {1 / each:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    throughput()
