"""What the tables of ablations have in common."""

from __future__ import annotations

from dataclasses import replace

from reproduce.trial import Trial, trial_plan

ROWS = {
    "ml-100k": {"5 %": "84", "2 %": "34", "1 %": "17", "0.5 %": "8"},
    "ml-1m": {"5 %": "200", "2 %": "80", "1 %": "40", "0.5 %": "20"},
}
"""How many rows the paper's ratios come to."""
LEAST_SQUARES, DESCENT = "least squares", "gradient descent"
PRESETS = {LEAST_SQUARES: "least-squares", DESCENT: "paper"}
REASSIGNED = {"": {}, ", never reassigned": {"schedule.reassign_every": 0}}
"""Columns in which members move, and in which they never do, and how to train for them."""
SOLVERS_NOTE = (
    "Gradient descent is the paper's loop to the letter (preset `paper`), and the paper's numbers "
    "stand beside it; least squares is the preset `least-squares` of this library. For each of "
    "them, and for each of the logs, the strength of the penalties is chosen at 1 %, with nothing "
    "ablated. Where validation data like fewer clusters better, there are fewer than the ratio "
    "allows."
)


def plain(data: str, solver: str = LEAST_SQUARES, model: str = "nmf") -> Trial:
    """CEL at 1 % with nothing ablated: what penalties are chosen by.

    >>> plain("ml-1m", DESCENT).plan.compression
    '40'
    """
    plan = trial_plan(compression=ROWS[data]["1 %"], model=model)
    return Trial(data, plan if solver == LEAST_SQUARES else replace(plan, preset=PRESETS[solver]))


def theirs(solver: str, number: float | None) -> float | None:
    """A number of the paper, where gradient descent is meant."""
    return number if solver == DESCENT else None
