"""Networks with clustered tables: candidates at once, what table, clusters and collapse cost.

On the training part of a fold of MovieLens-1M (or, without it, planted ratings of the same
size), 64 dimensions:

- judging 50 candidates for a batch through the candidate axis, against 50 forward passes
- training steps with a ClusteredEmbedding, against nn.Embedding with as many rows
- an epoch with the Clusterer of the preset `scratch`, against one without it
- an epoch of NeuMF on collapsed pairs, against one on interactions

Run by `make bench`; nothing else may run beside it.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from _ratings import ratings
from _timing import seconds_each
from torch import Tensor, nn

from celrec import Interactions, Plan, Split
from celrec.config.building import make_model
from celrec.config.offline import MinibatchConfig
from celrec.models.deepfm import DeepFM
from celrec.models.din import DIN
from celrec.models.interaction import History, Interaction
from celrec.offline.minibatch import MinibatchDescent
from celrec.offline.samples import Samples
from celrec.offline.training import OfflineTraining
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.runtime.threads import flushed_denormals

_DIM, _BATCH, _CANDIDATES, _LENGTH = 64, 2048, 50, 20


class _PlainRows(nn.Embedding):
    """nn.Embedding that also takes -1, the id of an unseen item: that is the last row."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids % self.num_embeddings)


@torch.no_grad()
def candidates(kind: type[Interaction]) -> tuple[float, float]:
    """Seconds for 50 candidates one by one, and at once."""
    torch.manual_seed(0)
    model, width = kind(_DIM, 4), _DIM + kind.extra_columns
    user, features = torch.randn(_BATCH, width), torch.randn(_BATCH, 4, width)
    filled = torch.ones(_BATCH, _LENGTH, dtype=torch.bool)
    items, row = torch.randn(200, 1, width), torch.randint(200, (_BATCH, _LENGTH))
    rows = items.squeeze(1)  # histories are of the same table as the candidates
    history = History(rows[row], filled, rows, row) if kind is DIN else None
    items = items[:_CANDIDATES]

    def one_by_one() -> Tensor:
        several = [item.expand(_BATCH, width) for item in items]
        return torch.stack([model(user, item, history, features) for item in several])

    def at_once() -> Tensor:
        return model(user, items, history, features)

    torch.testing.assert_close(at_once(), one_by_one(), rtol=1e-3, atol=1e-3)
    first, second = seconds_each([one_by_one, at_once], 5)
    return first, second


def training_steps(log: Interactions, kind: str, rows: int) -> tuple[float, float]:
    """Seconds a step with nn.Embedding for the items' clusters, and with a ClusteredEmbedding."""
    plan = Plan(model=kind, compression=str(rows), preset="scratch", rank=_DIM)
    clustered = make_model(log, plan)
    table = clustered.items
    table.start_from(torch.arange(log.num_items) % rows)
    plain = make_model(log, plan)
    plain.items = _PlainRows(rows, table.embedding_dim)
    steps = []
    for model in (plain, clustered):
        model.remember(log)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        order = torch.randperm(len(log), generator=torch.Generator().manual_seed(0))
        batches = [model.batch(log, some, own=True) for some in order[: 20 * _BATCH].split(_BATCH)]
        if model is plain:  # its ids are those of the rows
            batches = [_by_rows(batch, rows) for batch in batches]

        def step(
            model: Model = model,
            optimizer: torch.optim.Adam = optimizer,
            batches: list = batches,
        ) -> None:
            for batch in batches:
                optimizer.zero_grad()
                model.objective(batch).mean().backward()
                optimizer.step()

        steps.append(step)
    first, second = seconds_each(steps, 5)
    return first / 20, second / 20


def _by_rows(batch: Batch, rows: int) -> Batch:
    """The batch with numbers of rows in the place of items; empty places of histories stay -1."""
    history = batch.history
    if history is not None:
        history = torch.where(history < 0, history, history % rows)
    return batch._replace(item=batch.item % rows, history=history)


def clusterer_share(log: Interactions, kind: str, rows: int, epochs: int) -> float:
    """Seconds that clusters take over those that training takes, from one cluster on."""
    plan = Plan(model=kind, compression=str(rows), preset="scratch", rank=_DIM)
    how = plan.settings()
    how = replace(
        how, schedule=replace(how.schedule, steps=epochs * 10, validate_every=epochs * 10)
    )
    model = make_model(log, plan)
    training = OfflineTraining(model, log, log[:0], how)
    training.start()
    spent = {"steps": 0.0, "moves": 0.0}

    def timed(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def run(*given: object) -> object:
            start = time.perf_counter()
            try:
                return call(*given)
            finally:
                spent[name] += time.perf_counter() - start

        return run

    training._solver.step = timed("steps", training._solver.step)
    for clusterer in training._clusterers.values():
        clusterer.step = timed("moves", clusterer.step)
    training.run()
    return spent["moves"] / spent["steps"]


def collapsed_epoch(log: Interactions, rows: int) -> tuple[float, float, int]:
    """Seconds for an epoch on interactions and on pairs, and the number of pairs."""
    times, pairs = [], 0
    for make_pair_statistics in (False, True):
        plan = Plan(model="neumf", compression=str(rows), preset="scratch", features=False)
        model = make_model(log, plan)
        model.items.start_from(torch.arange(log.num_items) % rows)
        solver = MinibatchDescent(model, log, MinibatchConfig(rounds=1), 0)
        solver.start(0)
        if not make_pair_statistics:
            solver.samples = Samples(model, log, make_pair_statistics=False)
        pairs = len(solver.samples)
        times += seconds_each([solver.step], 2)
    return times[0], times[1], pairs


def main() -> None:
    name, log = ratings()
    train = Split.fold(log, 1).train_and_valid()
    print(f"{name}: {len(train):,} training rows, {_DIM} dimensions, batches of {_BATCH:,}")
    for kind in (DeepFM, DIN):
        slow, fast = candidates(kind)
        print(
            f"{_CANDIDATES} candidates, {kind.__name__}: one by one {slow * 1e3:.0f} ms, at once "
            f"{fast * 1e3:.0f} ms, {slow / fast:.1f} times as fast",
            flush=True,
        )
    for model in ("deepfm", "din"):
        plain, clustered = training_steps(train, model, 200)
        print(
            f"a step of {model}, 200 rows: nn.Embedding {plain * 1e3:.1f} ms, ClusteredEmbedding "
            f"{clustered * 1e3:.1f} ms, {plain / clustered:.2f} of its throughput",
            flush=True,
        )
    for rows, epochs in ((40, 5), (200, 8)):
        share = clusterer_share(train, "din", rows, epochs)
        print(
            f"din, up to {rows} clusters in {epochs} epochs: the Clusterer adds {share:.0%}",
            flush=True,
        )
    for rows in (40, 200):
        plain, fast, pairs = collapsed_epoch(train, rows)
        print(
            f"an epoch of neumf, {rows} clusters: {len(train):,} interactions {plain:.1f} s, "
            f"{pairs:,} pairs {fast:.1f} s, {plain / fast:.1f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    with flushed_denormals():
        main()
