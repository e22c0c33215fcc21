"""A request that is not granted."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818  (the service is as it should be)
    """The status of the answer, and one line that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why
