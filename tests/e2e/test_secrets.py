"""Variables of Secrets: they reach the work, and nothing else that anybody keeps or shows."""

from __future__ import annotations

import base64
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ROLE_BINDINGS, ROLES, SECRETS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def alice(control_plane: Instance, admin: BlockingCluster, tenant: Room) -> Person:
    """A person who may read the Secrets `wandb` and `absent`, and no other."""
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["wandb", "absent"], "verbs": ["get"]}
    admin.create(ROLES, {"metadata": {"name": "wandb"}, "rules": [rule]}, tenant.namespace)
    subject = {"kind": "User", "name": "alice", "apiGroup": RBAC}
    reference = {"kind": "Role", "name": "wandb", "apiGroup": RBAC}
    admin.create(ROLE_BINDINGS, {"metadata": {"name": "wandb"}, "roleRef": reference, "subjects": [subject]}, tenant.namespace)
    who = person(control_plane, "alice", tenant.namespace)
    until(lambda: who.kubectl("auth", "can-i", "get", "secrets/wandb", "-n", tenant.namespace, ok=False).returncode == 0, within=10)
    return who


def put(admin: BlockingCluster, namespace: str, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    admin.create(SECRETS, {"metadata": {"name": name}, "data": encoded}, namespace)


def reads(*names: str, prefix: str = "", **variables: str) -> dict[str, Any]:
    return {"variables": variables, "variablesFrom": [{"secretRef": name, "prefix": prefix} for name in names]}


def mentions(directory: Path, value: str, *, but: tuple[str, ...] = ()) -> list[str]:
    """The files below a directory that hold the value, sent or kept in any of the usual encodings."""
    forms = [value.encode(), base64.b64encode(value.encode()), value.encode().hex().encode()]
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size]
    texts = [(str(path), path.read_bytes()) for path in files if not any(part in str(path) for part in but)]
    return [name for name, text in texts if any(form in text for form in forms)]


def test_the_value_reaches_the_work_and_stands_nowhere_else(
    control_plane: Instance, admin: BlockingCluster, alice: Person, tenant: Room, gate: Gate
) -> None:
    value = secrets.token_hex(16)
    put(admin, tenant.namespace, "wandb", API_KEY=value, MODE="secret")
    script = f'#!/bin/bash\necho "${{#WANDB_API_KEY}} $WANDB_MODE $PLAIN"\n{gate.wait}\n'
    alice.apply(
        "reads",
        nodes=2,
        script=script,
        tasks={"on": "EveryNode"},
        environment=reads("wandb", prefix="WANDB_", WANDB_MODE="plain", PLAIN="seen"),
    )
    running = alice.phase("reads", "Running")
    held = [path for path in Path("/proc").glob("[0-9]*/environ") if shows(path, value)]
    commands = {Path(path.with_name("comm")).read_text().strip() for path in held if path.exists()}
    assert commands <= {"bash", "reads", "script", "sleep"}, "only the user's processes have it"
    assert len(held) >= 2
    gate.open()
    ended = alice.ended("reads")
    assert ended["phase"] == "Completed"
    assert running["attempt"] == 1
    assert alice.lattice("logs", "reads").stdout.count(f"{len(value)} plain seen") == 2
    assert value not in alice.lattice("status", "reads", "-o", "json").stdout
    where = control_plane.where.directory
    assert mentions(where, value, but=("/etcd/",)) == []
    assert mentions(Path("/run"), value) == []
    assert mentions(where / "etcd", value), "etcd keeps the Secret itself"
    for kind in ("alloc", "ledgers", "nodegroupplans", "usagerecords", "leases", "events", "latticenodes"):
        assert value not in admin_dump(control_plane, kind)


def shows(path: Path, value: str) -> bool:
    try:
        return value.encode() in path.read_bytes()
    except OSError:
        return False


def admin_dump(instance: Instance, kind: str) -> str:
    """Every object of a kind, as the administrator sees it."""
    return person(instance, "admin", "default").kubectl("get", kind, "-A", "-o", "json").stdout


