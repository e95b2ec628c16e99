"""Work in software, of its user's own or the site's registry, mounted for it alone, with views: squashfs-mount's and uenv's cases, by kubectl."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until
from tests.e2e.work import Gate
from tests.registries import running_registry
from tests.squashfs import described, make_image, needs_mksquashfs

pytestmark = [needs_mksquashfs(), pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")]


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


@pytest.fixture(scope="module")
def home(control_plane: Instance) -> Iterator[Path]:
    """A directory of alice's, with images of hers: app 42 and 43, tool, bare, plain (without metadata), and one cut off."""
    place = control_plane.where.user_home("alice") / "images"
    place.mkdir()
    for version in (42, 43):
        views = {"app": {"list": {"PATH": [{"op": "prepend", "value": ["/user-environment/bin"]}]}}}
        metadata = described("app", "/user-environment", views)
        make_image(place / f"app{version}.squashfs", {"bin/app": f"#!/bin/sh\necho hello app {version}\n"}, metadata)
    values: dict[str, Any] = {
        "scalar": {"TOOLVAR": "SET", "TOOLCONFLICT": None},
        "list": {"PATH": [{"op": "append", "value": ["/user-tools/bin"]}]},
    }
    tool = described("tool", "/user-tools", {"tool": values, "app": {}})
    make_image(place / "tool.squashfs", {"bin/tool": "#!/bin/sh\necho hello tool\n"}, tool)
    make_image(place / "bare.squashfs", {"bin/tool": "#!/bin/sh\necho hello bare\n"}, tool)
    make_image(place / "plain.squashfs", {"file": "plain\n"})
    (place / "half.squashfs").write_bytes((place / "plain.squashfs").read_bytes()[:200])
    (place / "target").mkdir()
    alice = place.parent.stat()
    for path in (place, *place.iterdir()):
        os.chown(path, alice.st_uid, alice.st_gid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    yield place
    for path in place.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    place.rmdir()


def printed(me: Person, name: str) -> str:
    status = me.ended(name)
    assert status["phase"] == "Completed", status
    return me.lattice("logs", name).stdout


def test_work_runs_in_one_image_with_a_view_and_nothing_stays_mounted(me: Person, home: Path) -> None:
    script = (
        "#!/bin/bash\napp; echo $UENV_MOUNT_LIST; echo $UENV_VIEW; grep -c ' /user-environment .*ro,nosuid,nodev' /proc/self/mountinfo\n"
    )
    me.apply("one", script=script, environment={"uenv": f"{home}/app42.squashfs", "view": "app"})
    assert printed(me, "one").splitlines() == [
        "hello app 42", f"{home}/app42.squashfs:/user-environment", "/user-environment:app:app", "1",
    ]  # fmt: skip
    assert "/user-environment" not in Path("/proc/self/mountinfo").read_text()
    assert not any(str(home) in file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file"))


def test_several_images_on_every_node_views_by_name_and_a_mount_point_in_another(me: Person, home: Path) -> None:
    inside = "/user-environment/bin"  # a directory that only the outer image has
    environment = {
        "uenv": f"{home}/plain.squashfs:{inside},{home}/app43.squashfs", "toolsUenv": f"{home}/tool.squashfs", "view": "app:app,tool:tool",
        "variables": {"MINE": "1"},
    }  # fmt: skip
    command = f"sh -c 'tool; cat {inside}/file; echo $TOOLVAR $TOOLCONFLICT $MINE; echo $PATH'"
    me.apply("several", nodes=2, entrypoint=command, environment=environment)
    lines = [line.rpartition(": ")[2] for line in printed(me, "several").splitlines()]
    assert [line for line in sorted(lines) if "bin" not in line] == sorted(["hello tool", "plain", "SET 1"] * 2), lines
    paths = [line.partition("/launch/bin:")[2] for line in lines if "bin" in line]  # of srun, which stands first
    assert all(path.startswith("/user-environment/bin:") and path.endswith(":/user-tools/bin") for path in paths), lines
    assert len(paths) == 2


def test_work_without_software_sees_the_machine_as_it_is(me: Person) -> None:
    me.apply("bare", entrypoint="sh -c 'echo [$UENV_MOUNT_LIST]; grep -c squashfs /proc/self/mountinfo || true'")
    assert printed(me, "bare") == "[]\n0\n"


@pytest.mark.parametrize(
    ("name", "environment", "expected", "said"),
    [
        ("missing", {"uenv": "{home}/none.squashfs"}, "ImageNotFound", "No such file"),
        ("foreign", {"uenv": "/etc/shadow"}, "ImageNotFound", "Permission denied"),
        ("half", {"uenv": "{home}/half.squashfs:{home}/target"}, "ImageRefused", "is cut off"),
        ("pointless", {"uenv": "{home}/plain.squashfs"}, "MountInvalid", "no mount point is given"),
        ("nowhere", {"uenv": "{home}/plain.squashfs:{home}/nowhere"}, "MountInvalid", "No such file"),
        ("system", {"uenv": "{home}/plain.squashfs:/usr"}, "MountInvalid", "it belongs to the system"),
        ("twice", {"uenv": "{home}/app42.squashfs,{home}/app43.squashfs"}, "MountInvalid", "more than one image mounted at the mount point"),
        ("view", {"uenv": "{home}/tool.squashfs", "view": "tools"}, "ViewUnknown", "the view 'tools' does not exist"),
        ("wombat", {"uenv": "{home}/tool.squashfs", "view": "wombat:tool"}, "ViewUnknown", "the view 'wombat:tool' does not exist"),
        ("both", {"uenv": "{home}/app42.squashfs,{home}/tool.squashfs", "view": "app"}, "ViewUnknown", "more than one view named 'app'"),
    ],
)  # fmt: skip
def test_what_no_node_could_mount_fails_at_once_and_is_not_tried_again(
    me: Person, home: Path, name: str, environment: dict[str, str], expected: str, said: str
) -> None:
    asked = {field: text.format(home=home) for field, text in environment.items()}
    me.apply(name, entrypoint="true", environment=asked, lifecycle={"requeue": {"policy": "Always"}})
    status = me.ended(name)
    message = next(entry["message"] for entry in status["conditions"] if entry["type"] == "Finished")
    assert (status["phase"], status["attempt"], reason(status), said in message) == ("Failed", 1, expected, True), message


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"uenv": "a:b:c"}, "unexpected ':'"),
        ({"uenv": "a?"}, "unexpected '?'"),
        ({"uenv": "app:"}, "unexpected ':'"),
        ({"uenv": "@daint"}, "names no environment"),
        ({"uenv": "/a.squashfs:/m/../etc"}, "without . and .."),
        ({"uenv": "/a.squashfs:/m,/b.squashfs:/m"}, "more than one image mounted at the mount point '/m'"),
        ({"uenv": "mine.squashfs"}, "looks like a file"),
        ({"uenv": "app/42.0:v1@arapiles%zen3+"}, "unexpected '+'"),
        ({"uenv": "/a.squashfs", "view": "a:b:c"}, "is no view"),
        ({"view": "a"}, "give spec.environment.uenv"),
        ({"noDefaultView": True}, "give spec.environment.uenv"),
    ],
)
def test_a_faulty_label_mount_point_or_view_is_refused_when_it_is_applied(me: Person, environment: dict[str, object], said: str) -> None:
    done = me.apply("faulty", entrypoint="true", environment=environment, ok=False)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr


