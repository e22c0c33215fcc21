"""Loops of online learning in machine code."""

from __future__ import annotations

import numpy as np

from celrec.cel.tangent_kernels import Tangents, mixed_bits, tangent_losses
from celrec.runtime.jit import Bytes, Floats, Ints, compiled


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
    """Add what each event tells of its id: `steps` for a unit of loss, rounded at random.

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
    """The same with losses of outputs that are linear in the vector, as a `Tangent` tells.

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
