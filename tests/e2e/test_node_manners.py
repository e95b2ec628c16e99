"""What work may do to its node, tried by people on a running instance: it ends by the book, and nothing of it is left."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import until
from tests.workloads import FORK_BOMB

LIMIT = 500


def script(text: str) -> str:
    return textwrap.dedent(text).lstrip()


def test_a_fork_bomb_ends_at_its_walltime_and_its_node_works_on(me: Person, admin: BlockingCluster) -> None:
    admin.patch(CONFIGS, "lattice", {"spec": {"work": {"maxProcesses": LIMIT}}})
    try:
        me.apply("bomb", walltime="8s", script=FORK_BOMB, resources={"constraints": {"nodeList": "nid002"}})
        status = me.ended("bomb", within=60)
        assert (status["phase"], reason(status)) == ("Failed", "WalltimeExceeded")
        assert 0 < int(me.lattice("logs", "bomb").stdout.split()[0]) <= LIMIT
        me.apply("after", entrypoint="true", resources={"constraints": {"nodeList": "nid002"}})
        assert me.ended("after")["phase"] == "Completed"
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"work": {"maxProcesses": None}}})


def test_a_user_cannot_let_his_script_grow_in_the_state_directory(me: Person) -> None:
    me.apply("grower", script="#!/bin/bash\nchmod u+w $0; cat /dev/zero >> $0; ln $0 ~/kept; exit 3\n")
    status = me.ended("grower")
    assert (status["phase"], status["exit"]["code"]) == ("Failed", 3)
    said = me.lattice("logs", "grower", "--stderr").stdout
    assert said.count("Operation not permitted") + said.count("Permission denied") >= 2, said


def test_files_and_segments_that_work_leaves_for_all_to_see_go_with_it(control_plane: Instance, tenant: Room) -> None:
    control_plane.add_user("leaver", tenant.name)  # whose account no other instance on this machine works for at the moment
    me = person(control_plane, "leaver", tenant.namespace)
    left = [Path("/tmp", f"{tenant.name}-left"), Path("/dev/shm", f"{tenant.name}-left")]
    me.apply(
        "leaver",
        script=f"#!/bin/bash\nmkdir {left[0]}; echo x > {left[0]}/file; echo x > {left[1]}; ipcmk -M 4096; sleep 1; ls {left[1]}\n",
    )
    assert me.ended("leaver")["phase"] == "Completed"
    assert str(left[1]) in me.lattice("logs", "leaver").stdout
    until(lambda: not any(path.exists() for path in left), within=10, what="what it left to go")


@pytest.mark.parametrize("path", ["/dev/ptmx", "/proc/self/timerslack_ns", "/proc/pressure/cpu"])
def test_output_goes_to_no_device_and_no_file_of_the_kernels(me: Person, path: str) -> None:
    me.apply("wrong", entrypoint="echo hello", environment={"output": {"stdout": path}})
    status = me.ended("wrong")
    assert (status["phase"], reason(status), status.get("exit")) == ("Failed", "StartFailed", None)
    said = me.get("wrong")["status"]["conditions"]
    assert any(f"the output file '{path}'" in condition["message"] for condition in said)
