"""Offline CEL on a dot product: collapsed sums against a plain autograd step.

On the training part of a fold of MovieLens-1M (or, without it, planted ratings of
the same size), with 64 dimensions and items in 40 (1 %) and 200 (5 %) clusters:

- plain: gather both rows of every interaction, squared error, autograd, SGD
- collapsed: the same step from sums over pairs of rows

and a whole run of 1,500 collapsed steps with all splits and reassignments, against
1,500 plain steps without any. Run by `make bench`; nothing else may run beside it.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from _ratings import ratings

from celrec import Interactions, Split
from celrec.cel.reassignment import Reassignment
from celrec.config.offline import DescentConfig, OfflineConfig, Schedule
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.offline.factorisation_solver import initialise_factors
from celrec.offline.gradient_descent import GradientDescent
from celrec.offline.training import OfflineTraining
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.runtime.threads import flushed_denormals

_RANK, _STEPS = 64, 1500
_HOW = DescentConfig(l2=4.0, shrink_to_mean=500.0)


def make(log: Interactions, clusters: int, started: bool) -> Model:
    items = ClusteredEmbedding(log.num_items, _RANK, max_clusters=clusters)
    if started:  # all clusters active from the beginning, at random
        order = torch.randperm(log.num_items, generator=torch.Generator().manual_seed(0))
        items.start_from(order % clusters)
    model = Model(FullEmbedding(log.num_users, _RANK), items)
    initialise_factors(model, torch.Generator().manual_seed(0))
    return model


def plain_step(model: Model, log: Interactions) -> Callable[[], None]:
    user = torch.from_numpy(log.user.astype(np.int64))
    item = torch.from_numpy(log.item.astype(np.int64))
    target = torch.tensor(log.target)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)

    def step() -> None:
        optimizer.zero_grad()
        (model(Batch.pairs(user, item)) - target).square().sum().backward()
        optimizer.step()

    return step


def seconds_each(step: Callable[[], object], repeats: int) -> float:
    step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    with flushed_denormals():
        measure()


def measure() -> None:
    name, log = ratings()
    split = Split.fold(log, 1, of=5, valid=0.0)
    print(f"{name}: {len(split.train):,} training rows, {torch.get_num_threads()} threads")
    plain = {}
    for share, clusters in (("1 %", 40), ("5 %", 200)):
        model = make(split.train, clusters, started=True)
        plain[clusters] = seconds_each(plain_step(model, split.train), 5)
        descent = GradientDescent(make(split.train, clusters, started=True), split.train, _HOW)
        fast = seconds_each(descent.step, 100)
        print(
            f"a step at {share} ({clusters} clusters): plain {plain[clusters] * 1e3:7.1f} ms, "
            f"collapsed {fast * 1e3:6.2f} ms, ratio {plain[clusters] / fast:6.0f}"
        )
    how = OfflineConfig(
        _HOW, Schedule(steps=_STEPS, validate_every=_STEPS), reassignment=Reassignment(0.3)
    )
    start = time.perf_counter()
    model = make(split.train, 40, started=False)
    training = OfflineTraining(model, split.train, split.valid, how)
    training.start()
    training.run()
    whole = time.perf_counter() - start
    print(
        f"{_STEPS} steps at 1 % with all splits and reassignments: {whole:.1f} s; as many plain "
        f"steps alone: {_STEPS * plain[40]:.0f} s, ratio {_STEPS * plain[40] / whole:.0f}"
    )


if __name__ == "__main__":
    main()
