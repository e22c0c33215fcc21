"""Pictures as SVG: elements, axes, a wide and a narrow sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers from `low` to `high` on a line from `start` to `end`, with round ones marked.

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
        """An axis that holds all finite values, with no more than about `most` marks.

        It begins and ends at marks, or with `tight` at the values themselves.
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
        """Where a number stands."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def label(self, tick: float) -> str:
        """A mark in words, with as many digits as all of them need."""
        if all(float(one).is_integer() for one in self.ticks):
            return f"{tick:,.0f}"
        digits = max(len(f"{one:.6g}".partition(".")[2]) for one in self.ticks)
        return f"{tick:,.{digits}f}"


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element of an SVG picture; an attribute that is None is left out.

    Underscores in the names of attributes stand for hyphens, and one at the end for nothing.
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
    """A line through points, broken where there is none.

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
    """The paper to draw on."""

    width: float
    left: float
    right: float

    @property
    def narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.width == NARROW

    @staticmethod
    def letters(width: float, size: float = 12) -> int:
        """How many letters of a size fit."""
        return max(int(width / (_LETTER * size)), 1)

    @staticmethod
    def length(words: str, size: float = 12) -> float:
        """About how much room words of a size take."""
        return len(words) * _LETTER * size * 1.08


def picture(
    told: str, draw: Callable[[Sheet], tuple[float, Iterable[str]]], left: float = 52
) -> Markup:
    """Both, of which the page shows one; `draw` gives the height and what there is.

    `told` says in words what can be seen.
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
                aria_label=told,
            )
        )
    return Markup("").join(drawn)


def rules(sheet: Sheet, axis: Axis) -> Iterable[Markup]:
    """Lines across the paper at the marks of an upright axis, with their numbers."""
    for tick in axis.ticks:
        height = axis.at(tick)
        yield element("line", x1=sheet.left, x2=sheet.right, y1=height, y2=height, class_="rule")
        yield element("text", axis.label(tick), x=sheet.left - 8, y=height + 4, class_="tick end")


def clipped(words: str, letters: int) -> str:
    """No longer than so many letters.

    >>> clipped("Star Wars (1977)", 9)
    'Star War…'
    """
    return words if len(words) <= letters else f"{words[: max(letters - 1, 1)].rstrip()}…"
