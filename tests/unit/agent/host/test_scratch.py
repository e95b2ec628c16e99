"""Scratch space of real work: its own, empty, as large as asked for, and gone at the end, whatever the work has left in it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.daemon.clock import SystemClock
from lattice.errors import Rejected
from lattice_agent.attempts import Key
from lattice_agent.host.linux import LinuxHost, open_host
from lattice_agent.state.log_store import LogReader
from tests.unit.agent.machine import UID, Ends, cleared, machine, needs_root, open_directory, until, work

pytestmark = [pytest.mark.root, needs_root()]
KEY = Key(UID, 1)
MEBIBYTE = 1 << 20


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        (path / "disk").mkdir()
        yield path


def printed(host: LinuxHost) -> str:
    reader = LogReader(host.journal.directory(KEY), "stdout")
    text = b"".join(entry.data for entry in reader.read(1 << 30)).decode()
    reader.close()
    return text


async def run(host: LinuxHost, ends: Ends, script: str, *, size: int = MEBIBYTE, private_tmp: bool = True) -> int:
    """The exit code of a script of work with so much scratch space."""
    ours = work(script=f"#!/bin/bash\n{script}\n", scratch_bytes=size, private_tmp=private_tmp)
    await host.prepare(ours)
    await host.start(ours)
    return (await ends.record()).tasks[0].code


def content(path: Path) -> list[str]:
    """The names of everything below, that of what is being deleted apart."""
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


async def deleted(host: LinuxHost) -> None:
    """Waits until what was put aside is gone."""
    assert host.scratch.directory is not None
    await until(lambda: host.scratch.directory is not None and host.scratch.directory.to_delete() == [])


WRITES = 'stat -c "%a %U" $TMPDIR; ls -A $TMPDIR; echo x > $TMPDIR/a; mkdir -p $TMPDIR/b/c; chmod 0 $TMPDIR/b; ln -s {out} $TMPDIR/out'


@pytest.mark.parametrize("private_tmp", [True, False])
@pytest.mark.parametrize("disk", [True, False])
async def test_scratch_space_is_the_users_own_empty_at_the_start_and_gone_at_the_end(place: Path, *, disk: bool, private_tmp: bool) -> None:
    out = place / "not-ours"
    out.mkdir()
    (out / "kept").touch()
    async with machine(place, scratch_dir=place / "disk" if disk else None) as (host, ends):
        assert await run(host, ends, WRITES.format(out=out), private_tmp=private_tmp) == 0
        assert printed(host) == "700 nobody\n"
        await cleared(host, KEY)
        if disk:
            await deleted(host)
            assert content(place / "disk") == [place.name, f"{place.name}/.removed"]
        assert content(place / "memory/scratch") == []
        assert (out / "kept").exists(), "a link is removed, not followed"
        await host.forget(KEY)


async def test_scratch_space_in_memory_is_as_large_as_asked_for_and_seen_by_the_tasks_alone(place: Path) -> None:
    async with machine(place) as (host, ends):
        code = await run(
            host, ends, "head -c 900000 /dev/zero > $TMPDIR/a && ! head -c 900000 /dev/zero > $TMPDIR/b; df -k --output=size $TMPDIR"
        )
        assert (code, printed(host).split()[-1]) == (0, "1024")
        assert str(place / "memory/scratch") not in await asyncio.to_thread(Path("/proc/self/mountinfo").read_text)
        assert host.scratch.is_limited
        await cleared(host, KEY)


async def test_more_than_is_free_is_refused_with_the_numbers_and_leaves_nothing(place: Path) -> None:
    async with machine(place, scratch_dir=place / "disk") as (host, _):
        ours = work(scratch_bytes=1 << 50)
        with pytest.raises(
            Rejected, match=r"1Pi of scratch space are asked for \(spec\.data\.scratchPerNode\), and \d+Mi of .* are free on"
        ) as refusal:
            await host.prepare(ours)
        assert refusal.value.reason == "PrologueFailed"
        await cleared(host, KEY)
        assert content(place / "disk") == [place.name, f"{place.name}/.removed"]


async def test_space_that_is_being_deleted_is_waited_for(place: Path) -> None:
    async with small(place) as disk, machine(place, scratch_dir=disk) as (host, ends):
        assert await run(host, ends, "head -c 6000000 /dev/zero > $TMPDIR/a", size=6 * MEBIBYTE) == 0
        await cleared(host, KEY)
        again = work(key=Key(UID, 2), scratch_bytes=6 * MEBIBYTE)
        await host.forget(KEY)
        await host.prepare(again)
        await cleared(host, again.key)


def called(argv: list[str]) -> None:
    subprocess.run(argv, check=True)


class small:  # noqa: N801 - a context manager
    """A disk of 8 MiB."""

    def __init__(self, place: Path) -> None:
        self._disk = place / "disk"

    async def __aenter__(self) -> Path:
        await asyncio.to_thread(called, ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(self._disk)])
        return self._disk

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(called, ["umount", "--lazy", str(self._disk)])


def deep_tree(at: Path, depth: int) -> None:
    """A tree that no path names."""
    home = os.open(".", os.O_RDONLY)
    try:
        os.chdir(at)
        for _ in range(depth):
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
    finally:
        os.fchdir(home)
        os.close(home)


async def test_a_tree_too_deep_for_any_path_is_deleted(place: Path) -> None:
    async with machine(place, scratch_dir=place / "disk") as (host, ends):
        assert await run(host, ends, "true") == 0
        assert host.scratch.directory is not None
        await asyncio.to_thread(deep_tree, host.scratch.directory.attempt_directory(KEY), 2000)
        await cleared(host, KEY)
        assert not host.scratch.directory.attempt_directory(KEY).exists()
        await deleted(host)


async def test_what_an_earlier_installation_left_is_deleted_and_what_lives_stays(place: Path) -> None:
    async with machine(place, scratch_dir=place / "disk") as (host, _):
        await host.prepare(work(scratch_bytes=MEBIBYTE))
        assert host.scratch.directory is not None
        mine, stray, other = (
            host.scratch.directory.attempt_directory(KEY),
            host.scratch.directory.place / f"{UID}-7",
            host.scratch.directory.place / "other",
        )
        for path in (stray, other):
            path.mkdir()
        async with open_host(place / "state", place / "memory", node=place.name, clock=SystemClock(), scratch_dir=place / "disk") as heir:
            await deleted(heir)
        assert (mine.exists(), stray.exists(), other.exists()) == (True, False, True)
        await cleared(host, KEY)


async def test_a_directory_that_is_none_is_refused_at_the_start(place: Path) -> None:
    with pytest.raises(Rejected, match=r"--scratch-dir .*/nowhere: there is no such directory"):
        async with machine(place, scratch_dir=place / "nowhere"):
            pass


@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o755), (0, 0o777)], ids=["a user's", "everybody's without the sticky bit"])
async def test_a_directory_in_which_users_may_rename_is_refused_at_the_start(place: Path, owner: int, mode: int) -> None:
    given = place / "disk"
    os.chown(given, owner, owner)
    given.chmod(mode)
    with pytest.raises(Rejected, match="users may rename what stands there"):
        async with machine(place, scratch_dir=given):
            pass


@pytest.mark.parametrize("what", ["directory", "link", "removed"])
async def test_nothing_is_deleted_in_the_place_of_a_user(place: Path, what: str) -> None:
    given, victim = place / "disk", place / "victim"
    given.chmod(0o1777)
    (victim / "deep").mkdir(parents=True)
    own = given / place.name
    if what == "link":
        own.symlink_to(victim)
    else:
        own.mkdir()
        (own / ".removed").symlink_to(victim)
        if what == "directory":
            os.chown(own, 65534, 65534)
    async with machine(place, scratch_dir=given) as (host, _):
        assert host.scratch.most_bytes == 0, "it offers none"
        await asyncio.sleep(0.2)
    assert (victim / "deep").is_dir()
    assert victim.stat().st_mode & 0o777 == 0o755


async def test_a_disk_that_does_not_serve_keeps_no_agent_from_its_work(place: Path) -> None:
    (place / "disk" / place.name).touch()  # where the node's directory would be made
    async with machine(place, scratch_dir=place / "disk") as (host, ends):
        assert host.scratch.most_bytes == 0
        await host.prepare(work(entrypoint="true"))
        await host.start(work(entrypoint="true"))
        assert (await ends.record()).tasks[0].code == 0
        with pytest.raises(Rejected, match=r"the scratch directory .* does not serve") as refusal:
            await host.prepare(work(key=Key(UID, 2), scratch_bytes=MEBIBYTE))
        assert refusal.value.reason == "NodeUnfit"
