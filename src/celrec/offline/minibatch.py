"""Mini-batch descent for recommenders with any interaction model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from celrec.config.offline import MinibatchConfig
from celrec.data.histories import Grouped
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.offline.log_evidence import LogEvidence
from celrec.offline.samples import BatchShard, Samples
from celrec.offline.solver import Solver
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.recommender.negatives import Negatives
from celrec.runtime.communicator import LOCAL, Communicator, Partition

_LEAST_BATCHES = 4  # in a round
_AVERAGE = "average"  # beside an optimiser's own state, so that a split copies its row too
_WARM_UP = 10  # an average over the first steps forgets faster


class MinibatchDescent(Solver):
    """One step: a round of mini-batches, in an order that the seed and the epoch give.

    Each rank has the whole log and all tables, sees its part of every batch, and gradients are
    summed. Random numbers are drawn for the whole batch on every rank.
    """

    optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        log: Interactions,
        how: MinibatchConfig,
        seed: int,
        communicator: Communicator = LOCAL,
    ) -> None:
        self.model, self.how, self._log, self._seed = model, how, log, seed
        self.communicator = communicator
        model.remember(log)
        self.samples = Samples(model, log)
        self.rounds = 0
        self._negatives = Negatives(log) if model.loss.pairwise else None
        self.optimizer = torch.optim.Adam(model.parameters(), lr=how.learning_rate, fused=True)
        self._counts = {
            side: _lookups(log, side, table)
            for side, table in model.tables.items()
            if isinstance(table, FullEmbedding)
        }
        rows = {s: table for s, table in model.tables.items() if isinstance(table, SharedRows)}
        self._anchors = {side: table.weight.detach().clone() for side, table in rows.items()}
        self._anchored = {side: table.num_rows for side, table in rows.items()}

    def start(self, seed: int) -> None:
        """Small normal rows, and the mean for an output; the network is as it was made."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for table in self.model.tables.values():
                if isinstance(table, SharedRows):
                    table.weight.normal_(0, self.how.spread, generator=generator)
        for anchor in self._anchors.values():
            anchor.zero_()
        if len(self._log):
            mean = float(self._log.target.mean(dtype=np.float64))
            self.model.model.set_mean(self.model.loss.output(mean))

    def step(self) -> float:
        """One round; the mean loss in it, times the number of interactions."""
        self.samples.follow()
        self.model.train()
        total = count = 0.0
        generator = torch.Generator().manual_seed(_seed(self._seed, self.rounds))
        order = self.round_order()
        size = min(self.how.batch, max(1, math.ceil(len(order) / _LEAST_BATCHES)))
        for numbers in torch.split(order, size):
            whole = self.with_negatives(self.samples.take(numbers), generator)
            part = BatchShard(whole, self.communicator)
            self.model.draw_normal = partial(part.normal, generator)
            losses = (self.model.objective(part.batch) * part.weight).sum()
            total, count = total + float(losses.detach()), count + part.whole_weight
            self.optimizer.zero_grad()
            penalised = losses / part.whole_weight + self.penalties(part)
            penalised.backward()  # type: ignore[no-untyped-call]
            self.communicator.all_reduce_gradients(self.model.parameters())
            for side, columns in self.model.frozen_columns.items():
                rows = self.model.tables[side].weight
                if isinstance(rows, Tensor) and rows.grad is not None:
                    rows.grad[:, :columns] = 0
            self.optimizer.step()
            self._average()
        self.model.eval()
        for table in self.model.whole_tables.values():
            table.adapt(self.optimizer)
        self.rounds += 1
        total = self.communicator.all_reduce(total)
        return total / count * len(self._log) + self.samples.constant if count else 0.0

    def evidence(self, side: str) -> LogEvidence:
        """From a sample of the interactions, another one in each round."""
        how = self.how

        def take(rows: Tensor) -> Batch:
            batch = self.model.batch(self._log, rows, own=True)
            if self._negatives is None:
                return batch
            # Evidence looks at a state, not at random numbers: the same in every call of a round,
            # whoever asks.
            seed = _seed(self._seed, self.rounds)
            return batch._replace(worse=self._negatives.draw_alike(batch.user, rows, seed))

        return LogEvidence(
            self.model,
            self._log,
            side,
            take,
            per_id=how.per_id,
            candidates=how.candidates,
            rng=lambda: np.random.default_rng([self._seed, self.rounds]),
            communicator=self.communicator,
        )

    @torch.no_grad()
    def loss(self, log: Interactions) -> float:
        """The mean loss on data from outside, with the same negatives in every call."""
        if not len(log):
            return float("nan")
        generator, total = torch.Generator().manual_seed(self._seed), 0.0
        for start in range(0, len(log), self.how.batch):
            rows = slice(start, start + self.how.batch)
            batch = self.with_negatives(self.model.batch(log, rows, own=False), generator)
            part = batch.at(Partition.even(len(batch.user), self.communicator).mine)
            total += float(self.model.objective(part).sum()) if len(part.user) else 0.0
        return self.communicator.all_reduce(total) / len(log)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The average over steps; rows that were never trained are the mean of the others."""
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        with torch.no_grad():
            for parameter in self.model.parameters():
                if (average := self.optimizer.state[parameter].get(_AVERAGE)) is not None:
                    parameter.copy_(average)
            for side, table in self.model.tables.items():
                if isinstance(table, FullEmbedding):
                    fill_untrained(table, self._counts[side])
        try:
            with ExitStack() as served:
                for table in self.model.whole_tables.values():
                    served.enter_context(table.as_served())
                yield
        finally:
            self.model.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Anchors, the number of rounds, and the optimiser's state with the averages."""
        optimizer = self.optimizer.state_dict()["state"]
        return {
            "anchors": dict(self._anchors),
            "anchored": dict(self._anchored),
            "rounds": self.rounds,
            "optimizer": optimizer,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._anchors, self._anchored = dict(state["anchors"]), dict(state["anchored"])
        self.rounds = int(state["rounds"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})

    def round_order(self) -> Tensor:
        """The samples of this round."""
        rounds = max(1, min(self.how.rounds, len(self.samples)))  # no round without a sample
        epoch, part = divmod(self.rounds, rounds)
        generator = torch.Generator().manual_seed(_seed(self._seed, -1 - epoch))
        order = torch.randperm(len(self.samples), generator=generator)
        ends = [len(order) * n // rounds for n in (part, part + 1)]
        return order[ends[0] : ends[1]]

    def with_negatives(self, batch: Batch, generator: torch.Generator) -> Batch:
        if self._negatives is not None:
            batch = batch._replace(worse=self._negatives.draw(batch.user, generator))
        if batch.history is not None and self.model.model.wants_negatives:
            items = self.model.items.num_embeddings
            drawn = torch.randint(items, batch.history.shape, generator=generator)
            batch = batch._replace(not_next=drawn)
        return batch

    def penalties(self, part: BatchShard) -> Tensor:
        """All that is added to the mean loss of a batch, or this rank's part of it."""
        how, batch, share = self.how, part.batch, part.weight / part.whole_weight
        total = share.new_zeros(())
        if (auxiliary := self.model.auxiliary(batch)) is not None:
            total = total + auxiliary * part.fraction(self.model.auxiliary_terms)
        looked_up = [batch.user, batch.item]
        looked_up += [] if batch.columns is None else batch.columns.unbind(-1)
        for (side, table), ids in zip(self.model.tables.items(), looked_up, strict=True):
            if how.l2:
                apart = table(ids)
                if isinstance(table, SharedRows):
                    apart = apart - self.anchor(side)[table.row_of(ids)]
                total = total + how.l2 * (share.to(apart) @ apart.square().sum(-1))
            if (penalty := table.penalty()) is not None:
                total = total + penalty / (len(self._log) * self.communicator.size)
        return total

    def anchor(self, side: str) -> Tensor:
        """What the rows of a table are drawn to; after a split, both parts to the same."""
        table, anchor = self.model.tables[side], self._anchors[side]
        if isinstance(table, ClusteredEmbedding):
            for new in range(self._anchored[side], table.num_rows):
                anchor[new] = anchor[int(table.parent[new])]
            self._anchored[side] = table.num_rows
        return anchor

    @torch.no_grad()
    def _average(self) -> None:
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            if _AVERAGE not in state:
                if not state:  # it has had no gradient yet
                    continue
                state[_AVERAGE] = parameter.detach().clone()
            kept = min(self.how.averaging, 1 - 1 / (float(state["step"]) + 1) * _WARM_UP)
            state[_AVERAGE].lerp_(parameter, 1 - max(kept, 0.0))


@torch.no_grad()
def fill_untrained(table: FullEmbedding, counts: NDArray[np.int64]) -> None:
    """Give rows that were looked up for no interaction the mean of the others."""
    trained = torch.from_numpy(counts > 0)
    if bool(trained.any()):
        table.weight[~trained] = table.weight[trained].mean(0)


def _lookups(log: Interactions, side: str, table: FullEmbedding) -> NDArray[np.int64]:
    """How many interactions look up each row; where a column has no id, the one of unseen ids."""
    known, counts = Grouped(log, side).counts, np.zeros(table.num_rows, np.int64)
    counts[: len(known)] = known
    counts[-1] = len(log) - known.sum()
    return counts


def _seed(seed: int, number: int) -> int:
    """Another seed for each number."""
    return (seed * 1_000_003 + number) % 2**63
