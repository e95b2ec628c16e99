"""A disk whose every request fails with a real EIO: an ext4 on a loop device whose size is taken away, and given back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lattice.errors import NotFound
from lattice_dev import processes
from tests.e2e.waiting import until
from tests.faults.kills import runner_of
from tests.faults.scene import Scene

LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
LOOP_INFO64 = "5Q4I64s64s32s2Q"
"""`struct loop_info64` of linux/loop.h; its fifth word is the limit of the size, 0: the whole file."""
SIZE_LIMIT = 4
IMAGE_BYTES = 256 << 20


@dataclass(frozen=True)
class LoopDisk:
    """A loop device with a file system."""

    device: str

    def fail(self) -> None:
        """From now on each request that reaches the device fails: whatever it asks for lies beyond the device's end."""
        self._limit(512)

    def heal(self) -> None:
        """The device answers again; its file system, which nothing has mounted any more, is checked and mended."""
        self._limit(0)
        until(self._is_sound, within=20, every=0.5, what=f"{self.device} to be sound and used by nobody")

    def _is_sound(self) -> bool:
        checked = subprocess.run(["e2fsck", "-p", "-f", self.device], capture_output=True, text=True, check=False)
        return checked.returncode in (0, 1)  # 1: errors, mended

    def _limit(self, size: int) -> None:
        descriptor = os.open(self.device, os.O_RDWR)
        try:
            info = bytearray(struct.calcsize(LOOP_INFO64))
            fcntl.ioctl(descriptor, LOOP_GET_STATUS64, info)
            words = list(struct.unpack(LOOP_INFO64, info))
            words[SIZE_LIMIT] = size
            fcntl.ioctl(descriptor, LOOP_SET_STATUS64, struct.pack(LOOP_INFO64, *words))
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def loop_disk(scene: Scene, node: str) -> Iterator[LoopDisk]:
    """The node's state directory on a loop device, for it alone; at the end the device is mended and what it has is kept.

    Mounted in the node's own namespace: one of the machine's would be copied into each namespace that is made meanwhile.
    """
    state = scene.instance.where.node(node) / "state"
    image = state.with_name("state.image")
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-d", state, image], check=True)
    found = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True, check=True)
    disk = LoopDisk(found.stdout.strip())
    try:
        inside = ["nsenter", "-t", str(scene.instance.pid(f"agent-{node}")), "-m"]
        subprocess.run([*inside, "mount", "-o", "errors=remount-ro,commit=1", disk.device, state], check=True)
        subprocess.run([*inside, "chmod", "711", state], check=True)
        yield disk
        _end_agent(scene, node)
        disk.heal()
        _bring_back(disk, state)
    finally:
        _end_agent(scene, node)
        subprocess.run(["losetup", "--detach", disk.device], check=True)
        image.unlink()
        scene.instance.start(f"agent-{node}")


def _end_agent(scene: Scene, node: str) -> None:
    """The agent and its runner are gone, and the node's namespaces with them."""
    with contextlib.suppress(NotFound):
        runner = runner_of(scene.instance.pid(f"agent-{node}"))
        scene.instance.kill(f"agent-{node}")
        if runner:
            processes.send(runner, signal.SIGKILL)


def _bring_back(disk: LoopDisk, state: Path) -> None:
    """What stands on the disk stands in the state directory again."""
    mended = state.with_name("state.mended")
    mended.mkdir()
    subprocess.run(["mount", "-o", "ro", disk.device, mended], check=True)
    try:
        subprocess.run(["cp", "-a", f"{mended}/.", state], check=True)
    finally:
        subprocess.run(["umount", mended], check=True)
        mended.rmdir()
