"""Scripts in ConfigMaps: they run, run again, go with their work, and nobody exchanges them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.errors import NotFound
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIG_MAPS
from lattice.scripts.digests import script_digest
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until

LONG = "# a line of data that the script carries with it\n" * 6400
"""Some 300 KiB."""


@pytest.fixture
def alice(control_plane: Instance, tenant: Room) -> Person:
    return person(control_plane, "alice", tenant.namespace)


def written(folder: Path, *lines: str) -> str:
    """A file with a long script."""
    path = folder / "long.sh"
    path.write_text("\n".join(("#!/bin/bash", "#SBATCH -t 5 -o /dev/null", *lines, LONG, "echo read to the end", "")))
    return str(path)


def submitted(who: Person, path: str, *flags: str) -> str:
    """The name of what was submitted."""
    return str(yaml.safe_load(who.lattice("submit", "-o", "yaml", *flags, path).stdout)["metadata"]["name"])


def test_a_script_of_300_kib_runs_and_runs_again_when_it_is_requeued(
    alice: Person, admin: BlockingCluster, tenant: Room, tmp_path: Path
) -> None:
    path = written(tmp_path, 'echo "attempt $LATTICE_ATTEMPT of job $SLURM_JOB_ID"', '[ "$LATTICE_ATTEMPT" != 1 ] || sleep 3600')
    name = submitted(alice, path, "--grace-period=1s")
    alice.phase(name, "Running")
    shown = yaml.safe_load(alice.lattice("status", name, "-o", "yaml").stdout)
    number, source = shown["status"]["number"], shown["spec"]["scriptFrom"]
    assert source == {"configMap": f"{name}.script", "digest": script_digest(Path(path).read_text())}
    assert not {"script", "hold"} & shown["spec"].keys()
    until(lambda: f"attempt 1 of job {number}" in alice.lattice("logs", name, ok=False).stdout, within=20, what="the first attempt's line")
    alice.lattice("requeue", name)
    ended = alice.ended(name, within=60)
    assert (ended["phase"], ended["attempt"]) == ("Completed", 2)
    assert f"attempt 2 of job {number}\nread to the end\n" in alice.lattice("logs", name).stdout
    alice.kubectl("delete", "alloc", name, "-n", tenant.namespace)

    def left() -> list[str]:
        """The ConfigMap of the deleted work, while it is there."""
        try:
            return [admin.get(CONFIG_MAPS, source["configMap"], tenant.namespace)["metadata"]["name"]]
        except NotFound:
            return []

    until(lambda: not left(), within=60, what="the end of the ConfigMap with its work")


def test_a_config_map_that_is_gone_or_was_exchanged_before_the_start_ends_the_work(
    alice: Person, admin: BlockingCluster, tenant: Room, tmp_path: Path
) -> None:
    path = written(tmp_path)
    gone, exchanged = (submitted(alice, path, "--hold", f"--job-name={name}") for name in ("gone", "exchanged"))
    refused = alice.kubectl("delete", "configmap", f"{gone}.script", "-n", tenant.namespace, ok=False)
    assert "forbidden" in refused.stderr.lower()
    assert "immutable" in _patched(admin, tenant.namespace, f"{exchanged}.script")
    for name in (gone, exchanged):
        admin.delete(CONFIG_MAPS, f"{name}.script", tenant.namespace)
    made = {"metadata": {"name": f"{exchanged}.script"}, "data": {"script": "#!/bin/sh\necho stolen\n"}}
    admin.create(CONFIG_MAPS, made, tenant.namespace)
    for name, sentence in ((gone, "is gone: submit the work again"), (exchanged, "was changed since this work was submitted")):
        alice.lattice("release", name)
        ended = alice.ended(name)
        assert (ended["phase"], reason(ended)) == ("Failed", "StartFailed")
        assert sentence in str(ended["conditions"])
        assert "stolen" not in alice.lattice("logs", name, ok=False).stdout


def _patched(admin: BlockingCluster, namespace: str, name: str) -> str:
    """What the server says of a change of a ConfigMap's data."""
    with pytest.raises(Exception, match="immutable") as caught:
        admin.patch(CONFIG_MAPS, name, {"data": {"script": "#!/bin/sh\n"}}, namespace)
    return str(caught.value)


def test_a_script_above_a_mebibyte_is_refused_with_both_numbers(alice: Person, tmp_path: Path) -> None:
    path = tmp_path / "long.sh"
    path.write_text("#!/bin/sh\n" + "#" * (1 << 20))
    refused = alice.lattice("submit", str(path), ok=False)
    assert refused.returncode != 0
    assert "has 1048586 bytes, the limit is 1048576" in refused.stderr


