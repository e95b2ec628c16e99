"""Work in OCI images of a registry, pulled, packed and run by runc on the nodes of a real control plane; nothing of it is left."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS, NODES
from lattice_dev.instance import Instance
from tests.containers import ARCHITECTURE, image, index, layer, member, push
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until
from tests.killed_runs import RUN
from tests.oci import APPLETS, BUSYBOX, needs_runc
from tests.registries import running_registry
from tests.squashfs import needs_mksquashfs
from tests.system_files import below, loop_files

pytestmark = [
    needs_runc(), needs_mksquashfs(), pytest.mark.skipif(os.geteuid() != 0, reason="containers need root"),
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
]  # fmt: skip
APP = "images.example/team/app:1.0"
SHARED = Path(f"/opt/lattice-shared-{RUN}")
"""A directory of this machine; the image has files there, too."""


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


@pytest.fixture(scope="module")
def home(control_plane: Instance) -> Iterator[Path]:
    """A directory of alice's, which the container shows at its own path."""
    place = control_plane.where.user_home("alice") / "containers"
    place.mkdir()
    alice = place.parent.stat()
    os.chown(place, alice.st_uid, alice.st_gid)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module", autouse=True)
def registry(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that the nodes reach, with an image of a small system."""
    network = control_plane.site().network
    with running_registry(tmp_path_factory.mktemp("registry"), address=network.gateway if network is not None else "127.0.0.1") as program:
        system = layer(
            *(member(name) for name in ("bin", "etc", "app", "tmp")),
            member("bin/busybox", Path(BUSYBOX).read_bytes(), mode=0o755),
            *(member(f"bin/{applet}", kind=tarfile.SYMTYPE, target="busybox") for applet in APPLETS),
            member("etc/os-release", "ID=busybox\n"),
        )
        app = layer(member("app/solve", "#!/bin/sh\necho solved $0\n", mode=0o755), member("app/lost", "#!/bin/python9\n", mode=0o4755))
        built = image(system, app, env=("PATH=/bin:/app", "FROM_IMAGE=yes"), workdir="/app")
        digest = push(program.host, "team/app", "1.0", built)
        registries = [{"name": "images.example", "url": f"http://{program.host}"}]
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registries": registries, "containerDevices": ["vendor.example/none"]}}})
        foreign = image(system, architecture="s390x")
        push(program.host, "team/foreign", "1.0", index((foreign, "s390x"), (foreign, "ppc64le")))
        both = image(
            system, layer(member("opt"), member(f"opt/{SHARED.name}"), member(f"opt/{SHARED.name}/of-the-image", "x")), env=("PATH=/bin",)
        )
        push(program.host, "team/both", "1.0", index((both, ARCHITECTURE), (foreign, "s390x")))
        yield digest
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


def printed(me: Person, name: str) -> str:
    status = me.ended(name, within=60)
    assert status["phase"] == "Completed", (status, me.lattice("logs", name, ok=False).stderr)
    return me.lattice("logs", name).stdout


def traces(control_plane: Instance) -> list[str]:
    """What containers of the nodes have left on the machine: bundles, loop devices, cgroups, state."""
    nodes = [control_plane.where.node(node) for node in control_plane.site().nodes]
    found = [str(path) for place in nodes for path in (place / "run").glob("*/container")]
    found += [str(file) for file, behind in loop_files() if behind.startswith(tuple(map(str, nodes)))]
    root = control_plane.where.scope_root()
    return found + [str(path) for path in (below(root) if root is not None else ()) if path.name == "container"]


def test_every_node_offers_what_it_has_the_programs_for(control_plane: Instance, admin: BlockingCluster) -> None:
    for node in control_plane.site().nodes:
        assert "oci" in admin.get(NODES, node)["status"]["capabilities"]["features"]


def test_work_runs_in_an_image_of_the_registry_on_every_node_and_nothing_is_left(
    control_plane: Instance, me: Person, registry: str
) -> None:
    command = "sh -c 'solve; cat /etc/os-release; echo $FROM_IMAGE $USER; pwd; touch /x 2>&1; grep NoNewPrivs /proc/self/status'"
    me.apply("two", nodes=2, entrypoint=command, environment={"image": APP})
    lines = [line.rpartition(": ")[2] if line.startswith("nid") else line for line in printed(me, "two").splitlines()]
    assert lines.count("solved /app/solve") == 2, lines
    for line in ("ID=busybox", "yes alice", "/app", "NoNewPrivs:\t1"):
        assert lines.count(line) == 2, (line, lines)
    assert sum("Read-only file system" in line for line in lines) == 2
    (pinned,) = me.get("two")["status"]["software"]
    assert (pinned["kind"], pinned["digest"], pinned["source"]) == ("Oci", registry, APP)
    until(lambda: not traces(control_plane), within=10)


def test_a_script_finds_home_and_working_directory_of_the_node_and_flags_and_directives_name_the_image(me: Person, home: Path) -> None:
    script = "#!/bin/sh\n#SBATCH --time=5 --output=/dev/null\n#SBATCH --container-image=images.example\\#team/app:1.0\npwd; solve; echo x > written\n"
    done = me.lattice("submit", "--wait", "--parsable", "-", stdin=script, cwd=home)
    assert me.lattice("logs", done.stdout.strip()).stdout.splitlines() == [str(home), "solved /app/solve"]
    assert (home / "written").read_text() == "x\n"
    words = (
        "submit",
        "--wait",
        "--parsable",
        f"--image={APP}",
        "--writable",
        "--walltime=5m",
        "--",
        "sh",
        "-c",
        "echo y > /app/new && cat /app/new",
    )
    assert me.lattice("logs", me.lattice(*words, cwd=home).stdout.strip()).stdout == "y\n"


@pytest.mark.parametrize(
    ("name", "spec", "code", "said"),
    [
        ("absent", {"entrypoint": "absent"}, 127, "'absent' cannot be executed in the image"),
        ("lost", {"entrypoint": "/app/lost"}, 127, "/app/lost cannot be executed in the image: its interpreter /bin/python9 is not there"),
        (
            "script",
            {"script": "#!/bin/bash\ntrue\n"},
            127,
            "the script cannot be executed in the image: its interpreter /bin/bash is not there",
        ),
        ("code", {"entrypoint": "sh -c 'exit 5'"}, 5, ""),
        ("mount", {"entrypoint": "mount -t tmpfs none /app"}, 1, "mount: permission denied"),
    ],
)
def test_what_fails_in_the_image_ends_with_its_code_and_a_sentence(
    me: Person, name: str, spec: dict[str, Any], code: int, said: str
) -> None:
    me.apply(name, environment={"image": APP}, **spec)
    status = me.ended(name)
    assert (status["phase"], status["exit"]["code"]) == ("Failed", code), status
    assert said in me.lattice("logs", name).stdout + me.lattice("logs", "--stderr", name, ok=False).stdout


def test_a_working_directory_that_is_nowhere_is_refused_and_an_unknown_device_names_the_known_ones(me: Person) -> None:
    me.apply("nowhere", entrypoint="true", environment={"image": APP, "workdir": "/nowhere"})
    status = me.ended("nowhere")
    message = next(entry["message"] for entry in status["conditions"] if entry["type"] == "Finished")
    assert (reason(status), "neither on the node" in message) == ("StartFailed", True), status
    me.apply("device", entrypoint="true", environment={"image": APP, "devices": ["vendor.example/none=0"]})
    first, *_ = until(lambda: me.get("device").get("status", {}).get("attempts"), within=30, what="the end of its first attempt")
    assert (first["reason"], "its CDI specifications name none" in first["message"]) == ("PrologueFailed", True), first
    assert "its CDI specifications name none" in " ".join(me.lattice("why", "device").stdout.split())
    me.lattice("cancel", "device")
    me.apply("kind", entrypoint="true", environment={"image": APP, "devices": ["vendor.example/other=0"]})
    status = me.ended("kind")
    message = next(entry["message"] for entry in status["conditions"] if entry["type"] == "Finished")
    assert (reason(status), status.get("attempts")) == ("ImageRefused", None), status
    assert "'vendor.example/other=0'" in message
    assert "of vendor.example/none on this site (software.containerDevices)" in message


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"image": APP, "uenv": "app/42"}, "spec.environment.image"),
        ({"writable": True}, "give spec.environment.image"),
        ({"devices": ["a/b=c"]}, "give spec.environment.image"),
        ({"image": APP, "devices": ["gpu0"]}, "spec.environment.devices[0]"),
        ({"image": "Not An Image"}, "is no OCI image"),
    ],
)
def test_what_does_not_belong_together_is_refused_when_it_is_applied(me: Person, environment: dict[str, object], said: str) -> None:
    done = me.apply("faulty", entrypoint="true", environment=environment, ok=False)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr


def test_an_image_of_other_architectures_finds_no_node_and_says_which_there_are(control_plane: Instance, me: Person) -> None:
    nodes = len(control_plane.site().nodes)
    me.apply("foreign", entrypoint="true", environment={"image": "images.example/team/foreign:1.0"})
    until(lambda: me.get("foreign").get("status", {}).get("software"), within=30, what="its resolved image")
    assert me.get("foreign")["status"]["software"][0]["architectures"] == ["ppc64le", "s390x"]
    wanted = "0 exist that fit its constraints: no node has one of the architectures ppc64le, s390x, for which its image is made; there are"
    wanted = f"{wanted} {os.uname().machine} ({nodes} nodes)"
    until(lambda: wanted in " ".join(me.lattice("why", "foreign").stdout.split()), within=30, what="why it finds no node")
    assert not me.get("foreign")["status"].get("attempts"), "no node was tried"
    planned = me.lattice("plan", "--image", "images.example/team/foreign:1.0", "--", "true", ok=False)
    assert (planned.returncode, wanted in " ".join(planned.stdout.split())) == (4, True), planned
    me.lattice("cancel", "foreign")
    me.apply("both", entrypoint="true", environment={"image": "images.example/team/both:1.0"})
    assert me.ended("both", within=60)["phase"] == "Completed"
    assert os.uname().machine in me.get("both")["status"]["software"][0]["architectures"]


def test_directories_that_the_site_lists_and_the_node_lacks_or_that_hide_the_images_are_told(
    control_plane: Instance, admin: BlockingCluster, me: Person
) -> None:
    SHARED.mkdir()
    try:
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"containerMounts": ["/nowhere/scratch", str(SHARED)]}}})
        me.apply("mounts", entrypoint=f"ls {SHARED}", environment={"image": "images.example/team/both:1.0"})
        assert me.ended("mounts", within=60)["phase"] == "Completed"
        assert me.lattice("logs", "--stdout", "mounts").stdout == ""
        said = me.lattice("logs", "--stderr", "mounts").stdout
        assert re.search(r"node nid\d+ has no /nowhere/scratch, which the site lists for containers \(software\.containerMounts\)", said), (
            said
        )
        assert f"the node's {SHARED} hides what the image has there" in said
        node = me.get("mounts")["status"]["nodes"]
        shown = " ".join(person(control_plane, "admin", "default").lattice("node", "status", node).stdout.split())
        assert "runc software.containerMounts: there is no /nowhere/scratch here" in shown
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"containerMounts": None}}})
        SHARED.rmdir()


def test_output_relative_to_a_directory_of_the_image_alone_is_refused_and_to_the_images_own_is_told(
    me: Person, control_plane: Instance
) -> None:
    output = {"stdout": "told-%j.out"}
    me.apply("relative", entrypoint="true", environment={"image": APP, "workdir": "/app", "output": output})
    status = me.ended("relative")
    message = next(entry["message"] for entry in status["conditions"] if entry["type"] == "Finished")
    assert reason(status) == "StartFailed", status
    assert re.search(r"'/app' cannot be entered: .*; 'told-\d+\.out' for output is relative to it, and written on the node", message), (
        message
    )
    me.apply("absolute", entrypoint="pwd", environment={"image": APP, "workdir": "/app", "output": {"stdout": "/dev/null"}})
    assert printed(me, "absolute") == "/app\n"
    me.apply("own", entrypoint="pwd", environment={"image": APP, "output": output})
    assert printed(me, "own").startswith("/app\n")
    home = control_plane.where.user_home("alice")
    (written,) = home.glob("told-*.out")
    assert written.read_text().splitlines()[-1] == "/app"
    written.unlink()
    said = me.lattice("logs", "--stderr", "own").stdout
    assert re.search(rf"told-\d+\.out for output is in {home} of the node, not in the image's /app", said), said


def test_work_in_an_image_beyond_the_memory_of_its_node_is_out_of_memory(me: Person) -> None:
    me.apply(
        "hungry",
        entrypoint="dd if=/dev/zero of=/dev/null bs=1500M count=1",
        environment={"image": APP},
    )
    status = me.ended("hungry", within=90)
    assert reason(status) == "OutOfMemory", status


def test_an_agent_that_is_killed_over_work_in_an_image_loses_no_code_and_leaves_nothing(
    control_plane: Instance, me: Person, home: Path
) -> None:
    node = control_plane.site().nodes[-1]
    script = f"#!/bin/sh\nsolve\ntouch {home}/begun\nuntil [ -e {home}/go ]; do sleep 0.1; done\nsolve\nexit 7\n"
    environment = {"image": APP, "workdir": str(home)}
    me.apply("survivor", script=script, environment=environment, resources={"constraints": {"nodeList": node}})
    until((home / "begun").exists, within=30)
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    (home / "go").touch()
    status = me.ended("survivor", within=60)
    assert (status["phase"], status["exit"]["code"]) == ("Failed", 7)
    assert me.lattice("logs", "survivor").stdout == "solved /app/solve\n" * 2
    until(lambda: not traces(control_plane), within=20)


def test_the_example_runs_in_the_image_on_two_nodes(control_plane: Instance) -> None:
    alice = person(control_plane, "alice", "physics")
    try:
        alice.kubectl("apply", "-f", str(Path(__file__).resolve().parents[2] / "examples/11-container.yaml"))
        assert printed(alice, "container").count("ID=busybox") == 2
    finally:
        alice.kubectl("delete", "allocation", "container", "--ignore-not-found")


def test_srun_starts_tasks_in_the_image(me: Person, home: Path) -> None:
    script = "#!/bin/sh\nsrun -n 2 -O -l sh -c 'grep ^ID= /etc/os-release'\nsrun sh -c 'exit 7'\n"
    me.apply("launching", script=script, environment={"image": APP, "workdir": str(home)})
    status = me.ended("launching", within=60)
    assert (status["phase"], status["exit"]["code"]) == ("Failed", 7), status
    assert sorted(me.lattice("logs", "launching").stdout.splitlines())[:2] == ["0: ID=busybox", "1: ID=busybox"]


def test_the_tasks_of_an_entrypoint_run_in_the_image_on_one_node(me: Person, home: Path) -> None:
    command = "sh -c 'echo $PMI_RANK of $PMI_SIZE in $(grep ^ID= /etc/os-release)'"
    me.apply("entries", entrypoint=command, tasks={"total": 2}, environment={"image": APP, "workdir": str(home)})
    lines = [line for line in printed(me, "entries").splitlines() if not line.startswith("srun: ")]
    assert sorted(lines) == ["0 of 2 in ID=busybox", "1 of 2 in ID=busybox"]
