"""What training came to."""

from __future__ import annotations

from typing import Any

from celrec.data.split import Split
from celrec.evaluation.diagnose import diagnose
from celrec.evaluation.measuring import measure
from celrec.training.fit import Fit
from celrec.training.plan import Plan


def training_result(fitted: Fit, plan: Plan, split: Split, seconds: float) -> dict[str, Any]:
    """What a run folder notes of training, ready for JSON.

    Errors on test data, where there are any, and on validation data, rows and steps, bytes in
    serving and in training, seconds, why there are as many clusters as there are, and how good
    these are.
    """
    model, learned = fitted.model, split.train_and_valid()
    tables = model.whole_tables
    memory = {side: table.memory() for side, table in tables.items()}
    held = sum(sum(t.nbytes for t in table.state_dict().values()) for table in tables.values())
    return {
        "test": measure(model, plan, split.test, learned.item_counts),
        "valid": {"mse" if plan.loss == "squared-error" else "loss": fitted.valid_loss},
        "clusters": tables["items"].num_rows,
        "steps": fitted.steps,
        "bytes": {
            "table": memory["items"].table,
            "index": memory["items"].index,
            "other_side": memory["users"].total,
            "columns": {n: m.total for n, m in memory.items() if n not in ("items", "users")},
            "network": sum(t.nbytes for t in model.state_dict().values()) - held,
        },
        "training_bytes": fitted.training_bytes,
        "seconds": seconds,
        "growth": fitted.growth,
        "diagnostics": diagnose(model, learned) if plan.embedding == "cel" else None,
    }
