"""The picture of error against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celrec.evaluation.comparison_plot import picture_kind
from celrec.evaluation.frontier import FULL_FIT, OURS, FrontierRow
from celrec.runtime.atomic import atomic_file

LABELS = {
    OURS: "celrec",
    "kmeans": "k-means",
    "rq": "residual k-means (RQ)",
    "pq": "product quantisation (PQ)",
    "int8": "8-bit rows",
    "int4": "4-bit rows",
    "full": "float rows of lower rank",
}
_COLOURS = ("tab:blue", "tab:green", "tab:purple", "tab:orange", "tab:red", "tab:brown")
_MARKERS = "svD^<>"


def draw_frontier(rows: Sequence[FrontierRow], path: Path, title: str) -> None:
    """Write a picture of test error against bytes an id; bars are standard errors over folds.

    A curve goes on with the lowest error that fewer bytes have reached.
    """
    kind = picture_kind(path)
    # Slow to import, and of no use to anybody else.
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.add_subplot()
    rivals = [name for name in LABELS if name != OURS]
    for name in (*rivals, OURS):
        mine = sorted((row for row in rows if row.method == name), key=lambda row: row.per_id)
        if not mine:
            continue
        ours = name == OURS
        number = 0 if ours else rivals.index(name)
        axes.errorbar(
            [row.per_id for row in mine],
            [row.mean for row in mine],
            yerr=[row.error or 0.0 for row in mine],
            label=LABELS[name],
            color="black" if ours else _COLOURS[number],
            marker="o" if ours else _MARKERS[number],
            markersize=6 if ours else 4,
            linewidth=2.5 if ours else 1.2,
            zorder=3 if ours else 2,
        )
    whole = [row for row in rows if row.method == FULL_FIT]
    if whole:
        label = f"full tables, {whole[0].per_id:,.0f} bytes an id"
        axes.axhline(whole[0].mean, color="gray", linestyle=":", label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    sizes = (1, 2, 4, 8, 16, 32, 64)
    axes.set_xticks([size for size in sizes if size <= max(row.per_id for row in rows)])
    if whole:
        axes.set_xlim(right=1.2 * max(row.per_id for row in rows if row.method != FULL_FIT))
    axes.set_xlabel("bytes an id, of users and items: rows, codes and biases")
    axes.set_ylabel("test MSE")
    axes.set_title(title)
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150)
