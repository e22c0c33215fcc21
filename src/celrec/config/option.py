"""What an option is: name, type, default, range, help, and where it is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celrec.errors import CelrecError


class Range(NamedTuple):
    """The values that a number may have."""

    rule: str
    """What follows "must" in a message."""
    holds: Callable[[Any], bool]


POSITIVE = Range("be positive", lambda value: 0 < value < math.inf)
NOT_NEGATIVE = Range("not be negative", lambda value: value >= 0)
AT_LEAST_ONE = Range("be at least 1", lambda value: value >= 1)
SEED = Range("lie in 0 … 2⁶³ − 1", lambda value: 0 <= value < 2**63)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the library and of the command line."""

    name: str
    """The keyword argument; with hyphens, the option of the command line."""
    type: Any
    """`str`, `int`, `float`, `bool` or `list[str]`."""
    default: Any
    help: str
    places: Mapping[str, Any]
    """The default in each command and in `Recommender`; no entry: it is not an argument there."""
    choices: Callable[[], Iterable[str]] | None = None
    """The values there are, from the registry that has them; None: any."""
    range: Range | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    """What one command adds to the help."""
    flag: str | None = None
    """The option of the command line, if it takes no value."""
    former_names: tuple[str, ...] = ()
    """Names that commands and recorded settings had for it in earlier versions."""

    @property
    def switch(self) -> str:
        """The option of the command line.

        >>> Option('id_column', list[str], [], 'A further column.', {}).switch
        '--id-column'
        """
        return self.flag or f"--{self.name.replace('_', '-')}"

    def help_in(self, place: str) -> str:
        """The help of a command."""
        return " ".join(filter(None, (self.help, self.details.get(place))))

    def check(
        self,
        value: Any,
        label: str | None = None,
        choices: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Complain about a value out of the range or the choices, by the name in `label`."""
        label, choices = label or self.name, choices or self.choices
        if value is None:
            return
        if choices is not None and value not in (names := list(choices())):
            raise CelrecError(f"{label} must be one of {', '.join(names)}, not {value!r}")
        if self.range is not None and not self.range.holds(value):
            raise CelrecError(f"{label} must {self.range.rule}, not {value}")
