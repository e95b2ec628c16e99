"""`lattice-agent unit`: the systemd unit for an agent with given flags."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lattice_agent.__main__ import main
from lattice_agent.node.service_unit import service_unit

NEEDED = ["--node", "n1", "--gateway", "gw:8444", "--certificate", "/c", "--key", "/k", "--ca", "/a"]


def command(*flags: str) -> str:
    (line,) = [line for line in service_unit(flags, "/opt/lattice/bin/lattice-agent").splitlines() if line.startswith("ExecStart=")]
    return line.removeprefix("ExecStart=")


def test_flags_reach_the_agent_as_they_were_given() -> None:
    assert command("--node", "n1") == "/opt/lattice/bin/lattice-agent --node n1"
    assert command("a b", 'c"d', "e\\f", "50%", "$HOME", "", "x;y").split(" ", 1)[1] == (
        '"a b" "c\\"d" e\\\\f 50%% $$HOME "" "x;y"'.replace('"c\\"d"', '"c\\"d"')
    )


def test_the_unit_leaves_the_work_and_the_run_directory_alone() -> None:
    lines = service_unit((), "/bin/true").splitlines()
    assert {"KillMode=process", "RuntimeDirectoryPreserve=yes", "RuntimeDirectory=lattice", "StateDirectory=lattice"} <= set(lines)


def test_it_is_printed_for_right_flags_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unit", *NEEDED]) == 0
    assert " --node n1 --gateway gw:8444 " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["unit", "--node", "n1"])
    assert "--certificate, --key and --ca are needed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["unit", *NEEDED, "--oci-runtime", "/usr/bin/sarus"])
    assert "Sarus is not driven by this release; give runc or crun" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own reader of units")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    unit = tmp_path / "lattice-agent.service"
    unit.write_text(service_unit(("a b", "50%", "$HOME", "x;y"), "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
