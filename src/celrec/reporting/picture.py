"""A picture for wide screens and one for narrow ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from celrec.reporting.axis import Axis
from celrec.reporting.svg import element

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
