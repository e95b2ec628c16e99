"""A virtual environment with clients of Slurm from PyPI, unmodified, and Lattice's programs of Slurm; cached outside the tree.

It is made by the system's own Python, in a folder that every user can read: work runs as the user who submitted it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from lattice.cli.registry import SLURM_PROGRAMS

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = "/usr/bin/python3"
CLIENTS: Final = (
    "submitit", "dask-jobqueue", "distributed", "dask", "parsl", "snakemake", "snakemake-executor-plugin-slurm",
    "snakemake-executor-plugin-slurm-jobstep",
)  # fmt: skip
NEEDED: Final = ("msgspec>=0.19", "PyYAML>=6.0.1", "tzdata>=2025.2", "pydantic>=2.10,<3")
"""What Lattice's own command line needs."""
LOCKED: Final = Path(__file__).with_suffix(".txt")
"""The version of each package."""
CACHE: Final = Path("/var/cache/lattice") if os.geteuid() == 0 else Path.home() / ".cache/lattice"
_LAUNCHER: Final = "#!{python}\nimport sys\nsys.path.insert(0, {root!r})\nfrom lattice.cli.slurm.__main__ import main\nmain()\n"


def missing() -> str:
    """Why no clients can run here, as a clause; empty: they can."""
    if os.geteuid() != 0:
        return "people with accounts of their own need root"
    found = (
        subprocess.run([PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False) if shutil.which(PYTHON) else None
    )
    return "" if found is not None and found.returncode == 0 else f"{PYTHON} is not there, or older than 3.11"


def environment() -> Path:
    """The virtual environment with the clients; made at the first call, which takes a minute."""
    key = hashlib.sha256("\n".join((*CLIENTS, *NEEDED, LOCKED.read_text(encoding="utf-8"))).encode()).hexdigest()[:12]
    made = CACHE / f"slurm-clients-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "slurm-clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "made").exists():
            shutil.rmtree(made, ignore_errors=True)
            subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(made)], check=True)
            subprocess.run([*pip(made), "install", "--constraint", str(LOCKED), *CLIENTS, *NEEDED], check=True)
            (made / "made").touch()
    return made


def pip(made: Path) -> list[str]:
    """The words that run pip on a virtual environment, which has none of its own."""
    return [sys.executable, "-m", "pip", "--python", str(made / "bin/python3"), "--quiet", "--disable-pip-version-check"]


def lock() -> None:
    """Writes the newest version of each package into the file of locked ones."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", folder], check=True)
        subprocess.run([*pip(made), "install", *CLIENTS, *NEEDED], check=True)
        found = subprocess.run([*pip(made), "freeze", "--all"], check=True, capture_output=True, text=True).stdout
    heading, _, _ = LOCKED.read_text(encoding="utf-8").partition("\n")
    LOCKED.write_text(f"{heading}\n{found}", encoding="utf-8")


def programs(folder: Path) -> Path:
    """A folder with Slurm's programs of this tree, by the Python of the clients, as `lattice compat install` links them.

    The library is copied beside them: work has a /tmp of its own, and no right to read a checkout in root's home.
    """
    launcher, library = folder / "lattice-slurm", folder / "library"
    shutil.copytree(ROOT / "lattice", library / "lattice", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([environment() / "bin/python3", "-m", "compileall", "-q", library], check=True)
    launcher.write_text(_LAUNCHER.format(python=environment() / "bin/python3", root=str(library)))
    launcher.chmod(0o755)
    for name in SLURM_PROGRAMS:
        (folder / name).symlink_to(launcher)
    return folder


if __name__ == "__main__":
    lock() if sys.argv[1:] == ["lock"] else environment()  # `.ci/run` makes it before tests have time limits
