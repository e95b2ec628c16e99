"""The tests that failed and passed when repeated, in a file that all clones share: a defect of the test or of the code until it is mended."""

from __future__ import annotations

import os
import time
from pathlib import Path


def cache() -> Path:
    """Returns the folder that all clones share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lattice"


def note(commit: str, test: str) -> None:
    """Adds a test that flaked."""
    path = cache() / "flaky.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{commit} {time.strftime('%FT%TZ', time.gmtime())} {test}\n")


def standing() -> list[str]:
    """Returns the entries that stand, as they were written."""
    path = cache() / "flaky.log"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def mended(test: str) -> int:
    """Takes a test out, whose cause a commit has mended; returns the exit code: 1 where it does not stand there."""
    lines = standing()
    left = [line for line in lines if line.split(" ", 2)[2] != test]
    if not test or left == lines:
        print(
            f"{test or 'TEST= is missing: its test'} does not stand in {cache() / 'flaky.log'}" + "".join(f"\n  {line}" for line in lines)
        )
        return 1
    (cache() / "flaky.log").write_text("".join(f"{line}\n" for line in left), encoding="utf-8")
    print(f"taken out: {test}")
    return 0
