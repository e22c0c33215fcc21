"""Ctrl-C, where more is to be said about it."""

from __future__ import annotations


class Interruption(Exception):  # noqa: N818  (nothing has gone wrong)
    """The user has interrupted a command; the message says how to go on."""
