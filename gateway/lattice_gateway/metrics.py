"""The metrics of the gateway, on a registry of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True)
class Metrics:
    """The book's API metrics; `method` is the HTTP method and what is read, or the RPC, `status` the HTTP or gRPC status."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    seconds: Histogram = field(init=False)
    streams: Gauge = field(init=False)

    def __post_init__(self) -> None:
        requests = Counter("lattice_api_requests_total", "API requests by method and status", ["method", "status"], registry=self.registry)
        seconds = Histogram("lattice_api_request_duration_seconds", "API request latency", ["method"], registry=self.registry)
        streams = Gauge("lattice_api_active_streams", "Active streaming connections", ["stream_type"], registry=self.registry)
        object.__setattr__(self, "requests", requests)
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "streams", streams)
