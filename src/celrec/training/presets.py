"""Ready-made settings for offline training."""

from __future__ import annotations

from celrec.clustering.reassignment import Reassignment
from celrec.clustering.splitter import Splitter
from celrec.training.gradient_descent import Descent
from celrec.training.offline import Offline, Schedule

PRESETS: dict[str, Offline] = {
    # What the paper says, to the letter: absolute values, each row divided by its own largest
    # value at the start, the penalty outside the averaging, no damping of reassignments.
    "paper": Offline(
        descent=Descent(learning_rate=1e-4, l2=1.0, penalty_inside=False, projection="abs"),
        schedule=Schedule(split_every=10, reassign_every=40),
        splitter=Splitter(normalisation="z-score"),
        reassignment=Reassignment(keep=0.0),
        per_row_start=True,
    ),
    # What the authors' code does: a higher rate, the penalty inside and twice as strong, rows
    # shrunk towards their mean, reassignments damped, values clipped at 0.
    "released": Offline(
        descent=Descent(learning_rate=1.25e-4, l2=2.0, shrink_to_mean=500.0),
        schedule=Schedule(split_every=10, reassign_every=40),
        reassignment=Reassignment(keep=0.309),
    ),
    # The best of a dozen settings on validation data of MovieLens 100K and 1M: strong damping
    # and shrinkage, and steps that cannot overshoot.
    "default": Offline(
        descent=Descent(learning_rate=1e-4, l2=4.0, shrink_to_mean=500.0, bounded=True),
        schedule=Schedule(steps=4000, split_every=10, reassign_every=20),
        reassignment=Reassignment(keep=0.8, evidence=5),
    ),
}
"""Settings by name."""
