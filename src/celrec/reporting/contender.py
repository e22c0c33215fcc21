"""The run and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from celrec.reporting.everybody import item_means, same_for_all
from celrec.reporting.figures import Figures
from celrec.reporting.run_data import RunData
from celrec.reporting.yardstick import BEST, Yardstick
from celrec.training.bias_model import BiasModel
from celrec.training.plan import Plan

RUN, REFERENCE, BIASES, MEANS = "run", "full", "biases", "means"
"""What the kinds are called, and how pictures tell them apart."""
_STRENGTH = 5.0  # of biases, where no validation data choose it


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to predict, what it is called, and what it comes to."""

    kind: str
    name: str
    hint: str
    """What it does, in a few words."""
    figures: Figures


def baselines(plan: Plan, data: RunData, yardstick: Yardstick) -> Iterator[Contender]:
    """What a recommender has to beat.

    Where the log tells only what happened there are no targets to take means of: then
    popularity is all there is.
    """
    counts = yardstick.learned.item_counts
    popular = same_for_all(counts, yardstick.asked, BEST, yardstick.seen)
    if plan.only_positive:
        scores = np.append(counts, 0)[yardstick.events.item]  # the last serves unseen items
        figures = yardstick.of_predictions(scores, popular)
        yield Contender(MEANS, "Popularity", "what most users took", figures)
        return
    figures = yardstick.of_predictions(item_means(data.learned, yardstick.events), popular)
    hint = "predicts an item’s mean target, recommends what most users took"
    yield Contender(MEANS, "Item means, popularity", hint, figures)
    strength = _STRENGTH
    if len(data.split.valid):
        strength = BiasModel.tuned(data.split.train, data.split.valid).strength
    biases = BiasModel.fit(data.learned, strength)
    lists = same_for_all(biases.item_bias, yardstick.asked, BEST, yardstick.seen)
    figures = yardstick.of_predictions(biases.predict(yardstick.events), lists)
    hint = "a mean, a number for each user and one for each item"
    yield Contender(BIASES, "Biases", hint, figures)
