"""A method on one part of the data, from training to bytes."""

from __future__ import annotations

import time
from typing import Any

from celrec.data.split import Split
from celrec.evaluation.measuring import measure
from celrec.training.fit import Change, Fit, fit
from celrec.training.judgement import Watcher
from celrec.training.plan import SIDES, Plan


def train_and_measure(
    split: Split,
    plan: Plan,
    watch: Watcher = lambda _, __: None,
    change: Change = lambda how: how,
) -> dict[str, Any]:
    """Train as `fit` does, and tell what came of it: see `outcome`."""
    begun = time.perf_counter()
    fitted = fit(split, plan, watch, change=change)
    return outcome(fitted, split, plan, time.perf_counter() - begun)


def outcome(fitted: Fit, split: Split, plan: Plan, seconds: float) -> dict[str, Any]:
    """What a trained model reaches on the test part, and what its compressed tables take.

    As JSON: `test` is what `measure` gives, sizes are in bytes, `ticks` are those of `Traits`.
    """
    model, counts = fitted.model, split.train_and_valid().item_counts
    sides = [s for s, shared in zip(("users", "items"), SIDES[plan.side], strict=True) if shared]
    tables = [model.whole_tables[side] for side in sides]
    memories = [table.memory() for table in tables]
    return {
        "test": measure(model, plan, split.test, counts),
        "valid": fitted.valid_loss,
        "steps": fitted.steps,
        "rows": sum(table.num_rows for table in tables),
        "overrun": max(table.overrun for table in tables),
        "ticks": fitted.traits[sides[0]].ticks,
        "table": sum(memory.table for memory in memories),
        "index": sum(memory.index for memory in memories),
        "training": sum(fitted.training_bytes[side] for side in sides),
        "seconds": seconds,
    }
