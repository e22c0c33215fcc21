"""Online training as a solver: passes over a log, event by event."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from celrec.cel.evidence import Evidence
from celrec.config.online import OnlineConfig
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.offline.solver import Solver
from celrec.online.make_trainer import initialise_tables, make_trainer
from celrec.recommender.model import Model


class OnlineDescent(Solver):
    """One step is a pass over the log.

    The first pass takes events in the order of their times, if there are any, as from a stream.
    Later passes are shuffled by the seed, and do not count events again.
    """

    moves_clusters = True

    def __init__(self, model: Model, log: Interactions, how: OnlineConfig) -> None:
        self.model, self.how, self._log = model, how, log
        model.remember(log)
        self.trainer = make_trainer(how, model)
        self.passes = 0

    def start(self, seed: int) -> None:
        """Draw the first rows of all tables."""
        mean = float(self._log.target.mean(dtype=np.float64)) if len(self._log) else 0.0
        initialise_tables(self.how, self.model, mean)
        for side in self.trainer.sides.values():
            side.begin()

    def step(self) -> float:
        """Take one pass; return the loss of all events, each just before it was learned."""
        total = 0.0
        self.model.train()
        for rows in torch.split(torch.from_numpy(self.order()), self.how.batch):
            batch = self.model.batch(self._log, rows, own=True)
            outputs = self.trainer.step(batch, again=self.passes > 0)
            total += float(self.model.loss.of_samples(outputs, batch.target).sum())
        self.model.eval()
        self.passes += 1
        return total

    def evidence(self, side: str) -> Evidence:
        """Not available: the trainer moves clusters itself."""
        raise CelrecError(f"the clusters of {side} are moved by the online trainer itself")

    @torch.no_grad()
    def loss(self, log: Interactions) -> float:
        """The mean loss on a log that is not trained on."""
        if not len(log):
            return float("nan")
        losses = self.model.loss.of_samples(self.model.outputs(log), torch.tensor(log.target))
        return float(losses.mean(dtype=torch.float64))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """With all ids reassigned once more."""
        before = copy.deepcopy((self.model.state_dict(), self.trainer.state_dict()))
        self.trainer.sweep()
        try:
            yield
        finally:
            self.model.load_state_dict(before[0])
            self.trainer.load_state_dict(before[1])

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes, "trainer": self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes = int(state["passes"])
        self.trainer.load_state_dict(state["trainer"])

    def order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self.passes == 0 and self._log.timestamp is not None:
            return np.argsort(self._log.timestamp, kind="stable")
        rng = np.random.default_rng([self.how.seed, self.passes])
        return rng.permutation(len(self._log))
