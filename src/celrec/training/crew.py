"""Processes of which the first leads."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch

from celrec.clustering.ranks import Ranks


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
        self.ranks.from_first(torch.tensor([len(head), len(data)]))
        self.ranks.from_first(torch.from_numpy(np.frombuffer(head + data, np.uint8).copy()))

    def heard(self) -> Word:
        """Wait for what the first process says."""
        head, data = self.ranks.from_first(torch.zeros(2, dtype=torch.int64)).tolist()
        told = self.ranks.from_first(torch.zeros(head + data, dtype=torch.uint8))
        message = told.numpy().tobytes()
        what, about = json.loads(message[:head])
        return Word(what, about, message[head:])
