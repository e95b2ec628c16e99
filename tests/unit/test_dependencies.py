"""Lower bounds of dependencies: no version with a published hole is admitted."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

FIRST_WITHOUT = {
    "aiohttp": ("3.12.14", "CVE-2025-53643: request smuggling in the pure-Python parser"),
    "cryptography": ("44.0.1", "CVE-2024-12797: its wheels carried an OpenSSL that does not abort raw-public-key handshakes"),
    "grpcio": ("1.53.2", "CVE-2023-4785: connections without end exhaust the server"),
    "protobuf": ("6.31.1", "CVE-2025-4565: recursion without end in the pure-Python parser"),
    "PyYAML": ("5.4", "CVE-2020-14343: code execution by full_load"),
}
"""By dependency: the first version without the newest hole that concerns a use like ours, and which hole it is."""


def requirements() -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != PROJECT["name"]]


def test_no_version_with_a_known_hole_is_admitted() -> None:
    for name, (fixed, hole) in FIRST_WITHOUT.items():
        bounds = [requirement for requirement in requirements() if requirement.name == name]
        assert bounds, f"{name} is no dependency any more: take it out of this list"
        for requirement in bounds:
            lowest = next((one.version for one in requirement.specifier if one.operator == ">="), "0")
            assert not _older(lowest, fixed), f"{requirement}: {lowest} has {hole}; {fixed} has not"


def test_every_dependency_of_a_daemon_has_a_lower_bound() -> None:
    daemons = ("scheduler", "operator", "webhook", "gateway", "agent", "models", "cli")
    texts = [*PROJECT["dependencies"], *(text for name in daemons for text in PROJECT["optional-dependencies"][name])]
    assert not [text for text in texts if not any(one.operator == ">=" for one in Requirement(text).specifier)]


def _older(one: str, other: str) -> bool:
    return [int(part) for part in one.split(".")] < [int(part) for part in other.split(".")]
