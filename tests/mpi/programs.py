"""The real MPI libraries that tests run: MPICH and mpi4py from PyPI, Slurm's libpmi2 from Debian; programs are compiled once a session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "mpi"
SYSTEM_PYTHON = Path("/usr/bin") / f"python{sys.version_info.major}.{sys.version_info.minor}"
"""The tests' own may be one that only root can read."""
HEADER = Path("/usr/include/slurm/pmi2.h")


def missing(*what: str) -> str:
    """Why tests with these programs cannot run here; empty: they can."""
    if "mpich" in what and not mpicc().exists():
        return "no MPICH: pip install '.[test]' on x86_64 or aarch64"
    if "mpi4py" in what and find_spec("mpi4py") is None:
        return "no mpi4py: pip install '.[test]'"
    if "python" in what and not SYSTEM_PYTHON.exists():
        return f"no {SYSTEM_PYTHON}, which all users may run"
    if "libpmi2" in what and not HEADER.exists():
        return "no libpmi2: apt-get install libpmi2-0-dev"
    return ""


def mpicc() -> Path:
    return Path(sys.prefix) / "bin" / "mpicc"


@cache
def ring() -> Path:
    """The program of ring.c, by MPICH's own compiler; beside it `lib` with MPICH's libraries."""
    program = _compiled(str(mpicc()), "ring", "-Wl,-rpath,$ORIGIN/lib")
    library = BUILD / "lib"
    if not (library / "mpich").exists():
        library.mkdir(exist_ok=True)
        shutil.copy(Path(sys.prefix) / "lib" / "libmpi.so.12", library)
        shutil.copytree(Path(sys.prefix) / "lib" / "mpich", library / "mpich", symlinks=True)
    return program


@cache
def every_call() -> Path:
    """The program of every_call.c, on Slurm's libpmi2."""
    return _compiled("gcc", "every_call", "-lpmi2")


def mpi4py() -> list[str]:
    """The command of ring.py, and of any user's Python with mpi4py beside the libraries of `ring`."""
    ring()
    found = find_spec("mpi4py")
    assert found
    assert found.origin
    if not (BUILD / "python").exists():
        shutil.copytree(Path(found.origin).parent, BUILD / "python" / "mpi4py", ignore=shutil.ignore_patterns("include", "*.pxd", "*.pyi"))
    shutil.copy(HERE / "ring.py", BUILD)
    return ["/usr/bin/env", "PYTHONPATH=HERE/python", "MPI4PY_LIBMPI=HERE/lib/libmpi.so.12", str(SYSTEM_PYTHON), "HERE/ring.py"]


def install(place: Path) -> None:
    """Copies all programs that are compiled to a directory that every user may read."""
    shutil.copytree(BUILD, place, dirs_exist_ok=True, symlinks=True)


@contextmanager
def without_leftovers() -> Iterator[None]:
    """Removes the segments of shared memory that killed ranks have left meanwhile; work has a /dev/shm of its own, these tests have not."""
    before = set(SHARED_MEMORY.glob("mpich*"))
    try:
        yield
    finally:
        for path in set(SHARED_MEMORY.glob("mpich*")) - before:
            path.unlink(missing_ok=True)


def _compiled(compiler: str, name: str, *options: str) -> Path:
    source, program = HERE / f"{name}.c", BUILD / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O1", "-o", str(program), str(source), *options], check=True, capture_output=True, text=True)
    return program
