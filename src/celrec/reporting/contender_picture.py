"""The run and its rivals on one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from celrec.reporting.axis import Axis
from celrec.reporting.contender import RUN
from celrec.reporting.picture import Sheet, clipped, picture
from celrec.reporting.svg import element
from celrec.reporting.written_numbers import figure

_ROW = 34.0


def contender_picture(metric: str, better: str, found: Sequence[tuple[str, str, float]]) -> Markup:
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
