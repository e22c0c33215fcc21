"""Hyperparameters of each model, by name."""

from __future__ import annotations

from dataclasses import replace

from celrec.cel.reassignment import Reassignment
from celrec.cel.split import Splitter
from celrec.config.offline import (
    CLUSTERS,
    ROWS,
    DescentConfig,
    LeastSquaresConfig,
    MinibatchConfig,
    OfflineConfig,
    Schedule,
    TreeConfig,
)
from celrec.config.online import OnlineClusterConfig, OnlineConfig, RowDescentConfig
from celrec.models.registry import MODELS

_PERSONAL = Schedule(steps=3000, validate_every=25)
_SWEEPS = Schedule(
    steps=300, split_every=1, growth=0.05, reassign_every=1, validate_every=2, patience=10
)
# The last hundred sweeps would gain 0.0004 on MovieLens-1m, and take as long as all before them.
_PERSONAL_SWEEPS = Schedule(steps=200, validate_every=2, patience=5, least_gain=1e-4)

# Losses of members by their posterior quadratics, from a fit with a row for each id.
_POSTERIOR = OfflineConfig(
    solver=LeastSquaresConfig(members="posterior", non_negative=True),
    schedule=Schedule(
        steps=100, split_every=1, growth=0.15, reassign_every=1, validate_every=2, patience=5
    ),
    personal=_PERSONAL_SWEEPS,
    reassignment=Reassignment(keep=0.0),
    criterion="gain",
    rank=32,
)

# A network from nothing: rounds of a tenth of an epoch.
_SCRATCH = OfflineConfig(
    solver=MinibatchConfig(l2=0.1),
    schedule=Schedule(
        steps=400, split_every=1, growth=0.05, reassign_every=15, validate_every=5, patience=6
    ),
    personal=Schedule(steps=200, validate_every=5, patience=6),
)
# A network that goes on from a factorisation, whose rows stay; clusters of further columns grow.
_FINISHING = MinibatchConfig(learning_rate=4e-3, l2=0.1)
_FINISH = replace(_SCRATCH.schedule, steps=40, validate_every=10, patience=2)

COMPOSED_SWEEPS = 100
"""Steps of tables whose ids do not have one row each: their learning rate falls to nothing."""
# For eTree and JNKM, whatever the preset is called.
TREE = OfflineConfig(
    solver=TreeConfig(),
    schedule=Schedule(steps=300, split_every=0, reassign_every=0, validate_every=2, patience=10),
    rank=32,
)

_STREAM = OnlineConfig()
_PASSES = Schedule(steps=10, split_every=0, reassign_every=0, validate_every=1, patience=2)
_MANY_PASSES = replace(_PASSES, steps=100, validate_every=2, patience=5)
_RATINGS = RowDescentConfig(learning_rate=0.03, l2=0.2, non_negative=True)
# What the paper says of CEL-Lite: gradient descent on the batch and on the latest events of its
# ids, gradients averaged, all ids of a batch reassigned by exact losses, nothing added.
_LITERAL = OnlineConfig(
    assignment="hard",
    shared=RowDescentConfig(rule="sgd", learning_rate=0.05),
    plain=RowDescentConfig(rule="sgd", learning_rate=0.05),
    moving=OnlineClusterConfig(
        candidates=50, schedule="always", prior=0.0, own_row_above=100, by_tangent=False
    ),
    replay=True,
)
_LITERAL_RATINGS = replace(
    _LITERAL,
    batch=2000,
    shared=replace(_LITERAL.shared, non_negative=True),
    plain=replace(_LITERAL.plain, non_negative=True),
    spread=0.3,
    # Of the few rows that there are, private ones would leave none to share.
    moving=replace(_LITERAL.moving, candidates=10, own_row_above=None),
)
_HARD = replace(
    _STREAM,
    assignment="hard",
    shared=RowDescentConfig(),
    # A longer interval takes a third less time, at no measurable loss of accuracy.
    moving=OnlineClusterConfig(candidates=50, every=2048, prior=2.0),
)
_SOFT_RATINGS = replace(
    _STREAM,
    batch=2000,
    shared=replace(_RATINGS, l2=0.0),
    plain=_RATINGS,
    spread=0.3,
    most_rows=256,
    temperature=3.0,
    own=RowDescentConfig(learning_rate=0.1, l2=0.02),
    beside_own=1 / 3,
)


