"""Asks git which commit stands here, and what was changed since the base."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(root: Path, *words: str) -> str:
    """Returns what git prints, without the last newline; empty where it fails."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n") if done.returncode == 0 else ""


def commit(root: Path) -> str:
    """Returns the hash of the commit that stands here; `none` outside of a repository."""
    return git(root, "rev-parse", "HEAD") or "none"


def base(root: Path) -> str:
    """Returns what changes are compared with: `LATTICE_BASE`, else `origin/main` where it is an ancestor and another commit; else empty."""
    if wanted := os.environ.get("LATTICE_BASE", ""):
        return git(root, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
    found = git(root, "rev-parse", "--verify", "--quiet", "origin/main^{commit}")
    return found if found and found != commit(root) and git(root, "merge-base", found, "HEAD") == found else ""


def changed(root: Path, since: str) -> list[str]:
    """Returns the paths that differ between a commit and the working tree, files that git does not know yet included."""
    tracked = git(root, "diff", "--name-only", "--no-renames", since).splitlines()
    return sorted({*tracked, *git(root, "ls-files", "--others", "--exclude-standard").splitlines()})
