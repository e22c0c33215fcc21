"""CEL-Lite with posterior means: ids are mixtures of rows, weighted by their evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.reassignment import nearest_pair
from celrec.cel.split import first_component
from celrec.cel.tangent_kernels import KNOWN_LOSSES, Tangents, mixed_bits, tangent_losses
from celrec.config.online import RowDescentConfig
from celrec.data.replay_buffer import ReplayBuffer
from celrec.embeddings.posterior import IMPOSSIBLE, STEPS_PER_BIT, PosteriorEmbedding
from celrec.models.interaction import LOSSES
from celrec.online.plain_tables import id_noise
from celrec.online.row_descent import RowDescent
from celrec.online.table_trainer import LossProbe, Observation, TableTrainer
from celrec.recommender.batch import Batch
from celrec.runtime.jit import Bytes, Floats, Ints, compiled
from celrec.runtime.memory_budget import MemoryBudget


@compiled
def weigh(evidence: Bytes, ids: Ints, scale: Floats, weights: Floats) -> None:
    """The weights that evidence gives: `scale` holds what each of the 256 values stands for."""
    for event in range(len(ids)):
        total = np.float32(0)
        for k in range(weights.shape[1]):
            weights[event, k] = scale[evidence[ids[event], k]]
            total += weights[event, k]
        share = np.float32(1) / total
        for k in range(weights.shape[1]):
            weights[event, k] *= share


@compiled
def _take_notice(row: Bytes, value: Floats, active: int, moment: np.uint64) -> None:
    """Keep `value`, how bad each row is, as evidence: above the least, rounded at random.

    All are rounded up by the same chance: so the mean of what is kept is what was added, and
    differences between rows are kept best.
    """
    least = np.float32(np.inf)
    for k in range(active):
        least = min(least, value[k])
    chance = np.float32(mixed_bits(moment) >> np.uint64(40)) * np.float32(2.0**-24)
    for k in range(active):
        row[k] = np.uint8(min(value[k] - least + chance, np.float32(254)))


@compiled
def add_evidence(
    evidence: Bytes, ids: Ints, losses: Floats, kept: Floats, steps: float, moments: Ints
) -> None:
    """Add the evidence of each event for its id: `steps` per unit of loss, rounded at random.

    Of what was known before, the share `kept` remains. losses is (rows, events), for the first
    rows; others stay impossible. Event by event, so that an id may be repeated. `moments` are the
    numbers of the events: what is rounded depends on them alone.
    """
    active = losses.shape[0]
    value = np.empty(active, np.float32)
    for event in range(len(ids)):
        row = evidence[ids[event]]
        for k in range(active):
            value[k] = kept[event] * row[k] + np.float32(steps) * losses[k, event]
        _take_notice(row, value, active, np.uint64(moments[event]))


@compiled
def add_tangent_evidence(
    evidence: Bytes,
    ids: Ints,
    rows: Floats,
    tangents: Tangents,
    kept: Floats,
    steps: float,
    moments: Ints,
) -> None:
    """The same with losses of outputs that are linear in the vector, as of a `Tangent`.

    rows is (dim, rows).
    """
    active = rows.shape[1]
    losses, value = np.empty(active, np.float32), np.empty(active, np.float32)
    for event in range(len(ids)):
        row = evidence[ids[event]]
        tangent_losses(rows, event, tangents, losses)
        for k in range(active):
            value[k] = kept[event] * row[k] + np.float32(steps) * losses[k]
        _take_notice(row, value, active, np.uint64(moments[event]))


@compiled
def log_shares(losses: Floats, evidence: Bytes, ids: Ints, scale: float, most: int) -> None:
    """Turn (events, rows) of losses into the logarithms of what to take out, the greatest 0.

    That is `scale` times the loss; 0 where the evidence stands at `most`, for what it would be
    without an event is not known, and for ids below 0, of which none was observed.
    """
    for event in range(len(ids)):
        row, known = losses[event], evidence[ids[event]]
        if ids[event] < 0:
            row[:] = 0
            continue
        greatest = np.float32(-np.inf)
        for k in range(len(row)):
            row[k] = np.float32(0) if known[k] == most else np.float32(scale) * row[k]
            greatest = max(greatest, row[k])
        for k in range(len(row)):
            row[k] -= greatest


_STEPS = STEPS_PER_BIT / math.log(2)  # in a unit of a loss that is a log likelihood
_VALUES = np.exp2(-np.arange(256, dtype=np.float32) / STEPS_PER_BIT)
_VALUES[IMPOSSIBLE] = 0
_SWEEP = 4096  # ids at once
_COMPARE_EVERY = 100  # batches
_SCATTER = 0.5  # the standard deviation of the logarithms of the weights of a new id


class MixtureTrainer(TableTrainer):
    """A table of mixtures: rows learn from all ids, in proportion to their weights.

    An event is trained with the weights from before it, and only then becomes evidence:
    w_k ← w_k·exp(−loss_k/τ), with the partner's vector from before. So its target does not choose
    the rows that it trains. The `temperature` τ turns a loss into a log likelihood: 1 for
    cross-entropy, twice the variance of the noise for squared errors.
    """

    by_tangent = True

    def __init__(
        self,
        name: str,
        table: PosteriorEmbedding,
        how: RowDescentConfig,
        temperature: float = 1.0,
        *,
        merge_within: float | None = None,
        seed: int = 0,
        budget: MemoryBudget | None = None,
    ) -> None:
        """Two rows within the distance `merge_within` are merged, to free one for a split."""
        super().__init__(name, table)
        self._rows, self._how, self._seed = table, how, seed
        self.descent = RowDescent(table.weight, how, budget)
        self._temperature, self._steps = temperature, _STEPS / temperature
        self._within, self._batches = merge_within, 0
        self._learned = np.empty((0, table.max_rows), np.float32), torch.empty(0)
        self._looked_up = torch.empty(0, dtype=torch.int64)
        self.weights = np.empty((0, table.max_rows), np.float32)
        self._counter = ReplayBuffer(0, {}, budget=budget)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counter.counts

    def lookup(self, ids: Tensor) -> Tensor:
        rows = self._numbers()
        self._looked_up = ids
        self.weights = np.empty((len(ids), len(rows)), np.float32)
        weigh(self._rows.evidence.numpy(), ids.numpy(), _VALUES, self.weights)
        return torch.from_numpy(self.weights @ rows)

    def without(self, batch: Batch, vectors: Mapping[str, Tensor], probe: LossProbe) -> Tensor:
        """By the weights without each event, w_k·exp(loss_k/τ)."""
        count, rows = len(batch.user), self._rows.weight.detach()[: self._rows.num_rows]
        weights, ids = self.weights[:count], self._looked_up[:count].numpy()
        logs = self._losses(batch, vectors, probe)
        log_shares(logs, self._rows.evidence.numpy(), ids, 1 / self._temperature, IMPOSSIBLE - 1)
        weights *= torch.from_numpy(logs).exp_().numpy()  # twice as fast as NumPy's
        weights /= weights.sum(1, keepdims=True)
        return torch.from_numpy(weights @ rows.numpy())

    def _losses(
        self, batch: Batch, vectors: Mapping[str, Tensor], probe: LossProbe
    ) -> NDArray[np.float32]:
        """(events, rows): the same losses as in `observe`, which added them."""
        rows, target = self._rows.weight.detach()[: self._rows.num_rows], batch.target[:, None]
        known = probe.kind in KNOWN_LOSSES
        tangent = probe.tangent(self.name, batch, vectors) if known else None
        if tangent is None:
            found = probe.losses(self.name, batch, rows.unsqueeze(1), vectors)
            return np.ascontiguousarray(found.numpy().T)
        constant = tangent.output - (tangent.slope * tangent.vector).sum(1)
        outputs = torch.addmm(constant[:, None], tangent.slope, rows.T)
        losses: NDArray[np.float32] = LOSSES[probe.kind].of_samples(outputs, target).numpy()
        return losses

    def learn(self, gradients: Tensor) -> None:
        """The gradient of a row is the sum over the batch, weighted by the row's weights."""
        weights = self.weights
        slopes = weights.T @ gradients.numpy()  # several times as fast in NumPy, where it is small
        if self._how.average:
            slopes /= np.maximum(weights.sum(0), 1)[:, None]
        self._learned = weights, gradients  # others may look up before these are seen
        self.descent.descend(np.arange(len(slopes)), slopes)

    def observe(self, events: Observation, probe: LossProbe) -> None:
        """Add the events to the evidence; in a later pass, an event replaces its share."""
        batch, ids, tangent = events.batch, events.ids, events.tangent
        numbers = ids.numpy()
        kept = np.ones(len(numbers), np.float32)
        if events.again:
            kept -= 1 / (1 + self.counts[numbers])
        else:
            self._counter.insert(numbers)
        evidence = self._rows.evidence.numpy()
        moments = np.arange(len(ids)) if batch.moment is None else batch.moment.numpy()
        if tangent is not None and probe.kind in KNOWN_LOSSES:
            add_tangent_evidence(
                evidence,
                numbers,
                np.ascontiguousarray(self._numbers().T),
                tangent.arrays(batch.target, probe.kind),
                kept,
                self._steps,
                moments,
            )
        else:
            rows = torch.from_numpy(self._numbers()).unsqueeze(1)
            losses = probe.losses(self.name, batch, rows, events.vectors)
            add_evidence(evidence, numbers, losses.numpy(), kept, self._steps, moments)
        self._batches += 1
        if self._within is not None and self._batches % _COMPARE_EVERY == 0:
            self._make_room(self._within)

    def _numbers(self) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self._rows.weight.detach().numpy()
        return rows[: self._rows.num_rows]

    def _make_room(self, within: float) -> None:
        """Merge the two nearest rows if they are close, and split the row with the largest weight.

        It is split along the first principal component of its gradients in the last batch.
        """
        table = self._rows
        rows = table.weight.detach()[: table.num_rows]
        if len(rows) < 3:
            return
        first, second, distance = nearest_pair(rows)
        if not distance <= within:
            return
        learned, gradients = self._learned
        weights = torch.from_numpy(learned).clone()
        weights[:, first] += weights[:, second]
        last, gone = len(rows) - 1, max(first, second)
        table.merge(first, second)
        self.descent.copy([last], [gone])
        weights[:, min(first, second)] = weights[:, first]
        weights[:, gone] = weights[:, last]
        heaviest = int(weights[:, :last].sum(0).argmax())
        pulls = weights[:, heaviest, None].sqrt() * gradients
        direction = first_component(pulls).float()
        self.descent.copy([heaviest], [table.split(heaviest, within * direction)])

    def sweep(self, probe: LossProbe) -> None:
        """Give unseen ids the mean of the weights of known ids."""
        known = torch.from_numpy(np.flatnonzero(self.counts))
        if not len(known):
            return
        parts = [self._rows.weights(some).sum(0) for some in torch.split(known, _SWEEP)]
        total = torch.stack(parts).sum(0)
        bits = (total.max() / total).log2().clamp(max=(IMPOSSIBLE - 1) / STEPS_PER_BIT)
        steps = (bits * STEPS_PER_BIT).round().to(torch.uint8)
        self._rows.evidence[-1] = torch.where(total > 0, steps, IMPOSSIBLE)

    def begin(self) -> None:
        self._scatter(0)

    def grow(self, ids: int) -> None:
        before = self.table.num_embeddings
        self.table.grow(ids)
        self._scatter(before)

    def keep(self, ids: NDArray[np.int64]) -> None:
        self.table.keep(torch.from_numpy(ids))
        self._counter.keep(ids)
        self._scatter(len(ids))

    def _scatter(self, first: int) -> None:
        """Initialise the ids from `first` on with slightly different weights.

        Ids with equal weights would stay equal: all rows would learn the same from them.
        """
        fresh = self._rows.evidence[first:-1]
        for part, noise in id_noise(first, first + len(fresh), fresh.shape[1], self._seed):
            new = fresh[part]
            value = new + _SCATTER * _STEPS * torch.from_numpy(noise)
            value -= value.amin(1, keepdim=True)
            value = value.clamp(max=IMPOSSIBLE - 1).round().to(torch.uint8)
            new.copy_(torch.where(new == IMPOSSIBLE, new, value))

    @property
    def nbytes(self) -> int:
        return self.descent.nbytes + self._counter.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {
            "descent": self.descent.state_dict(),
            "counts": self._counter.state_dict(),
            "batches": self._batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches = int(state["batches"])
        self._counter.load_state_dict(state["counts"])
        self.descent.load_state_dict(state["descent"])
