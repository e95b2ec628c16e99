"""Reads what the kernel has counted of an attempt's work: CPU time, the most memory that it held, processes killed for want of memory.

It is of standard library alone, for the shim. The same names stand in cgroup v2 and in the v1 hierarchies; only the files differ, which
`host.controllers` names.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH118, PTH120
from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

UNLIMITED = 1 << 60
"""A v1 limit from here on is none."""


def read(files: Mapping[str, str], *, cpu_seconds: float) -> dict[str, float]:
    """Returns the fields of `ResourceUse` that are above 0; `cpu_seconds`: the sum over ended tasks, used where the kernel counts no CPU
    time.

    `files`: `cpu` (cpu.stat), `peak` and `limit` (one number each), `oom` (memory.events, or memory.oom_control).
    """
    used = _line(files.get("cpu", ""), "usage_usec")
    known = {
        "cpu_seconds": max(used / 1e6, 0.0) if used else round(cpu_seconds, 6),
        "peak_memory": _number(files.get("peak", "")),
        "memory_limit": _number(files.get("limit", "")),
        "oom_kills": _line(files.get("oom", ""), "oom_kill"),
    }
    return {name: value for name, value in known.items() if value}


def is_populated(kill: str) -> bool:
    """Tells whether processes are left in the cgroup whose file `cgroup.kill` this is; False where it is gone."""
    return _line(os.path.join(os.path.dirname(kill), "cgroup.events"), "populated") == 1


def _number(path: str) -> int:
    """Returns the number in a file; 0 where the file is missing, or says `max` or another form of no limit."""
    text = _text(path).strip()
    number = int(text) if text.isdigit() else 0
    return number if number < UNLIMITED else 0


def _line(path: str, name: str) -> int:
    """Returns the number after `name` in a file of lines `NAME NUMBER`; 0 where the file or the line is missing."""
    for line in _text(path).splitlines():
        found, _, number = line.partition(" ")
        if found == name and number.isdigit():
            return int(number)
    return 0


def _text(path: str) -> str:
    """Returns the text of a file, 64 KiB at most; empty where it is missing or cannot be read."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            return os.read(fd, 65536).decode(errors="replace")
        finally:
            os.close(fd)
    return ""
