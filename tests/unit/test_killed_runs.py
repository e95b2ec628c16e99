"""What a killed run of tests leaves is cleared by the next one, and what lives is not touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.gate.plan import ROOT

OWNER = """
import os, pathlib, sys
from tests.killed_runs import instance_name, open_directory
name = instance_name("probe")
(pathlib.Path(os.environ["LATTICE_DEV_HOME"]) / name).mkdir(parents=True)
with open_directory() as place:
    (place / "file").touch()
    print(name, place, flush=True)
    sys.stdin.read()
"""


def owner(environment: dict[str, str]) -> tuple[subprocess.Popen[str], list[Path]]:
    """A process that owns an instance and a directory, and where they are."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    name, place = process.stdout.readline().split()
    return process, [Path(environment["LATTICE_DEV_HOME"]) / name, Path(place)]


def test_what_a_killed_run_has_left_is_swept_and_what_lives_stays(tmp_path: Path) -> None:
    for name in ("tmp", "cache", "home"):
        (tmp_path / name).mkdir()
    own = {"TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "LATTICE_DEV_HOME": str(tmp_path / "home")}
    environment = os.environ | own
    (dead, gone), (alive, stays) = owner(environment), owner(environment)
    with dead, alive:
        dead.kill()
        dead.wait()
        swept = subprocess.run(
            [sys.executable, "-m", "tests.killed_runs"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert [path.exists() for path in (*gone, *stays)] == [False, False, True, True]
        assert (stays[1] / "file").exists()
        assert all(path.name in swept.stderr for path in gone)
        assert len(swept.stderr.splitlines()) == 2
        alive.kill()
    left = subprocess.run(
        [sys.executable, "-m", "tests.killed_runs"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert len(left.stderr.splitlines()) == 2
    assert not any(path.exists() for path in stays)
