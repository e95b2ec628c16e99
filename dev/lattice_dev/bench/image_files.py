"""Makes the images of a measurement: squashfs files, and a small system for containers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lattice.errors import Rejected

ARCHITECTURE: Final = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
CHUNK: Final = 16 << 20
_LIBRARY: Final = re.compile(r"(/\S+) \(0x")


@contextmanager
def folder() -> Iterator[Path]:
    """Makes a directory that everybody may enter, and removes it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="lattice-bench-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def needed(program: str, package: str) -> str:
    """Returns the path of a program; raises Rejected, naming its package, where it is not installed or this is not root."""
    found = shutil.which(program)
    if found is None or os.geteuid() != 0:
        raise Rejected(f"this needs {program} (apt-get install {package}), and root", reason="NoProgram")
    return found


def small_squashfs(place: Path) -> Path:
    """Makes a squashfs image of one file, which everybody may read."""
    (place / "tree/bin").mkdir(parents=True)
    (place / "tree/bin/app").write_text("#!/bin/sh\n", encoding="utf-8")
    return _packed(place / "tree", place / "bench.squashfs")


def large_squashfs(place: Path, size: int) -> Path:
    """Makes a squashfs image of so many random bytes, which nothing packs."""
    tree = place / "large"
    tree.mkdir()
    with (tree / "data").open("wb") as file:
        for begin in range(0, size, CHUNK):
            file.write(os.urandom(min(CHUNK, size - begin)))
    made = _packed(tree, place / "large.squashfs", "-noI", "-noD", "-noF", "-noX")
    shutil.rmtree(tree)
    return made


def _packed(tree: Path, file: Path, *options: str) -> Path:
    """Packs a directory into a squashfs file, which everybody may read; raises Rejected without mksquashfs or without root."""
    program = needed("mksquashfs", "squashfs-tools")
    argv = [program, str(tree), str(file), "-noappend", "-no-progress", "-all-root", "-quiet", *options]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    file.chmod(0o644)
    return file


@dataclass(frozen=True)
class SystemLayer:
    """A layer with bash and its libraries, as a gzipped tar; `unpacked` is the digest of the tar itself."""

    packed: bytes
    unpacked: str


def bash_system(place: Path) -> SystemLayer:
    """Makes a root file system of bash and the libraries that it loads in `place/rootfs`, and returns it as a layer."""
    root, bash = place / "rootfs", Path(needed("bash", "bash")).resolve()
    listed = subprocess.run(["ldd", str(bash)], check=True, capture_output=True, text=True, timeout=30).stdout
    for name in ("bin", "etc", "tmp", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(bash, root / "bin/bash")
    for library in _LIBRARY.findall(listed):
        there = root / library.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, there)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as files:
        for path in sorted(root.rglob("*")):
            files.add(path, str(path.relative_to(root)), recursive=False)
    return SystemLayer(gzip.compress(out.getvalue(), 1, mtime=0), f"sha256:{hashlib.sha256(out.getvalue()).hexdigest()}")


def runc_bundle(place: Path) -> Path:
    """Makes a bundle for `runc run` of the file system in `place/rootfs`, whose process does nothing; it has the network of the machine."""
    runc = needed("runc", "runc")
    subprocess.run([runc, "spec"], cwd=place, check=True, capture_output=True, timeout=30)
    file = place / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["process"] |= {"terminal": False, "args": ["/bin/bash", "-c", ":"]}
    config["linux"]["namespaces"] = [{"type": name} for name in ("pid", "ipc", "mount")]
    config.pop("hostname", None)
    file.write_text(json.dumps(config), encoding="utf-8")
    return place
