"""What work may do to its node: so many processes, nobody else's room, and nothing of it is left afterwards."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from lattice_agent.attempts import Key
from lattice_agent.host.controllers import Controllers, Reserves, WorkLimits, find_controllers
from lattice_agent.host.launch_cgroups import LaunchCgroups, keepers_bytes
from lattice_agent.host.linux import LinuxHost
from lattice_agent.host.scopes import CgroupScopes
from lattice_agent.standalone import leftovers, task_start
from lattice_agent.state.log_store import LogReader
from tests.system_files import below
from tests.unit.agent.machine import STOPPED, UID, Ends, machine, needs_root, open_directory, until, work
from tests.workloads import FORK_BOMB

pytestmark = [pytest.mark.root, needs_root()]
KEY = Key(UID, 1)
SOMEBODY = 54321
SET_PERMISSIONS, SEARCH = 5, 10
"""Of keyctl(2)."""


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        yield path


def printed(host: LinuxHost, stream: str = "stdout") -> str:
    reader = LogReader(host.journal.directory(KEY), stream)
    text = b"".join(entry.data for entry in reader.read(1 << 30)).decode()
    reader.close()
    return text


async def run(host: LinuxHost, ends: Ends, script: str, stdout: str = "") -> int:
    ours = work(script=script, stdout=stdout)
    await host.prepare(ours)
    await host.start(ours)
    return (await ends.record()).tasks[0].code


@pytest.mark.pure_v2
async def test_a_scope_has_places_for_shim_namespaces_and_tasks_and_its_work_holds_no_process(place: Path) -> None:
    async with machine(place) as (host, ends):
        assert isinstance(host.scopes, CgroupScopes)
        ours = work(entrypoint="sleep 60")
        await host.prepare(ours)
        await host.start(ours)
        scope = host.scopes.root / f"alloc-{KEY.uid}-{KEY.attempt}.scope"
        held = {part: len((scope / part / "cgroup.procs").read_text().split()) for part in ("shim", "work", "work/main")}
        assert held == {"shim": 1, "work": 0, "work/main": 1}
        await host.kill(KEY)
        await ends.record()


async def test_a_fork_bomb_has_its_limit_and_ends_whole(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(script=FORK_BOMB, max_processes=600)
        await host.prepare(ours)
        await host.start(ours)
        await until(lambda: printed(host))
        assert int(printed(host)) <= 600
        assert len(host.scopes.work(KEY)) <= 600
        assert await host.terminate(KEY, STOPPED)
        await host.kill(KEY)
        await ends.record()
        assert await host.remaining(KEY) == 0
        await until(lambda: host.scopes.remove_scope(KEY))


@pytest.mark.pure_v2
async def test_work_that_outgrows_its_memory_is_killed_and_its_record_says_by_how_much(place: Path) -> None:
    limit = 64 << 20
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    async with machine(place, reserves=Reserves(memory_bytes=whole - limit)) as (host, ends):
        ours = work(entrypoint="python3 -c 'sum(range(1000000)); bytearray(256 << 20)'", reserved_memory=1)
        await host.prepare(ours)
        await host.start(ours)
        record = await ends.record()
        assert (record.tasks[0].code, record.tasks[0].signal) == (137, 9)
        assert (record.use.memory_limit, record.use.oom_kills) == (limit, 1)
        assert limit * 0.9 <= record.use.peak_memory <= limit
        assert 0.01 <= record.use.cpu_seconds < 10
        await host.forget(KEY)
        assert cgroups_of(host) == []


@pytest.mark.pure_v2
async def test_work_stays_off_the_processors_that_its_node_keeps(place: Path) -> None:
    async with machine(place, reserves=Reserves(cpus=frozenset({1}))) as (host, ends):
        assert await run(host, ends, "#!/usr/bin/env python3\nimport os\nprint(os.sched_getaffinity(0))\n") == 0
        assert printed(host).strip() == str(os.sched_getaffinity(0) - {1})
        assert await host.unenforced() == ""
        await host.forget(KEY)
        assert cgroups_of(host) == []


@pytest.mark.pure_v2
async def test_work_has_no_more_processor_time_than_its_processors_give(place: Path) -> None:
    async with machine(place) as (host, _):
        assert isinstance(host.scopes, CgroupScopes)
        host.scopes.make(KEY, WorkLimits(cpus=tuple(sorted(os.sched_getaffinity(0)))[:1]))
        directories = [Path(procs).parent for procs in host.scopes.entrances(KEY).work_procs]
        directories.append(directories[-1].parent)
        read = [(found / name).read_text().split()[0] for found in directories for name in CPU_FILES if (found / name).exists()]
        assert "100000" in read
        assert host.scopes.remove_scope(KEY)
        assert cgroups_of(host) == []


CPU_FILES = ("cpu.max", "cpu.cfs_quota_us")


@pytest.mark.pure_v2
async def test_a_limit_that_the_machine_refuses_is_said_once_and_work_goes_on(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with machine(place) as (host, ends):
        assert isinstance(host.scopes, CgroupScopes)
        for _ in range(2):
            host.scopes.make(KEY, WorkLimits(cpus=(4000,)))
        assert host.scopes.controllers.missing == {"cpuset"}
        assert await host.unenforced() == "its kernel does not serve the cgroup controllers cpuset"
        assert [record.getMessage() for record in caplog.records].count("LimitNotSet") == 1
        assert await run(host, ends, "#!/bin/sh\nexit 3\n") == 3
        await host.forget(KEY)
        assert cgroups_of(host) == []


@pytest.mark.pure_v2
async def test_the_scope_stands_until_nothing_stands_beside_it(place: Path) -> None:
    async with machine(place) as (host, _):
        assert isinstance(host.scopes, CgroupScopes)
        host.scopes.make(KEY, WorkLimits(77, 1 << 30))
        beside = [Path(procs).parent for procs in host.scopes.entrances(KEY).work_procs[:-1]]
        for directory in beside:
            (directory / "made-by-another").mkdir()
            (directory / "made-by-another" / "deep").mkdir()
        assert host.scopes.remove_scope(KEY)
        assert cgroups_of(host) == []


def cgroups_of(host: LinuxHost) -> list[str]:
    """The cgroups of scopes of this host, in every hierarchy."""
    assert isinstance(host.scopes, CgroupScopes)
    every = (path for path in below(Path("/sys/fs/cgroup")) if path.name.startswith("alloc-"))
    return [str(path) for path in every if path.parent.name == host.scopes.root.name]


@pytest.mark.pure_v2
async def test_limits_stand_in_the_hierarchies_that_the_machine_has(place: Path) -> None:
    async with machine(place) as (host, _):
        assert isinstance(host.scopes, CgroupScopes)
        host.scopes.make(KEY, WorkLimits(77, 1 << 30))
        directories = [Path(procs).parent for procs in host.scopes.entrances(KEY).work_procs]
        directories.append(directories[-1].parent)  # `work`, which carries the limits where cgroups are v2 alone
        read = {name: (found / name).read_text().strip() for found in directories for name in LIMIT_FILES if (found / name).exists()}
        assert read.pop("pids.max") == "77"
        assert list(read.values()) == [str(1 << 30)]
        assert host.scopes.remove_scope(KEY)
        assert not any(directory.exists() for directory in directories)


LIMIT_FILES = ("pids.max", "memory.max", "memory.limit_in_bytes")


def test_on_a_machine_of_v2_alone_controllers_are_handed_down_to_the_work(tmp_path: Path) -> None:
    names = ("pids.max", "memory.max", "cpuset.cpus", "cpu.max")
    scope = tmp_path / "lattice.slice" / "n1" / "alloc-x-1.scope"
    (scope / "work").mkdir(parents=True)
    chain = [tmp_path, tmp_path / "lattice.slice", scope.parent, scope]
    for directory in chain:
        (directory / "cgroup.subtree_control").touch()
    for name in names:
        (scope / "work" / name).touch()
    controllers = Controllers(tmp_path, find_controllers("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"))
    controllers.limit(scope, WorkLimits(77, 1 << 30, (0, 1, 3)))
    assert [(scope / "work" / name).read_text() for name in names] == ["77", str(1 << 30), "0-1,3", "300000 100000"]
    assert all((directory / "cgroup.subtree_control").read_text() == "+cpuset" for directory in chain)  # "+cpu" over it
    assert controllers.procs(scope) == []
    assert controllers.remove_beside(scope)


def test_the_keepers_of_launches_have_a_limit_of_their_own_without_swap(tmp_path: Path) -> None:
    scopes = CgroupScopes(tmp_path / "n1", "pure", Controllers(tmp_path, {}))
    keep = scopes.directory(KEY) / "keep"
    keep.mkdir(parents=True)
    for directory in (tmp_path, tmp_path / "n1", keep.parent):
        (directory / "cgroup.subtree_control").touch()
    for made in (keep / "memory.max", keep / "memory.swap.max", keep.parent / "work"):
        made.mkdir() if made.name == "work" else made.touch()
    LaunchCgroups(scopes).make_launch(KEY, 1)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert [(keep / name).read_text() for name in ("memory.max", "memory.swap.max")] == [str(keepers_bytes(total)), "0"]
    assert (keep.parent / "cgroup.subtree_control").read_text() == "+memory"
    assert (keepers_bytes(2 << 30), keepers_bytes(512 << 30)) == (1 << 30, 64 << 30)


def test_v1_hierarchies_are_found_by_their_controllers() -> None:
    mounts = "c /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\nc /v1 cgroup rw,memory,cpu 0 0\nc /v2 cgroup2 rw 0 0\n"
    assert find_controllers(mounts) == {"pids": Path("/sys/fs/cgroup/pids"), "memory": Path("/v1"), "cpu": Path("/v1")}


@pytest.mark.parametrize(
    ("processes", "reserved", "limits"),
    [(1000, 1 << 30, (1000, 99 << 30)), (1000, 50 << 30, (1000, 90 << 30)), (0, 0, (0, 0))],
    ids=["as asked", "at most a tenth is kept", "none"],
)
def test_a_node_of_100_gib_gives(processes: int, reserved: int, limits: tuple[int, int]) -> None:
    assert Reserves().limits(max_processes=processes, reserved_memory=reserved, memory_bytes=100 << 30) == WorkLimits(*limits)


async def test_a_script_is_not_its_users_to_change(place: Path) -> None:
    async with machine(place) as (host, ends):
        script = f"#!/bin/sh\nchmod u+w $0; echo x >> $0; ln $0 {place}/linked; rm -f $0; cat $0 | head -c 9; exit 3\n"
        place.chmod(0o777)  # noqa: ASYNC240
        assert await run(host, ends, script) == 3
        found = host.journal.directory(KEY) / "script"
        assert (found.read_text(), found.stat().st_uid) == (script, 0)
        assert printed(host) == "#!/bin/sh"
        assert "Operation not permitted" in printed(host, "stderr")


async def test_output_is_written_with_the_users_rights_and_takes_no_block_that_is_kept_for_root(place: Path) -> None:
    image, disk = place / "image", place / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    disk.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "50", image], check=True)  # noqa: ASYNC221
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)  # noqa: ASYNC221
    try:
        disk.chmod(0o777)
        async with machine(place) as (host, ends):
            assert await run(host, ends, "#!/bin/sh\nhead -c 12000000 /dev/zero\nexit 4\n", stdout=f"{disk}/out") == 4
            assert "bytes were not written" in printed(host, "stderr")
            assert os.statvfs(disk).f_bfree * os.statvfs(disk).f_frsize > 6 << 20
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)  # noqa: ASYNC221


async def test_an_attempt_has_an_ipc_namespace_of_its_own_that_goes_with_it(place: Path) -> None:
    async with machine(place) as (host, ends):
        assert await run(host, ends, "#!/bin/sh\nipcmk -M 4096 && ipcs -m | grep -c nobody\n") == 0
        assert printed(host).split()[-1] == "1"
        assert not has_segments(65534)


def has_segments(user: int) -> bool:
    """Whether this machine has SysV segments of the user."""
    return f" {user} " in Path("/proc/sysvipc/shm").read_text()


@pytest.mark.parametrize("directory", ["/tmp", "/dev/shm"])
def test_what_a_user_made_for_all_to_see_goes_with_his_last_process_and_what_he_had_before_stays(directory: str) -> None:
    name = Path(directory) / f"lattice-left-{os.getpid()}"
    before, after, folder = name.with_suffix(".before"), name.with_suffix(".after"), name.with_suffix(".folder")
    try:
        before.write_text("kept")
        time.sleep(0.2)
        since = time.time()
        after.write_text("left")
        (folder / "deep").mkdir(parents=True)
        for path in (before, after, folder):
            os.chown(path, SOMEBODY, SOMEBODY)
        runs = subprocess.Popen(["sleep", "60"], user=SOMEBODY)
        assert leftovers.remove(SOMEBODY, since) == 0
        runs.kill()
        runs.wait()
        assert leftovers.remove(SOMEBODY, since) == 2
        assert [path.exists() for path in (before, after, folder)] == [True, False, False]
    finally:
        for path in (before, after):
            with suppress(FileNotFoundError):
                path.unlink()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One directory for everybody, of this test."""
    made = tmp_path / "shared"
    made.mkdir(mode=0o1777)
    monkeypatch.setattr(leftovers, "DIRECTORIES", (str(made),))
    monkeypatch.setattr(leftovers, "LOCK", str(tmp_path / "lock"))
    return made


