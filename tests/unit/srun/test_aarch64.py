"""The programs of work for aarch64, executed by QEMU: the client speaks with an agent, the starter refuses another release's words."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lattice_agent.standalone import rank_starter
from lattice_dev.build import SRUN_SOURCE, STARTER_SOURCE
from tests.unit.srun.agent import Agent, accepted, ended, finished, output

COMPILER, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(QEMU)), reason="gcc-aarch64-linux-gnu or qemu-user-static is not installed"
)


def compiled(source: Path, place: Path) -> Path:
    """A static program for aarch64."""
    flags = ["-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([COMPILER, *flags, "-o", str(place / source.stem), str(source)], check=True)
    return place / source.stem


def test_the_client_carries_words_output_and_exit_code(tmp_path: Path) -> None:
    with Agent(tmp_path / "node", compiled(SRUN_SOURCE, tmp_path)) as agent:
        client = agent.start(line=f"exec {QEMU} $SRUN -n 2 echo 'a b' </dev/null")
        call = agent.accept()
        assert b"a b" in b"\0".join(value for _, value in call.fields)
        call.send(accepted(), output(1, b"out\n"), output(2, b"err\n", stream=2), ended(3), ended(4, rank=1, code=3), finished(3))
        out, err = client.communicate(timeout=60)
        assert (client.returncode, out) == (3, b"out\n")
        assert b"err\n" in err


def test_the_client_says_what_to_do_outside_an_allocation(tmp_path: Path) -> None:
    program = compiled(SRUN_SOURCE, tmp_path)
    done = subprocess.run([QEMU, str(program), "hostname"], env={}, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"lattice submit --ntasks=N --wait -- APP" in done.stderr


def test_the_starter_refuses_a_description_of_another_release(tmp_path: Path) -> None:
    program = compiled(STARTER_SOURCE, tmp_path)
    described = os.memfd_create("ranks", 0)
    os.write(described, bytes(1024))
    done = subprocess.run([QEMU, str(program), str(described)], pass_fds=[described], timeout=60, check=False)
    os.close(described)
    assert done.returncode == rank_starter.NOT_UNDERSTOOD
