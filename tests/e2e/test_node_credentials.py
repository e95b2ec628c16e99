"""What the credential of one node opens: its own work, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import pytest

from lattice.daemon.mtls import GATEWAY_HOST, Files
from lattice.errors import Denied, NotFound, Retry
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import LEASES, PLANS
from lattice.ledger.plans import PlanRow, parse_plan
from lattice.ledger.reports import ANNOTATION, ReportRow, format_report, parse_report
from lattice_agent.cluster.work_source import FetchedWork, GatewayWorkSource
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate

TOKEN = "hunter2-of-the-node-test"  # noqa: S105
JSON, JSON_PATCH, MERGE = "application/json", "application/json-patch+json", "application/merge-patch+json"


@pytest.fixture
def alice(control_plane: Instance, tenant: Room) -> Person:
    return person(control_plane, "alice", tenant.namespace)


def submit(who: Person, name: str, **spec: object) -> None:
    who.apply(name, environment={"variables": {"PLAIN": TOKEN}}, **{"entrypoint": "sleep 3600", **spec})  # type: ignore[arg-type]


def ask(instance: Instance, node: str, row: PlanRow, *, of: str = "", stale: str = "") -> FetchedWork:
    """GetWork with the certificate of `node`, for the node `of`."""
    site = instance.site()
    pair = site.pair("agents-ca", f"agent-{node}")

    async def asked() -> FetchedWork:
        works = GatewayWorkSource([site.work_gateway], Files(pair.certificate, pair.key, site.authority("agents-ca")))
        try:
            return await works.find_work(of or node, row, stale=stale)
        finally:
            await works.close()

    return asyncio.run(asked())


def rows(admin: BlockingCluster) -> list[PlanRow]:
    """Every row of every plan."""
    return [row for plan in admin.list(PLANS).items for row in parse_plan(plan["spec"]["text"])]


def row_of(admin: BlockingCluster, name: str) -> PlanRow:
    """The row of the work in a plan."""
    return next(row for row in rows(admin) if row.name == name)


@contextlib.contextmanager
def raw(instance: Instance, node: str) -> Iterator[http.client.HTTPSConnection]:
    """A connection to the API server with a node's certificate."""
    site = instance.site()
    pair, server = site.pair("ca", f"agent-{node}"), urlsplit(site.server)
    context = ssl.create_default_context(cafile=str(site.authority("ca")))
    context.load_cert_chain(pair.certificate, pair.key)
    connection = http.client.HTTPSConnection(server.hostname or "", server.port, timeout=60, context=context)
    try:
        yield connection
    finally:
        connection.close()


def test_a_nodes_credential_reads_no_allocation_and_only_its_own_work(
    control_plane: Instance, admin: BlockingCluster, alice: Person, tenant: Room
) -> None:
    submit(alice, "there", resources={"constraints": {"nodeList": "nid003"}})
    submit(alice, "held", hold=True)
    alice.phase("there", "Running")
    path = f"/apis/lattice.dev/v1alpha1/namespaces/{tenant.namespace}/allocations"
    leak = [{"op": "copy", "from": "/spec/environment/variables/PLAIN", "path": "/status/conditions/0/status"}]
    with raw(control_plane, "nid001") as connection:
        for method, target, body, kind in (
            ("GET", path, None, JSON), ("GET", "/apis/lattice.dev/v1alpha1/allocations?watch=true", None, JSON),
            ("GET", f"{path}/there", None, JSON), ("GET", f"{path}/there/status", None, JSON), ("GET", f"{path}/held", None, JSON),
            ("PATCH", f"{path}/there/status", leak, JSON_PATCH), ("PATCH", f"{path}/there/status?dryRun=All", [], JSON_PATCH),
            ("PATCH", f"{path}/there/status", {}, MERGE), ("GET", f"/api/v1/namespaces/{tenant.namespace}/secrets", None, JSON),
        ):  # fmt: skip
            connection.request(method, target, None if body is None else json.dumps(body), {"Content-Type": kind})
            answer = connection.getresponse()
            said = answer.read().decode()
            assert answer.status == 403, (method, target, said)
            assert TOKEN not in said

    row = row_of(admin, "there")
    assert ask(control_plane, "nid003", row).work.spec.environment.variables["PLAIN"] == TOKEN
    held = alice.get("held")["metadata"]["uid"]
    for node, asked in (
        ("nid001", row), ("nid001", PlanRow("run", "", held, 1, 1, 1, "nid001", "", tenant.namespace, "held", "nid001", ("nid001",))),
    ):  # fmt: skip
        with pytest.raises(Denied) as caught:
            ask(control_plane, node, asked)
        assert caught.value.reason == "NotYourWork"
    with pytest.raises(Denied) as caught:
        ask(control_plane, "nid001", row, of="nid003")
    assert caught.value.reason == "NotYourNode"
    alice.lattice("cancel", "there", "held")
    alice.ended("there")

    def refused() -> bool:
        try:
            ask(control_plane, "nid003", row)
        except (Denied, NotFound):
            return True
        return False

    until(refused, within=5, what="the end of the right, which goes with the ledger's row")

    log = control_plane.where.audit_log
    seen = Seen(log.read_text, lambda text: "allocations/there" in text and '"lattice:agent:nid001"' in text)
    audited = [json.loads(line) for line in until(seen, within=10, what="the audit of the reads").splitlines()]
    reads = [
        e
        for e in audited
        if e["user"]["username"] == "lattice:agent:nid001" and (e.get("objectRef") or {}).get("namespace") == tenant.namespace
    ]
    assert {(e["objectRef"]["resource"], e["verb"]) for e in reads} >= {
        ("allocations", "get"),
        ("allocations", "list"),
        ("secrets", "list"),
    }
    quiet = [
        e
        for e in audited
        if e["verb"] in ("get", "list", "watch") and (e.get("objectRef") or {}).get("resource") in ("nodegroupplans", "leases")
    ]
    assert not [e for e in quiet if e["user"]["username"].startswith("lattice:agent:")]


