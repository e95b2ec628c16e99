"""The site's hooks on a real host: what they are told, what they give, and that nothing of them stays, however they end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.errors import Rejected, Retry
from lattice_agent.host.hooks import HookDirectories, exports
from lattice_agent.host.linux import LinuxHost
from tests.unit.agent.machine import STOPPED, cleared, has_cgroups, machine, needs_root, open_directory, until, work

pytestmark = [needs_root(), pytest.mark.skipif(not has_cgroups(), reason="hooks are held by cgroups")]


class Site:
    """A state directory, and the two directories of hooks beside it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.hooks = HookDirectories(place / "prologue.d", place / "epilogue.d")
        for directory in (place / "prologue.d", place / "epilogue.d"):
            directory.mkdir()

    def write(self, name: str, text: str, *, mode: int = 0o755) -> None:
        """Writes prologue.d/NAME or epilogue.d/NAME."""
        path = self.place / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(mode)

    def said(self) -> str:
        """What the hooks wrote into the file `said`."""
        path = self.place / "said"
        return path.read_text() if path.exists() else ""

    def left(self, host: LinuxHost) -> list[str]:
        """The cgroups of hooks that stand."""
        return [path.name for path in host.scopes.root.glob("hook-*")]  # type: ignore[attr-defined]


@pytest.fixture
def site() -> Iterator[Site]:
    with open_directory() as place:
        yield Site(place)


async def test_hooks_run_in_order_as_root_with_the_works_variables_and_what_they_export_reaches_it(site: Site) -> None:
    site.write("prologue.d/20-second", f"echo second $(id -u) $LATTICE_JOB_ID $SLURM_JOB_ID $SLURM_JOB_USER >> {site.place}/said")
    site.write(
        "prologue.d/10-first", f"echo first $LATTICE_HOOK >> {site.place}/said\necho export SCRATCH=/scratch/7\necho export SLURM_X=1"
    )
    site.write("prologue.d/30-off", "exit 1", mode=0o644)
    site.write("epilogue.d/10-last", f"echo last $LATTICE_HOOK >> {site.place}/said")
    async with machine(site.place, hooks=site.hooks) as (host, ends):
        ours = work(script="#!/bin/bash\necho got $SCRATCH $SLURM_X\n")
        await host.prepare(ours)
        assert site.said() == "first prologue\nsecond 0 7 7 nobody\n"
        await host.start(ours)
        await ends.record()
        await cleared(host, ours.key)
        await cleared(host, ours.key)
        assert site.said().splitlines()[2:] == ["last epilogue"]
        assert b"got /scratch/7\n" in b"".join(path.read_bytes() for path in host.journal.directory(ours.key).glob("stdout.*"))
        assert (site.left(host), host.scopes.standing_scopes()) == ([], [])


@pytest.mark.parametrize(
    ("text", "mode", "seconds", "why"),
    [
        pytest.param(
            "echo no licence >&2; exit 3", 0o755, 60.0, "the prologue hook 10-check ended with exit code 3: no licence", id="fails"
        ),
        pytest.param("kill -9 $$", 0o755, 60.0, "ended by signal 9", id="is killed"),
        pytest.param("trap '' TERM; sleep 300 & wait", 0o755, 0.3, "had not ended after 0.3 s", id="hangs, and ignores TERM"),
        pytest.param("true", 0o777, 60.0, "others can change it", id="may be changed by others"),
    ],
)
async def test_a_hook_that_fails_is_a_failed_prologue_after_a_restart_too_and_leaves_nothing(
    site: Site, text: str, mode: int, seconds: float, why: str
) -> None:
    site.write("prologue.d/10-check", text, mode=mode)
    site.write("epilogue.d/10-last", f"echo last >> {site.place}/said")
    ours = work(hook_seconds=seconds)
    async with machine(site.place, hooks=site.hooks) as (host, _):
        with pytest.raises(Rejected) as refused:
            await host.prepare(ours)
        assert refused.value.reason == "PrologueFailed"
        assert why in refused.value.message
        assert "n1" in refused.value.message
        assert site.left(host) == []
    async with machine(site.place, hooks=site.hooks) as (host, _):
        (known,) = await host.attempts()
        assert known.unclean
        assert known.exit is not None
        assert (known.exit.reason, why in known.exit.failure) == ("PrologueFailed", True)
        await cleared(host, ours.key)
        assert site.said() == "last\n"


async def test_an_interrupted_hook_that_ignores_term_is_killed_and_the_attempt_has_ended(site: Site) -> None:
    site.write("prologue.d/10-hang", f"echo hangs >> {site.place}/said; trap '' TERM; setsid sleep 300 & sleep 300")
    async with machine(site.place, hooks=site.hooks) as (host, ends):
        ours = work()
        async with asyncio.TaskGroup() as group:
            preparing = group.create_task(host.prepare(ours))
            await until(site.said)
            preparing.cancel()
            await asyncio.wait((preparing,))
        assert site.left(host) == []
        assert await host.terminate(ours.key, STOPPED)
        assert (await ends.record()).tasks == ()
        await cleared(host, ours.key)
        assert host.scopes.standing_scopes() == []


async def test_an_epilogue_that_fails_is_tried_again_until_it_ends_with_0(site: Site) -> None:
    site.write("epilogue.d/10-clean", f"echo tried >> {site.place}/said; test -e {site.place}/mended")
    async with machine(site.place, hooks=site.hooks) as (host, ends):
        ours = work()
        await host.prepare(ours)
        await host.start(ours)
        await ends.record()
        with pytest.raises(Retry, match="10-clean ended with exit code 1"):
            await cleared(host, ours.key)
        (site.place / "mended").touch()
        await cleared(host, ours.key)
        await cleared(host, ours.key)
        assert site.said() == "tried\n" * 2


async def test_a_hook_whose_runner_is_killed_is_ended_and_run_again(site: Site) -> None:
    site.write(
        "prologue.d/10-once", f"echo run >> {site.place}/said; test -e {site.place}/second || {{ touch {site.place}/second; sleep 300; }}"
    )
    async with machine(site.place, hooks=site.hooks) as (host, _):
        async with asyncio.TaskGroup() as group:
            preparing = group.create_task(host.prepare(work()))
            await until(site.said)
            await until((site.place / "second").exists)
            os.kill(host.runner_client.pid, signal.SIGKILL)
            await preparing
        assert site.said() == "run\nrun\n"
        assert site.left(host) == []


def test_only_lines_that_export_are_read() -> None:
    said = "hello\nexport A=1\nexport B=x=y\nexport LATTICE_JOB_ID=1\nexport 1X=2\n export C=3\nexport D\n"
    assert exports(said) == {"A": "1", "B": "x=y"}
