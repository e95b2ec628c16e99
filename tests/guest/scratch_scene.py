"""What a guest does to see scratch space held by a project quota: a disk with prjquota, and the agent's host with work that writes too much.

python -m tests.guest.scratch_scene
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from lattice_agent.attempts import Key
from lattice_agent.host.linux import LinuxHost
from tests.unit.agent.machine import UID, Ends, machine, work

MEBIBYTE = 1 << 20
WRITES = "#!/bin/bash\nhead -c {size} /dev/zero > $TMPDIR/a || exit 3\nstat -c %s $TMPDIR/a\n"


def prepare(place: Path) -> Path:
    """A disk of 64 MiB whose file system holds projects to their limits."""
    image, disk = place / "image", place / "disk"
    with image.open("wb") as file:
        file.truncate(64 * MEBIBYTE)
    disk.mkdir()
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", str(image)], check=True)
    subprocess.run(["mount", "-t", "ext4", "-o", "loop,prjquota", str(image), str(disk)], check=True)
    return disk


async def code(host: LinuxHost, ends: Ends, attempt: int, size: int) -> int:
    """The exit code of work that writes so many bytes into 1 MiB of scratch space."""
    ours = work(key=Key(UID, attempt), script=WRITES.format(size=size), scratch_bytes=MEBIBYTE)
    await host.prepare(ours)
    await host.start(ours)
    found = (await ends.record()).tasks[0].code
    await host.forget(ours.key)
    return found


async def main(place: Path, disk: Path) -> int:
    """Tells what held, and how the scene went by its exit code."""
    async with machine(place, "guest", scratch_dir=disk) as (host, ends):
        assert host.scratch.is_limited, "the file system enforces limits, and the agent does not see it"
        codes = [await code(host, ends, attempt + 1, size) for attempt, size in enumerate((900_000, 1_200_000, 900_000, 1_200_000))]
        assert codes == [0, 3, 0, 3], codes
    print(f"SCRATCH-HELD {codes}")
    return 0


if __name__ == "__main__":
    where = Path(tempfile.mkdtemp())
    where.chmod(0o755)
    sys.exit(asyncio.run(main(where, prepare(where))))
