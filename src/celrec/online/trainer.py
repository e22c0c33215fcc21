"""Learning from events in the order in which they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.replay_buffer import ReplayBuffer
from celrec.models.losses import LOSSES
from celrec.online.table_trainer import LossProbe, TableTrainer, Tangent
from celrec.recommender.batch import HISTORY, Batch
from celrec.recommender.model import Model
from celrec.runtime.memory_budget import MemoryBudget
from celrec.runtime.threads import one_thread

_PARTNERS = {"users": ("items", "item"), "items": ("users", "user")}
"""The side opposite to each, and the name of its ids in a batch."""


class OnlineTrainer(LossProbe):
    """Looks up, predicts, descends, takes notice: one batch of events after the other.

    Ids may appear at any time; tables grow as they do. An id below 0, as it may stand in a
    further column, is nobody's: its event teaches only what all unseen ids share there. For
    models that look at a history, the latest items of every user are kept.

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
        """With `replay`, the latest events of the ids in a batch are learned with it."""
        self.recommender, self.sides = recommender, dict(sides)
        held = {id(p) for table in recommender.whole_tables.values() for p in table.parameters()}
        self._network = [p for p in recommender.parameters() if id(p) not in held]
        self._optimizer = None
        if self._network:
            self._optimizer = torch.optim.Adam(self._network, lr=network_rate, fused=True)
        self._replay = replay
        self.history = ReplayBuffer(
            recommender.history_length, {"item": np.int32, "moment": np.int64}, budget=budget
        )
        """The latest items of every user, and the numbers of their events."""
        self.events = 0
        """How many events were learned, those of later passes included."""

    @one_thread()
    # What is not finite is told of by those who look at the outputs.
    @np.errstate(over="ignore", invalid="ignore")
    def step(self, batch: Batch, *, again: bool = False) -> Tensor:
        """Learn from a batch of events; what the model put out for them before.

        With `again` the events were learned before: in another pass over the same data.
        """
        count = len(batch.user)
        if not count:
            return torch.empty(0)
        for side, ids in zip(self.sides.values(), batch.ids(), strict=True):
            side.make_room(ids)
        moments = self.events + torch.arange(count)
        batch = self._with_history(batch._replace(moment=moments))
        learned = self._with_latest(batch) if self._replay and not again else batch
        vectors = self._look_up(learned)
        known = vectors
        if again:
            with torch.no_grad():
                given = {n: side.without(learned, vectors, self) for n, side in self.sides.items()}
                known = {**vectors, **given}
        leaves = {name: vector.detach().requires_grad_() for name, vector in known.items()}
        outputs = self.recommender.output_from(learned, leaves)
        losses = self.recommender.loss.of_samples(outputs, learned.target)
        # Zeros for what only an auxiliary loss is for.
        learning = [outputs, *leaves.values(), *self._network]
        steepness, *gradients = torch.autograd.grad(losses.sum(), learning, materialize_grads=True)
        pulls = dict(zip(leaves, gradients, strict=False))
        tangents: dict[str, Tangent] = {}
        for name, side in self.sides.items():
            if side.by_tangent and outputs.ndim == 1:
                # Where the loss is level, nothing is to be learned whatever the slope is.
                slope = (pulls[name][:count] / steepness[:count, None]).nan_to_num_(0, 0, 0)
                tangents[name] = Tangent(
                    outputs.detach()[:count], slope, leaves[name].detach()[:count]
                )
        self._descend(learned, pulls, gradients[len(leaves) :])
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
        """Kept events with their histories, and the vectors there."""
        batch = self._with_history(batch)
        return batch, self._look_up(batch)

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
        """Let a table take notice of those events that tell of it."""
        mine = ids >= 0
        if not bool(mine.all()):
            batch, ids = batch.at(mine), ids[mine]
            vectors = {name: vector[mine] for name, vector in vectors.items()}
            tangent = None if tangent is None else Tangent(*(part[mine] for part in tangent))
        if len(ids):
            side.observe(batch, ids, vectors, self, again=again, tangent=tangent)

    def query_batch(self, users: Tensor) -> Batch:
        """See `Model`; with what users did up to now."""
        batch = self.recommender.query_batch(users)
        now = torch.full_like(users, self.events)
        return self._with_history(batch._replace(history=None, moment=now))

    @torch.no_grad()
    def sweep(self) -> None:
        """Judge all ids once more by what is known of them."""
        for side in self.sides.values():
            side.sweep(self)

    def keep(self, name: str, ids: NDArray[np.int64]) -> None:
        """Let only these ids of a table remain, which ascend, numbered anew from 0.

        Where others kept events with one that is gone, that is nobody's from now on; a dropped
        item is in no history any more. One that comes again is a new id.
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
        """Bytes held beside the recommender."""
        states = () if self._optimizer is None else self._optimizer.state.values()
        network = [v.nbytes for state in states for v in state.values() if isinstance(v, Tensor)]
        sides = [side.nbytes for side in self.sides.values()]
        return sum(network) + sum(sides) + self.history.nbytes

    def state_dict(self) -> dict[str, Any]:
        """All that the recommender does not hold."""
        optimizer = {} if self._optimizer is None else self._optimizer.state_dict()["state"]
        return {
            "events": self.events,
            "optimizer": optimizer,
            "history": self.history.state_dict(),
            "sides": {name: side.state_dict() for name, side in self.sides.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, after the recommender has taken up its own."""
        self.events = int(state["events"])
        self.history.load_state_dict(state["history"])
        if self._optimizer is not None:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        for name, side in self.sides.items():
            side.load_state_dict(state["sides"][name])

    def _look_up(self, batch: Batch) -> dict[str, Tensor]:
        """The vectors of all ids in a batch; items of the history are looked up with the others."""
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

    def _descend(
        self, learned: Batch, gradients: Mapping[str, Tensor], network: Sequence[Tensor]
    ) -> None:
        """Let tables and network learn from the gradients of the loss, summed over the events."""
        for name, side in self.sides.items():
            gradient = gradients[name]
            if learned.history is not None and name == "items":
                gradient = torch.cat([gradient, gradients[HISTORY][learned.history >= 0]])
            side.learn(gradient)
        if self._optimizer is not None:
            for parameter, gradient in zip(self._network, network, strict=True):
                parameter.grad = gradient / len(learned.user)
            self._optimizer.step()

    def _with_history(self, batch: Batch) -> Batch:
        length = self.recommender.history_length
        if not length or batch.history is not None or batch.moment is None:
            return batch
        owner, columns = self.history.events(batch.user.numpy())
        before = columns["moment"] < batch.moment.numpy()[owner]
        before &= columns["item"] >= 0  # others were dropped
        owner, items = owner[before], columns["item"][before]
        counts = np.bincount(owner, minlength=len(batch.user))
        place = np.arange(len(owner)) + length - np.cumsum(counts)[owner]
        history = np.full((len(batch.user), length), -1, np.int64)
        history[owner, place] = items
        return batch._replace(history=torch.from_numpy(history))

    def _with_latest(self, batch: Batch) -> Batch:
        """The batch, and the latest events of all ids in it, each once."""
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
        events = self._with_history(events.at(torch.from_numpy(first)))
        joined = Batch.joined([batch, events])
        if batch.history is None or events.history is None:
            return joined
        return joined._replace(history=torch.cat([batch.history, events.history]))


class Learned(NamedTuple):
    """What was predicted for events before they were learned, and how well each was known."""

    predictions: NDArray[np.float32]
    targets: NDArray[np.float32]
    user_events: NDArray[np.int64]
    """How many events the user had when the prediction was made: before the batch."""
    item_events: NDArray[np.int64]
