"""Compiles the filter of system calls of containers once, with libseccomp, as an OCI runtime does anew for every process that it starts.

The stub sets it then, in process 1 and in every task, before anything else (`standalone/stub.c`).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from lattice_agent.host.interface import MachineFacts
from lattice_agent.host.json_files import read_json
from lattice_agent.work.seccomp import runtime_filter

LIBRARY: Final = "libseccomp.so.2"
_ACTIONS: Final = {
    "SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_LOG": 0x7FFC0000, "SCMP_ACT_ERRNO": 0x00050000, "SCMP_ACT_TRAP": 0x00030000,
    "SCMP_ACT_KILL": 0, "SCMP_ACT_KILL_THREAD": 0, "SCMP_ACT_KILL_PROCESS": 0x80000000,
}  # fmt: skip
_COMPARED: Final = {
    "SCMP_CMP_NE": 1, "SCMP_CMP_LT": 2, "SCMP_CMP_LE": 3, "SCMP_CMP_EQ": 4, "SCMP_CMP_GE": 5, "SCMP_CMP_GT": 6, "SCMP_CMP_MASKED_EQ": 7,
}  # fmt: skip
_MARK: Final = b"filter="
"""Stands in a stub that sets filters."""
_UNREADABLE: Final = 0o444
"""A stub that its user could read might be traced before its filter is set."""


class _Comparison(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


@dataclass(frozen=True)
class CallFilter:
    """The filter of system calls of a container: `linux.seccomp` of the runtime specification, and the same compiled for the stub.

    `compiled` None: the runtime has to compile it, since the stub or this machine's libseccomp cannot.
    """

    rules: Mapping[str, Any]
    compiled: bytes | None = None


class _Unknown(Exception):
    """Raised for a filter that libseccomp does not take, or that has what this module does not know."""


class CallFilters:
    """Returns the filter of a profile for this machine, which is read and compiled again where profile or stub have changed."""

    def __init__(self, profile: Path, stub: Path, facts: MachineFacts) -> None:
        self._profile, self._stub, self._facts = profile, stub, facts
        self._kept: tuple[object, CallFilter] | None = None

    def current_filter(self) -> CallFilter:
        """Returns the filter of the profile as it is now. Raises Rejected, Corrupt for a profile that cannot be read."""
        marks = _mark(self._profile), _mark(self._stub)
        if self._kept is None or self._kept[0] != marks:
            rules = runtime_filter(read_json(self._profile), self._facts.architecture, self._facts.kernel)
            self._kept = marks, CallFilter(rules, compile_filter(rules) if _sets_filters(self._stub) else None)
        return self._kept[1]


def compile_filter(rules: Mapping[str, Any]) -> bytes | None:
    """Returns `linux.seccomp` of the runtime specification as a program for seccomp(2): what runc makes of it, but for the instructions
    by which that answers ENOSYS to system calls newer than the profile, as this one's default does.

    None: there is no libseccomp, the filter has what this module does not know, or its default is not the error ENOSYS.
    """
    if rules["defaultAction"] != "SCMP_ACT_ERRNO" or rules.get("defaultErrnoRet") != errno.ENOSYS:
        return None
    try:
        return _compiled(_library(), rules)
    except (OSError, AttributeError, KeyError, TypeError, ValueError, _Unknown):
        return None


def _compiled(library: ctypes.CDLL, rules: Mapping[str, Any]) -> bytes:
    """Returns the program of a filter; raises _Unknown and others for what cannot be compiled."""
    default = _ACTIONS[rules["defaultAction"]] | int(rules["defaultErrnoRet"])
    context = library.seccomp_init(default)
    if not context:
        raise _Unknown
    place = os.memfd_create("filter", os.MFD_CLOEXEC)
    try:
        for name in rules["architectures"]:
            token = library.seccomp_arch_resolve_name(str(name).removeprefix("SCMP_ARCH_").lower().encode())
            if not token or library.seccomp_arch_add(context, token) not in (0, -errno.EEXIST):
                raise _Unknown
        for rule in rules["syscalls"]:
            _add(library, context, rule, default)
        if library.seccomp_export_bpf(context, place):
            raise _Unknown
        return os.pread(place, os.fstat(place).st_size, 0)
    finally:
        library.seccomp_release(context)
        os.close(place)


def _add(library: ctypes.CDLL, context: int, rule: Mapping[str, Any], default: int) -> None:
    """Adds a rule to a filter for each system call that it names and libseccomp knows; one that repeats the default is left out.

    As in runc, comparisons of which two are of the same argument are alternatives, others have to hold together.
    """
    action = _ACTIONS[rule["action"]]
    if rule["action"] == "SCMP_ACT_ERRNO":
        action |= int(rule.get("errnoRet", errno.EPERM))
    if action == default:
        return
    compared = [_comparison(one) for one in rule.get("args") or ()]
    alike = max(Counter(one.arg for one in compared).values(), default=0) > 1
    groups = [[one] for one in compared] if alike else [compared]
    for name in rule["names"]:
        number = library.seccomp_syscall_resolve_name(str(name).encode())
        if number == -1:  # __NR_SCMP_ERROR: libseccomp does not know it
            continue
        for group in groups:
            if library.seccomp_rule_add_array(context, action, number, len(group), (_Comparison * len(group))(*group)):
                raise _Unknown


def _comparison(asked: Mapping[str, Any]) -> _Comparison:
    """Returns a comparison of a system call's argument; raises KeyError for an unknown one."""
    return _Comparison(int(asked["index"]), _COMPARED[asked["op"]], int(asked["value"]), int(asked.get("valueTwo", 0)))


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """Returns libseccomp; raises OSError where it is not installed."""
    library = ctypes.CDLL(LIBRARY)
    context, number = ctypes.c_void_p, ctypes.c_uint32
    library.seccomp_init.restype, library.seccomp_init.argtypes = context, (number,)
    library.seccomp_arch_resolve_name.restype, library.seccomp_arch_resolve_name.argtypes = number, (ctypes.c_char_p,)
    library.seccomp_arch_add.argtypes = (context, number)
    library.seccomp_rule_add_array.argtypes = (context, number, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison))
    library.seccomp_export_bpf.argtypes = (context, ctypes.c_int)
    library.seccomp_release.argtypes = (context,)
    return library


def _sets_filters(stub: Path) -> bool:
    """Tells whether a stub can set a filter before anybody could trace it; an older one, or one that users can read, cannot."""
    try:
        return not stub.stat().st_mode & _UNREADABLE and _MARK in stub.read_bytes()
    except OSError:
        return False


def _mark(path: Path) -> tuple[int, ...]:
    """Returns what changes with a file's content or mode; empty: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
