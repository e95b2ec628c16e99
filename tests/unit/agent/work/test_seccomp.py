"""Of the profile that podman has, a container gets the rules of its machine for a process without capabilities."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.errors import Corrupt
from lattice_agent.work.seccomp import runtime_filter

PROFILE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 38,
    "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
    "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {}, "excludes": {}},
        {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["arch_prctl"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["amd64"]}},
        {"names": ["s390"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390x"]}},
        {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "X"}], "excludes": {"arches": ["s390x"]}},
    ],
}


def names(machine: str, kernel: str) -> list[tuple[str, str]]:
    return [(rule["names"][0], rule["action"]) for rule in runtime_filter(PROFILE, machine, kernel)["syscalls"]]


def test_rules_of_capabilities_other_machines_and_newer_kernels_are_left_out() -> None:
    refused = ("mount", "SCMP_ACT_ERRNO")
    allowed = [(name, "SCMP_ACT_ALLOW") for name in ("read", "arch_prctl", "ptrace", "clone")]
    assert names("x86_64", "6.1.0-13-amd64") == [allowed[0], refused, *allowed[1:]]
    assert names("aarch64", "4.4.1") == [allowed[0], refused, allowed[3]]
    assert names("s390x", "6.1") == [allowed[0], refused, ("s390", "SCMP_ACT_ALLOW"), allowed[2]]


def test_the_filter_has_the_form_of_the_runtime_specification() -> None:
    made = runtime_filter(PROFILE, "x86_64", "6.1")
    assert (made["defaultAction"], made["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert made["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]
    assert made["syscalls"][-1]["args"] == [{"index": 0, "value": 1, "op": "X"}]
    assert all(rule.keys() <= {"names", "action", "args", "errnoRet"} for rule in made["syscalls"])


@pytest.mark.parametrize("profile", [{}, {"syscalls": []}, {"syscalls": [3], "defaultAction": "x"}, []])
def test_what_is_no_profile_is_refused(profile: Any) -> None:
    with pytest.raises(Corrupt, match="the seccomp profile cannot be read"):
        runtime_filter(profile, "x86_64", "6.1")


def test_a_machine_that_profiles_do_not_know_is_refused() -> None:
    with pytest.raises(Corrupt, match="vax"):
        runtime_filter(PROFILE, "vax", "6.1")
