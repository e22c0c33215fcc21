"""Compiled loops over candidate clusters, evaluated by tangents.

A tangent is what an output is to first order in a vector: output + slope·(vector′ − vector). It
gives the losses under all candidate rows from one forward and backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import Doubles, Floats, Ints, compiled

KNOWN_LOSSES = ("squared-error", "cross-entropy")
"""The losses that kernels implement."""


class Tangents(NamedTuple):
    """The tangents of events in the vectors of one table, and the loss of their targets."""

    outputs: Floats
    slopes: Floats
    vectors: Floats
    targets: Floats
    logistic: bool
    """Cross-entropy; else the squared error."""


# For a ≥ 0, log(1 + exp(−a)) = 1/p(a)² up to 1e-5 for this polynomial p. Unlike logarithms and
# lookup tables, loops over it are vectorised.
_ROOT = tuple(
    np.float32(value)
    for value in (1.2011151, 0.43333759, 0.12584126, 0.02366808, 0.0026223188, 0.0, 7.0302978e-5)
)


@compiled
def mixed_bits(number: np.uint64) -> np.uint64:
    """A 64-bit hash (the finaliser of SplitMix64)."""
    number += np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@compiled
def hashed(ids: Ints, seed: int) -> Doubles:
    """A pseudo-random number in [0, 1) for each id and seed."""
    numbers = np.empty(len(ids))
    for place in range(len(ids)):
        bits = mixed_bits(np.uint64(ids[place]) ^ mixed_bits(np.uint64(seed)))
        numbers[place] = (bits >> np.uint64(11)) * 2.0**-53
    return numbers


@compiled
def _draw(drawn: NDArray[Any], member: int, own: int, clusters: int, moment: int) -> None:
    """Put the own cluster first and random ones after it, perhaps repeated."""
    drawn[0] = own
    first = mixed_bits(np.uint64(moment) ^ mixed_bits(np.uint64(member)))
    for number in range(1, len(drawn)):
        bits = mixed_bits(first + np.uint64(number))
        drawn[number] = np.int64((bits >> np.uint64(32)) * np.uint64(clusters) >> np.uint64(32))


@compiled
def draw_candidates(own: Ints, clusters: int, count: int, moment: int) -> Ints:
    """(count + 1, ids): the own cluster, and `count` random ones, perhaps repeated.

    They are determined by the position of the id, the moment and the number of clusters.
    """
    drawn = np.empty((len(own), count + 1), np.int64)
    for member in range(len(own)):
        _draw(drawn[member], member, own[member], clusters, moment)
    return drawn.T


@compiled
def tangent_losses(rows: Floats, event: int, tangents: Tangents, losses: Floats) -> None:
    """The loss of one event under each of some rows, the output being that of its tangent.

    rows is (dim, rows), so that the inner loops run over rows.
    """
    slopes, target = tangents.slopes, tangents.targets[event]
    constant = tangents.outputs[event]
    for d in range(rows.shape[0]):
        constant -= slopes[event, d] * tangents.vectors[event, d]
    for k in range(rows.shape[1]):
        losses[k] = constant
    for d in range(rows.shape[0]):
        slope = slopes[event, d]
        for k in range(rows.shape[1]):
            losses[k] += slope * rows[d, k]
    if not tangents.logistic:
        for k in range(rows.shape[1]):
            losses[k] = (losses[k] - target) ** 2
        return
    for k in range(rows.shape[1]):
        z = losses[k]
        a = abs(z)
        root = _ROOT[3] + a * (_ROOT[4] + a * (_ROOT[5] + a * _ROOT[6]))
        root = _ROOT[0] + a * (_ROOT[1] + a * (_ROOT[2] + a * root))
        losses[k] = max(z, np.float32(0)) + np.divide(np.float32(1), root * root) - target * z


@compiled
def choose_by_tangents(
    ids: Ints,
    assignment: NDArray[np.signedinteger[Any]],
    weight: Floats,
    others: Ints,
    near: Floats,
    count: int,
    moment: int,
    mean: Floats,
    prior: float,
    owner: Ints,
    tangents: Tangents,
) -> Ints:
    """The best candidate of each id: a compiled `best_columns` of losses by tangents.

    The candidates are the own cluster and `others[k]` for the k that `draw_candidates` draws;
    `near` has the rows of `others`. The loss is Σ loss + prior/2·‖row − mean‖² over the events
    of the id; `owner`, the position of each event's id, is sorted.
    """
    best = np.empty_like(ids)
    drawn = np.empty(count + 1, np.uint64)  # unsigned, for faster lookups
    rows = np.empty((weight.shape[1], count + 1), np.float32)
    losses, total = np.empty(count + 1, np.float32), np.empty(count + 1, np.float32)
    event, half = 0, np.float32(prior / 2)
    for member in range(len(ids)):
        own = assignment[ids[member]]
        _draw(drawn, member, own, len(others), moment)
        total[:] = 0
        for d in range(weight.shape[1]):
            rows[d, 0] = weight[own, d]
            for k in range(1, count + 1):
                rows[d, k] = near[drawn[k], d]
            for k in range(count + 1):
                total[k] += half * (rows[d, k] - mean[d]) ** 2
        while event < len(owner) and owner[event] == member:
            tangent_losses(rows, event, tangents, losses)
            for k in range(count + 1):
                total[k] += losses[k]
            event += 1
        least = 0
        for k in range(1, count + 1):
            if total[k] < total[least]:
                least = k
        best[member] = others[drawn[least]] if least else own
    return best


@compiled
def add_tangent_gradients(
    gradients: Doubles,
    ids: Ints,
    assignment: NDArray[np.signedinteger[Any]],
    weight: Floats,
    owner: Ints,
    tangents: Tangents,
) -> None:
    """Add −∂loss/∂row of each event to its owner's, for cross-entropy or squared errors."""
    slopes = tangents.slopes
    for event in range(len(owner)):
        row, target = weight[assignment[ids[owner[event]]]], tangents.targets[event]
        output = np.float64(tangents.outputs[event])
        for d in range(slopes.shape[1]):
            output += slopes[event, d] * (row[d] - tangents.vectors[event, d])
        error = 1 / (1 + np.exp(-output)) - target if tangents.logistic else 2 * (output - target)
        for d in range(slopes.shape[1]):
            gradients[owner[event], d] -= error * slopes[event, d]
