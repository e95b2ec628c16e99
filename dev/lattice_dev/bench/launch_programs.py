"""Compiles the programs by which launches are measured (`programs/`), into a folder that every user may read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lattice.errors import Rejected, Retry
from lattice_dev.bench.image_files import needed

SOURCES: Final = Path(__file__).with_name("programs")
SECONDS: Final = 120.0
HEADER: Final = Path("/usr/include/slurm/pmi2.h")


@dataclass(frozen=True)
class LaunchPrograms:
    """The folder of the programs `mark`, `initialize` and `fence`."""

    place: Path

    def install(self, folder: Path, uid: int) -> None:
        """Copies all of them to a folder, which is made, and belongs to this user."""
        shutil.copytree(self.place, folder, symlinks=True)
        folder.chmod(0o755)
        os.chown(folder, uid, uid)


def compiled(place: Path) -> LaunchPrograms:
    """Compiles all programs into a folder that is there; raises Rejected where a compiler or a library is not installed, Retry where
    one fails.
    """
    if not HEADER.exists():
        raise Rejected("this needs libpmi2: apt-get install libpmi2-0-dev", reason="NoProgram")
    _compile([needed("cc", "gcc"), "-static", "-Os"], "mark", place)
    _compile([needed("cc", "gcc"), "-Os"], "fence", place, "-lpmi2")
    mpicc = _mpicc()
    _compile([str(mpicc), "-Os"], "initialize", place, "-Wl,-rpath,$ORIGIN/lib")
    _copy_libraries(mpicc.parent.parent / "lib", place / "lib")
    return LaunchPrograms(place)


def _mpicc() -> Path:
    """Returns MPICH's compiler, that of this Python's environment first; raises Rejected where there is none."""
    found = shutil.which("mpicc", path=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise Rejected("this needs MPICH: pip install mpich", reason="NoProgram")
    return Path(found).resolve()  # it finds its headers beside itself


def _copy_libraries(source: Path, target: Path) -> None:
    """Copies MPICH's libraries beside the programs, where they are in a folder that only their owner may read."""
    if not (source / "libmpi.so.12").exists():
        return  # a system's own MPICH, which everybody may read
    target.mkdir()
    shutil.copy(source / "libmpi.so.12", target)
    if (source / "mpich").is_dir():
        shutil.copytree(source / "mpich", target / "mpich", symlinks=True)


def _compile(compiler: Sequence[str], name: str, place: Path, *options: str) -> None:
    """Compiles one program; raises Retry, with what the compiler says, where that fails."""
    argv = [*compiler, "-o", str(place / name), str(SOURCES / f"{name}.c"), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        raise Retry(f"{argv[0]} does not compile {name}.c: {done.stderr[-1000:]}", reason="BuildFailed")
