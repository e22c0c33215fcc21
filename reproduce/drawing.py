"""How figures are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celrec.runtime.atomic import atomic_file
from reproduce.fold_mean import FoldMean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""That those who are colour-blind can tell apart, too (Okabe and Ito)."""
MARKERS = "osD^vPX"
_STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.markersize": 5,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "celrec",  # names inside the file are random otherwise
}
# No date and no version, so that the same numbers make the same file.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}


@contextmanager
def drawing(folder: Path, name: str, width: float, height: float) -> Iterator[Figure]:
    """An empty figure, so many inches large; drawn upon, it is NAME.png and NAME.svg.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> with drawing(folder, "line", 4, 3) as figure:
    ...     _ = figure.add_subplot().plot([1, 2], [3, 4])
    >>> sorted(path.name for path in folder.iterdir())
    ['line.png', 'line.svg']
    """
    # Slow to import, and of no use to those who train.
    from matplotlib import style
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for kind, metadata in _METADATA.items():
            with atomic_file(folder / f"{name}.{kind}") as temporary:
                figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)


def draw_means(axes: Axes, points: Mapping[float, FoldMean], label: str, number: int) -> None:
    """A line through means, with a band of one standard error; `number` chooses the colour."""
    points = {x: points[x] for x in sorted(points) if points[x].folds}
    if not points:
        return
    colour = COLOURS[number % len(COLOURS)]
    means = [point.mean for point in points.values()]
    marker = MARKERS[number % len(MARKERS)]
    axes.plot(list(points), means, label=label, color=colour, marker=marker)
    if any(point.error for point in points.values()):
        low = [point.mean - point.error for point in points.values()]
        high = [point.mean + point.error for point in points.values()]
        axes.fill_between(list(points), low, high, color=colour, alpha=0.2, linewidth=0)
