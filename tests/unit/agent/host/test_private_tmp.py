"""Work has a /tmp and a /dev/shm of its own: what others leave there it does not see, and what it leaves is gone with it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host.linux import LinuxHost
from lattice_agent.standalone import leftovers, private_tmp
from lattice_agent.standalone.streams import UserIdentity
from lattice_agent.state.log_store import LogReader
from tests.unit.agent.machine import UID, Ends, machine, needs_root, open_directory, until, work

pytestmark = [pytest.mark.root, needs_root()]
KEY = Key(UID, 1)
NOBODY = 65534


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        yield path


@pytest.fixture
def shown() -> Iterator[Path]:
    """A file of the machine's /tmp that everybody may read."""
    path = Path("/tmp", f"lattice-shown-{os.getpid()}")
    path.write_text("of the machine\n")
    os.chown(path, NOBODY, NOBODY)
    yield path
    path.unlink()


def printed(host: LinuxHost, key: Key = KEY) -> str:
    reader = LogReader(host.journal.directory(key), "stdout")
    text = b"".join(entry.data for entry in reader.read(1 << 30)).decode()
    reader.close()
    return text


def private(**changes: Any) -> NodeWork:
    return work(**{"private_tmp": True, "workdir": "/", **changes})


def in_shm() -> set[str]:
    """What the machine's own /dev/shm holds."""
    return {path.name for path in Path("/dev/shm").iterdir()}


async def run(host: LinuxHost, ends: Ends, ours: NodeWork) -> int:
    await host.prepare(ours)
    await host.start(ours)
    return (await ends.record()).tasks[0].code


def place_of(host: LinuxHost, key: Key = KEY) -> Path:
    return Path(private_tmp.path_of(str(host.journal.directory(key)), host.facts().boot_id))


@pytest.mark.pure_v2
async def test_work_finds_both_empty_shares_them_among_its_tasks_and_leaves_nothing(place: Path, shown: Path) -> None:
    script = f"""#!/bin/bash
        ls -A /tmp /dev/shm | grep -v ${{0:5:13}}  # in tests the state directory lies in /tmp
        stat -c '%a %U' /tmp /dev/shm
        echo x > /tmp/mine-$LATTICE_PROCID; echo x > /dev/shm/mine; mkdir -p /tmp/deep/er
        while [ $(ls /tmp/mine-* | wc -l) -lt 2 ]; do sleep 0.01; done
        test ! -e {shown} && exit 7
        """
    before = in_shm()
    async with machine(place) as (host, ends):
        assert await run(host, ends, private(script=script, tasks=2, total_tasks=2)) == 7
        assert "1777 root" in printed(host)
        assert "lattice" not in printed(host), printed(host)
        assert not place_of(host).exists()
        assert "mine" not in in_shm() - before


async def test_what_the_site_keeps_the_working_directory_and_output_files_stay_in_sight(place: Path, shown: Path) -> None:
    directory, output = place / "run", Path("/tmp", f"lattice-output-{os.getpid()}")
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    script = f"#!/bin/bash\npwd; cat {shown}; echo result > made; test ! -e {place}/state/format && exit 7\n"
    async with machine(place) as (host, ends):
        kept = (f"{shown.parent}/lattice-sh[o]wn-*",)
        assert await run(host, ends, private(script=script, workdir=str(directory), stdout=str(output), private_tmp_keep=kept)) == 7
        assert printed(host) == output.read_text() == f"{directory}\nof the machine\n"  # noqa: ASYNC240
        assert (directory / "made").read_text() == "result\n"
    output.unlink()  # noqa: ASYNC240


async def test_what_is_somebody_elses_is_not_kept_and_no_link_is_followed(place: Path, shown: Path) -> None:
    link = shown.with_suffix(".link")
    link.symlink_to("/root")
    os.chown(shown, 12345, 12345)
    try:
        async with machine(place) as (host, ends):
            assert (
                await run(
                    host, ends, private(script="#!/bin/bash\nls -A /tmp | grep -v ${0:5:13}; true\n", private_tmp_keep=(f"{shown}*",))
                )
                == 0
            )
            assert printed(host) == ""
    finally:
        link.unlink()


