"""Pictures, put together from elements whose words are always escaped."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


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
