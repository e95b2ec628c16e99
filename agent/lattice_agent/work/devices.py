"""Finds the devices that work names in CDI specifications (Container Device Interface), and what a container needs for them; pure.

The administrators of a node, or the tools of a vendor, write these files to /etc/cdi and /var/run/cdi; a device is
`VENDOR/CLASS=NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.errors import Rejected

MOST_NAMED: Final = 20
"""Devices that a refusal names."""
HOOKS_RUN: Final = ("prestart", "createRuntime", "createContainer")
"""Hooks of a specification that the runtime runs while it makes the container: those whose programs are the node's.

The program of a `startContainer` hook is the image's, and would run as root.
"""


@dataclass(frozen=True)
class DeviceNode:
    """A device file of a container; `kind`, `major` and `minor` empty or -1: as those of `host_path` are on the node."""

    path: str
    host_path: str
    kind: str = ""
    major: int = -1
    minor: int = -1
    mode: int | None = None
    permissions: str = "rwm"
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class DeviceMount:
    """A directory or a file of the node that a device wants in the container, with options of mount(8)."""

    host_path: str
    path: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceEdits:
    """All that the chosen devices change of a container; `hooks` are programs of the runtime specification, by their time."""

    variables: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    hooks: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    groups: tuple[int, ...] = ()


def choose_devices(names: Sequence[str], specifications: Sequence[tuple[str, Any]]) -> DeviceEdits:
    """Returns what a container needs for these devices; `specifications` are parsed files with their paths, the strongest last.

    Raises Rejected for a device that none of them has, and for one whose specification is malformed or wants what is not done here.
    """
    known: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {}
    for path, document in specifications:
        known |= {f"{document['kind']}={device['name']}": (path, document, device) for device in _devices(document)}
    parts: list[DeviceEdits] = []
    begun: set[int] = set()
    for name in dict.fromkeys(names):
        if name not in known:
            there = ", ".join(sorted(known)[:MOST_NAMED]) or "none"
            raise Rejected(f"the device {name!r} is unknown; its CDI specifications name {there}", reason="PrologueFailed")
        path, document, device = known[name]
        try:
            if id(document) not in begun:
                begun.add(id(document))
                parts.append(_edits(document.get("containerEdits") or {}))
            parts.append(_edits(device.get("containerEdits") or {}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            said = f"the CDI specification {path} of the device {name!r} cannot be used: {error}"
            raise Rejected(said, reason="PrologueFailed") from error
    return _together(parts)


def _devices(document: Any) -> Iterable[Mapping[str, Any]]:
    """Returns the devices of a specification; none of what is not one."""
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        return ()
    devices = document.get("devices")
    return [device for device in devices if isinstance(device, Mapping) and "name" in device] if isinstance(devices, list) else ()


def _edits(edits: Mapping[str, Any]) -> DeviceEdits:
    """Returns what a container needs by one list of edits.

    Raises ValueError for a hook at a time that is not served, or a part that does not read, KeyError where one is missing.
    """
    hooks: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for hook in edits.get("hooks") or ():
        when = str(hook["hookName"])
        if when not in HOOKS_RUN:
            raise ValueError(f"its hook {hook['path']} wants to run at {when}, which is not served")
        own = {key: hook[key] for key in ("path", "args", "env", "timeout") if hook.get(key)}
        hooks[when] = (*hooks.get(when, ()), own)
    pairs = (str(text).partition("=") for text in edits.get("env") or ())
    return DeviceEdits(
        {name: value for name, _, value in pairs},
        tuple(_node(node) for node in edits.get("deviceNodes") or ()),
        tuple(_mount(mount) for mount in edits.get("mounts") or ()),
        hooks,
        tuple(int(gid) for gid in edits.get("additionalGids") or ()),
    )


def _node(node: Mapping[str, Any]) -> DeviceNode:
    """Returns a device file that a container needs; type and numbers may be left open.

    Raises ValueError for an unknown type or a path that is not absolute.
    """
    path = _absolute(node["path"])
    kind, major, minor = str(node.get("type") or ""), int(node.get("major") or -1), int(node.get("minor") or 0)
    if kind not in ("", "b", "c", "u"):
        raise ValueError(f"its device {path} is of the type {kind!r}")
    mode, uid, gid = (None if node.get(key) is None else int(node[key]) for key in ("fileMode", "uid", "gid"))
    host = _absolute(node.get("hostPath") or path)
    return DeviceNode(path, host, kind, major, minor if major >= 0 else -1, mode, str(node.get("permissions") or "rwm"), uid, gid)


def _mount(mount: Mapping[str, Any]) -> DeviceMount:
    """Returns a mount that a container needs. Raises ValueError for a path that is not absolute."""
    options = tuple(str(option) for option in mount.get("options") or ())
    return DeviceMount(_absolute(mount["hostPath"]), _absolute(mount["containerPath"]), options)


def _absolute(path: Any) -> str:
    """Returns an absolute path without `..` as text. Raises ValueError for any other."""
    text = str(path)
    if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
        raise ValueError(f"{text!r} is no absolute path")
    return text


def _together(parts: Sequence[DeviceEdits]) -> DeviceEdits:
    """Returns the edits of several devices as one; of equal variables the last one counts, groups stand once."""
    variables: dict[str, str] = {}
    hooks: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for part in parts:
        variables |= part.variables
        for when, more in part.hooks.items():
            hooks[when] = (*hooks.get(when, ()), *more)
    return DeviceEdits(
        variables,
        tuple(node for part in parts for node in part.nodes),
        tuple(mount for part in parts for mount in part.mounts),
        hooks,
        tuple(dict.fromkeys(gid for part in parts for gid in part.groups)),
    )
