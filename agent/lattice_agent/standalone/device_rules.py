"""Has the device rules of a container hold for its tasks too, which stand in another cgroup; of standard library alone.

Where cgroups are v2 alone, an OCI runtime attaches its rules to the container's cgroup as a program of BPF. The same program is attached
to the cgroup of the attempt's work. On a hybrid machine the rules are those of the v1 hierarchy, where the tasks stay in the
container's cgroup, and there is no program.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress

BPF = {"x86_64": 321, "aarch64": 280}
"""The number of the system call."""
PROG_ATTACH, PROG_DETACH, PROG_GET_FD_BY_ID, PROG_QUERY = 8, 9, 13, 16
CGROUP_DEVICE, ALLOW_MULTI = 6, 2
MOST_PROGRAMS = 64
"""The kernel attaches no more to one cgroup."""
ATTACH, BY_ID, QUERY = struct.Struct("<IIII"), struct.Struct("<III"), struct.Struct("<IIIIQI")
_libc = ctypes.CDLL(None, use_errno=True)


def extend(container: str, work: str) -> int:
    """Attaches the device programs of the container's cgroup to that of the work, in place of what was attached there; returns how many.

    Both are directories of the v2 tree. Raises OSError where the kernel refuses a program that it has taken for the container.
    """
    source, target = (os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in (container, work))
    try:
        former, rules = _programs(target), _programs(source)
        for number in rules:
            _attach(PROG_ATTACH, target, number, ALLOW_MULTI)
        for number in former:
            if number not in rules:
                _attach(PROG_DETACH, target, number, 0)
        return len(rules)
    finally:
        os.close(source)
        os.close(target)


def _programs(cgroup: int) -> list[int]:
    """Returns the numbers of the device programs attached to an open cgroup; empty where the kernel knows none of them."""
    found = (ctypes.c_uint32 * MOST_PROGRAMS)()
    asked = bytearray(QUERY.pack(cgroup, CGROUP_DEVICE, 0, 0, ctypes.addressof(found), MOST_PROGRAMS))
    with suppress(OSError):
        _call(PROG_QUERY, asked)
        return list(found[: QUERY.unpack(bytes(asked[: QUERY.size]))[5]])
    return []


def _attach(command: int, cgroup: int, number: int, flags: int) -> None:
    """Attaches the program of this number to an open cgroup, or detaches it, as the command says. Raises OSError."""
    program = _call(PROG_GET_FD_BY_ID, bytearray(BY_ID.pack(number, 0, 0)))
    try:
        _call(command, bytearray(ATTACH.pack(cgroup, program, CGROUP_DEVICE, flags)))
    finally:
        os.close(program)


def _call(command: int, attributes: bytearray) -> int:
    """Calls bpf(2) and returns its answer; what the kernel says stands in `attributes` then. Raises OSError."""
    size = 64
    held = ctypes.create_string_buffer(bytes(attributes), size)
    answer: int = _libc.syscall(BPF.get(os.uname().machine, -1), command, held, size)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the device rules of the container cannot be set for its tasks: {os.strerror(code)}")
    attributes[:] = held.raw[: len(attributes)]
    return answer
