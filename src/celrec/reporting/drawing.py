"""SVG pictures: elements, axes, and sheets for wide and narrow screens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps numbers from `low` to `high` to coordinates from `start` to `end`, with round ticks.

    >>> axis = Axis.over([0.83, 1.12], 100, 0)
    >>> axis.ticks
    (0.8, 0.9, 1.0, 1.1, 1.2)
    >>> axis.at(0.8), axis.at(1.2), axis.label(0.9)
    (100.0, 0.0, '0.9')
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        start: float,
        end: float,
        *,
        most: int = 5,
        tight: bool = False,
    ) -> Axis:
        """An axis for all finite values, with about `most` ticks or fewer.

        It begins and ends at ticks, or with `tight` at the values themselves.
        """
        finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if high - low < 1e-9 * max(abs(high), 1e-9):
            low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
        step = _round_step((high - low) / most)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        digits = max(0, 2 - math.floor(math.log10(step)))
        ticks = tuple(round(number * step, digits) for number in range(first, last + 1))
        if tight:
            ticks = tuple(tick for tick in ticks if low <= tick <= high)
            return cls(low, high, start, end, ticks)
        return cls(ticks[0], ticks[-1], start, end, ticks)

    def at(self, value: float) -> float:
        """The coordinate of a number."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def label(self, tick: float) -> str:
        """The text of a tick, with as many digits as all ticks need."""
        if all(float(one).is_integer() for one in self.ticks):
            return f"{tick:,.0f}"
        digits = max(len(f"{one:.6g}".partition(".")[2]) for one in self.ticks)
        return f"{tick:,.{digits}f}"


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element of an SVG picture; an attribute that is None is left out.

    Underscores in attribute names become hyphens; one at the end is dropped.
    Numbers are rounded to tenths, which is finer than a screen.

    >>> element("text", "a < b", x=1.25, class_="label")
    Markup('<text x="1.2" class="label">a &lt; b</text>')
    """
    words = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _value(value))
        for key, value in attributes.items()
        if value is not None
    ]
    return Markup("<{0}{1}>{2}</{0}>").format(
        Markup(name),  # noqa: S704  (a name of ours)
        Markup("").join(words),
        Markup("").join(map(escape, children)),
    )


def path(points: Iterable[tuple[float, float] | None]) -> str:
    """The path of a line through points, interrupted at None.

    >>> path([(0, 1), (2, 3), None, (4, 5)])
    'M0 1L2 3M4 5'
    """
    words, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        words.append(f"{pen}{_value(point[0])} {_value(point[1])}")
        pen = "L"
    return "".join(words)


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


WIDE, NARROW = 860.0, 340.0
_LETTER = 0.53  # the width of one, on average, in the height of a line


@dataclass(frozen=True, slots=True)
class Sheet:
    """The area to draw on."""

    width: float
    left: float
    right: float

    @property
    def narrow(self) -> bool:
        """Whether it is for a narrow screen."""
        return self.width == NARROW

    @staticmethod
    def letters(width: float, size: float = 12) -> int:
        """The number of letters of a size that fit."""
        return max(int(width / (_LETTER * size)), 1)

    @staticmethod
    def length(words: str, size: float = 12) -> float:
        """The approximate width of a text."""
        return len(words) * _LETTER * size * 1.08


def picture(
    label: str, draw: Callable[[Sheet], tuple[float, Iterable[str]]], left: float = 52
) -> Markup:
    """A wide and a narrow SVG, of which the page shows one; `draw` gives the height and elements.

    `label` describes the picture in words.
    """
    drawn = []
    for name, width in (("wide", WIDE), ("narrow", NARROW)):
        sheet = Sheet(width, left if name == "wide" else min(left, 44), width - 14)
        height, parts = draw(sheet)
        drawn.append(
            element(
                "svg",
                *parts,
                class_=f"picture {name}",
                viewBox=f"0 0 {width:g} {height:g}",
                role="img",
                aria_label=label,
            )
        )
    return Markup("").join(drawn)


def rules(sheet: Sheet, axis: Axis) -> Iterable[Markup]:
    """Horizontal lines at the ticks of a vertical axis, with their labels."""
    for tick in axis.ticks:
        height = axis.at(tick)
        yield element("line", x1=sheet.left, x2=sheet.right, y1=height, y2=height, class_="rule")
        yield element("text", axis.label(tick), x=sheet.left - 8, y=height + 4, class_="tick end")


def clipped(words: str, letters: int) -> str:
    """The text, cut to at most `letters` characters.

    >>> clipped("Star Wars (1977)", 9)
    'Star War…'
    """
    return words if len(words) <= letters else f"{words[: max(letters - 1, 1)].rstrip()}…"
