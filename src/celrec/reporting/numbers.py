"""Numbers as text, and values as JSON inside of a page."""

from __future__ import annotations

import json
import math

from markupsafe import Markup

_UNITS = ("B", "kB", "MB", "GB", "TB")


def whole(number: float) -> str:
    """An integer with separators.

    >>> whole(1682)
    '1,682'
    """
    return f"{number:,.0f}"


def figure(number: float | None, digits: int = 4) -> str:
    """A number with up to `digits` decimals, fewer for large numbers; a dash for None.

    >>> figure(0.83914), figure(12345.678), figure(None)
    ('0.8391', '12,346', '–')
    """
    if number is None or not math.isfinite(number):
        return "–"
    before = len(str(int(abs(number))))
    return f"{number:,.{max(digits + 1 - before, 0)}f}"


def size(count: float) -> str:
    """Bytes in the largest unit with a number of at least 1.

    >>> size(312), size(430592), size(12_000_000)
    ('312 B', '431 kB', '12.0 MB')
    """
    power = 0
    while power + 1 < len(_UNITS) and count >= 999.5:
        count, power = count / 1000, power + 1
    digits = 0 if not power or count >= 99.95 else 1
    return f"{count:,.{digits}f} {_UNITS[power]}"


def times(ratio: float) -> str:
    """A ratio.

    >>> times(48.31), times(1.52), times(1234.5)
    ('48×', '1.5×', '1,234×')
    """
    return f"{ratio:,.{0 if ratio >= 9.95 else 1}f}×"


def change(value: float, base: float) -> str:
    """The relative change from `base` in per cent, with its sign.

    >>> change(0.84, 0.80), change(0.79, 0.80)
    ('+5.0 %', '−1.2 %')
    """
    per_cent = 100 * (value / base - 1)
    shown = f"{abs(per_cent):.1f} %"
    if float(shown[:-2]) == 0:
        return "±0.0 %"
    return f"{'−' if per_cent < 0 else '+'}{shown}"


def page_json(value: object) -> Markup:
    r"""JSON that is safe inside of an HTML page.

    >>> print(page_json({"</script>": "&"}))
    {"\u003c/script\u003e":"\u0026"}
    """
    words = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        words = words.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(words)  # noqa: S704  (no character is left that could end it)
