"""What a node or an instance could leave on a machine: processes, mounts, devices, scopes, files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lattice_agent.standalone import private_tmp
from lattice_dev import network, processes
from lattice_dev.state import Layout


def of_work(where: Layout) -> list[str]:
    """Scopes that stand and processes of attempts that live, while the instance itself goes on."""
    scopes = [f"scope {path}" for root in where.scope_roots() for path in sorted(root.glob("*/alloc-*.scope"))]
    marked = [
        f"process {found.id.pid} {' '.join(found.argv)}" for found in processes.marked(where.mark) if "witness.sh" in " ".join(found.argv)
    ]
    home = str(where.directory / "home")
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    alive = [f"process {entry.name} works below {home}" for entry in entries if _works_below(entry, home)]
    return [*scopes, *marked, *alive, *_private_tmp(where)]


def _private_tmp(where: Layout) -> list[str]:
    """Directories that are the /tmp of some attempt of a node whose agent runs: a machine that is off removes its own when it boots."""
    agents = [found.argv for found in processes.marked(where.mark) if "lattice_agent" in found.argv]
    alive = [node for node in where.directory.glob("agents/*") if any(node.name in argv for argv in agents)]
    begins = tuple(private_tmp.beginning(f"{node.resolve()}/state/attempts") for node in alive)
    return [f"/tmp of an attempt {path}" for path in Path("/tmp").iterdir() if path.name.startswith(begins)]


def _works_below(process: Path, home: str) -> bool:
    try:
        environment = (process / "environ").read_bytes()
    except OSError:
        return False
    return b"LATTICE_ALLOC_ID=" in environment and f"HOME={home}".encode() in environment


def of_instance(where: Layout) -> list[str]:
    """Everything that an instance that was taken down must not have left."""
    devices = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    return [
        *(f"process {found.id.pid} {' '.join(found.argv)}" for found in processes.marked(where.mark)),
        *(f"mount {target}" for target in network.mounts_below(where.directory)),
        *(f"device {device['ifname']}" for device in devices if where.tag in device["ifname"]),
        *(f"scope {root}" for root in where.scope_roots() if root.exists()),
        *([f"directory {where.directory}"] if where.directory.exists() else []),
    ]
