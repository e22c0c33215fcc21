"""Metrics of the service for Prometheus."""

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
    """Requests and latencies by endpoint, accepted events, the model version and its lag."""

    def __init__(self, service: Service) -> None:
        self._registry = (
            CollectorRegistry()
        )  # not the global one: a process may have several services
        self._requests = Counter(
            "celrec_requests", "Responses.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "celrec_request_seconds",
            "Time to the response.",
            ["path"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.events = Counter(
            "celrec_events_accepted", "Events that are on disk.", registry=self._registry
        )
        gauges = {
            "celrec_version": ("Number of the model version.", lambda: service.current.number),
            "celrec_events_learned": (
                "Events of the service that the version has learned.",
                lambda: service.current.learned,
            ),
            "celrec_events_waiting": ("Events that wait to be learned.", lambda: service.waiting),
            "celrec_journal_bytes": ("Size of the journal.", lambda: service.journal_bytes),
            "celrec_checkpoint_timestamp_seconds": (
                "Time of the last checkpoint.",
                lambda: service.last_checkpoint or 0,
            ),
            "celrec_users": ("Known users.", lambda: len(service.current.run.users)),
            "celrec_items": ("Known items.", lambda: len(service.current.run.items)),
        }
        for name, (meaning, value) in gauges.items():
            Gauge(name, meaning, registry=self._registry).set_function(value)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a response; `path` is the route, without the query."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)
