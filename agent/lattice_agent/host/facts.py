"""Reads the facts of the machine, once; no tool is run."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_agent.host.interface import MachineFacts


def boot_id() -> str:
    """Returns the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def gather() -> MachineFacts:
    """Returns the machine's number of CPUs, memory in bytes, kernel release, architecture and boot id."""
    machine = os.uname()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MachineFacts(os.cpu_count() or 1, memory, machine.release, machine.machine, boot_id())
