"""How long an id may be silent."""

from __future__ import annotations

import re
from dataclasses import dataclass

from celrec.data.time_unit import ticks_per_second
from celrec.errors import CelrecError

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class Silence:
    """So many events of the stream, or so much time by the timestamps of its events.

    Those are numbers of which `ticks_per_second` tells the unit. Dates are microseconds since
    1970, and are taken for such from March 1973 on.

    >>> Silence.parse("1000000"), str(Silence.parse("90d"))
    (Silence(length=1000000, unit=None), '90d')
    """

    length: int
    unit: str | None = None
    """`d`, `h`, `m` or `s`: days, hours, minutes, seconds; None: events."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.unit not in (None, *_SECONDS):
            raise _unclear(str(self))

    @classmethod
    def parse(cls, text: str) -> Silence:
        """From `1000000`, `90d`, `12h`, `30m` or `45s`."""
        found = re.fullmatch(r"([0-9]{1,18})([dhms]?)", text.strip())
        if found is None:
            raise _unclear(text)
        return cls(int(found[1]), found[2] or None)

    def __str__(self) -> str:
        return f"{self.length}{self.unit or ''}"

    def begin(self, now: int) -> int:
        """When a silence began that is as long by now, in timestamps or numbers of events.

        >>> Silence(2, "m").begin(1_600_000_000_000)  # in milliseconds
        1599999880000
        """
        if self.unit is None:
            return now - self.length
        return now - self.length * _SECONDS[self.unit] * ticks_per_second(now)


def _unclear(value: str) -> CelrecError:
    return CelrecError(
        "forget_after must be a number of events such as 1000000, or a time such as 90d, 12h, "
        f"30m or 45s, not {value!r}"
    )
