"""What the service tells Prometheus of itself."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from celrec.service.service import Service

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """Requests and their times by endpoint; events; the version, and how far it is behind."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()  # of its own: there may be several in a process
        self._requests = Counter(
            "celrec_requests", "Answers.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "celrec_request_seconds",
            "Time until the answer.",
            ["path"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.events = Counter(
            "celrec_events_accepted", "Events that are on the disk.", registry=self._registry
        )
        told = {
            "celrec_version": ("Number of the version.", lambda: service.current.number),
            "celrec_events_learned": (
                "Events of the service in the version.",
                lambda: service.current.learned,
            ),
            "celrec_events_waiting": ("Events to be learned.", lambda: service.waiting),
            "celrec_journal_bytes": ("Bytes of the journal.", lambda: service.journal_bytes),
            "celrec_checkpoint_timestamp_seconds": (
                "When the last checkpoint was written.",
                lambda: service.kept or 0,
            ),
            "celrec_users": ("Users known.", lambda: len(service.current.run.users)),
            "celrec_items": ("Items known.", lambda: len(service.current.run.items)),
        }
        for name, (meaning, value) in told.items():
            Gauge(name, meaning, registry=self._registry).set_function(value)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer; `path` is that of the endpoint, without what was asked for."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)