@pytest.mark.pure_v2
async def test_a_shim_that_is_killed_leaves_its_tmp_to_the_agent(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = private(script="#!/bin/bash\nmkdir -p /tmp/a/b; echo x > /tmp/a/b/c; echo there; sleep 60\n")
        await host.prepare(ours)
        running = await host.start(ours)
        await until(lambda: printed(host))
        assert (place_of(host) / "tmp/a/b/c").exists()
        os.kill(running.pid, signal.SIGKILL)
        assert (await ends.next())[1] is None
        for _ in range(2):
            await host.forget(KEY)
            assert not place_of(host).exists()


async def test_an_agent_removes_what_an_earlier_boot_has_left_and_nothing_else(place: Path) -> None:
    async with machine(place) as (host, _):
        attempts, boot = str(host.journal.attempts_dir), host.facts().boot_id
        left = [Path(private_tmp.path_of(f"{attempts}/{UID}-{attempt}", when)) for attempt, when in ((1, "earlier"), (2, boot))]
        elsewhere = Path(private_tmp.path_of(f"/elsewhere/{UID}-1", "earlier"))
        for path in (*left, elsewhere):
            (path / "tmp/deep").mkdir(parents=True)
        assert private_tmp.remove_older(attempts, boot) == 1
        assert [path.exists() for path in (*left, elsewhere)] == [False, True, True]
        for path in (*left, elsewhere):
            private_tmp.remove(str(path))


def test_what_a_user_has_put_in_its_place_is_put_aside(place: Path) -> None:
    made = private_tmp.path_of(f"{place}/attempts/{UID}-1", "boot")
    feigned = Path(made)
    feigned.mkdir()
    os.chown(feigned, NOBODY, NOBODY)
    before = set(Path("/tmp").glob(f"{leftovers.ASIDE}*"))
    child = os.fork()
    if child == 0:  # it enters a namespace and must have one thread
        code = 1
        with suppress(BaseException), private_tmp.entered(made, UserIdentity(NOBODY, NOBODY, ()), (), ("/",)):
            code = 2 if any(Path("/tmp").iterdir()) else 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert feigned.stat().st_uid == 0
    private_tmp.remove(made)
    for path in set(Path("/tmp").glob(f"{leftovers.ASIDE}*")) - before:
        path.rmdir()


def test_a_user_who_renames_his_own_directory_there_has_root_change_nothing(place: Path) -> None:
    victim = place / "victim"
    victim.mkdir(mode=0o755)
    made = private_tmp.path_of(f"{place}/attempts/{UID}-3", "boot")
    before = set(Path("/tmp").glob(f"{leftovers.ASIDE}*"))
    child = os.fork()
    if child == 0:  # the user, who knows the name
        with suppress(BaseException):
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            for number in range(100):
                own = Path(f"/tmp/in-the-way-{number}")
                own.mkdir()
                (own / "tmp").symlink_to(victim)
                for _ in range(50):
                    with suppress(OSError):
                        own.rename(made)
                        break
        os._exit(0)
    try:
        for _ in range(500):
            with suppress(OSError):
                assert private_tmp.make(made) == f"{made}/tmp"
                assert Path(made).lstat().st_uid == 0
                assert stat.S_ISDIR(Path(made, "tmp").lstat().st_mode)
            private_tmp.remove(made)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for path in (*Path("/tmp").glob("in-the-way-*"), *(set(Path("/tmp").glob(f"{leftovers.ASIDE}*")) - before), Path(made)):
            shutil.rmtree(path, ignore_errors=True)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755


async def test_the_sites_variables_are_weaker_than_the_users_and_core_files_are_limited_softly(place: Path) -> None:
    script = '#!/bin/bash\necho "$SITE $MINE $(ulimit -S -c) $(ulimit -H -c)"\n'
    async with machine(place) as (host, ends):
        ours = work(script=script, site_variables={"SITE": "cscs", "MINE": "theirs"}, variables={"MINE": "mine"}, core_bytes=0)
        assert await run(host, ends, ours) == 0
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        assert printed(host).split()[:3] == ["cscs", "mine", "0"]
        assert printed(host).split()[3] == "unlimited" or hard != resource.RLIM_INFINITY