def test_flags_directives_and_slurms_variables_name_images_from_the_working_directory(me: Person, home: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --uenv=./app42.squashfs --view=app\n#SBATCH --time=5 --output=/dev/null\napp; echo $SLURM_UENV_VIEW\n"
    done = me.lattice("submit", "--wait", "--parsable", "-", stdin=script, cwd=home)
    assert me.lattice("logs", done.stdout.strip()).stdout.splitlines()[0] == "hello app 42"
    done = me.lattice("submit", "--wait", "--parsable", "--uenv=./app43.squashfs", "-", stdin=script, cwd=home)
    assert me.lattice("logs", done.stdout.strip()).stdout.splitlines()[0] == "hello app 43"
    me.environ |= {"SBATCH_UENV": "./tool.squashfs", "SBATCH_UENV_VIEW": "tool"}
    try:
        done = me.lattice("submit", "--wait", "--parsable", "--walltime=5m", "--", "tool", cwd=home)
    finally:
        del me.environ["SBATCH_UENV"], me.environ["SBATCH_UENV_VIEW"]
    assert me.lattice("logs", done.stdout.strip()).stdout == "hello tool\n"


def test_an_agent_that_is_killed_over_work_with_software_loses_no_code_and_leaves_nothing(
    control_plane: Instance, me: Person, home: Path, gate: Gate
) -> None:
    node = control_plane.site().nodes[-1]
    script = f"#!/bin/bash\napp\ntouch {home}/target/begun\n{gate.wait}\napp\nexit 7\n"
    environment = {"uenv": f"{home}/app42.squashfs", "view": "app"}
    me.apply("survivor", script=script, environment=environment, resources={"constraints": {"nodeList": node}})
    until((home / "target/begun").exists, within=30)
    (home / "target/begun").unlink()
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    gate.open()
    status = me.ended("survivor", within=60)
    assert (status["phase"], status["exit"]["code"]) == ("Failed", 7)
    assert me.lattice("logs", "survivor").stdout == "hello app 42\n" * 2
    assert not any(str(home) in file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file"))


def test_a_site_that_takes_no_files_of_users_refuses_them(me: Person, home: Path, admin: BlockingCluster) -> None:
    admin.patch(CONFIGS, "lattice", {"spec": {"software": {"userFiles": False}}})
    try:
        me.apply("files", entrypoint="true", environment={"uenv": f"{home}/app42.squashfs"})
        assert reason(me.ended("files")) == "ImageRefused"
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"userFiles": None}}})


