"""A scope counts and kills every process of an attempt, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_agent.attempts import Key
from lattice_agent.host.scopes import CgroupScopes, ProcessScopes, Scopes, choose, find_mount
from tests.unit.agent.machine import has_cgroups, needs_root, until

KEY, OTHER = Key("scopes", 1), Key("scopes", 2)
NODE = "lattice-test-scopes"

PURE = "sysfs /sys sysfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
HYBRID = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        (PURE, (Path("/sys/fs/cgroup"), "unified")),
        (HYBRID, (Path("/sys/fs/cgroup/unified"), "hybrid")),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", None),
        ("", None),
    ],
    ids=["pure v2", "hybrid", "v1 alone", "nothing"],
)
def test_the_tree_is_found_from_the_mounts(mounts: str, found: tuple[Path, str] | None) -> None:
    assert find_mount(mounts) == found


def run_in(scopes: Scopes, key: Key, script: str, node: str = NODE) -> subprocess.Popen[bytes]:
    """A shell in the scope, as a shim would put it there."""
    join = "".join(f"echo 0 > {entrance}; " for entrance in scopes.entrances(key).work_procs)
    variables = {"LATTICE_ALLOC_ID": key.uid, "LATTICE_ATTEMPT": str(key.attempt), "LATTICE_NODENAME": node, "PATH": os.environ["PATH"]}
    return subprocess.Popen(["sh", "-c", join + script], env=variables, start_new_session=True)


@pytest.fixture(params=["cgroups", "processes"])
def scopes(request: pytest.FixtureRequest) -> Scopes:
    if request.param == "processes":
        return ProcessScopes(NODE)
    if not has_cgroups():
        pytest.skip("no cgroup v2 that this user may write to")
    return choose(NODE, None)


@needs_root()
@pytest.mark.pure_v2
async def test_term_and_kill_reach_all_of_one_scope_and_no_other(scopes: Scopes) -> None:
    for key in (KEY, OTHER):
        scopes.make(key)
    obeys = run_in(scopes, KEY, "sleep 300 & setsid sleep 300 & wait")
    bystander = run_in(scopes, OTHER, "exec sleep 300")
    try:
        await until(lambda: len(scopes.work(KEY)) >= 3 and len(scopes.work(OTHER)) == 1)
        assert scopes.populated(KEY)
        assert not scopes.remove_scope(KEY)
        assert scopes.terminate(KEY) >= 3
        await asyncio.to_thread(obeys.wait, 90)
        await until(lambda: not scopes.work(KEY))
        stubborn = run_in(scopes, KEY, "trap '' TERM; while :; do sleep 1; done")
        await until(lambda: len(scopes.work(KEY)) >= 1)
        await until(lambda: scopes.terminate(KEY) >= 1)
        scopes.kill(KEY)
        assert await asyncio.to_thread(stubborn.wait, 90) in (-9, -15)
        await until(lambda: scopes.remove_scope(KEY))
        assert bystander.poll() is None
    finally:
        scopes.kill(OTHER, whole=True)
        bystander.wait(90)
        await until(lambda: scopes.remove_scope(OTHER))
        scopes.close()


async def test_without_cgroups_two_nodes_of_a_machine_end_their_own_part_of_an_attempt_alone() -> None:
    scopes = {node: ProcessScopes(node) for node in ("n1", "n2")}
    # A shell that ends by its own TERM alone: where `sleep` gets its TERM first, `wait` would end with 0 and the shell with it.
    parts = {node: run_in(scopes[node], KEY, "sleep 300 & while :; do wait; done", node) for node in scopes}
    try:
        await until(lambda: all(len(scopes[node].work(KEY)) == 2 for node in scopes))
        scopes["n1"].kill(KEY, whole=True)
        assert await asyncio.to_thread(parts["n1"].wait, 90) == -9
        await until(lambda: scopes["n1"].remove_scope(KEY))
        assert (scopes["n2"].populated(KEY), parts["n2"].poll()) == (True, None)
        assert scopes["n2"].terminate(KEY) == 2
        assert await asyncio.to_thread(parts["n2"].wait, 90) == -15
    finally:
        for node, part in parts.items():
            scopes[node].kill(KEY)
            part.wait(90)


def test_a_scope_that_is_not_there_is_empty_and_removed(scopes: Scopes) -> None:
    assert not scopes.populated(KEY)
    assert scopes.work(KEY) == []
    scopes.kill(KEY)
    assert scopes.remove_scope(KEY)
    assert scopes.standing_scopes() == []
    scopes.close()


def test_a_stray_scope_is_listed_by_its_name(scopes: Scopes) -> None:
    scopes.make(KEY)
    assert scopes.standing_scopes() == [KEY]
    if isinstance(scopes, CgroupScopes):
        assert CgroupScopes(scopes.root, "hybrid", scopes.controllers).standing_scopes() == [KEY]
    assert scopes.remove_scope(KEY)
    scopes.close()


REFUSE_CLONE3 = """
import ctypes, struct, sys
code = b"".join(struct.pack("<HBBI", *row) for row in ((32, 0, 0, 0), (21, 0, 1, 435), (6, 0, 0, 0x50000 | int(sys.argv[2])), (6, 0, 0, 0x7FFF0000)))
libc, kept = ctypes.CDLL(None), ctypes.create_string_buffer(code)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("H6xQ", 4, ctypes.addressof(kept)), 0, 0) == 0
"""
"""A seccomp filter by which the kernel answers clone3 with the error of the second argument."""
FORK = """
import os, sys
from lattice_agent.standalone import forks
pid, inside = forks.fork_into(sys.argv[1])
if pid == 0:
    cgroups = [line.partition("::")[2] for line in open("/proc/self/cgroup") if line.startswith("0::")]
    os.write(1, f"{inside} {cgroups[0] if cgroups else ''}".encode())
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


def forked(procs: str) -> list[str]:
    """What a child says that `fork_into` has made: whether it was put into the cgroup, and where it stands."""
    done = subprocess.run([sys.executable, "-c", FORK, procs], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split()


@needs_root()
@pytest.mark.pure_v2
def test_a_child_begins_in_the_cgroup_that_is_named(scopes: Scopes) -> None:
    scopes.make(KEY)
    try:
        entrance = scopes.entrances(KEY).shim_procs
        said = forked(entrance)
        assert said[0] == str(bool(entrance))
        if entrance:
            assert said[1].endswith(f"alloc-{KEY.uid}-{KEY.attempt}.scope/shim")
    finally:
        assert scopes.remove_scope(KEY)


@pytest.mark.parametrize(("error", "forks"), [(errno.ENOSYS, True), (errno.EAGAIN, False), (errno.ENOMEM, False)])
def test_a_cgroup_at_its_limit_gets_no_child_by_another_way(tmp_path: Path, error: int, forks: bool) -> None:
    command = [sys.executable, "-c", REFUSE_CLONE3 + FORK, str(tmp_path / "cgroup.procs"), str(error)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode == 0, "no process or memory left" in done.stderr) == (forks, not forks), done.stderr


@pytest.mark.parametrize("procs", ["", "/nowhere/cgroup.procs", "/tmp/cgroup.procs"])
def test_where_there_is_no_cgroup_a_child_stands_where_its_parent_does(procs: str) -> None:
    assert forked(procs)[0] == "False"
