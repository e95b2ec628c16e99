"""OCI images for tests, as a node's cache keeps them: a squashfs file of a busybox system, and its configuration beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lattice.views.allocation import OCI, SoftwareImage
from lattice_agent.host import facts
from lattice_agent.host.containers import ContainerTools
from lattice_agent.state.image_cache import ImageCache, ImageRecord
from lattice_dev.build import build_stub
from lattice_dev.progress import terminal
from lattice_dev.waiting import HostClock

BUSYBOX = shutil.which("busybox") or ""
APPLETS = (
    "sh", "cat", "id", "ls", "grep", "sleep", "mount", "touch", "env", "pwd", "echo", "true", "readlink", "mkdir", "kill", "ps", "head", "dd",
    "setsid", "rm", "hostname", "stat", "wc", "sort",
)  # fmt: skip


def needs_runc() -> pytest.MarkDecorator:
    """Skips where containers cannot be made; in CI nothing of it is skipped."""
    there = (
        bool(ContainerTools().program())
        and all(map(shutil.which, ("mksquashfs", "cc")))
        and bool(BUSYBOX)
        and ContainerTools().seccomp.exists()
    )
    return pytest.mark.skipif(not there, reason="runc, containers-common, squashfs-tools, busybox-static or a C compiler is not installed")


@cache
def stub() -> Path:
    """The stub, compiled where it is not cached."""
    return build_stub(terminal(HostClock()), os.environ)


def make_root(path: Path, change: Callable[[Path], None] = lambda _: None) -> Path:
    """Makes the squashfs file of a small system with busybox; `change` is given its tree before."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        for directory in ("bin", "etc", "proc", "sys", "dev", "tmp", "app", "var"):
            (tree / directory).mkdir(parents=True)
        tree.chmod(0o755)
        shutil.copy(BUSYBOX, tree / "bin/busybox")
        for applet in APPLETS:
            (tree / "bin" / applet).symlink_to("busybox")
        (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nimageuser:x:1234:1234::/:/bin/sh\n")
        (tree / "etc/group").write_text("root:x:0:\n")
        (tree / "etc/os-release").write_text("ID=busybox\n")
        change(tree)
        argv = ["mksquashfs", str(tree), str(path), "-comp", "gzip", "-noappend", "-no-progress", "-all-root", "-quiet"]
        subprocess.run(argv, check=True, capture_output=True)
    return path


def keep_image(
    cache: ImageCache, root: Path, *, source: str = "registry.example/app:1", digit: str = "a", config: Mapping[str, Any] | None = None
) -> SoftwareImage:
    """Puts an image into a node's cache, as its pull would; `config` is the part of its configuration that is for who runs it."""
    digest = f"sha256:{digit * 64}"
    cache.squashfs_file(digest).write_bytes(root.read_bytes())
    document = {"architecture": "amd64", "os": "linux", "config": dict(config or {}), "rootfs": {"type": "layers", "diff_ids": []}}
    cache.keep_config(digest, json.dumps(document).encode())
    record = ImageRecord(layer="", size=root.stat().st_size, boot=facts.boot_id(), manifest=digest)
    cache.squashfs_file(digest).with_suffix(".json").write_bytes(msgspec.json.encode(record))
    return SoftwareImage(source, digest, size=root.stat().st_size, kind=OCI, registry="registry.example")