def left_by_somebody(path: Path) -> Path:
    path.write_text("left")
    os.chown(path, SOMEBODY, SOMEBODY)
    return path


def test_what_an_attempt_that_is_being_started_has_laid_down_is_left_to_it(shared: Path) -> None:
    since = time.time()
    with ThreadPoolExecutor() as beside:
        with leftovers.locked(fcntl.LOCK_SH) as begun:
            assert begun
            output = left_by_somebody(shared / "output-of-another")
            removing = beside.submit(leftovers.remove, SOMEBODY, since)
            time.sleep(0.3)
            runs = subprocess.Popen(["sleep", "60"], user=SOMEBODY)
        assert removing.result() == 0
        assert output.exists()
        runs.kill()
        runs.wait()
    assert leftovers.remove(SOMEBODY, since) == 1


def test_a_start_that_hangs_hinders_no_end(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "LOCK_SECONDS", 0.2)
    since = time.time()
    output = left_by_somebody(shared / "output")
    with leftovers.locked(fcntl.LOCK_SH):
        assert leftovers.remove(SOMEBODY, since) == 0
    assert output.exists()


def test_a_tree_of_any_depth_goes_and_an_output_file_stays(shared: Path) -> None:
    since = time.time()
    kept = left_by_somebody(shared / "out.txt")
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-I", "-S", "-c", deep], cwd=shared, check=True)
    os.chown(shared / "d", SOMEBODY, SOMEBODY)
    assert leftovers.remove(SOMEBODY, since, keep=[str(kept)]) == 1
    assert [path.name for path in shared.iterdir()] == ["out.txt"]


