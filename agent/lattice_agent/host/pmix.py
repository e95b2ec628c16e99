"""Tells whether this node serves PMIx: whether the PMIx host, which is linked to the node's libpmix, runs here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

CHECK_SECONDS: Final = 20.0


def flaw_of(program: Path) -> str:
    """Returns a clause on why the PMIx host does not run here, as its first line says it; empty: it does."""
    if not program.is_file():
        return f"{program} is not there: it is made of pmix/host.c (--pmix-host)"
    try:
        done = subprocess.run([program, "--check"], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} --check: {error}"
    said = (done.stderr or done.stdout).strip().partition("\n")[0][:300]
    return f"{program} --check ends with exit code {done.returncode}: {said}" if done.returncode else ""
