"""The picture of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celrec.errors import CelrecError
from celrec.evaluation.comparison import CLUSTERED, FULL, ComparisonRow
from celrec.runtime.atomic import atomic_file
from celrec.runtime.extras import require_extra

_NAMES = {"mse": "test MSE", "auc": "test AUC"}
_KINDS = ("png", "svg", "pdf")


def picture_kind(path: Path) -> str:
    """The format that the file name asks for; an error if it cannot be drawn."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _KINDS:
        raise CelrecError(f"{path}: pictures end in {', '.join(_KINDS)}; name one of these")
    require_extra("pictures", "report", "matplotlib")
    return kind


def draw_comparison(standings: Sequence[ComparisonRow], path: Path, title: str) -> None:
    """Write a picture of the metric against the bytes that serve, CEL in front.

    Bars are standard errors over folds.
    """
    kind = picture_kind(path)
    # Slow to import, and of no use to anybody else.
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(one.embedding for one in standings))
    others = [name for name in names if name not in (*CLUSTERED, FULL)]
    palette = colormaps["tab20"].resampled(max(len(others), 2))
    colours = {name: palette(number) for number, name in enumerate(others)}
    markers = "osv^D<>Ph*"
    for number, name in enumerate(names):
        mine = sorted((s for s in standings if s.embedding == name), key=lambda s: s.serving)
        ahead = name in CLUSTERED
        axes.errorbar(
            [one.serving for one in mine],
            [one.mean for one in mine],
            yerr=[one.error or 0.0 for one in mine],
            label=name,
            color={"cel": "black", "cel-int8": "dimgray", FULL: "gray"}.get(
                name, colours.get(name)
            ),
            marker=markers[number % len(markers)],
            markersize=7 if ahead else 5,
            linewidth=2.5 if ahead else 1.2,
            linestyle=":" if name == FULL else "-",
            zorder=3 if ahead else 2,
        )
    axes.set_xscale("log")
    axes.set_xlabel("bytes that serve: table and index")
    axes.set_ylabel(_NAMES[standings[0].metric])
    axes.set_title(title)
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", frameon=False)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150)
