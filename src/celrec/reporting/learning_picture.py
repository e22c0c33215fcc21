"""The learning curves of a stage of training, and its description."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from markupsafe import Markup

from celrec.offline.solver import ValidationRecord
from celrec.reporting.drawing import Axis, Sheet, element, path, picture, rules
from celrec.reporting.wording import compressed_sides, figure, whole
from celrec.runs.run_folder import Run

Records: TypeAlias = Sequence[ValidationRecord]
_LOSS, _STRIP, _GAP = 220.0, 46.0, 32.0  # heights
_FAR = 8.0  # losses further above the lowest one than this multiple of the median are not shown
_MANY_DOTS, _MANY_SPLITS = 60, 24  # more would be unreadable


def best_of(records: Records) -> ValidationRecord | None:
    """The record with the lowest validation loss; None without validation data."""
    evaluated = [one for one in records if math.isfinite(one.valid_loss)]
    return min(evaluated, key=lambda one: one.valid_loss) if evaluated else None


def clusters_of(record: ValidationRecord, sides: Sequence[str]) -> int:
    """The number of clusters of these tables."""
    rows = {"items": record.clusters, "users": record.user_clusters}
    return sum(rows.get(side, 0) for side in sides)


def marked_splits(records: Records, sides: Sequence[str]) -> list[ValidationRecord]:
    """The records after splits, if they are few enough for a line each."""
    splits = [
        after
        for before, after in pairwise(records)
        if clusters_of(after, sides) > clusters_of(before, sides)
    ]
    return splits if len(splits) <= _MANY_SPLITS else []


def learning_picture(records: Records, sides: Sequence[str]) -> Markup:
    """Losses by step, and below them the number of clusters and of reassigned ids.

    `sides` are the tables whose clusters split.
    """
    best, last = best_of(records), records[-1]
    label = f"Losses over {last.step} steps. Training loss {figure(last.train_loss)} in the end"
    if best is not None:
        label += f"; lowest validation loss {figure(best.valid_loss)} at step {best.step}"

    def draw(sheet: Sheet) -> tuple[float, Iterable[Markup]]:
        across = _steps(records, sheet)
        parts = [*_losses(records, sides, best, sheet, across)]
        height = 14 + _LOSS
        if sides:
            height += _GAP
            parts += _growth(records, sides, sheet, across, height)
            height += _STRIP
        if any(one.moved for one in records):
            height += _GAP
            parts += _moves(records, sheet, across, height)
            height += _STRIP
        if best is not None:
            place = across.at(best.step)
            parts.insert(0, element("line", x1=place, x2=place, y1=14, y2=height, class_="chosen"))
        for tick in across.ticks:
            place = across.at(tick)
            parts.append(element("text", whole(tick), x=place, y=height + 18, class_="tick middle"))
        middle = (sheet.left + sheet.right) / 2
        parts.append(element("text", "step", x=middle, y=height + 36, class_="label middle"))
        return height + 44, parts

    return picture(label, draw)


def _steps(records: Records, sheet: Sheet) -> Axis:
    most = 5 if sheet.narrow else 10
    steps = [float(one.step) for one in records]
    axis = Axis.over([0.0, *steps], sheet.left, sheet.right, most=most, tight=True)
    whole_steps = tuple(tick for tick in axis.ticks if float(tick).is_integer())
    return Axis(axis.low, axis.high, axis.start, axis.end, whole_steps)


def _losses(
    records: Records,
    sides: Sequence[str],
    best: ValidationRecord | None,
    sheet: Sheet,
    across: Axis,
) -> Iterable[Markup]:
    curves = {
        "train": [one.train_loss for one in records],
        "valid": [one.valid_loss for one in records],
    }
    upright = Axis.over(_near([*curves["train"], *curves["valid"]]), 14 + _LOSS, 14)
    yield from rules(sheet, upright)
    for one in marked_splits(records, sides):
        place = across.at(one.step)
        yield element("line", x1=place, x2=place, y1=14, y2=14 + _LOSS, class_="split")
    inside = []
    for kind, values in curves.items():
        points = [
            (across.at(one.step) - sheet.left, upright.at(value) - 14)
            if math.isfinite(value)
            else None
            for one, value in zip(records, values, strict=True)
        ]
        inside.append(element("path", d=path(points), class_=f"curve {kind}"))
        radius, dot = (3.0, kind) if len(records) <= _MANY_DOTS else (4.0, "ghost")
        for one, value, point in zip(records, values, points, strict=True):
            if point is not None:
                title = element("title", f"step {whole(one.step)}: {kind} {figure(value)}")
                inside.append(
                    element("circle", title, cx=point[0], cy=point[1], r=radius, class_=dot)
                )
    # A nested SVG clips what is outside of it.
    yield element(
        "svg", *inside, x=sheet.left, y=14, width=sheet.right - sheet.left + 6, height=_LOSS + 4
    )
    if best is not None and upright.low <= best.valid_loss <= upright.high:
        place, height = across.at(best.step), upright.at(best.valid_loss)
        yield element("circle", cx=place, cy=height, r=5, class_="best")
        words = f"{figure(best.valid_loss)} at step {whole(best.step)}"
        words = words if sheet.narrow else f"lowest: {words}"
        left = place + 9 + sheet.length(words) > sheet.right
        yield element(
            "text",
            words,
            x=place + (-9 if left else 9),
            y=max(height - 10, 24),
            class_=f"note {'end' if left else ''}",
        )


def _growth(
    records: Records, sides: Sequence[str], sheet: Sheet, across: Axis, top: float
) -> Iterable[Markup]:
    counts = [clusters_of(one, sides) for one in records]
    upright = Axis.over([0, *counts], top + _STRIP, top, most=1, tight=True)
    points: list[tuple[float, float]] = [(sheet.left, upright.at(0))]
    for one, count in zip(records, counts, strict=True):
        place = across.at(one.step)
        points += [(place, points[-1][1]), (place, upright.at(count))]
    points.append((points[-1][0], upright.at(0)))
    yield from _strip(sheet, top, "clusters", max(counts))
    yield element("path", d=path(points) + "Z", class_="stairs")
    for one, count in zip(records, counts, strict=True):
        words = element("title", f"step {whole(one.step)}: {whole(count)} clusters")
        place = across.at(one.step)
        yield element("circle", words, cx=place, cy=upright.at(count), r=4, class_="ghost")


def _moves(records: Records, sheet: Sheet, across: Axis, top: float) -> Iterable[Markup]:
    most = max(one.moved for one in records)
    width = max(0.7 * (sheet.right - sheet.left) / len(records), 1)
    yield from _strip(sheet, top, "ids that moved", most)
    for one in records:
        if one.moved:
            height = max(_STRIP * one.moved / most, 1.5)
            words = element("title", f"step {whole(one.step)}: {whole(one.moved)} ids moved")
            yield element(
                "rect",
                words,
                x=max(across.at(one.step) - width, sheet.left),
                y=top + _STRIP - height,
                width=width,
                height=height,
                class_="moved",
            )


def _strip(sheet: Sheet, top: float, name: str, most: float) -> Iterable[Markup]:
    base = top + _STRIP
    yield element("line", x1=sheet.left, x2=sheet.right, y1=base, y2=base, class_="rule")
    yield element("text", name, x=sheet.left, y=top - 6, class_="label")
    yield element("text", whole(most), x=sheet.left - 8, y=top + 8, class_="tick end")
    yield element("text", "0", x=sheet.left - 8, y=base + 2, class_="tick end")


def _near(losses: Iterable[float]) -> list[float]:
    """The losses without the high ones of the first steps, which would flatten the others."""
    finite = sorted(loss for loss in losses if math.isfinite(loss))
    if not finite:
        return []
    limit = finite[0] + _FAR * (finite[len(finite) // 2] - finite[0])
    return [loss for loss in finite if loss <= limit] if limit > finite[0] else finite


_STAGES = {
    "choose": "Rows and clusters",
    "compress": "Compression",
    "personalise": "Rows of their own",
    "finish": "The network, on rows and clusters of a factorisation",
}


def stage_words(name: str, records: Records, run: Run) -> dict[str, Any]:
    """A stage for the page: a picture, its legend, and its numbers; words for compression."""
    plan = run.plan
    title, sides = _STAGES.get(name, name), []
    if name == "choose" and (plan.pretraining or plan).full_fit is not None:
        title = "The fit that is compressed"
    elif plan.clustered or plan.online:
        sides = compressed_sides(run)
    if not any(clusters_of(one, sides) for one in records):
        sides = []
    best = best_of(records)
    splits = bool(sides) and name == "choose"
    rows, before = [], None
    for one in records:
        count = clusters_of(one, sides)
        rows.append(
            {
                "step": one.step,
                "train": one.train_loss if math.isfinite(one.train_loss) else None,
                "valid": one.valid_loss if math.isfinite(one.valid_loss) else None,
                "clusters": count,
                "split": max(count - before, 0) if before is not None else 0,
                "moved": one.moved,
                "best": one is best,
            }
        )
        before = count
    legend = [("train", "training loss")]
    if best is not None:
        legend.append(("valid", "validation loss"))
    if splits and marked_splits(records, sides):
        legend.append(("split", "clusters were split"))
    if any(one.moved for one in records):
        legend.append(("moved", "ids that moved to another cluster"))
    return {
        "name": title,
        "words": _compression(records[-1], run) if name == "compress" else "",
        "picture": learning_picture(records, sides if splits else []),
        "legend": legend,
        "rows": rows,
        "splits": splits,
    }


def _compression(record: ValidationRecord, run: Run) -> str:
    """What the tables were compressed to, and the validation loss with them."""
    counts = {"items": record.clusters, "users": record.user_clusters}
    parts = [
        f"{whole(counts[side])} rows of {side}" for side in compressed_sides(run) if side in counts
    ]
    words = f"Its predictions are compressed to {' and '.join(parts) or 'the tables of this model'}"
    if run.plan.levels > 1:
        words += f" in {run.plan.levels} levels"
    if math.isfinite(record.valid_loss):
        words += f"; validation loss {figure(record.valid_loss)}"
    return f"{words}."