def test_agents_and_the_gateway_speak_tls_1_3_to_each_other_and_nothing_older(control_plane: Instance) -> None:
    site = control_plane.site()
    pair = site.pair("agents-ca", "agent-nid002")
    host, _, port = site.work_gateway.rpartition(":")
    servers = {"nid001": (site.address("nid001"), site.agent_port("nid001")), GATEWAY_HOST: (host, int(port))}

    def spoken(name: str, version: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=str(site.authority("agents-ca")))
        context.load_cert_chain(pair.certificate, pair.key)
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(servers[name], 20) as plain, context.wrap_socket(plain, server_hostname=name) as connection:
            return connection.version()

    for name in servers:
        assert spoken(name, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            spoken(name, ssl.TLSVersion.TLSv1_2)


def test_an_invented_report_gives_a_node_no_right_to_the_work_that_it_names(
    control_plane: Instance, admin: BlockingCluster, alice: Person, tenant: Room
) -> None:
    """A node that says it runs work unnamed by the plan is told to stop it, by a row; that row opens nothing."""
    submit(alice, "held", hold=True)
    uid = alice.get("held")["metadata"]["uid"]
    control_plane.kill("agent-nid004", signal.SIGSTOP)  # else it answers the order before anybody sees it
    try:
        report = parse_report(admin.get(LEASES, "nid004", "lattice-node-lease")["metadata"]["annotations"][ANNOTATION])
        invented = msgspec.structs.replace(report, hb=report.hb + 1, rows=(*report.rows, ReportRow(uid, 1, "u")))
        with contextlib.closing(control_plane.cluster("agent-nid004")) as node:
            node.patch(LEASES, "nid004", {"metadata": {"annotations": {ANNOTATION: format_report(invented)}}}, "lattice-node-lease")
        [row] = until(lambda: [row for row in rows(admin) if row.uid == uid], within=10, what="the row that stops it")
        assert (row.order, row.cause, row.nodes) == ("stop", "n", ("nid004",))
        with pytest.raises(Denied) as caught:
            ask(control_plane, "nid004", msgspec.structs.replace(row, namespace=tenant.namespace, name="held"))
        assert caught.value.reason == "NotYourWork"
    finally:
        control_plane.kill("agent-nid004", signal.SIGCONT)
    alice.lattice("cancel", "held")


def test_with_the_gateway_away_work_runs_on_its_end_arrives_and_new_work_waits(
    control_plane: Instance, admin: BlockingCluster, alice: Person, gate: Gate
) -> None:
    submit(alice, "runs", entrypoint=gate.command)
    alice.phase("runs", "Running")
    row = row_of(admin, "runs")
    control_plane.kill("gateway")
    try:
        with pytest.raises(Retry) as caught:
            ask(control_plane, row.nodes[0], row)
        assert caught.value.reason == "GatewayAway"
        submit(alice, "waits", entrypoint="true")
        alice.phase("waits", "Staging")
        gate.open()
        ended = alice.ended("runs")
        assert (ended["phase"], ended["exit"]["code"]) == ("Completed", 0)
        assert alice.get("waits")["status"]["phase"] == "Staging"
        why = Seen(lambda: alice.lattice("why", "waits").stdout, lambda said: "NoGateway: " in said)
        said = until(why, within=30, every=0.5, what="the reason of a start that waits for a gateway")
        node = alice.get("waits")["status"]["nodes"]
        assert re.search(rf"no gateway gives {node} the work, since 2\d\d\d-\S+Z", said), said
        assert "Next: ask the operators to look at the gateways" in said
        again = re.search(r"since (2\d\d\d-\S+Z)\n", said)
        assert again is not None
        time.sleep(5)  # it goes on asking meanwhile
        assert again[0] in alice.lattice("why", "waits").stdout, "since when stays as it was first heard"
    finally:
        control_plane.start("gateway")
    ended = alice.ended("waits")
    assert (ended["phase"], ended["attempt"]) == ("Completed", 1)
    assert "NoGateway" not in alice.lattice("why", "waits").stdout
