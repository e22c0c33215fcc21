"""What a method promises about time, memory and ids that come later."""

from __future__ import annotations

from typing import NamedTuple


class Traits(NamedTuple):
    """The three ticks of the paper's tables, as far as they are true of what is built here."""

    low_time: bool
    """The work of training for a lookup does not grow with the number of rows."""
    low_memory: bool
    """What is held while training is a small part of a full table, whenever few rows are asked
    for and rows are long."""
    incremental: bool
    """Ids that come later can be learned without beginning anew: see `Embedding.grow`."""

    @property
    def ticks(self) -> str:
        """As the paper has them: LTC, LMC, SIT.

        >>> Traits(True, True, False).ticks
        '✓✓✗'
        """
        return "".join("✓" if held else "✗" for held in self)
