"""The client called as `scontrol`: names of nodes, one a line, as scripts ask for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lattice.units import expand_nodes
from lattice_agent.launches import socket_server
from lattice_dev.build import build_srun
from lattice_dev.progress import terminal
from lattice_dev.waiting import HostClock

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as work finds it, beside srun."""
    directory = tmp_path_factory.mktemp("launch")
    program = build_srun(terminal(HostClock()), os.environ)
    assert socket_server.install(directory, program) == ""
    assert socket_server.install(directory, program) == "", "an agent that is started again"
    return directory / socket_server.PROGRAMS / socket_server.SCONTROL


def run(scontrol: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([scontrol, *words], env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("nodes", ["nid[001-003,007],login1", "n0", "a[1-2]b[08-10]c", "n[9-11],n[01-02]"])
def test_the_names_of_a_list_are_printed_one_a_line(scontrol: Path, nodes: str) -> None:
    expected = "".join(f"{name}\n" for name in expand_nodes(nodes))
    for words in (("hostnames", nodes), ("hostname", nodes), ("hostn", nodes)):
        done = run(scontrol, "show", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    assert run(scontrol, "-o", "show", "hostnames", SLURM_JOB_NODELIST=nodes).stdout == expected
    assert run(scontrol, "show", "hostnames", SLURM_NODELIST=nodes).stdout == expected
    assert run(scontrol, "show", "hostnames", "", LATTICE_NODELIST=nodes).stdout == expected, "of a variable that is not set"


@pytest.mark.parametrize("nodes", ["n[3-1]", "n[1", "n1]", "n[]", "n[1-]", "n[x]", "n[1,,2]", "[9999999999]", "n[0-99999999]", "x" * 2000])
def test_what_is_no_list_prints_no_name(scontrol: Path, nodes: str) -> None:
    done = run(scontrol, "show", "hostnames", nodes)
    assert (done.returncode, done.stdout[:100] if len(nodes) > 8 and "-" not in nodes else "") == (1, "")
    assert "is no list of nodes" in done.stderr


def other(directory: Path, says: str) -> Path:
    """Another scontrol, which says its arguments."""
    directory.mkdir()
    program = directory / "scontrol"
    program.write_text(f'#!/bin/sh\necho "{says} $0 $*"\nexit 3\n')
    program.chmod(0o755)
    return directory


def test_everything_else_is_the_next_scontrols_on_the_path(scontrol: Path, tmp_path: Path) -> None:
    one, two, plain = other(tmp_path / "one", "one"), other(tmp_path / "two", "two"), tmp_path / "plain"
    plain.mkdir()
    (plain / "scontrol").write_text("no program")
    ours = scontrol.parent
    for path, says in (
        (f"{ours}:{one}:{two}", one),
        (f"{two}:{ours}:/absent::{plain}:{one}", one),
        (f"{one}:{two}", one),
        (f"{ours}:{two}:{ours}:{one}", one),
    ):
        done = run(scontrol, "-o", "show", "job", "3 4", PATH=path)
        assert (done.returncode, done.stdout) == (3, f"{says.name} {says}/scontrol -o show job 3 4\n"), path
    assert run(scontrol, "show", "hostnames", "n1", PATH=f"{ours}:{one}").stdout == "n1\n"


def test_two_of_them_never_call_each_other_in_a_circle(scontrol: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    twin.mkdir()
    shutil.copy(scontrol, twin / "scontrol")
    for path in (f"{scontrol.parent}:{twin}:{scontrol.parent}", f"{twin}:{scontrol.parent}:{twin}:{scontrol.parent}"):
        done = run(scontrol, "show", "job", "3", PATH=path)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no other is on the PATH" in done.stderr


def test_where_no_other_is_there_it_says_what_to_use(scontrol: Path) -> None:
    for words in ((), ("show",), ("show", "job", "3"), ("show", "h"), ("update", "JobId=3")):
        done = run(scontrol, *words, PATH=f"{scontrol.parent}:/absent")
        assert (done.returncode, done.stdout) == (1, "")
        assert "no other is on the PATH: `lattice compat install DIR` links one" in done.stderr
    assert "SLURM_JOB_NODELIST is not set" in run(scontrol, "show", "hostnames").stderr
