"""Limits that hold although the admission webhook answers nobody: what it would have refused waits with its sentence, or is refused by the
API server itself. An instance of its own, whose webhook is paused or stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.errors import LatticeError
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS, CONFIGS, NODES, TENANTS, VCLUSTERS
from lattice.units import parse_ranges, parse_time
from lattice_dev.instance import Instance
from lattice_dev.state import Options
from tests.e2e.conftest import Room, new_instance, room, running
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, patient, until

RESERVED = "0" if len(os.sched_getaffinity(0)) > 1 else ""
"""A processor that work does not run on, where there is another one."""


@pytest.fixture(scope="module")
def site() -> Iterator[Instance]:
    """An instance of three nodes."""
    with running(new_instance("limits", Options(nodes=3, fsync=False, node_reserved_cpus=RESERVED))) as instance:
        yield instance


@pytest.fixture(scope="module")
def root(site: Instance) -> Iterator[BlockingCluster]:
    """The administrator."""
    with contextlib.closing(site.cluster()) as cluster:
        yield cluster


@pytest.fixture
def lab(root: BlockingCluster) -> Iterator[Room]:
    """A tenant of alice and bob."""
    with room(root) as made:
        yield made


@pytest.fixture
def alice(site: Instance, lab: Room) -> Person:
    """A user."""
    return person(site, "alice", lab.namespace)


@pytest.fixture
def unwatched(site: Instance) -> Iterator[None]:
    """No webhook runs, and the API server lets everything pass that it does not refuse itself."""
    site.stop("webhook")
    try:
        yield
    finally:
        site.start("webhook")


@contextlib.contextmanager
def paused(site: Instance) -> Iterator[None]:
    """The webhook is there, and answers nobody."""
    site.kill("webhook", signal.SIGSTOP)
    try:
        yield
    finally:
        site.kill("webhook", signal.SIGCONT)


def submit(who: Person, name: str, *, ok: bool = True, entrypoint: str = "sleep 600", vcluster: str = "hpc-batch", **spec: Any) -> str:
    """An allocation with everything filled in that the webhook fills in; what the API server said."""
    done = who.apply(name, ok=ok, user="alice", tenant=who.namespace, vcluster=vcluster, entrypoint=entrypoint, **spec)
    return done.stderr


def waits(who: Person, name: str, word: str, *parts: str) -> None:
    """It waits with this reason, and its sentence has these parts."""

    def told(item: dict[str, Any]) -> bool:
        found: dict[str, Any] = next((entry for entry in item.get("status", {}).get("conditions", []) if entry["type"] == "Scheduled"), {})
        return found.get("reason") == word and all(part in found["message"] for part in parts)

    until(Seen(lambda: who.get(name), told), within=15, every=0.2, what=f"{name}: {word} {parts}")


def test_a_walltime_beyond_the_limit_waits_until_the_limit_is_lifted(site: Instance, root: BlockingCluster, alice: Person) -> None:
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": {"maxWalltime": "1h"}}})
    with paused(site):
        submit(alice, "long", walltime="30d")
        submit(alice, "short", walltime="1h")
        alice.phase("short", "Running")
        waits(alice, "long", "NotAdmitted", "walltime 30d exceeds maxWalltime", "(current: none, requested: 30d, limit: 1h)")
    why = alice.lattice("why", "long").stdout
    assert "NotAdmitted" in why
    assert "walltime 30d exceeds maxWalltime" in why
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": {"maxWalltime": "40d"}}})
    alice.phase("long", "Running")


def test_class_leaf_tasks_nodes_and_people_of_a_vcluster_hold(root: BlockingCluster, alice: Person, lab: Room, unwatched: None) -> None:
    root.patch(TENANTS, lab.name, {"spec": {"quota": {"maxPreemptionClass": 5}}})
    vcluster = {"apiVersion": "lattice.dev/v1alpha1", "kind": "VCluster", "metadata": {"name": "others"}, "spec": {"tenants": ["nobody"]}}
    root.create(VCLUSTERS, vcluster)
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": {"maxNodesPerAllocation": 2}}})
    submit(alice, "proud", lifecycle={"preemptionClass": 10})
    submit(alice, "stranger", vcluster="others")
    assert "a leaf of the quota tree is named, and the label lattice.dev/quota" in submit(alice, "nowhere", quota="no/such/leaf", ok=False)
    body = {
        "apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "nowhere", "labels": {"lattice.dev/quota": "named"}},
        "spec": {"user": "alice", "tenant": lab.name, "vcluster": "hpc-batch", "entrypoint": "sleep 600", "quota": "no/such/leaf",
                 "resources": {"nodes": 1}, "lifecycle": {"walltime": "5m", "gracePeriod": "2s"}},
    }  # fmt: skip
    root.create(ALLOCATIONS, body, lab.namespace)
    submit(alice, "wide", nodes=3)
    submit(alice, "honest")
    alice.phase("honest", "Running")
    waits(alice, "proud", "NotAdmitted", f'preemption class 10 is above the highest of tenant "{lab.name}" (requested: 10, limit: 5)')
    waits(alice, "stranger", "NotAdmitted", f'tenant "{lab.name}" may not use vCluster "others"')
    waits(alice, "nowhere", "NotAdmitted", 'quota "no/such/leaf" does not exist')
    waits(alice, "wide", "NotAdmitted", "3 nodes exceed maxNodesPerAllocation")
    said = submit(alice, "many", ok=False, tasks={"total": 16777216})
    assert "spec.tasks.total is 16777216, and 1 nodes with 4096 each start 4096" in said
    root.patch(TENANTS, lab.name, {"spec": {"quota": {"maxPreemptionClass": 10}}})
    root.patch(VCLUSTERS, "others", {"spec": {"tenants": ["*"]}})
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": {"maxNodesPerAllocation": None}}})
    alice.lattice("cancel", "honest")
    for name in ("proud", "stranger"):
        alice.phase(name, "Running")
        alice.lattice("cancel", name)
    alice.phase("wide", "Running")
    alice.lattice("cancel", "wide")


def test_beyond_what_may_wait_only_the_oldest_start(root: BlockingCluster, alice: Person, lab: Room, unwatched: None) -> None:
    root.patch(TENANTS, lab.name, {"spec": {"quota": {"perUser": {"maxPending": 2, "maxNodes": 3}}}})
    submit(alice, "a-runs", nodes=3)
    alice.phase("a-runs", "Running")
    submit(alice, "b-held", hold=True)
    submit(alice, "c-next", walltime="1m", entrypoint="true")
    submit(alice, "d-beyond", walltime="1m", entrypoint="true")
    waits(alice, "b-held", "Held")
    waits(alice, "c-next", "WaitingForQuotaHeadroom", "nodes")
    waits(alice, "d-beyond", "WaitingForQuotaHeadroom", "quota.perUser.maxPending allows (limit: 2)", "submitted first may start")
    alice.lattice("cancel", "a-runs")
    ended = [alice.ended(name) for name in ("c-next", "d-beyond")]
    assert [reason(status) for status in ended] == ["Completed", "Completed"]
    assert parse_time(ended[0]["startTime"]) <= parse_time(ended[1]["startTime"])


def shortened(who: Person, name: str) -> None:
    """Has running work end by its walltime, now."""
    change = '{"spec":{"lifecycle":{"walltime":"1s"}}}'
    who.kubectl("patch", "alloc", name, "-n", who.namespace, "--type=merge", "-p", change)


def test_a_running_end_is_not_put_off_and_nothing_of_others_is_held(root: BlockingCluster, alice: Person, unwatched: None) -> None:
    submit(alice, "ends", walltime="1h")
    alice.phase("ends", "Running")
    longer = alice.kubectl(
        "patch", "alloc", "ends", "-n", alice.namespace, "--type=merge", "-p", '{"spec":{"lifecycle":{"walltime":"30d"}}}', ok=False
    )
    assert "a longer spec.lifecycle.walltime (current: 1h, requested: 30d) needs the verb extend or manage" in longer.stderr
    stays = alice.kubectl(
        "patch",
        "alloc",
        "ends",
        "-n",
        alice.namespace,
        "--type=merge",
        "-p",
        '{"metadata":{"finalizers":["lattice.dev/release","evil.example/stay"]}}',
        ok=False,
    )
    assert "evil.example/stay" in stays.stderr
    assert root.get(ALLOCATIONS, "ends", alice.namespace)["spec"]["lifecycle"]["walltime"] == "1h"
    shortened(alice, "ends")
    assert reason(alice.ended("ends")) == "WalltimeExceeded"


def test_an_agent_ends_work_at_the_admitted_walltime_although_its_spec_says_more(
    root: BlockingCluster, alice: Person, unwatched: None
) -> None:
    """The administrator may lengthen it as far as the API server is asked; the vcluster's maximum holds all the same."""
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"defaults": {"walltime": "10s"}, "limits": {"maxWalltime": "2h"}}})
    try:
        for seconds in (8, 60):  # a machine may be so slow that the change comes after the first end
            kept, given = f"kept-{seconds}", f"given-{seconds}"
            for name, walltime in ((kept, "30d"), (given, f"{seconds + 7}s")):
                submit(alice, name, walltime=f"{seconds}s")
                until(lambda name=name: alice.get(name).get("status", {}).get("startTime"), within=30, what=f"the start of {name}")  # type: ignore[misc]
                with contextlib.suppress(LatticeError):  # it has ended
                    root.patch(ALLOCATIONS, name, {"spec": {"lifecycle": {"walltime": walltime}}}, alice.namespace)
            ends = [alice.ended(name, within=90) for name in (kept, given)]
            assert [reason(status) for status in ends] == ["WalltimeExceeded", "WalltimeExceeded"], "30 days are not given, nor the most"
            ran = [parse_time(status["endTime"]) - parse_time(status["startTime"]) for status in ends]
            if ran[1] >= seconds + 7:
                break
        assert ran[1] >= seconds + 7
    finally:
        root.patch(VCLUSTERS, "hpc-batch", {"spec": {"defaults": {"walltime": "1h"}, "limits": {"maxWalltime": "7d"}}})


