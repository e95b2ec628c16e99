"""What the kernel has counted is read alike from cgroup v2 and from the v1 hierarchies, and what is not there is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_agent.standalone import meters

V2 = {"peak": "67108864\n", "limit": "67108864\n", "oom": "low 0\nhigh 0\nmax 71\noom 2\noom_kill 2\noom_group_kill 0\n"}
V1 = {"peak": "67108864\n", "limit": "67108864\n", "oom": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}
CPU = "usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\n"
KNOWN = {"cpu_seconds": 1.234567, "peak_memory": 64 << 20, "memory_limit": 64 << 20, "oom_kills": 2}


def laid(place: Path, texts: dict[str, str]) -> dict[str, str]:
    for name, text in texts.items():
        (place / name).write_text(text)
    return {name: str(place / name) for name in texts}


@pytest.mark.parametrize("texts", [V1, V2], ids=["v1", "v2"])
def test_both_trees_tell_the_same(tmp_path: Path, texts: dict[str, str]) -> None:
    assert meters.read(laid(tmp_path, texts | {"cpu": CPU}), cpu_seconds=0.5) == KNOWN


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"], ids=["v2", "v1"])
def test_a_limit_that_is_none_is_not_told(tmp_path: Path, limit: str) -> None:
    assert "memory_limit" not in meters.read(laid(tmp_path, V2 | {"limit": limit}), cpu_seconds=0.5)


@pytest.mark.parametrize("texts", [{}, {"cpu": "", "peak": "", "oom": "oom_kill many\n"}], ids=["absent", "not to be read"])
def test_without_a_count_the_tasks_own_ends_tell_the_cpu_time(tmp_path: Path, texts: dict[str, str]) -> None:
    assert meters.read(laid(tmp_path, texts), cpu_seconds=0.5) == {"cpu_seconds": 0.5}
