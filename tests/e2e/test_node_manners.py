"""What work may do to its node, tried by people on a running instance: it ends by the book, and nothing of it is left."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.e2e.conftest import NODE_MEMORY, Room, may_submit
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate
from tests.workloads import FORK_BOMB

LIMIT = 500


def script(text: str) -> str:
    return textwrap.dedent(text).lstrip()


def test_a_fork_bomb_ends_at_its_walltime_and_its_node_works_on(me: Person, admin: BlockingCluster) -> None:
    admin.patch(CONFIGS, "lattice", {"spec": {"work": {"maxProcesses": LIMIT}}})
    try:
        me.apply("bomb", walltime="1h", script=FORK_BOMB, resources={"constraints": {"nodeList": "nid002"}})
        until(lambda: me.lattice("logs", "bomb", ok=False).stdout, within=30, every=0.3, what="as many as it may start")
        me.lattice("update", "bomb", "--walltime=1s")
        status = me.ended("bomb", within=60)
        assert (status["phase"], reason(status)) == ("Failed", "WalltimeExceeded")
        assert 0 < int(me.lattice("logs", "bomb").stdout.split()[0]) <= LIMIT
        me.apply("after", entrypoint="true", resources={"constraints": {"nodeList": "nid002"}})
        assert me.ended("after")["phase"] == "Completed"
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"work": {"maxProcesses": None}}})


def test_work_that_outgrows_its_nodes_memory_says_so_and_what_it_has_used(me: Person) -> None:
    grow = f"bytearray({2 * NODE_MEMORY})"
    me.apply("grower", script=f"#!/bin/bash\npython3 -c 'sum(range(10**7)); {grow}'\nexit 5\n")
    status = me.ended("grower", within=60)
    assert (status["phase"], reason(status), status["exit"]["code"], status["exit"]["oomKills"]) == ("Failed", "OutOfMemory", 5, 1)
    said = me.lattice("status", "grower").stdout
    limit = NODE_MEMORY >> 20
    assert f"its memory is limited to {limit} MiB, and it held {limit} MiB at the most; task 0 ended with exit code 5" in " ".join(
        said.split()
    )
    used = next(line for line in said.splitlines() if line.startswith("Used"))
    assert re.search(r"\d+\.\d+ CPU seconds, .*of memory at the most, memory was short 1 time", used), used

    def settled() -> dict[str, Any]:
        rows = json.loads(me.lattice("history", "--name", "grower", "-o", "json").stdout)["rows"]
        return rows[0] if rows else {}

    row = until(Seen(settled, lambda row: row.get("state") == "Failed"), within=60, what="the hours of grower")
    assert (row["reason"], row["oomKills"]) == ("OutOfMemory", 1)
    assert row["cpuSeconds"] > 0.05
    assert 0.9 * NODE_MEMORY <= row["peakMemory"] <= NODE_MEMORY
    assert "PEAK" in me.lattice("history", "--name", "grower").stdout


def test_a_user_cannot_let_his_script_grow_in_the_state_directory(me: Person) -> None:
    me.apply("grower", script="#!/bin/bash\nchmod u+w $0; cat /dev/zero >> $0; ln $0 ~/kept; exit 3\n")
    status = me.ended("grower")
    assert (status["phase"], status["exit"]["code"]) == ("Failed", 3)
    said = me.lattice("logs", "grower", "--stderr").stdout
    assert said.count("Operation not permitted") + said.count("Permission denied") >= 2, said


def test_files_and_segments_that_work_leaves_for_all_to_see_go_with_it(
    control_plane: Instance, admin: BlockingCluster, tenant: Room
) -> None:
    control_plane.add_user("leaver", tenant.name)  # whose account no other instance on this machine works for at the moment
    until(lambda: may_submit(admin, "leaver", tenant.namespace), within=20, what="the leaver's rights")
    me = person(control_plane, "leaver", tenant.namespace)
    left = [Path("/tmp", f"{tenant.name}-left"), Path("/dev/shm", f"{tenant.name}-left")]
    me.apply(
        "leaver",
        script=f"#!/bin/bash\nmkdir {left[0]}; echo x > {left[0]}/file; echo x > {left[1]}; ipcmk -M 4096; sleep 1; ls {left[1]}\n",
    )
    assert me.ended("leaver")["phase"] == "Completed"
    assert str(left[1]) in me.lattice("logs", "leaver").stdout
    until(lambda: not any(path.exists() for path in left), within=10, what="what it left to go")


def test_each_attempt_has_a_tmp_of_its_own_that_is_gone_afterwards(me: Person, tenant: Room, gate: Gate) -> None:
    name, output = f"{tenant.name}-mine", Path("/tmp", f"{tenant.name}.out")
    write = f"#!/bin/bash\necho here > /tmp/{name}; echo here > /dev/shm/{name}; cat /tmp/{name} /dev/shm/{name}; {gate.wait}\n"
    where = {"constraints": {"nodeList": "nid002"}}
    me.apply("writer", script=write, resources=where, environment={"output": {"stdout": str(output)}})
    try:
        until(lambda: output.exists() and output.read_text() == "here\nhere\n", within=30, what="what it has written")
        assert not any(Path(directory, name).exists() for directory in ("/tmp", "/dev/shm"))
        gate.open()
        assert me.ended("writer")["phase"] == "Completed"
        assert output.read_text() == "here\nhere\n"
    finally:
        output.unlink(missing_ok=True)
    me.apply("reader", script=f"#!/bin/bash\nls /tmp/{name} /dev/shm/{name} 2>/dev/null; ls -A /tmp /dev/shm\n", resources=where)
    assert me.ended("reader")["phase"] == "Completed"
    assert me.lattice("logs", "reader").stdout.split() == ["/dev/shm:", "/tmp:"]
    assert not [path for path in Path("/tmp").glob(".lattice-tmp-*") if me.get("writer")["metadata"]["uid"] in path.name]


def test_a_site_gives_all_work_variables_and_shares_tmp_where_it_wants_to(me: Person, tenant: Room, admin: BlockingCluster) -> None:
    shared, profile = Path("/tmp", f"{tenant.name}-shared"), Path("/tmp", f"{tenant.name}-profile")
    profile.write_text("module() { echo loaded $1; }\n")
    changed = {"environment": {"BASH_ENV": str(profile), "SITE": "ours"}, "privateTmp": False, "coreBytes": "4Ki"}
    admin.patch(CONFIGS, "lattice", {"spec": {"work": changed}})
    try:
        me.apply("site", script=f"#!/bin/bash\nmodule gcc; echo $SITE $(ulimit -S -c); touch {shared}; sleep 1\n")
        until(shared.exists, within=30, what="its file in the machine's /tmp")
        assert me.ended("site")["phase"] == "Completed"
        assert me.lattice("logs", "site").stdout.split() == ["loaded", "gcc", "ours", "4"]
    finally:
        admin.patch(CONFIGS, "lattice", {"spec": {"work": dict.fromkeys(changed)}})
        for path in (shared, profile):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("path", ["/dev/ptmx", "/proc/self/timerslack_ns", "/proc/pressure/cpu"])
def test_output_goes_to_no_device_and_no_file_of_the_kernels(me: Person, path: str) -> None:
    me.apply("wrong", entrypoint="echo hello", environment={"output": {"stdout": path}})
    status = me.ended("wrong")
    assert (status["phase"], reason(status), status.get("exit")) == ("Failed", "StartFailed", None)
    said = me.get("wrong")["status"]["conditions"]
    assert any(f"the output file '{path}'" in condition["message"] for condition in said)
