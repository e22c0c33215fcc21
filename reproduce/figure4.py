"""Figure 4: the error against the compression ratio, on dense and sparse data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celrec.config.plan import Plan
from reproduce.drawing import draw_means, drawing
from reproduce.fold_mean import FoldMean
from reproduce.report import ResultTable
from reproduce.trial import Trial
from reproduce.trial_figure import Found, TrialFigure
from reproduce.trial_table import Entry

_VARIANTS = ("dense", "original", "sparse")
_RATIOS = (0.5, 1, 2, 5, 10)
_TUNED_AT = 2
_CEL, _PERSONAL = "CEL", "CEL, personalised"


class Figure4(TrialFigure):
    """A panel for each variant of the data."""

    def draw(self, found: Found, folder: Path) -> list[str]:
        """Lines over ratios, with and without personalisation."""
        with drawing(folder, self.name, 9, 3.8) as figure:
            panels = figure.subplots(1, len(_VARIANTS))
            for axes, variant in zip(panels, _VARIANTS, strict=True):
                for number, kind in enumerate((_CEL, _PERSONAL)):
                    points = {
                        _ratio(column): FoldMean.of(one["test"]["mse"] for one in folds.values())
                        for (row, column), folds in found.items()
                        if row == _row(variant, kind)
                    }
                    draw_means(axes, points, kind, number)
                ticks = sorted({_ratio(column) for _, column in found})
                axes.set_xscale("log")
                axes.set_xticks(ticks, [f"{ratio:g}" for ratio in ticks])
                axes.minorticks_off()
                axes.set_title(variant)
                axes.set_xlabel("compression ratio [%]")
            panels[0].set_ylabel("test MSE")
            lines = {
                str(line.get_label()): line for axes in panels for line in axes.get_lines()
            }  # a panel may be without some, or all
            figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=2)
        return [f"{self.name}.png"]

    def more_tables(self, found: Found) -> list[ResultTable]:
        """What personalisation changes, fold by fold."""
        columns = list(dict.fromkeys(column for row, column in found if row.endswith(_PERSONAL)))
        rows = []
        for variant in _VARIANTS:
            rows.append([variant])
            for column in columns:
                before = found[_row(variant, _CEL), column]
                after = found[_row(variant, _PERSONAL), column]
                change = [
                    one["test"]["mse"] - before[fold]["test"]["mse"]
                    for fold, one in after.items()
                    if fold in before
                ]
                rows[-1].append(FoldMean.of(change).told(sign="+"))
        caption = "What personalisation changes in the test MSE, over the same folds:"
        return [ResultTable(["", *columns], rows, caption)]


def _row(variant: str, kind: str) -> str:
    return f"{variant}: {kind}"


def _ratio(column: str) -> float:
    return float(column.removesuffix(" %"))


def _entries(data: str, ratios: Sequence[float]) -> list[Entry]:
    entries = []
    for variant in _VARIANTS:
        tuned = make_trial(data, variant, _TUNED_AT)
        for kind, personalise in ((_CEL, "none"), (_PERSONAL, "all")):
            for ratio in ratios:
                if ratio == 100 and kind == _PERSONAL:
                    continue  # every item has a row to itself already
                trial = make_trial(data, variant, ratio, personalise)
                entries.append(Entry(_row(variant, kind), f"{ratio:g} %", trial, tuned=tuned))
    return entries


def make_trial(data: str, variant: str, ratio: float, personalise: str = "none") -> Trial:
    """One that has all its clusters: it is judged only when they are there."""
    plan = Plan(compression=f"{ratio:g}%", personalise=personalise)
    return Trial(data, plan, variant=variant, change={"schedule.validate_growing": False})


EXPERIMENTS = {
    "figure4": Figure4(
        "figure4",
        "Figure 4: test MSE against the compression ratio, MovieLens-1m, NMF",
        _entries("ml-1m", (*_RATIOS, 100)),
        _entries("ml-100k", (0.5, 2, 5)),
        notes=(
            "Dense: of users and items that both have more than 100 ratings. Sparse: without half "
            "of each user's ratings. Ratios are of the items that have ratings there. 100 %: "
            "clusters are split until each item has its own.",
            "The paper: more clusters are better on dense and original data, 2 % is best on "
            "sparse data; personalised is better on dense and original data, best from 1 to 2 % "
            "on the original, and worse on sparse data.",
            "Elsewhere validation data may choose a state of training in which there are fewer "
            "clusters than were allowed. Here a model is judged only when all of them are there.",
            "Penalties are chosen at 2 % for each variant, without personalisation.",
        ),
    ),
}