def test_work_without_a_walltime_ends_at_its_vclusters_default(root: BlockingCluster, alice: Person, unwatched: None) -> None:
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"defaults": {"walltime": "4s"}}})
    try:
        submit(alice, "unsaid", walltime="4s", lifecycle={"walltime": None})
        assert reason(alice.ended("unsaid")) == "WalltimeExceeded"
    finally:
        root.patch(VCLUSTERS, "hpc-batch", {"spec": {"defaults": {"walltime": "1h"}}})


def ask_webhook(site: Instance, trust: ssl.SSLContext, body: bytes) -> None:
    """A review that nobody but the API server may ask for."""
    with urllib.request.urlopen(f"{site.site().webhook}/validate", data=body, context=trust, timeout=60):  # noqa: S310 - loopback
        pass


def flood(site: Instance, alice: Person, stop: threading.Event) -> None:
    """One of those who keep the webhook busy: dry runs of what was costly to judge, and reviews that nobody may ask for."""
    body = allocation(alice, "flood", constraints={"excludeNodes": "n[1-262100]"})
    body["spec"]["entrypoint"] = "a 'b' " * 10_000
    trust = ssl.create_default_context(cafile=str(site.site().authority("ca")))
    with contextlib.closing(site.cluster("alice")) as cluster:
        while not stop.is_set():
            with contextlib.suppress(LatticeError):
                cluster.create(ALLOCATIONS, body, alice.namespace, dry_run=True)
            with contextlib.suppress(OSError):
                ask_webhook(site, trust, b"{" * 100_000)


