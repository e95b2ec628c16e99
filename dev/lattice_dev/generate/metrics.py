"""`docs/reference/metrics.md`: every metric that a program exports, read from the registry that the program itself serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from lattice_agent.metrics import AgentMetrics
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_gateway.metrics import Metrics as GatewayMetrics
from lattice_webhooks.metrics import Metrics as WebhookMetrics

INTRODUCTION: Final = """# Metrics

Each program serves Prometheus text at `/metrics` of its `--metrics-address`, beside `/readyz` and `/healthz`; the
ports, and who may read it, stand in [processes](../explanation/processes.md). Histograms have `_bucket`, `_sum` and `_count`.
"""


def registries() -> dict[str, CollectorRegistry]:
    """Returns the registry of metrics of each program by its name, filled as the program fills it at its start."""
    return {
        "lattice-scheduler": SchedulerMetrics().registry,
        "lattice-operator": OperatorMetrics().registry,
        "lattice-webhook": WebhookMetrics().registry,
        "lattice-gateway": GatewayMetrics().registry,
        "lattice-agent": AgentMetrics("nid001").registry,
    }


def metrics_page() -> str:
    """Returns the text of the page, with a table for each program."""
    head = "\n| metric | type | labels | what |\n|---|---|---|---|\n"
    return INTRODUCTION + "".join(f"\n## {program}\n{head}{''.join(_rows(registry))}" for program, registry in registries().items())


def _rows(registry: CollectorRegistry) -> Iterator[str]:
    """Yields a table row for each metric of a registry."""
    for metric in registry._collector_to_names:  # the registry has no other way to ask for labels without samples
        if isinstance(metric, MetricWrapperBase):
            name = metric._name + ("_total" if metric._type == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames) or "–"
            yield f"| `{name}` | {metric._type} | {labels} | {metric._documentation} |\n"
