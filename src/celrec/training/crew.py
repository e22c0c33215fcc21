"""Processes of which the first leads."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch

from celrec.clustering.ranks import Ranks

_LENGTHS = 16  # bytes
_FIRST = 1 << 16
"""Bytes that are sent at once, whatever is said: one message takes less time than two."""


class Word(NamedTuple):
    """What all are to do, and what they need for it."""

    what: str
    about: dict[str, Any]
    data: bytes


class Crew:
    """The first process says what is done next, and the others do it with it.

    Nothing is told where there is nobody else.

    >>> Crew(Ranks.alone()).tell("learn", data=b"...")
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def tell(self, what: str, about: dict[str, Any] | None = None, data: bytes = b"") -> None:
        """Say it to all others, who are waiting in `heard`; `about` must be fit for JSON."""
        if self.ranks.size == 1 or not self.ranks.first:
            return
        head = json.dumps([what, about or {}]).encode()
        lengths = np.array([len(head), len(data)]).tobytes()
        message = np.frombuffer(lengths + head + data, np.uint8)
        first = np.zeros(_FIRST, np.uint8)
        first[: len(message)] = message[:_FIRST]
        self.ranks.from_first(torch.from_numpy(first))
        if len(message) > _FIRST:
            self.ranks.from_first(torch.from_numpy(message[_FIRST:].copy()))

    def heard(self) -> Word:
        """Wait for what the first process says."""
        message = self.ranks.from_first(torch.zeros(_FIRST, dtype=torch.uint8)).numpy().tobytes()
        head, data = (int(one) for one in np.frombuffer(message[:_LENGTHS], np.int64))
        rest = _LENGTHS + head + data - _FIRST
        if rest > 0:
            more = self.ranks.from_first(torch.zeros(rest, dtype=torch.uint8))
            message += more.numpy().tobytes()
        what, about = json.loads(message[_LENGTHS : _LENGTHS + head])
        return Word(what, about, message[_LENGTHS + head : _LENGTHS + head + data])