def allocation(who: Person, name: str, *, constraints: dict[str, Any] | None = None, **lifecycle: Any) -> dict[str, Any]:
    """An Allocation with everything filled in."""
    spec = {
        "tenant": who.namespace, "user": "alice", "vcluster": "hpc-batch", "entrypoint": "sleep 600",
        "resources": {"nodes": 1, "constraints": constraints or {}}, "lifecycle": {"walltime": "10m", "gracePeriod": "2s", **lifecycle},
    }  # fmt: skip
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name, "namespace": who.namespace},
        "spec": spec,
    }


def put_off(cluster: BlockingCluster, name: str, namespace: str) -> str:
    """The refusal of a longer walltime, or what else the API server says while it has too much to do; fails where it is accepted."""
    with pytest.raises(LatticeError) as refused:
        cluster.patch(ALLOCATIONS, name, {"spec": {"lifecycle": {"walltime": "30d"}}}, namespace)
    return refused.value.message


def test_a_flood_turns_no_limit_off(site: Instance, root: BlockingCluster, alice: Person, lab: Room) -> None:
    """Whatever the API server answers under the flood, nothing above a limit starts, and no end is put off."""
    root.patch(TENANTS, lab.name, {"spec": {"quota": {"maxPreemptionClass": 5}}})
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": {"maxWalltime": "1h"}}})
    submit(alice, "ends", walltime="1h")
    alice.phase("ends", "Running")
    stop, accepted = threading.Event(), []
    crowd = [threading.Thread(target=flood, args=(site, alice, stop)) for _ in range(24)]
    for one in crowd:
        one.start()
    try:
        with contextlib.closing(site.cluster("alice")) as cluster:
            for number in range(4):
                name = f"over-{number}"
                wanted = allocation(alice, name, **({"walltime": "30d"} if number % 2 else {"preemptionClass": 10}))
                with contextlib.suppress(LatticeError):
                    cluster.create(ALLOCATIONS, wanted, alice.namespace)
                    accepted.append(name)
            until(lambda: "needs the verb extend or manage" in put_off(cluster, "ends", alice.namespace), within=30, what="the refusal")
    finally:
        stop.set()
        for one in crowd:
            one.join()
    for name in accepted:
        waits(alice, name, "NotAdmitted", "limit: ")
    shortened(alice, "ends")
    assert reason(alice.ended("ends")) == "WalltimeExceeded"


