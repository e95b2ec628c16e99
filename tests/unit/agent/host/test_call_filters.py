"""The compiled filter of system calls is the one that runc sets, and a stub sets it only where nobody could trace it before."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lattice_agent.host import facts
from lattice_agent.host.call_filters import CallFilters, compile_filter
from lattice_agent.host.containers import ContainerTools
from tests.oci import needs_runc, stub
from tests.unit.agent.machine import needs_root, open_directory

pytestmark = [pytest.mark.root, needs_root(), needs_runc()]
ATTACH, DETACH, GET_FILTER, ANY_CHILD = 16, 17, 0x420C, 0x40000000
PROFILE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64"],
    "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}],
}  # fmt: skip


def filters(profile: Path | None = None, program: Path | None = None) -> CallFilters:
    """The filters of this machine."""
    return CallFilters(profile or ContainerTools().seccomp, program or stub(), facts.gather())


@contextmanager
def container(place: Path, rules: Any) -> Iterator[int]:
    """A container of runc with this filter; the pid of its process."""
    (place / "rootfs").mkdir()
    shutil.copy(stub(), place / "rootfs/stub")
    subprocess.run(["runc", "spec"], cwd=place, check=True)
    config = json.loads((place / "config.json").read_text())
    config["process"] |= {"terminal": False, "args": ["/stub"], "noNewPrivileges": True}
    config["linux"]["seccomp"] = rules
    (place / "config.json").write_text(json.dumps(config))
    runc, name = ["runc", "--root", str(place / "state")], f"filter-{os.getpid()}"
    quiet = subprocess.DEVNULL
    subprocess.run([*runc, "run", "--detach", name], cwd=place, check=True, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield json.loads(subprocess.run([*runc, "state", name], check=True, capture_output=True).stdout)["pid"]
    finally:
        subprocess.run([*runc, "delete", "--force", name], check=True)


def filter_of(pid: int) -> bytes:
    """The filter of system calls that the kernel has of a process."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.restype, ptrace.argtypes = ctypes.c_long, (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    assert ptrace(ATTACH, pid, None, None) == 0
    try:
        os.waitpid(pid, ANY_CHILD)
        held = ctypes.create_string_buffer(8 * ptrace(GET_FILTER, pid, None, None))
        assert ptrace(GET_FILTER, pid, None, ctypes.cast(held, ctypes.c_void_p)) > 0
        return held.raw
    finally:
        ptrace(DETACH, pid, None, None)


def test_the_compiled_filter_is_the_one_that_runc_sets_behind_its_answer_to_newer_system_calls() -> None:
    made = filters().current_filter()
    assert made.compiled
    with open_directory() as place, container(place, made.rules) as pid:
        found = filter_of(pid)
    assert found.endswith(made.compiled)
    assert len(found) - len(made.compiled) <= 32 * 8


@pytest.mark.parametrize(
    "change",
    [
        {"defaultErrnoRet": 1}, {"defaultAction": "SCMP_ACT_ALLOW"}, {"architectures": ["SCMP_ARCH_WOMBAT"]},
        {"syscalls": [{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}]},
        {"syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_WOMBAT"}]}]},
        {"syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 9, "value": 1, "op": "SCMP_CMP_EQ"}]}]},
    ],
    ids=["newer calls", "default", "architecture", "action", "comparison", "argument"],
)  # fmt: skip
def test_what_a_runtime_alone_knows_is_left_to_it(change: dict[str, Any]) -> None:
    assert compile_filter(PROFILE)
    assert compile_filter(PROFILE | change) is None


def test_a_stub_that_users_can_read_or_that_sets_no_filter_leaves_it_to_the_runtime() -> None:
    with open_directory() as place:
        own, older = Path(shutil.copy(stub(), place / "stub")), place / "older"
        older.write_bytes(b"stub")
        older.chmod(0o111)
        own.chmod(0o111)
        kept = filters(program=own)
        assert kept.current_filter().compiled
        own.chmod(0o755)
        assert kept.current_filter().compiled is None
        assert filters(program=older).current_filter().compiled is None


def test_a_profile_that_has_changed_is_read_again() -> None:
    with open_directory() as place:
        profile = Path(shutil.copy(ContainerTools().seccomp, place / "profile.json"))
        kept = filters(profile)
        before = kept.current_filter()
        assert kept.current_filter() is before
        changed = json.loads(profile.read_text())
        changed["syscalls"].append({"names": ["getpid"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1})
        profile.write_text(json.dumps(changed))
        assert kept.current_filter().rules != before.rules
