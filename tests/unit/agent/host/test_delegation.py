"""The scope that systemd delegates: where it is not to be had, no work may be started, and the reason is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lattice.errors import Retry
from lattice_agent.host.delegation import DelegatedScope, manages_cgroups


def test_a_machine_without_the_program_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Retry, match=r"no scope lattice-work\.scope: .*systemd-run"):
        DelegatedScope(tmp_path).keep()


@pytest.mark.skipif(shutil.which("systemd-run") is None or manages_cgroups(), reason="needs systemd's program where systemd does not run")
def test_what_systemd_says_is_told(tmp_path: Path) -> None:
    with pytest.raises(Retry, match=r"no scope lattice-work\.scope: .*systemd"):
        DelegatedScope(tmp_path).keep()
    assert list(tmp_path.iterdir()) == []
