"""The real MPI libraries that tests run: MPICH and mpi4py from PyPI, Slurm's libpmi2 from Debian; programs are compiled once a session."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "mpi"
HEADER = Path("/usr/include/slurm/pmi2.h")


def missing(*what: str) -> str:
    """Why tests with these programs cannot run here; empty: they can."""
    if "mpich" in what and not mpicc().exists():
        return "no MPICH: pip install '.[test]' on x86_64 or aarch64"
    if "mpi4py" in what and find_spec("mpi4py") is None:
        return "no mpi4py: pip install '.[test]'"
    if "libpmi2" in what and not HEADER.exists():
        return "no libpmi2: apt-get install libpmi2-0-dev"
    return ""


def mpicc() -> Path:
    return Path(sys.prefix) / "bin" / "mpicc"


@cache
def ring() -> Path:
    """The program of ring.c, by MPICH's own compiler."""
    return _compiled(str(mpicc()), "ring")


@cache
def every_call() -> Path:
    """The program of every_call.c, on Slurm's libpmi2."""
    return _compiled("gcc", "every_call", "-lpmi2")


def _compiled(compiler: str, name: str, *libraries: str) -> Path:
    source, program = HERE / f"{name}.c", BUILD / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O1", "-o", str(program), str(source), *libraries], check=True, capture_output=True, text=True)
    return program
