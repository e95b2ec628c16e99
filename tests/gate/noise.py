"""Makes a machine busy and jerky while suites run: what they find then is a defect of a test, or of the code, and never of the machine."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

BUSY = 4
STALL_SECONDS = (0.5, 2.0)
PAUSE_SECONDS = (2.0, 5.0)
_ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))


def cgroup_root() -> Path | None:
    """Returns where cgroup v2 is mounted; None: nowhere, or nobody but root may use it."""
    found = (root for root in _ROOTS if (root / "cgroup.procs").exists() and (root / "cgroup.controllers").exists())
    return next(found, None) if os.geteuid() == 0 else None


@contextlib.contextmanager
def noise(seed: int) -> Iterator[list[str]]:
    """Keeps processors busy and freezes what runs in the cgroup given, and work of instances, for moments; gives the words that put a
    command into that cgroup.
    """
    root = cgroup_root()
    if root is None:
        raise SystemExit("stalls need root and cgroup v2")
    own = root / f"lattice-noise-{os.getpid()}"
    own.mkdir()
    over = threading.Event()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    stalls = threading.Thread(target=_stall, args=(own, root / "workload.slice", random.Random(seed), over))
    stalls.start()
    try:
        yield ["sh", "-c", f'echo 0 > {own / "cgroup.procs"} && exec "$@"', "sh"]
    finally:
        over.set()
        stalls.join()
        for process in busy:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            own.rmdir()


def _stall(own: Path, work: Path, draw: random.Random, over: threading.Event) -> None:
    """Freezes all of the suite, or the work of one instance, again and again."""
    while not over.wait(draw.uniform(*PAUSE_SECONDS)):
        places = [own, own, *work.glob("lattice-dev-*")]
        place, until = draw.choice(places), time.monotonic() + draw.uniform(*STALL_SECONDS)
        with contextlib.suppress(OSError):  # the instance has gone
            (place / "cgroup.freeze").write_text("1")
            over.wait(until - time.monotonic())
            (place / "cgroup.freeze").write_text("0")