def test_what_a_killed_shim_was_about_to_remove_goes_with_the_next_end(shared: Path) -> None:
    aside = shared / f"{leftovers.ASIDE}1"
    aside.mkdir()
    left_by_somebody(aside / "0")
    feigned = shared / f"{leftovers.ASIDE}2"
    feigned.mkdir()
    os.chown(feigned, SOMEBODY + 1, SOMEBODY + 1)
    since = time.time()
    left_by_somebody(shared / "new")
    assert leftovers.remove(SOMEBODY, since) == 1
    assert [path.name for path in shared.iterdir()] == [feigned.name]


async def test_work_does_not_stand_in_the_agents_session_keyring_where_one_user_would_find_anothers_keys(place: Path) -> None:
    libc, call, add = ctypes.CDLL(None), task_start.KEYCTL[os.uname().machine], {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    joined = libc.syscall(call, task_start.JOIN_SESSION_KEYRING, None)  # as systemd gives one to an agent
    if joined < 0:
        pytest.skip("this kernel keeps no keys")
    key = libc.syscall(add, b"user", b"left-by-bob", b"secret", 6, task_start.SESSION_KEYRING)
    libc.syscall(call, SET_PERMISSIONS, joined, 0x3F3F3F3F)
    libc.syscall(call, SET_PERMISSIONS, key, 0x3F3F3F3F)
    search = f"ctypes.CDLL(None).syscall({call}, {SEARCH}, {task_start.SESSION_KEYRING}, b'user', b'left-by-bob', 0)"
    async with machine(place) as (host, ends):
        assert await run(host, ends, f"#!/usr/bin/env python3\nimport ctypes\nprint({search})\n") == 0
        assert printed(host).strip() == "-1"


def test_nothing_of_nobodys_and_roots_is_ever_removed() -> None:
    assert [leftovers.remove(user, 0.0) for user in (None, 0, leftovers.NOBODY)] == [0, 0, 0]
