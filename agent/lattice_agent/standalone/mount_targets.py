"""Decides where images may be mounted and in which order; pure, of standard library alone."""

# Paths are plain strings here: none is looked up.
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lattice_agent.standalone import leftovers, private_tmp

MADE = ("/user-environment", "/user-tools")
"""Mount points that the agent makes where they are missing."""
RESERVED = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Directories of the system: neither they nor what lies below them is covered, since programs of root's look there."""
SHARED = ("/", "/tmp", "/var", "/var/tmp", "/var/run", "/var/lib")  # noqa: S108 - compared, never opened
"""Directories that are not covered themselves; what lies below them may be."""
OF_AGENT = (private_tmp.PREFIX, leftovers.ASIDE)
"""Begin the names of the agent's own directories in those where others leave files."""
LONGEST = 1024


class TargetFlaw(Exception):
    """Raised for a mount point that cannot be one; its text is a clause."""


def read_target(text: str) -> str:
    """Returns a mount point as it is compared: absolute, without a `/` at its end.

    Raises TargetFlaw for one that is relative, too long, with an empty part, `.` or `..`, or a directory that must not be covered.
    """
    path = text.rstrip("/") or "/"
    if not text.startswith("/") or not text.isprintable():
        raise TargetFlaw(f"the mount point {text!r} is no absolute path")
    if len(text) > LONGEST:
        raise TargetFlaw(f"the mount point {text[:40] + '…'!r} has {len(text)} characters, {LONGEST} are possible")
    if path != "/" and any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise TargetFlaw(f"the mount point {text!r} has an empty part, . or ..: write it as it is")
    if path in SHARED:
        raise TargetFlaw(f"nothing is mounted at {path}: name a directory below it")
    if any(is_within(path, reserved) for reserved in RESERVED):
        raise TargetFlaw(f"nothing is mounted at {path}: it belongs to the system")
    if any(path.startswith(f"{directory}/{name}") for directory in leftovers.DIRECTORIES for name in OF_AGENT):
        raise TargetFlaw(f"nothing is mounted at {path}: it belongs to the node's agent")
    return path


def is_within(path: str, above: str) -> bool:
    """Tells whether a path is `above`, or lies below it."""
    return path == above or path.startswith(above.rstrip("/") + "/")


def in_order(targets: Sequence[str]) -> list[int]:
    """Returns the indices of `targets` in the order of mounting: one that lies in another comes after it. Raises TargetFlaw for doubles."""
    order = sorted(range(len(targets)), key=lambda place: targets[place].split("/"))
    for before, after in pairwise(order):
        if targets[before] == targets[after]:
            raise TargetFlaw(f"more than one image mounted at the mount point {targets[after]!r}")
    return order