def test_who_may_not_read_a_secret_runs_no_work_that_does(
    alice: Person, admin: BlockingCluster, tenant: Room, control_plane: Instance
) -> None:
    put(admin, tenant.namespace, "others", KEY="k")
    put(admin, tenant.namespace, "wandb", KEY="k")
    refused = alice.apply("takes", entrypoint="true", environment=reads("wandb", "others"), ok=False)
    assert refused.returncode != 0
    assert 'variablesFrom[1] names Secret "others"' in refused.stderr
    bob = person(control_plane, "bob", tenant.namespace)
    assert "bob may not read" in bob.apply("takes", entrypoint="true", environment=reads("wandb"), ok=False).stderr


def test_what_cannot_be_had_ends_the_start_with_its_name_and_no_value(alice: Person, admin: BlockingCluster, tenant: Room) -> None:
    alice.apply("absent", entrypoint="true", environment=reads("absent"))
    absent = alice.ended("absent")
    assert (absent["phase"], reason(absent)) == ("Failed", "StartFailed")
    assert f"there is no Secret {tenant.namespace}/absent" in str(absent["conditions"])
    put(admin, tenant.namespace, "wandb", **{"tls.key": "hunter2"})
    alice.apply("dotted", entrypoint="true", environment=reads("wandb"))
    dotted = alice.ended("dotted")
    assert reason(dotted) == "StartFailed"
    assert "key 'tls.key' makes no variable" in str(dotted["conditions"])
    assert "hunter2" not in str(dotted)


def test_an_agent_that_dies_before_the_start_asks_for_the_values_again(
    control_plane: Instance, admin: BlockingCluster, alice: Person, tenant: Room
) -> None:
    """The gang waits for a node that is paused; the other one, prepared, is killed, and has to ask once more."""
    value = secrets.token_hex(16)
    put(admin, tenant.namespace, "wandb", API_KEY=value)
    control_plane.kill("agent-nid002", signal.SIGSTOP)
    try:
        both = {"constraints": {"nodeList": "nid[001-002]"}}
        alice.apply(
            "again", nodes=2, script="#!/bin/sh\necho ${#API_KEY}\n", tasks={"on": "EveryNode"}, environment=reads("wandb"), resources=both
        )
        state = control_plane.where.node("nid001") / "state" / "attempts"
        uid = alice.get("again")["metadata"]["uid"]
        until(Seen(lambda: list(state.glob(f"{uid}-1/journal")), bool), within=20, what="the journal of the prepared node")
        control_plane.kill("agent-nid001")
        assert mentions(state, value) == []
        control_plane.start("agent-nid001")
    finally:
        control_plane.kill("agent-nid002", signal.SIGCONT)
    assert alice.ended("again")["phase"] == "Completed"
    assert alice.lattice("logs", "again").stdout.count(str(len(value))) == 2
    assert mentions(control_plane.where.directory, value, but=("/etcd/",)) == []


def test_what_a_node_went_through_is_written_at_a_signal_replays_and_holds_nothing_of_the_work(
    control_plane: Instance, admin: BlockingCluster, alice: Person, tenant: Room
) -> None:
    value, plain, command = (secrets.token_hex(16) for _ in range(3))
    put(admin, tenant.namespace, "wandb", API_KEY=value)
    only = {"constraints": {"nodeList": "nid001"}}
    alice.apply(
        "told", script=f"#!/bin/sh\necho {command} ${{#API_KEY}}\nexit 3\n", environment=reads("wandb", PLAIN=plain), resources=only
    )
    assert alice.ended("told")["exit"]["code"] == 3
    alice.apply("refused", entrypoint=f"/absent/{command}", environment=reads("wandb", PLAIN=plain), resources=only)
    assert reason(alice.ended("refused")) == "StartFailed"
    written = control_plane.where.node("nid001") / "state" / "stimuli" / "nid001"
    written.unlink(missing_ok=True)
    control_plane.kill("agent-nid001", signal.SIGUSR1)
    until(written.exists, within=10)
    done = subprocess.run(
        [sys.executable, "-m", "lattice_agent", "replay", str(written)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "all of them lead to the same" in done.stdout
    for event in ("PlanRead", "TermsRead", "Prepared", "Directed", "Started", "Exited", "Refused"):
        assert f'"event":"{event}"' in written.read_text()
    for unwanted in (value, plain, command):
        assert mentions(written.parent, unwanted) == []
