"""The metrics of the webhook, on a registry of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram


@dataclass(frozen=True)
class Metrics:
    """The book's API metrics; `method` is mutate or validate, `status` the HTTP status, or refused."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    seconds: Histogram = field(init=False)

    def __post_init__(self) -> None:
        requests = Counter("lattice_api_requests_total", "API requests by method and status", ["method", "status"], registry=self.registry)
        seconds = Histogram("lattice_api_request_duration_seconds", "API request latency", ["method"], registry=self.registry)
        object.__setattr__(self, "requests", requests)
        object.__setattr__(self, "seconds", seconds)
