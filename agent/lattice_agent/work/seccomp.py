"""Makes the seccomp filter of a container from the profile that podman and Docker share (containers-common); pure.

That file names rules for all machines and rights; an OCI runtime wants those of one architecture and kernel, for a process without
capabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lattice.errors import Corrupt

_NAMES: Final = {
    "x86_64": ("SCMP_ARCH_X86_64", "amd64"), "aarch64": ("SCMP_ARCH_AARCH64", "arm64"), "ppc64le": ("SCMP_ARCH_PPC64LE", "ppc64le"),
    "s390x": ("SCMP_ARCH_S390X", "s390x"), "riscv64": ("SCMP_ARCH_RISCV64", "riscv64"),
}  # fmt: skip
"""By machine, as the kernel calls it: the names that a profile has for it among architectures, and among the conditions of rules."""
_KEPT: Final = ("names", "action", "args", "errnoRet")


def runtime_filter(profile: Mapping[str, Any], machine: str, kernel: str) -> dict[str, Any]:
    """Returns `linux.seccomp` of the OCI runtime specification: the rules of a profile for this machine and kernel release.

    Raises Corrupt for a profile of another form, or a machine that it does not know.
    """
    if machine not in _NAMES:
        raise Corrupt(f"seccomp profiles do not know the architecture {machine}", reason="ProfileUnreadable")
    try:
        return _filtered(profile, machine, kernel)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the seccomp profile cannot be read: {type(error).__name__}: {error}", reason="ProfileUnreadable") from error


def _filtered(profile: Mapping[str, Any], machine: str, kernel: str) -> dict[str, Any]:
    """Returns the filter of a profile for a machine and the release of its kernel.

    Raises ValueError where no rule is for this machine, KeyError where a part of the profile is missing.
    """
    name, condition = _NAMES[machine]
    version = _version(kernel)
    rules = [
        {key: rule[key] for key in _KEPT if rule.get(key)}
        for rule in profile["syscalls"]
        if _is_included(rule.get("includes") or {}, condition, version) and not _is_excluded(rule.get("excludes") or {}, condition, version)
    ]
    if not rules:
        raise ValueError("it has no rules for this machine")
    made: dict[str, Any] = {
        "defaultAction": profile["defaultAction"], "architectures": _architectures(profile, name), "syscalls": rules,
    }  # fmt: skip
    if profile.get("defaultErrnoRet"):
        made["defaultErrnoRet"] = int(profile["defaultErrnoRet"])
    return made


def _architectures(profile: Mapping[str, Any], name: str) -> list[str]:
    """Returns the architecture's name and those that belong to it by the profile; its name alone where the profile does not list it."""
    for entry in profile.get("archMap") or ():
        if entry["architecture"] == name:
            return [name, *(entry.get("subArchitectures") or ())]
    return [name]


def _is_included(wanted: Mapping[str, Any], condition: str, version: tuple[int, ...]) -> bool:
    """Tells whether a rule holds on this architecture and kernel; one that is for processes with capabilities never does."""
    arches: Sequence[str] = wanted.get("arches") or (condition,)
    return condition in arches and not wanted.get("caps") and version >= _version(wanted.get("minKernel") or "0")


def _is_excluded(unwanted: Mapping[str, Any], condition: str, version: tuple[int, ...]) -> bool:
    """Tells whether a rule does not hold on this architecture, or from a kernel on that this one is not older than."""
    newest = unwanted.get("minKernel")
    return condition in (unwanted.get("arches") or ()) or bool(newest and version >= _version(newest))


def _version(release: str) -> tuple[int, ...]:
    """Returns the first two numbers of a kernel release such as 6.1.0-13-amd64."""
    parts = release.split("-", 1)[0].split(".")[:2]
    return tuple(int(part) for part in parts)