def test_the_webhook_answers_the_api_server_alone(site: Instance, root: BlockingCluster, alice: Person) -> None:
    root.patch(VCLUSTERS, "hpc-batch", {"spec": {"limits": {"maxWalltime": "1h"}}})
    assert "walltime 30d exceeds maxWalltime" in submit(alice, "long", ok=False, walltime="30d")
    trust = ssl.create_default_context(cafile=str(site.site().authority("ca")))
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask_webhook(site, trust, b"{}")
    pair = site.site().pair("ca", "admin")
    trust.load_cert_chain(pair.certificate, pair.key)
    with pytest.raises(OSError, match=r"(?i)unknown ca|alert|reset|EOF|closed"):  # the cluster's own administrator is no API server
        ask_webhook(site, trust, b"{}")


def test_operators_are_told_that_the_api_server_fails_open(root: BlockingCluster, alice: Person, unwatched: None) -> None:
    def stated() -> tuple[str, str]:
        conditions = root.get(CONFIGS, "lattice").get("status", {}).get("conditions", [])
        return next(((entry["status"], entry["reason"]) for entry in conditions if entry["type"] == "WebhookAnswering"), ("", ""))

    until(Seen(stated, lambda found: found[0] != ""), within=40, every=0.5, what="the first look")
    submit(alice, "passes", walltime="1m", entrypoint="true")
    until(Seen(stated, lambda found: found == ("False", "WebhookFailedOpen")), within=40, every=0.5, what="the condition")


@pytest.mark.skipif(not RESERVED, reason="a machine of one processor can keep none from work")
def test_work_stays_off_reserved_processors_and_its_core_files_have_the_sites_limit(root: BlockingCluster, alice: Person) -> None:
    root.patch(CONFIGS, "lattice", {"spec": {"work": {"coreBytes": "1Mi"}}})
    try:
        alice.apply("limited", entrypoint="bash -c 'taskset -cp $$ | grep -o [^:]*$; ulimit -Sc; ulimit -c unlimited; ulimit -c'")
        assert alice.ended("limited")["phase"] == "Completed"
        lines = [line.rpartition(": ")[2].strip() for line in alice.lattice("logs", "limited").stdout.splitlines()]
        assert parse_ranges(lines[0]) == sorted(os.sched_getaffinity(0) - {0})
        assert lines[1:] == ["1024", "unlimited"], "in KiB; the work may raise it"
    finally:
        root.patch(CONFIGS, "lattice", {"spec": {"work": {"coreBytes": None}}})
    nodes = root.list(NODES).items
    assert [one["type"] for node in nodes for one in node["status"].get("conditions", []) if one["type"] == "LimitsMissing"] == []


def limits_of(root: BlockingCluster, node: str) -> tuple[str, str]:
    """The status and the message of a node's condition on its limits; empty: it has said nothing."""
    conditions = root.get(NODES, node)["status"].get("conditions", [])
    return next(((one["status"], one["message"]) for one in conditions if one["type"] == "LimitsMissing"), ("", ""))


@contextlib.contextmanager
def without_cgroups(site: Instance, node: str, folder: Path) -> Iterator[None]:
    """The node's agent runs as it is started, but may make no cgroups, within the block; its own is back after it."""
    component = next(one for one in site.components() if one.node == node)
    environ = dict(entry.split("=", 1) for entry in Path(f"/proc/{site.pid(component.name)}/environ").read_text().split("\0") if entry)
    argv = list(component.argv)
    for flag in ("--scope-root", "--prologue-dir", "--epilogue-dir"):  # hooks need cgroups
        if flag in argv:
            del argv[argv.index(flag) : argv.index(flag) + 2]
    folder.chmod(0o755)
    site.stop(component.name)
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [*argv, "--scope-root", str(folder)], env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield
    except BaseException:
        print((folder / "agent.log").read_text())
        raise
    finally:
        agent.terminate()
        agent.wait(patient(30))
        site.start(component.name)


def test_a_node_says_which_limits_do_not_hold_there_until_they_do(
    site: Instance, root: BlockingCluster, alice: Person, tmp_path: Path
) -> None:
    node, said = site.site().nodes[-1], "its agent may make no cgroups: work is not limited in memory and processors"
    people = person(site, "admin", "default")
    with without_cgroups(site, node, tmp_path):
        until(Seen(lambda: limits_of(root, node), lambda found: found[0] == "True" and said in found[1]), within=60, what="the condition")
        shown = " ".join(people.lattice("node", "status", node).stdout.split())
        assert ("LimitsMissing" in shown, said in shown) == (True, True), shown
        alice.apply("unlimited", entrypoint="sh -c 'exit 7'", resources={"constraints": {"nodeList": node}})
        assert alice.ended("unlimited")["exit"]["code"] == 7, "it is told, and work runs all the same"
    until(Seen(lambda: limits_of(root, node), lambda found: found == ("False", "every limit of work holds")), within=60, what="its end")