def _online(rank: int) -> dict[str, OfflineConfig]:
    once = replace(_PASSES, steps=1)
    return {
        "default": OfflineConfig(solver=_STREAM, schedule=_PASSES, rank=rank),
        "hard": OfflineConfig(solver=_HARD, schedule=once, rank=rank),
        "paper": OfflineConfig(solver=_LITERAL, schedule=once, rank=rank),
    }


ONLINE: dict[str, dict[str, OfflineConfig]] = {
    "nmf": {
        "default": OfflineConfig(solver=_SOFT_RATINGS, schedule=_MANY_PASSES, rank=32),
        "paper": OfflineConfig(solver=_LITERAL_RATINGS, schedule=_MANY_PASSES),
    },
    **{name: _online(rank=8) for name in ("mf", *MODELS)},
    "neumf": _online(rank=16),  # half of it is for its product
}
"""Presets of online training, by model and name."""

PRESETS: dict[str, dict[str, OfflineConfig]] = {
    **{name: {"default": _SCRATCH} for name in MODELS},
    "nmf": {
        # The best that was found on validation data of MovieLens 100K and 1M.
        "default": OfflineConfig(
            solver=LeastSquaresConfig(non_negative=True),
            schedule=_SWEEPS,
            personal=_PERSONAL_SWEEPS,
            rank=32,
        ),
        "posterior": _POSTERIOR,
        # The best of a dozen settings of gradient descent on the same data: strong damping and
        # shrinkage, and steps that cannot overshoot.
        "descent": OfflineConfig(
            solver=DescentConfig(
                learning_rate=1e-4, l2=4.0, shrink_to_mean=500.0, pull_to_anchor=100.0, bounded=True
            ),
            schedule=Schedule(steps=4000, split_every=10, reassign_every=20),
            personal=_PERSONAL,
            reassignment=Reassignment(keep=0.8, evidence=5),
        ),
        # What the paper says, to the letter: absolute values, each row divided by its own largest
        # value at the start, the penalty outside the averaging, no damping of reassignments.
        "paper": OfflineConfig(
            solver=DescentConfig(
                learning_rate=1e-4,
                l2=1.0,
                penalty_inside=False,
                projection="abs",
                per_row_start=True,
            ),
            schedule=Schedule(split_every=10, reassign_every=40),
            personal=_PERSONAL,
            splitter=Splitter(normalisation="z-score"),
            reassignment=Reassignment(keep=0.0),
        ),
        # What the authors' code does: a higher rate, the penalty inside and twice as strong, rows
        # shrunk towards their mean, reassignments damped, values clipped at 0.
        "released": OfflineConfig(
            solver=DescentConfig(
                learning_rate=1.25e-4, l2=2.0, shrink_to_mean=500.0, pull_to_anchor=100.0
            ),
            schedule=Schedule(split_every=10, reassign_every=40),
            personal=_PERSONAL,
            reassignment=Reassignment(keep=0.309),
        ),
    },
    "mf": {
        "default": OfflineConfig(
            solver=LeastSquaresConfig(), schedule=_SWEEPS, personal=_PERSONAL_SWEEPS, rank=32
        ),
        "posterior": replace(_POSTERIOR, solver=LeastSquaresConfig(members="posterior")),
        "descent": OfflineConfig(
            solver=DescentConfig(
                learning_rate=1e-3,
                l2=4.0,
                shrink_to_mean=50.0,
                projection="none",
                pull_to_anchor=50.0,
                bounded=True,
            ),
            schedule=Schedule(steps=4000, split_every=10, reassign_every=20),
            personal=_PERSONAL,
            reassignment=Reassignment(keep=0.8, evidence=5),
        ),
    },
    **{
        name: {
            "default": replace(
                _SCRATCH, solver=_FINISHING, schedule=_FINISH, takes_over=ROWS, rank=rank
            ),
            "clusters": replace(_SCRATCH, takes_over=CLUSTERS),
            "scratch": _SCRATCH,
        }
        # Rows of 64 do no better after a factorisation, by validation data of MovieLens, and take
        # twice the time.
        for name, rank in (
            *((name, 32) for name in ("deepfm", "din", "dien")),
            ("neumf", 64),  # half of it is for its product
        )
    },
}
"""Presets of offline training, by model and name."""


def offline_presets(model: str) -> dict[str, OfflineConfig]:
    """The presets of offline training of a model; one that was added later trains from scratch."""
    return PRESETS.get(model, {"default": _SCRATCH})


def online_presets(model: str) -> dict[str, OfflineConfig]:
    """The presets of online training that a model has."""
    return ONLINE.get(model, _online(rank=8))
