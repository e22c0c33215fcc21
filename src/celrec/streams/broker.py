"""Message brokers that do not answer for a while."""

from __future__ import annotations

import time

from celrec.errors import CelrecError

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0


class Outage:
    """How long a broker has been away, and how long to wait before the next attempt.

    >>> outage = Outage("redis://localhost", patience=60)
    >>> outage.failed("refused"), outage.failed("refused"), outage.failed("refused")
    (0.1, 0.2, 0.4)
    """

    def __init__(self, broker: str, patience: float) -> None:
        self._broker, self._patience = broker, patience
        self._since: float | None = None
        self._wait = _FIRST_WAIT

    def failed(self, reason: str) -> float:
        """Note a failure; seconds to wait before trying again. Raises when patience is over."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._wait = now, _FIRST_WAIT
        if now - self._since >= self._patience:
            raise CelrecError(
                f"{self._broker}: away for {self._patience:g} seconds ({reason}); "
                "start it again or restore the network, then resume the run"
            )
        wait, self._wait = self._wait, min(2 * self._wait, _LONGEST_WAIT)
        return wait

    def over(self) -> None:
        """It answers again."""
        self._since = None


class BrokerUnavailable(Exception):  # noqa: N818
    """The broker does not answer now; it may do so later."""
