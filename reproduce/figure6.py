"""Figure 6: which cluster to split next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.cel.criteria import CRITERIA
from celrec.config.plan import Plan
from reproduce.drawing import COLOURS, MARKERS, drawing
from reproduce.fold_mean import FoldMean
from reproduce.report import ResultTable
from reproduce.trial import Trial
from reproduce.trial_figure import Found, TrialFigure
from reproduce.trial_table import Entry

SIZES = {
    "ml-100k": {"0.5 %": "8", "1 %": "17", "2 %": "34", "5 %": "84"},
    "ml-1m": {"0.5 %": "20", "1 %": "40", "2 %": "80", "5 %": "200"},
}
"""Rows at each ratio."""

COMPARED = tuple(name for name in CRITERIA if name != "gain")
"""The paper's criteria: the gain needs curvatures, which gradient descent does not compute."""


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """1 for the lowest; equal ones share the mean of their ranks.

    >>> average_ranks([0.3, 0.1, 0.3])
    array([2.5, 1. , 2.5])
    """
    given = np.asarray(values, np.float64)
    lower: NDArray[np.int64] = (given[:, None] > given).sum(1)
    equal: NDArray[np.int64] = (given[:, None] == given).sum(1)
    return lower + (equal + 1) / 2


class Figure6(TrialFigure):
    """A panel for each data set and model, and one for the ranks."""

    def draw(self, found: Found, folder: Path) -> list[str]:
        """Means side by side; bars are errors of what sets a criterion apart in a fold."""
        settings = list(dict.fromkeys(_setting(column) for _, column in found))
        with drawing(folder, self.name, 9, 6.5) as figure:
            panels = figure.subplots(2, 2)
            for axes, setting in zip(panels.flat, settings, strict=False):
                columns = [c for c in dict.fromkeys(c for _, c in found) if _setting(c) == setting]
                for number, criterion in enumerate(COMPARED):
                    places = np.arange(len(columns)) + 0.13 * (number - 2)
                    points = [FoldMean.of(_mse(found, criterion, c).values()) for c in columns]
                    axes.errorbar(
                        places,
                        [point.mean for point in points],
                        yerr=[_apart(found, criterion, c).error for c in columns],
                        label=criterion,
                        color=COLOURS[number],
                        marker=MARKERS[number],
                        linestyle="none",
                        capsize=2,
                    )
                axes.set_title(setting)
                axes.set_xticks(range(len(columns)), [c.rpartition(", ")[2] for c in columns])
                axes.set_xlabel("compression ratio")
                axes.set_ylabel("test MSE")
                axes.grid(visible=False, axis="x")
            for axes in list(panels.flat)[len(settings) : -1]:
                axes.set_axis_off()
            ranks = mean_ranks(found)
            axes = panels.flat[-1]
            axes.barh(list(COMPARED), [ranks.get(c, np.nan) for c in COMPARED], color=COLOURS[:5])
            axes.invert_yaxis()
            axes.set_xlim(1, len(COMPARED))
            axes.set_xticks(range(1, len(COMPARED) + 1))
            axes.set_xlabel("mean rank over all settings (1 is best)")
            axes.grid(visible=False, axis="y")
            handles, labels = panels.flat[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=len(COMPARED))
        return [f"{self.name}.png"]

    def more_tables(self, found: Found) -> list[ResultTable]:
        """The ranks."""
        ranks = mean_ranks(found)
        number = len(_complete(found))
        rows = [[c, f"{ranks[c]:.2f}" if c in ranks else "–"] for c in COMPARED]
        caption = (
            f"Mean rank over the {number} settings of which all criteria are known, 1 for the "
            "lowest mean test MSE over folds:"
        )
        return [ResultTable(("criterion", "mean rank"), rows, caption)]


def mean_ranks(found: Found) -> dict[str, float]:
    """The mean of each criterion's ranks, over columns of which all are known."""
    columns = _complete(found)
    if not columns:
        return {}
    ranks = [
        average_ranks([FoldMean.of(_mse(found, one, column).values()).mean for one in COMPARED])
        for column in columns
    ]
    return dict(zip(COMPARED, np.mean(ranks, axis=0).tolist(), strict=True))


def _complete(found: Found) -> list[str]:
    """Columns in which there are all criteria, on the same folds."""
    return [
        column
        for column in dict.fromkeys(column for _, column in found)
        if len({tuple(sorted(found[one, column])) for one in COMPARED}) == 1
        and all(found[one, column] for one in COMPARED)
    ]


def _mse(found: Found, criterion: str, column: str) -> Mapping[int, float]:
    return {fold: one["test"]["mse"] for fold, one in found[criterion, column].items()}


def _apart(found: Found, criterion: str, column: str) -> FoldMean:
    """How far a criterion is from the mean of all, over folds of which all are known."""
    every = {one: _mse(found, one, column) for one in COMPARED}
    folds = [fold for fold in every[criterion] if all(fold in one for one in every.values())]
    middle = {fold: np.mean([one[fold] for one in every.values()]) for fold in folds}
    return FoldMean.of(float(every[criterion][fold] - middle[fold]) for fold in folds)


def _setting(column: str) -> str:
    return column.rpartition(", ")[0]


def _entries(
    setting: str, data: str, plan: Plan, sizes: Mapping[str, str], folds: int = 5
) -> list[Entry]:
    return [
        Entry(
            criterion,
            f"{setting}, {ratio}",
            Trial(data, replace(plan, compression=size), change={"criterion": criterion}),
            folds=folds,
        )
        for ratio, size in sizes.items()
        for criterion in COMPARED
    ]


_NMF = Plan(preset="descent")
_DIN = Plan(model="din", preset="scratch")

EXPERIMENTS = {
    "figure6": Figure6(
        "figure6",
        "Figure 6: which cluster to split next, test MSE",
        [
            *_entries("ML-100k NMF", "ml-100k", _NMF, SIZES["ml-100k"]),
            *_entries("ML-1m NMF", "ml-1m", _NMF, SIZES["ml-1m"]),
            *_entries("ML-100k DIN", "ml-100k", _DIN, SIZES["ml-100k"], folds=1),
        ],
        _entries("ML-100k NMF", "ml-100k", _NMF, {"1 %": "17", "5 %": "84"}),
        reference="interactions",
        notes=(
            "The paper: all criteria do about equally well, and the mean loss worst.",
            "NMF is trained as in the paper, by gradient descent with one split every 10 steps "
            "(preset descent): the default splits many clusters at once, so that which comes "
            "first hardly matters.",
            "DIN is trained from nothing (preset scratch), one split every tenth of an epoch, or "
            "a twentieth of the clusters once there are forty, on the first fold only: as a rule "
            "it takes its clusters from a factorisation.",
            "Bars in the figure: standard error over folds of the difference to the mean of all "
            "criteria in the same fold.",
            "The mean loss is over the members of a cluster, as the paper has it, not over their "
            "interactions. Penalties are those of the presets.",
        ),
    ),
}
