"""What a trained recommender reaches on data that it has not seen."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.evaluation.accuracy import Accuracy
from celrec.evaluation.metrics import area_under_curve
from celrec.training.id_model import IdModel
from celrec.training.model import Model
from celrec.training.negatives import Negatives
from celrec.training.plan import Plan


def measure(
    model: Model, plan: Plan, log: Interactions, item_counts: NDArray[np.int64]
) -> dict[str, float | None]:
    """The `Accuracy`, as far as it means something for what the plan asks for.

    Trained on what happened only, each row is compared with one more, of an item drawn at
    random that the user has not in `log`: AUC tells how often the right one wins, and there is
    no squared error. With two tasks, `conversion_auc` is that of the conversions.
    """
    if plan.only_positive:
        log = Negatives(log).beside(log, plan.seed)
    found: dict[str, float | None] = asdict(Accuracy.of(model.predict(log), log, item_counts))
    if plan.only_positive:
        found |= dict.fromkeys(("mse", "mse_cold", "mse_warm"))
    if plan.model == "mmoe" and plan.positive is not None and isinstance(model, IdModel):
        converted = log.target >= plan.positive
        both = converted.any() and not converted.all()
        outputs = model.outputs(log)[..., 1]
        found["conversion_auc"] = area_under_curve(outputs, converted) if both else None
    return found
