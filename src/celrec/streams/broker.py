"""Retries for message brokers that are temporarily unreachable."""

from __future__ import annotations

import time

from celrec.errors import CelrecError

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0


class Outage:
    """Exponential backoff for an unreachable broker, with a limit of `patience` seconds.

    >>> outage = Outage("redis://localhost", patience=60)
    >>> outage.failed("refused"), outage.failed("refused"), outage.failed("refused")
    (0.1, 0.2, 0.4)
    """

    def __init__(self, broker: str, patience: float) -> None:
        self._broker, self._patience = broker, patience
        self._since: float | None = None
        self._wait = _FIRST_WAIT

    def failed(self, reason: str) -> float:
        """Record a failure and return the seconds to wait; an error after `patience` seconds."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._wait = now, _FIRST_WAIT
        if now - self._since >= self._patience:
            raise CelrecError(
                f"{self._broker}: unreachable for {self._patience:g} seconds ({reason}); "
                "start it again or restore the network, then resume the run"
            )
        wait, self._wait = self._wait, min(2 * self._wait, _LONGEST_WAIT)
        return wait

    def over(self) -> None:
        """Record that the broker answers again."""
        self._since = None


class BrokerUnavailable(Exception):  # noqa: N818
    """The broker does not answer at the moment."""