def test_the_example_runs_in_an_image_of_ones_home(control_plane: Instance) -> None:
    alice, place = person(control_plane, "alice", "physics"), control_plane.where.user_home("alice")
    views = {"default": {"list": {"PATH": [{"op": "prepend", "value": ["/user-environment/bin"]}]}}}
    metadata = described("my-stack", "/user-environment", views)
    image = make_image(place / "my-stack.squashfs", {"bin/solve": "#!/bin/sh\necho solved\n"}, metadata)
    try:
        alice.kubectl("apply", "-f", str(Path(__file__).resolve().parents[2] / "examples/10-own-software.yaml"))
        assert printed(alice, "own-software") == "solved\n"
    finally:
        alice.kubectl("delete", "allocation", "own-software", "--ignore-not-found")
        image.unlink()


# images of the site's registry


@pytest.fixture(scope="module")
def registry(
    control_plane: Instance, admin: BlockingCluster, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A registry that the nodes reach: app 42 and 43 and tool with attached metadata, bare without; digests by label."""
    folder, network = tmp_path_factory.mktemp("registry"), control_plane.site().network
    views = {"app": {"list": {"PATH": [{"op": "prepend", "value": ["/user-environment/bin"]}]}}}
    with running_registry(folder, address=network.gateway if network is not None else "127.0.0.1") as program:

        def push(label: str, place: str, tag: str, image: str, metadata: dict[str, Any] | None) -> str:
            return program.push_uenv(folder / label, f"deploy/arapiles/zen3/{place}", tag, (home / image).read_bytes(), metadata)

        app = described("app", "/user-environment", views)
        digests = {
            "app/42": push("a", "app/42.0", "v1", "app42.squashfs", app),
            "app/43": push("b", "app/43.0", "v1", "app43.squashfs", app),
            "tool": push(
                "c", "tool/17.3.2", "v1", "tool.squashfs", described("tool", "/user-tools", {"tool": {"scalar": {"TOOLVAR": "ATTACHED"}}})
            ),
            "bare": push("d", "bare/1.0", "v1", "bare.squashfs", None),
        }
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": program.url, "system": "arapiles"}}})
        yield digests
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


def test_work_runs_in_an_image_of_the_registry_by_label_id_and_digest(registry: dict[str, str], me: Person) -> None:
    digest = registry["app/43"]
    names = {"label": "app/43.0:v1", "version": "app/43.0", "id": digest.removeprefix("sha256:")[:16], "digest": digest}
    for name, asked in names.items():
        me.apply(f"by-{name}", entrypoint="sh -c 'app; echo $UENV_MOUNT_LIST'", environment={"uenv": asked, "view": "app"})
    for name in names:
        hello, mounts = printed(me, f"by-{name}").splitlines()
        assert hello == "hello app 43"
        assert mounts.endswith(f"/images/{digest.replace(':', '-')}.squashfs:/user-environment")
        assert me.get(f"by-{name}")["status"]["software"][0]["digest"] == digest


def test_registry_and_file_stand_beside_each_other_and_attached_metadata_comes_before_what_is_inside(
    registry: dict[str, str], me: Person, home: Path
) -> None:
    environment = {"uenv": f"{home}/app42.squashfs,tool:{home}/target", "view": "app,tool"}
    me.apply("beside", entrypoint=f"sh -c 'app; {home}/target/bin/tool; echo $TOOLVAR; echo $UENV_VIEW'", environment=environment)
    assert printed(me, "beside").splitlines() == [
        "hello app 42", "hello tool", "ATTACHED", f"/user-environment:app:app,{home}/target:tool:tool",
    ]  # fmt: skip
    me.apply("inside", entrypoint="sh -c 'tool; echo $TOOLVAR; echo $UENV_VIEW'", environment={"toolsUenv": "bare", "view": "bare:tool"})
    assert printed(me, "inside").splitlines() == ["hello bare", "SET", "/user-tools:bare:tool"]


@pytest.mark.parametrize(
    ("name", "environment", "expected", "said"),
    [
        ("ambiguous", {"uenv": "app"}, "ImageRefused", "app/43.0:v1"),
        ("absent", {"uenv": "wombat/1.0:v1"}, "ImageNotFound", "wombat"),
        ("unseen", {"uenv": "app/42.0", "view": "tools"}, "ViewUnknown", "'tools' does not exist"),
        ("same", {"uenv": "app/42.0,app/43.0"}, "MountInvalid", "more than one image mounted at the mount point"),
        ("gone", {"uenv": "app/42.0:/user-environment/none"}, "MountInvalid", "cannot be used"),
    ],
)
def test_an_image_that_cannot_be_had_or_mounted_ends_the_work_with_the_list(
    registry: dict[str, str], me: Person, name: str, environment: dict[str, str], expected: str, said: str
) -> None:
    me.apply(f"reg-{name}", entrypoint="true", environment=environment)
    status = me.ended(f"reg-{name}")
    message = next(entry["message"] for entry in status["conditions"] if entry["type"] == "Finished")
    assert (status["phase"], reason(status), said in message) == ("Failed", expected, True), status
