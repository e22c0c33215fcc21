"""Something that was asked for is not there."""

from __future__ import annotations

from celrec.errors import CelrecError


class UnknownError(CelrecError):
    """An id, a cluster or a side that the model does not know."""
