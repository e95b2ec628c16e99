"""A state directory that is read-only, full or silent, and shims that are stopped: nothing stands between an order and the processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.errors import Retry
from lattice_agent.attempts import Key
from lattice_agent.host import processes
from lattice_agent.host.linux import LinuxHost
from lattice_agent.host.watch import SHIM_SECONDS, SURVIVAL_SECONDS
from lattice_agent.work.mpi_launchers import file_names
from tests.unit.agent.machine import STOPPED, UID, AheadClock, Ends, machine, needs_root, open_directory, until, work

pytestmark = [pytest.mark.root, needs_root()]
KEY = Key(UID, 1)


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        yield path


@contextmanager
def disk_below(state: Path, size: str = "64m") -> Iterator[Path]:
    """The state directory on a disk of its own, that can be remounted."""
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=711", "tmpfs", state], check=True)
    try:
        yield state
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)


@contextmanager
def freezable_disk(place: Path, at: Path) -> Iterator[Path]:
    """A disk whose writes can be made to wait."""
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    at.mkdir()
    subprocess.run(["mount", "-o", "loop", image, at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Meanwhile every write to the disk waits, uninterruptibly."""
    subprocess.run(["fsfreeze", "--freeze", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Meanwhile somebody takes every byte of the disk that comes free."""
    over = threading.Event()

    def fill() -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    file.write(b"x" * 4096)

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        while os.statvfs(disk).f_bavail:
            time.sleep(0.01)
        yield
    finally:
        over.set()
        filler.join()
        (disk / "filler").unlink()


async def start(host: LinuxHost, script: str) -> None:
    ours = work(script=script)
    await host.prepare(ours)
    await host.start(ours)


async def code_of(ends: Ends) -> tuple[int, int]:
    [task] = (await ends.record()).tasks
    return task.code, task.signal


async def test_a_read_only_state_keeps_no_order_from_the_work_and_its_end_comes_to_the_disk_later(place: Path) -> None:
    with disk_below(place / "state") as disk:
        async with machine(place) as (host, ends):
            await start(host, "#!/bin/sh\nexec sleep 300\n")
            await until(lambda: host.scopes.work(KEY))
            remount(disk, "ro")
            await host.terminate(KEY, STOPPED)
            assert await code_of(ends) == (143, 15)
            assert not (host.journal.directory(KEY) / "exit").exists()
            with pytest.raises(Retry, match="Read-only file system"):
                await host.forget(KEY)
            assert host.scopes.standing_scopes() == []
            await until_flaw(host, f"is mounted read-only; the end of one attempt stands in {place}/memory only")
            host.close()
            async with machine(place, swept=False) as (heir, _):
                [known] = await heir.attempts()
                assert (known.alive, known.exit is not None and known.exit.tasks[0].code) == (False, 143)
                remount(disk, "rw")
                await until_flaw(heir, "")
                assert (heir.journal.directory(KEY) / "exit").exists()
                await heir.forget(KEY)
                assert [known.forgotten for known in await heir.attempts()] == [True]


async def test_host_files_on_a_read_only_disk_hinder_no_end_and_are_removed_later(place: Path) -> None:
    with disk_below(place / "state") as disk:
        async with machine(place) as (host, ends):
            host.launcher.programs = str(disk / "launch/bin")
            ours = replace(work(script="#!/bin/sh\nexec sleep 300\n"), nodes=("n0", "n1"))
            await host.prepare(ours)
            await host.start(ours)
            kept = [disk / "launch/hosts" / name for name in file_names(KEY)]
            assert all(path.exists() for path in kept)
            remount(disk, "ro")
            await host.terminate(KEY, STOPPED)
            assert await code_of(ends) == (143, 15)
            await host.clear(KEY)
            remount(disk, "rw")
            await host.forget(KEY)
            assert not any(path.exists() for path in kept)


async def until_flaw(host: LinuxHost, sentence: str) -> None:
    """Waits until the host says this of its disk."""
    async with asyncio.timeout(90):
        while not (found := await host.flaw()).endswith(sentence) or bool(found) != bool(sentence):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_what_was_prepared_on_a_disk_that_became_read_only_is_ended_and_never_starts(place: Path) -> None:
    with disk_below(place / "state") as disk:
        async with machine(place) as (host, ends):
            ours = work(entrypoint="sleep 300")
            await host.prepare(ours)
            remount(disk, "ro")
            await host.terminate(KEY, STOPPED)
            assert (await ends.record()).tasks == ()
            remount(disk, "rw")
            with pytest.raises(Exception, match="ended before it was started"):
                await host.start(ours)


async def test_nobody_takes_the_room_of_an_exit_record(place: Path) -> None:
    with disk_below(place / "state", "8m") as disk:
        async with machine(place) as (host, ends):
            await start(host, f"#!/bin/sh\necho on\nwhile [ ! -e {place}/go ]; do sleep 0.05; done\nexit 3\n")
            with filled(disk):
                (host.journal.run_directory(KEY)).rename(place / "moved")  # so that only the disk can keep it
                (place / "go").touch()
                assert await code_of(ends) == (3, 0)
                assert (host.journal.directory(KEY) / "exit").exists()


async def test_a_disk_that_does_not_answer_keeps_no_order_from_the_work(place: Path) -> None:
    clock = AheadClock()
    with freezable_disk(place, place / "state") as disk:
        async with machine(place, clock=clock, disk_seconds=3600) as (host, ends):  # who waits for it waits till it is thawed
            await start(host, "#!/bin/sh\nexec sleep 300\n")
            with frozen(disk):
                assert await host.flaw() == ""
                await host.terminate(KEY, STOPPED)
                await until(lambda: host.scopes.work(KEY) == [])
                await until(lambda: (host.journal.run_directory(KEY) / "exit").exists())
                clock.ahead += 3600
                await until_flaw(host, "has not answered for 3600 s")
            await until_flaw(host, "")
            assert await code_of(ends) == (143, 15)


async def kill_and_wait(host: LinuxHost, clock: AheadClock, seconds: float) -> None:
    """Kills the work, and lets so much time pass then."""
    await host.kill(KEY)
    await asyncio.sleep(0)  # it is looked after from now on
    clock.ahead += seconds


async def test_a_stopped_shim_is_killed_once_its_work_is_gone_and_the_kernel_knew_the_exit(place: Path) -> None:
    clock = AheadClock()
    async with machine(place, clock=clock) as (host, ends):
        ours = work(script="#!/bin/sh\nexec sleep 300\n")
        await host.prepare(ours)
        running = await host.start(ours)
        os.kill(running.pid, signal.SIGSTOP)
        await host.terminate(KEY, STOPPED)
        await until(lambda: not host.scopes.work(KEY))
        await kill_and_wait(host, clock, SHIM_SECONDS)
        key, record = await ends.next()
        assert record is not None
        assert (key, [(task.code, task.signal) for task in record.tasks]) == (KEY, [(143, signal.SIGTERM)])
        assert not host.scopes.populated(KEY)


async def test_what_survives_kill_stays_held_and_is_named_until_it_is_gone(place: Path) -> None:
    with freezable_disk(place, place / "disk") as disk:
        disk.chmod(0o777)
        clock = AheadClock()
        async with machine(place, clock=clock) as (host, ends):
            await start(host, f"#!/bin/bash\nwhile sleep 0.1; do echo on >> {disk}/out; done\n")
            await until(lambda: (disk / "out").exists())
            with frozen(disk):
                await until(lambda: [processes.state(pid) for pid in host.scopes.work(KEY)] == ["D"])
                await kill_and_wait(host, clock, SURVIVAL_SECONDS)
                await until(host.survivors)
                assert ends.none()
                with pytest.raises(Retry, match="still has"):
                    await host.forget(KEY)
                assert "survived KILL" in host.survivors()[KEY]
                assert "state D" in host.survivors()[KEY]
            await ends.next()
            assert host.survivors() == {}
            await host.forget(KEY)