def test_who_may_not_delete_config_maps_creates_only_those_that_go_with_work(alice: Person, tenant: Room, tmp_path: Path) -> None:
    name = submitted(alice, written(tmp_path), "--hold")
    uid = alice.get(name)["metadata"]["uid"]
    owner = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "name": name, "uid": uid}
    of_pod = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    for made in (
        config_map(f"{name}-more.script", owner),
        config_map(f"{name}.more", owner),
        config_map("notes.script"),
        config_map(f"{name}.script", owner, of_pod),
        config_map(f"{name}.script", of_pod),
        config_map(f"{name}.script", owner) | {"immutable": False},
    ):
        refused = alice.kubectl("create", "-f", "-", "-n", tenant.namespace, stdin=yaml.safe_dump(made), ok=False)
        assert "creates only those that go with work" in refused.stderr, (made, refused.stderr)
    stolen = config_map("else.script", owner | {"name": "else"})  # of a name that this uid has not: Kubernetes deletes it as an orphan
    alice.kubectl("create", "-f", "-", "-n", tenant.namespace, stdin=yaml.safe_dump(stolen))

    def is_gone() -> bool:
        shown = alice.kubectl("get", "configmap", "else.script", "-n", tenant.namespace, ok=False)
        return shown.returncode != 0 and "not found" in shown.stderr

    until(is_gone, within=60, what="the end of a ConfigMap whose owner there is not")


@pytest.fixture
def robot(control_plane: Instance, tenant: Room, tmp_path: Path) -> Iterator[Person]:
    """A service account that submits for others in this tenant, and may read no ConfigMap."""
    boss = person(control_plane, "admin", "default")
    name, account, there = f"robot-{tenant.name}", f"--serviceaccount={tenant.namespace}:robot", ("-n", tenant.namespace)
    boss.kubectl("create", "serviceaccount", "robot", *there)
    boss.kubectl("create", "clusterrole", name, "--verb=runas", "--resource=tenants.lattice.dev", f"--resource-name={tenant.name}")
    boss.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)
    for role, resource in (("works", "allocations.lattice.dev"), ("spaces", "namespaces")):
        boss.kubectl("create", "role", role, "--verb=get,list,watch,create,patch", f"--resource={resource}", *there)
        boss.kubectl("create", "rolebinding", role, f"--role={role}", account, *there)
    config = yaml.safe_load(boss.kubeconfig.read_text())
    token = boss.kubectl("create", "token", "robot", *there).stdout.strip()
    for entry in config["users"]:
        entry["user"] = {"token": token}
    path = tmp_path / "robot.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield Person(path, boss.kubectl_path, tenant.namespace)
    boss.kubectl("delete", "clusterrole,clusterrolebinding", name)


def test_who_may_not_read_config_maps_runs_no_script_of_one_and_who_may_runs_it_as_another(
    alice: Person, robot: Person, control_plane: Instance, tenant: Room, tmp_path: Path
) -> None:
    path = written(tmp_path, "id -un")
    held = submitted(alice, path, "--hold")
    stolen = alice.get(held)["spec"]["scriptFrom"]
    refused = robot.apply("thief", scriptFrom=stolen, ok=False)
    assert f'names ConfigMap "{held}.script"' in refused.stderr, refused.stderr
    assert "the verb get on this ConfigMap is missing" in refused.stderr
    asked = robot.lattice("submit", "--user=alice", path, ok=False)
    assert (asked.returncode != 0, "ConfigMap" in asked.stderr) == (True, True), asked.stderr
    boss, there = person(control_plane, "admin", "default"), ("-n", tenant.namespace)
    boss.kubectl("create", "role", "scripts", "--verb=get,create", "--resource=configmaps", *there)
    boss.kubectl("create", "rolebinding", "scripts", "--role=scripts", f"--serviceaccount={tenant.namespace}:robot", *there)
    can = ("auth", "can-i", "create", "configmaps", *there)
    until(lambda: robot.kubectl(*can, ok=False).stdout == "yes\n", within=15, every=0.3, what="the robot's right to ConfigMaps")
    name = submitted(robot, path, "--user=alice")
    assert alice.ended(name)["phase"] == "Completed"
    assert alice.lattice("logs", name).stdout == "alice\nread to the end\n"


def test_a_long_script_runs_on_every_node(alice: Person, tmp_path: Path) -> None:
    name = submitted(alice, written(tmp_path, 'echo "rank $LATTICE_NODE_RANK"'), "--nodes=2", "--tasks-on=every-node")
    assert alice.ended(name)["phase"] == "Completed"
    lines = alice.lattice("logs", name).stdout.splitlines()
    assert sum(line.endswith("read to the end") for line in lines) == 2, lines


def config_map(name: str, *owners: dict[str, str]) -> dict[str, Any]:
    """A ConfigMap with a script, of these owners."""
    metadata = {"name": name, "ownerReferences": list(owners)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": {"script": "#!/bin/sh\n"}}
