"""What operators' dashboards read: every documented metric is served, and those of scheduling move with the work."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import person
from tests.e2e.waiting import Seen, until

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
Values = dict[str, float]
"""By name, summed over the labels."""


def documented() -> dict[str, set[str]]:
    """The metrics of each program, by the reference."""
    found: dict[str, set[str]] = {}
    program = ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## lattice-"):
            program = line.removeprefix("## lattice-")
        elif name := re.match(r"\| `(lattice_\w+)` \|", line):
            found.setdefault(program, set()).add(name[1])
    return found


def scrape(instance: Instance, program: str) -> tuple[set[str], Values]:
    """The names that a program serves, and its values now."""
    lines = instance.metrics(program).splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    values: Values = {}
    for line in lines:
        if not line.startswith("#"):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            values[name] = values.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return names, values


@pytest.mark.parametrize("program", ["scheduler", "operator", "webhook", "gateway"])
def test_every_documented_metric_is_served_and_every_served_one_documented(control_plane: Instance, program: str) -> None:
    served = {name for name in scrape(control_plane, program)[0] if name.startswith("lattice_") and not name.endswith("_created")}
    assert served == documented()[program]


def test_the_metrics_of_scheduling_move_with_the_work(control_plane: Instance, tenant: Room) -> None:
    me = person(control_plane, "alice", tenant.namespace)

    def seen(what: str, right: Callable[[Values], bool]) -> Values:
        return until(Seen(lambda: scrape(control_plane, "scheduler")[1], right), within=20, every=0.3, what=what)

    before = seen("the leader", lambda values: values["lattice_raft_leader"] == 1)
    me.apply("runs", entrypoint="sleep 4247.4")
    me.phase("runs", "Running")
    me.apply("waits", entrypoint="true", hold=True)
    after = seen("one that runs and one that waits", lambda values: values.get("lattice_scheduling_queue_depth", 0) >= 1)
    for name in (
        "lattice_scheduling_placements_total", "lattice_scheduling_proposals_total", "lattice_ledger_commits_total",
        "lattice_scheduling_cycle_duration_seconds_count", "lattice_scheduling_cost_function_duration_seconds_count",
        "lattice_raft_commit_latency_seconds_count",
    ):  # fmt: skip
        assert after[name] > before.get(name, 0.0), name
    assert after["lattice_allocations_active"] >= 1
    me.lattice("cancel", "runs", "waits")
    me.ended("runs")
    seen("nothing of it left", lambda values: values["lattice_scheduling_queue_depth"] <= before.get("lattice_scheduling_queue_depth", 0.0))


@pytest.mark.parametrize("program", ["scheduler", "operator", "webhook", "gateway"])
def test_a_daemon_tells_its_metrics_to_nobody_without_the_right(control_plane: Instance, program: str) -> None:
    port = control_plane.site().ports[f"{program}-metrics"]
    for headers, status in (({}, 401), ({"Authorization": "Bearer nonsense"}, 401)):
        assert _get(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "/metrics", headers) == status
    assert _get(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "/healthz", {}) == 200


def test_an_agent_tells_its_metrics_to_the_certificate_of_the_scraper_alone(control_plane: Instance) -> None:
    site = control_plane.site()
    node = site.nodes[0]

    def asked(client: str, path: str = "/metrics") -> int:
        context = ssl.create_default_context(cafile=str(site.authority("agents-ca")))
        if client:
            pair = site.pair("agents-ca", client)
            context.load_cert_chain(pair.certificate, pair.key)
        host, port = site.address(node), site.agent_metrics_port(node)
        return _get(http.client.HTTPSConnection(host, port, timeout=60, context=context), path, {})

    assert (asked(""), asked(f"agent-{site.nodes[1]}"), asked("gateway"), asked("metrics")) == (401, 403, 403, 200)
    assert asked("", "/healthz") == 200


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> int:
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()
