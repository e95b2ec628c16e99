"""Composes the container of an attempt for an OCI runtime: its configuration, the process of a task, and what it sees of the node; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.software.container_documents import ContainerConfig
from lattice_agent.attempts import NodeWork
from lattice_agent.work.devices import DeviceEdits, DeviceNode
from lattice_agent.work.environment import Account

OWN: Final = "/.lattice"
STUB, SCRIPT, FILTER = f"{OWN}/stub", f"{OWN}/script", f"{OWN}/filter"
"""Where the container shows Lattice's own program, the work's script, and the filter of system calls."""
_WORLD: Final = ["nosuid", "noexec", "nodev"]
_MOUNTS: Final[tuple[dict[str, Any], ...]] = (
    {"destination": "/proc", "type": "proc", "source": "proc", "options": _WORLD},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
    {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
     "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
    {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": _WORLD},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*_WORLD, "ro"]},
)  # fmt: skip
_SHM: Final[dict[str, Any]] = {
    "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"],  # noqa: S108 - in the container
}  # fmt: skip
_MASKED: Final = (
    "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
    "/proc/scsi", "/sys/firmware",
)  # fmt: skip
_READ_ONLY: Final = ("/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_BIND: Final = ("rbind", "rw", "nosuid", "nodev")
_BIND_READ_ONLY: Final = ("bind", "ro", "nosuid", "nodev")


@dataclass(frozen=True)
class StartedContainer:
    """The container of an attempt whose process 1 stands: the image's configuration, variables of devices, and where tasks begin.

    `fields`: those of `container_tasks.Container`.
    """

    image: ContainerConfig
    variables: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    note: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


def runtime_config(
    work: NodeWork, account: Account, *, cgroup: str, filter_: Mapping[str, Any] | None, devices: DeviceEdits
) -> dict[str, Any]:  # fmt: skip
    """Returns the bundle's config.json but for the root's path and the mounts of what is the node's; with `filter_` None the stub sets
    the filter of system calls, of the file `FILTER`, in place of the runtime.

    Process 1 is the stub, as the user and without capabilities: whatever an image or a user put in its place would be no more than his.
    """
    shm = () if not work.private_tmp else (_SHM,)
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False, "user": {"uid": account.uid, "gid": account.gid}, "env": [], "cwd": "/",
            "args": [STUB] if filter_ is not None else [STUB, f"filter={FILTER}"],
            "noNewPrivileges": True, "capabilities": _no_capabilities(),
        },
        "root": {"path": "", "readonly": not work.writable},
        "mounts": [*_MOUNTS, *shm],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "mount"}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *(_allowed(node) for node in devices.nodes)]},
            "devices": [_device(node) for node in devices.nodes],
            **({"seccomp": dict(filter_)} if filter_ is not None else {}),
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
        },
    }  # fmt: skip
    if devices.hooks:
        config["hooks"] = {when: [dict(hook) for hook in hooks] for when, hooks in devices.hooks.items()}
    return config


def task_process(account: Account, devices: DeviceEdits) -> dict[str, Any]:
    """Returns the process of every task without arguments and variables: the user, with no capabilities; limits are the shim's to set."""
    groups = list(dict.fromkeys((*account.groups, *devices.groups)))
    return {
        "terminal": False, "user": {"uid": account.uid, "gid": account.gid, "additionalGids": groups, "umask": 0o022}, "cwd": "/",
        "noNewPrivileges": True, "capabilities": _no_capabilities(),
    }  # fmt: skip


def node_binds(
    account: Account, workdir: str, *, stub: str, script: str, private_tmp: bool, shared: Sequence[str], devices: DeviceEdits,
    launches: str = "", call_filter: str = "",
) -> list[dict[str, Any]]:  # fmt: skip
    """Returns what a container shows of its node, in the order of its mounting, as entries of the request to `standalone.container`.

    Those are the site's directories, home and working directory of the user (`workdir` empty: it is not the node's), files of the network,
    and Lattice's own; `own` ones are opened with the user's rights. `script` empty: there is none. `launches`: the directory of `srun`.
    `call_filter`: the file of the filter that the stub sets.
    """
    found = [] if private_tmp else [bind("/tmp"), bind("/dev/shm")]  # noqa: S108 - the node's, as bare work has them
    found += [bind(path, optional=True, listed=True) for path in shared]
    found += [bind(account.home, own=True, optional=True), bind(account.home, target="", own=True, optional=True)]
    if workdir:
        found.append(bind(workdir, target="", own=True))
    found += [bind(path, optional=True, options=_BIND_READ_ONLY) for path in ("/etc/resolv.conf", "/etc/hosts")]
    found.append(bind(stub, target=STUB, options=_BIND_READ_ONLY))
    if call_filter:
        found.append(bind(call_filter, target=FILTER, options=_BIND_READ_ONLY))
    if launches:
        found.append(bind(launches, optional=True, options=_BIND_READ_ONLY))
    if script:
        found.append(bind(script, target=SCRIPT, options=_BIND_READ_ONLY))
    found += [
        bind(mount.host_path, target=mount.path, links=True, options=mount.options or ("rbind", "ro", "nosuid", "nodev"))
        for mount in devices.mounts
    ]
    return found


def user_tables(account: Account, groups: Mapping[int, str]) -> dict[str, list[str]]:
    """Returns the lines that the container's /etc/passwd and /etc/group have of the user; `groups` are the names of his, by number."""
    own = f"{account.name}:x:{account.uid}:{account.gid}::{account.home}:{account.shell or '/bin/sh'}"
    return {"passwd": [own], "group": [f"{name}:x:{number}:{account.name}" for number, name in groups.items()]}


def memory_mount(path: str, size: int, account: Account) -> dict[str, Any]:
    """Returns a mount of the runtime's config: a file system of the user's in memory."""
    options = ["nosuid", "nodev", f"size={size}", "mode=0700", f"uid={account.uid}", f"gid={account.gid}"]
    return {"destination": path, "type": "tmpfs", "source": "scratch", "options": options}


def bind(
    path: str, *, target: str | None = None, own: bool = False, optional: bool = False, listed: bool = False, links: bool = False,
    options: Sequence[str] = _BIND,
) -> dict[str, Any]:  # fmt: skip
    """Returns one entry of the request: what of the node stands where in the container.

    `target` None: at the same path; empty: at the path that it really has. `links`: links of the image on the way to it are followed;
    `listed`: the site lists it for containers.
    """
    wanted = path if target is None else target
    return {"path": path, "target": wanted, "own": own, "optional": optional, "listed": listed, "links": links, "options": list(options)}


def _no_capabilities() -> dict[str, list[str]]:
    """Returns every set of capabilities, each empty."""
    return {name: [] for name in ("bounding", "effective", "inheritable", "permitted", "ambient")}


def _allowed(node: DeviceNode) -> dict[str, Any]:
    """Returns the rule by which the container may use a device; an unbuffered character device counts as a character device."""
    kind = "c" if node.kind == "u" else node.kind
    return {"allow": True, "type": kind, "major": node.major, "minor": node.minor, "access": node.permissions}


def _device(node: DeviceNode) -> dict[str, Any]:
    """Returns a device as the container's configuration has it, without what is not set."""
    made: dict[str, Any] = {"path": node.path, "type": node.kind, "major": node.major, "minor": node.minor}
    optional = {"fileMode": node.mode, "uid": node.uid, "gid": node.gid}
    return made | {name: value for name, value in optional.items() if value is not None}
