"""One measure for all ways to predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.evaluation.accuracy import Accuracy
from celrec.evaluation.measuring import measure
from celrec.evaluation.metrics import area_under_curve, log_loss, mean_squared_error
from celrec.evaluation.ranking import Ranking
from celrec.evaluation.relevance import relevant_from
from celrec.reporting.figures import Figures
from celrec.reporting.frequency import Frequency
from celrec.reporting.run_data import RunData
from celrec.training.model import Model
from celrec.training.negatives import Negatives
from celrec.training.plan import Plan
from celrec.training.seen_file import seen_in

Recommend: TypeAlias = Callable[
    [Model, NDArray[np.int64], NDArray[np.int64], int, SeenItems], NDArray[np.int32]
]
"""The best items of a model, given the interactions of each item, users, how many items, and what
users have seen: a row for each user, best first, −1 where there are fewer."""
BEST = 10
"""How many items are recommended."""
MOST_USERS = 10_000
"""So many users are asked for, at most."""


class Yardstick:
    """Measures predictions for the test data of a run, and lists of recommended items.

    All that it is given is judged on the same rows, the same users and the same items.
    """

    def __init__(self, plan: Plan, data: RunData) -> None:
        self._plan, self._data = plan, data
        self.learned, self.test = data.learned, data.test
        self.events = self.test
        """The rows to predict: where the log tells only what happened, one more beside each."""
        if plan.only_positive:
            self.events = Negatives(self.test).beside(self.test, plan.seed)
        squared = plan.loss == "squared-error" and not plan.only_positive
        self.metric = "mse" if squared else "auc"
        """What is told by frequency, and first of all."""
        self.binary = bool(np.isin(self.events.target, (0, 1)).all()) and len(self.events) > 0
        self.items = Frequency.of(self.learned.item_counts, self.events.item)
        self.users = Frequency.of(self.learned.user_counts, self.events.user)
        self.seen = seen_in(self.learned)
        every = np.unique(self.test.user[self.test.user >= 0]).astype(np.int64)
        # Evenly spaced, so that it does not depend on chance.
        places = np.linspace(0, len(every) - 1, min(len(every), MOST_USERS)).astype(np.int64)
        self.asked = every[places]
        """The users that items are recommended to."""
        self.liked_from = relevant_from(plan, self.test, self.mean)

    @property
    def mean(self) -> float:
        """Of all targets that were learned."""
        return float(np.mean(self.learned.target, dtype=np.float64)) if len(self.learned) else 0.0

    def of_model(self, model: Model, recommend: Recommend) -> Figures:
        """The figures of a trained model."""
        counts = self.learned.item_counts
        lists = recommend(model, counts, self.asked, BEST, self.seen)
        found = self.of_predictions(np.asarray(model.predict(self.events)), lists)
        # As training told it; with two tasks there is more in it.
        return replace(found, test=found.test | measure(model, self._plan, self.test, counts))

    def of_predictions(self, predicted: ArrayLike, lists: ArrayLike | None) -> Figures:
        """The figures of predictions for `events`, and of items for the users `asked`."""
        values = np.asarray(predicted, np.float64)
        counts = self.learned.item_counts
        test: dict[str, float | None] = asdict(Accuracy.of(values, self.events, counts))
        if self._plan.only_positive:
            test |= dict.fromkeys(("mse", "mse_cold", "mse_warm"))
        elif self.binary and ((values >= 0) & (values <= 1)).all():
            test["log_loss"] = log_loss(values, self.events.target)
        return Figures(
            test=test,
            ranking=None if lists is None else self._ranking(lists),
            by_items=self.items.each(lambda rows: self._of_rows(values, self.events, rows)),
            by_users=self.users.each(lambda rows: self._of_rows(values, self.events, rows)),
        )

    def _of_rows(
        self, predicted: NDArray[np.float64], events: Interactions, rows: NDArray[np.bool_]
    ) -> float | None:
        target = events.target[rows]
        if self.metric == "mse":
            return mean_squared_error(predicted[rows], target)
        if not self.binary or len(np.unique(target)) < 2:
            return None
        return area_under_curve(predicted[rows], target)

    def _ranking(self, lists: ArrayLike) -> dict[str, Any]:
        found = Ranking.by_slice(
            lists,
            self.asked,
            self.test,
            self.learned.item_counts,
            relevant_from=self.liked_from,
            seen=self.seen,
        )
        return asdict(found["all"]) | {"ndcg_cold": found["cold"].ndcg}
