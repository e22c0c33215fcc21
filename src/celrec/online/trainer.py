"""Online learning of a model from batches of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.replay_buffer import ReplayBuffer
from celrec.models.interaction import LOSSES
from celrec.online.table_trainer import LossProbe, Observation, TableTrainer, Tangent
from celrec.recommender.batch import HISTORY, Batch
from celrec.recommender.model import Model
from celrec.runtime.memory_budget import MemoryBudget
from celrec.runtime.threads import one_thread

_PARTNERS = {"users": ("items", "item"), "items": ("users", "user")}
"""The partner table of each table, and the name of its ids in a batch."""


class OnlineTrainer(LossProbe):
    """Looks up, predicts, takes a gradient step and observes, batch by batch.

    Ids may appear at any time; tables grow as they do. An id below 0, as in a further column, is
    unseen: its event trains only what all unseen ids share. For models with histories, the latest
    items of every user are stored.

    Made by `make_trainer` from an `OnlineConfig`:

    >>> import celrec
    >>> from celrec.config.building import make_model
    >>> from celrec.config.plan import Plan
    >>> from celrec.online.make_trainer import initialise_tables, make_trainer
    >>> log = celrec.Planted(rows=2000, users=40, items=30).interactions()
    >>> plan = Plan(embedding="cel-lite", compression="4", model="mf")
    >>> recommender, how = make_model(log[:0], plan), plan.settings().solver
    >>> initialise_tables(how, recommender, mean=3.5)
    >>> trainer = make_trainer(how, recommender)
    >>> outputs = trainer.step(recommender.batch(log, slice(0, 500), own=True))
    >>> outputs.shape, trainer.events
    (torch.Size([500]), 500)
    """

    def __init__(
        self,
        recommender: Model,
        sides: Mapping[str, TableTrainer],
        network_rate: float = 1e-3,
        *,
        replay: bool = False,
        budget: MemoryBudget | None = None,
    ) -> None:
        """With `replay`, the latest events of the ids of a batch are trained with it."""
        self.recommender, self.sides = recommender, dict(sides)
        in_tables = {
            id(p) for table in recommender.whole_tables.values() for p in table.parameters()
        }
        self._network = [p for p in recommender.parameters() if id(p) not in in_tables]
        self._optimizer = None
        if self._network:
            self._optimizer = torch.optim.Adam(self._network, lr=network_rate, fused=True)
        self._replay = replay
        self.history = ReplayBuffer(
            recommender.history_length, {"item": np.int32, "moment": np.int64}, budget=budget
        )
        """The latest items of every user, and the numbers of these events."""
        self.events = 0
        """The number of events learned, later passes included."""

    @one_thread()
    # Callers check that outputs are finite.
    @np.errstate(over="ignore", invalid="ignore")
    def step(self, batch: Batch, *, again: bool = False) -> Tensor:
        """Learn a batch of events; return the outputs of the model before learning.

        With `again` the events were learned before, in an earlier pass over the same data.
        """
        count = len(batch.user)
        if not count:
            return torch.empty(0)
        for side, ids in zip(self.sides.values(), batch.ids(), strict=True):
            side.make_room(ids)
        moments = self.events + torch.arange(count)
        batch = self.with_history(batch._replace(moment=moments))
        learned = self._with_latest(batch) if self._replay and not again else batch
        vectors = self.look_up(learned)
        known = vectors
        if again:
            with torch.no_grad():
                given = {n: side.without(learned, vectors, self) for n, side in self.sides.items()}
                known = {**vectors, **given}
        leaves = {name: vector.detach().requires_grad_() for name, vector in known.items()}
        outputs = self.recommender.output_from(learned, leaves)
        losses = self.recommender.loss.of_samples(outputs, learned.target)
        # Zeros for parameters that only an auxiliary loss uses.
        learning = [outputs, *leaves.values(), *self._network]
        slopes, *gradients = torch.autograd.grad(losses.sum(), learning, materialize_grads=True)
        pulls = dict(zip(leaves, gradients, strict=False))
        tangents: dict[str, Tangent] = {}
        for name, side in self.sides.items():
            if side.by_tangent and outputs.ndim == 1:
                # Where the slope of the loss is 0, that of the output does not matter.
                slope = (pulls[name][:count] / slopes[:count, None]).nan_to_num_(0, 0, 0)
                tangents[name] = Tangent(
                    outputs.detach()[:count], slope, leaves[name].detach()[:count]
                )
        self.descend(learned, pulls, gradients[len(leaves) :])
        with torch.no_grad():
            outputs = outputs[:count]
            before = {name: vector[:count] for name, vector in vectors.items()}
            for (name, side), ids in zip(self.sides.items(), batch.ids(), strict=True):
                self._observe(side, batch, ids, before, tangents.get(name), again=again)
        if self.recommender.history_length and not again:
            columns = {"item": batch.item.numpy(), "moment": moments.numpy()}
            self.history.insert(batch.user.numpy(), **columns)
        self.events += count
        return outputs.detach()

    @property
    def kind(self) -> str:
        return next((n for n, loss in LOSSES.items() if loss is self.recommender.loss), "")

    def losses(
        self,
        side: str,
        batch: Batch,
        candidates: Tensor,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        if vectors is None:
            batch, vectors = self._known(batch)
        outputs = self.recommender.output_from(batch, {**vectors, side: candidates})
        return self.recommender.loss.of_samples(outputs, batch.target)

    def gradients(self, side: str, batch: Batch) -> Tensor:
        batch, vectors = self._known(batch)
        with torch.enable_grad():
            own = vectors[side].requires_grad_()
            outputs = self.recommender.output_from(batch, vectors)
            total = self.recommender.loss.of_samples(outputs, batch.target).sum()
            return torch.autograd.grad(total, own)[0]

    def tangent(
        self, side: str, batch: Batch, vectors: Mapping[str, Tensor] | None = None
    ) -> Tangent | None:
        if self.recommender.model.linear and side in _PARTNERS:
            partner, ids = _PARTNERS[side]
            if vectors is None:
                vectors = {partner: self.sides[partner].lookup(getattr(batch, ids))}
            constant, slope = self.recommender.model.line(vectors[partner])
            return Tangent(constant, slope, torch.zeros_like(slope))
        if vectors is None:
            batch, vectors = self._known(batch)
        with torch.enable_grad():
            own = vectors[side].detach().requires_grad_()
            outputs = self.recommender.output_from(batch, {**vectors, side: own})
            if outputs.ndim != 1:
                return None
            slope = torch.autograd.grad(outputs.sum(), own, materialize_grads=True)[0]
        return Tangent(outputs.detach(), slope.contiguous(), own.detach())

    def _known(self, batch: Batch) -> tuple[Batch, dict[str, Tensor]]:
        batch = self.with_history(batch)
        return batch, self.look_up(batch)

    def _observe(
        self,
        side: TableTrainer,
        batch: Batch,
        ids: Tensor,
        vectors: Mapping[str, Tensor],
        tangent: Tangent | None,
        *,
        again: bool,
    ) -> None:
        """Let a table observe the events with one of its ids."""
        mine = ids >= 0
        if not bool(mine.all()):
            batch, ids = batch.at(mine), ids[mine]
            vectors = {name: vector[mine] for name, vector in vectors.items()}
            tangent = None if tangent is None else Tangent(*(part[mine] for part in tangent))
        if len(ids):
            side.observe(Observation(batch, ids, vectors, again, tangent), self)

    def query_batch(self, users: Tensor) -> Batch:
        """`Model.query_batch` with the latest histories of users."""
        batch = self.recommender.query_batch(users)
        now = torch.full_like(users, self.events)
        return self.with_history(batch._replace(history=None, moment=now))

    @torch.no_grad()
    def sweep(self) -> None:
        """Reassign all ids once more by the stored evidence."""
        for side in self.sides.values():
            side.sweep(self)

    def keep(self, name: str, ids: NDArray[np.int64]) -> None:
        """Keep only these ids of a table, given in ascending order, renumbered from 0.

        Removed ids become unseen in the stored events of other tables, and leave all histories. An
        id that comes again is a new one.
        """
        numbers = np.full(self.sides[name].table.num_embeddings, -1)
        numbers[ids] = np.arange(len(ids))
        self.sides[name].keep(ids)
        for side in self.sides.values():
            if side.name != name:
                side.renumber(list(self.sides).index(name), numbers)
        if name == "users":
            self.history.keep(ids)
        elif name == "items":
            self.history.renumber("item", numbers)

    @property
    def nbytes(self) -> int:
        """Bytes in addition to the model."""
        states = () if self._optimizer is None else self._optimizer.state.values()
        network = [v.nbytes for state in states for v in state.values() if isinstance(v, Tensor)]
        sides = [side.nbytes for side in self.sides.values()]
        return sum(network) + sum(sides) + self.history.nbytes

    def state_dict(self) -> dict[str, Any]:
        """The state that is not in the model."""
        optimizer = {} if self._optimizer is None else self._optimizer.state_dict()["state"]
        return {
            "events": self.events,
            "optimizer": optimizer,
            "history": self.history.state_dict(),
            "sides": {name: side.state_dict() for name, side in self.sides.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`, after the model has loaded its own."""
        self.events = int(state["events"])
        self.history.load_state_dict(state["history"])
        if self._optimizer is not None:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        for name, side in self.sides.items():
            side.load_state_dict(state["sides"][name])

    def look_up(self, batch: Batch) -> dict[str, Tensor]:
        """The vectors of all ids in a batch; items of histories are looked up with the others."""
        vectors = {}
        for (name, side), ids in zip(self.sides.items(), batch.ids(), strict=True):
            if batch.history is None or name != "items":
                vectors[name] = side.lookup(ids)
                continue
            there = batch.history >= 0
            together = side.lookup(torch.cat([ids, batch.history[there]]))
            vectors[name] = together[: len(ids)]
            history = together.new_zeros(*there.shape, together.shape[1])
            history[there] = together[len(ids) :]
            vectors[HISTORY] = history
        return vectors

    def descend(
        self, learned: Batch, gradients: Mapping[str, Tensor], network: Sequence[Tensor]
    ) -> None:
        """Step tables and network, given the gradients of the loss, summed over events."""
        for name, side in self.sides.items():
            gradient = gradients[name]
            if learned.history is not None and name == "items":
                gradient = torch.cat([gradient, gradients[HISTORY][learned.history >= 0]])
            side.learn(gradient)
        if self._optimizer is not None:
            for parameter, gradient in zip(self._network, network, strict=True):
                parameter.grad = gradient / len(learned.user)
            self._optimizer.step()

    def with_history(self, batch: Batch) -> Batch:
        """The batch with the users' latest items before each moment, if the model reads them."""
        length = self.recommender.history_length
        if not length or batch.history is not None or batch.moment is None:
            return batch
        owner, columns = self.history.events(batch.user.numpy())
        before = columns["moment"] < batch.moment.numpy()[owner]
        before &= columns["item"] >= 0  # others were removed
        owner, items = owner[before], columns["item"][before]
        counts = np.bincount(owner, minlength=len(batch.user))
        place = np.arange(len(owner)) + length - np.cumsum(counts)[owner]
        history = np.full((len(batch.user), length), -1, np.int64)
        history[owner, place] = items
        return batch._replace(history=torch.from_numpy(history))

    def _with_latest(self, batch: Batch) -> Batch:
        """The batch with the latest events of all its ids, each once."""
        found = [
            side.latest(torch.unique(ids[ids >= 0]).numpy())
            for side, ids in zip(self.sides.values(), batch.ids(), strict=True)
        ]
        kept = [one for one in found if one is not None]
        if not kept:
            return batch
        events = Batch.joined(kept)
        if events.moment is None:
            return batch
        _, first = np.unique(events.moment.numpy(), return_index=True)
        events = self.with_history(events.at(torch.from_numpy(first)))
        joined = Batch.joined([batch, events])
        if batch.history is None or events.history is None:
            return joined
        return joined._replace(history=torch.cat([batch.history, events.history]))


class Learned(NamedTuple):
    """The predictions for events before learning, and how many events their ids had."""

    predictions: NDArray[np.float32]
    targets: NDArray[np.float32]
    user_events: NDArray[np.int64]
    """The number of events of the user before the batch."""
    item_events: NDArray[np.int64]
