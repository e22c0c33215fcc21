"""The run and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from celrec.config.plan import Plan
from celrec.recommender.bias_model import BiasModel
from celrec.reporting.drawing import Axis, Sheet, clipped, element, picture
from celrec.reporting.evaluator import BEST, Evaluator, Figures, item_means, same_for_all
from celrec.reporting.numbers import figure
from celrec.reporting.run_data import RunData

RUN, REFERENCE, BIASES, MEANS = "run", "full", "biases", "means"
"""What the kinds are called, and how pictures tell them apart."""
_STRENGTH = 5.0  # of biases, where no validation data choose it


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """A way to predict, what it is called, and what it comes to."""

    kind: str
    name: str
    hint: str
    """What it does, in a few words."""
    figures: Figures


def baselines(plan: Plan, data: RunData, evaluator: Evaluator) -> Iterator[ComparedModel]:
    """What a recommender has to beat.

    Where the log tells only what happened there are no targets to take means of: then
    popularity is all there is.
    """
    counts = evaluator.learned.item_counts
    popular = same_for_all(counts, evaluator.asked, BEST, evaluator.seen)
    if plan.only_positive:
        scores = np.append(counts, 0)[evaluator.events.item]  # the last serves unseen items
        figures = evaluator.of_predictions(scores, popular)
        yield ComparedModel(MEANS, "Popularity", "what most users took", figures)
        return
    figures = evaluator.of_predictions(item_means(data.learned, evaluator.events), popular)
    hint = "predicts an item’s mean target, recommends what most users took"
    yield ComparedModel(MEANS, "Item means, popularity", hint, figures)
    strength = _STRENGTH
    if len(data.split.valid):
        strength = BiasModel.tuned(data.split.train, data.split.valid).strength
    biases = BiasModel.fit(data.learned, strength)
    lists = same_for_all(biases.item_bias, evaluator.asked, BEST, evaluator.seen)
    figures = evaluator.of_predictions(biases.predict(evaluator.events), lists)
    hint = "a mean, a number for each user and one for each item"
    yield ComparedModel(BIASES, "Biases", hint, figures)


_ROW = 34.0


def comparison_picture(metric: str, better: str, found: Sequence[tuple[str, str, float]]) -> Markup:
    """A dot for each kind, name and value; `better` says which end is good."""
    told = f"{metric}: " + ", ".join(f"{name} {figure(value)}" for _, name, value in found)

    def draw(sheet: Sheet) -> tuple[float, Iterable[Markup]]:
        left = 136.0 if sheet.narrow else 210.0
        right = sheet.right - 30
        own = next((value for kind, _, value in found if kind == RUN), found[0][2])
        along = Axis.over(
            [value for *_, value in found], left, right, most=3 if sheet.narrow else 6
        )
        bottom = 8 + _ROW * len(found)
        parts = []
        for tick in along.ticks:
            place = along.at(tick)
            parts.append(element("line", x1=place, x2=place, y1=4, y2=bottom, class_="rule"))
            label = along.label(tick)
            parts.append(element("text", label, x=place, y=bottom + 16, class_="tick middle"))
        place = along.at(own)
        parts.append(element("line", x1=place, x2=place, y1=4, y2=bottom, class_="own"))
        for number, (kind, name, value) in enumerate(found):
            height, place = 8 + (number + 0.5) * _ROW, along.at(value)
            strong = " strong" if kind == RUN else ""
            shown = clipped(name, sheet.letters(left - 14, 14))
            parts += [
                element("text", shown, x=left - 14, y=height + 4, class_=f"name end{strong}"),
                element(
                    "line", x1=along.at(own), x2=place, y1=height, y2=height, class_=f"stem {kind}"
                ),
                element("circle", cx=place, cy=height, r=6.5, class_=kind),
            ]
            # Beyond the dot, seen from the run, unless there is no room.
            inside = (value < own and place > left + 46) or place > right - 24
            parts.append(
                element(
                    "text",
                    figure(value),
                    x=place + (-13 if inside else 13),
                    y=height + 4,
                    class_=f"value{strong}{' end halo' if inside else ' halo'}",
                )
            )
        middle = (left + right) / 2
        name = f"{metric}, {better}"
        parts.append(element("text", name, x=middle, y=bottom + 36, class_="label middle"))
        return bottom + 44, parts

    return picture(told, draw)
