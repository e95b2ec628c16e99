"""The parts of the benchmark of launches: marks, the script that stands, what grows, and the Slurm that runs beside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lattice.errors import Corrupt, Retry
from lattice_dev import slurm
from lattice_dev.bench import hand_launch, launch_programs, launches
from lattice_dev.bench.launch_marks import RanLaunch, first_instructions, growth, rate, read_many, read_marks, until_ready
from lattice_dev.bench.standing_script import StandingScript

compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_the_seconds_to_a_first_instruction_are_those_between_two_marks() -> None:
    assert first_instructions("begin 1000000000\nfirst 1020000000\nbegin 5000000000\nfirst 5500000000\n") == pytest.approx([0.02, 0.5])


@pytest.mark.parametrize("text", ["begin 1\n", "begin 1\nbegin 2\n", "first 1\nbegin 2\n", "srun: error: no\n", "begin x\n"])
def test_a_launch_that_has_not_left_both_marks_is_an_error(text: str) -> None:
    with pytest.raises(Corrupt):
        first_instructions(text)


def test_ranks_are_ready_with_the_last_of_them() -> None:
    text = "begin 1000000000\nstart 2000000000\nready 3000000000\nstart 1500000000\nready 4000000000\n"
    assert until_ready(text, 2) == pytest.approx((3.0, 2.5))
    assert until_ready(text.partition("\n")[2], 2) == pytest.approx((2.5, 2.5))
    with pytest.raises(Corrupt, match="2 of 3 ranks"):
        until_ready(text, 3)


def test_many_launches_are_read_without_the_line_that_is_being_written() -> None:
    assert read_many("ran 1000000000 2000000000 0\nran 1500000000 3000000000 256\nran 17") == [RanLaunch(1, 2, 0), RanLaunch(1.5, 3, 256)]
    with pytest.raises(Corrupt):
        read_many("srun: error\n")


def test_the_rate_of_launches_is_that_of_all_of_them_and_growth_compares_the_last_fifth_with_the_first() -> None:
    ran = [RanLaunch(at, at + (0.1 if at < 8 else 0.2), 0) for at in range(10)]
    assert rate(ran) == pytest.approx(10 / 9.2)
    assert growth(ran) == pytest.approx((0.1, 0.2))


def test_growth_of_an_agent_is_that_from_the_first_fifth_of_its_launches_to_the_last(tmp_path: Path) -> None:
    held = launches.Footprint([os.getpid()])
    held.seen = [(0, 50.0, 10), (10, 60.0, 20), (50, 70.0, 30), (90, 61.0, 20), (100, 63.0, 20)]
    assert held.grown(100) == (1.0, 0.0)
    held.look(tmp_path / "none yet")
    assert len(held.seen) == 5


@compiler
def test_the_program_of_marks_says_when_a_launcher_and_its_rank_begin(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    subprocess.run(["cc", "-o", str(mark), str(launch_programs.SOURCES / "mark.c")], check=True)
    once = subprocess.run([mark, "begin", mark, "first"], capture_output=True, text=True, check=True).stdout
    assert [word for word, _ in read_marks(once)] == ["begin", "first"]
    assert 0 <= first_instructions(once)[0] < 60
    many = subprocess.run([mark, "many", "5", "2", mark, "first"], capture_output=True, text=True, check=True).stdout
    assert [each.status for each in read_many(many)] == [0] * 5
    assert rate(read_many(many)) > 0
    failing = subprocess.run([mark, "many", "1", "2", "false"], capture_output=True, text=True, check=True).stdout
    assert read_many(failing)[0].status != 0


def test_a_script_that_stands_runs_others_when_it_is_told_to(tmp_path: Path) -> None:
    script = StandingScript(tmp_path, os.getuid())
    with pytest.raises(Retry, match="has gone"):
        script.run("too-early", "true", within=1)
    stands = subprocess.Popen(["bash", str(tmp_path / "stand.sh")], stdin=subprocess.DEVNULL)
    try:
        script.await_ready(within=60)
        looked = list[Path]()
        assert script.run("first", "echo here; pwd; sleep 0.1", within=60, meanwhile=looked.append) == f"here\n{tmp_path}\n"
        assert looked
        assert script.run("second", "echo again >&2", within=60) == "again\n"
        with pytest.raises(Corrupt, match="ended with 3: wrong"):
            script.run("third", "echo wrong; exit 3", within=60)
        with pytest.raises(Retry, match="not there within"):
            script.run("slow", f"while [ ! -e {tmp_path}/over ]; do sleep 0.01; done", within=0.1)
        (tmp_path / "over").touch()
        script.finish_script()
        assert stands.wait(60) == 0
    finally:
        stands.kill()
        stands.wait()


RANK = """#!{python}
import os, socket
at = socket.socket(fileno=int(os.environ["PMI_FD"]))
def ask(text, last=b"\\n"):
    at.sendall(text.encode() + b"\\n")
    answer = b""
    while not answer.endswith(last):
        answer += at.recv(4096)
    return answer
ask("cmd=init pmi_version=1 pmi_subversion=1")
ask("cmd=barrier_in")
ask("cmd=finalize")
print("rank", os.environ["PMI_RANK"], os.environ["WHERE"])
"""


def test_ranks_by_hand_meet_over_made_up_nodes(tmp_path: Path) -> None:
    program = tmp_path / "rank"
    program.write_text(RANK.format(python=sys.executable))
    program.chmod(0o755)
    said = hand_launch.run(program, [[0, 2], [1]], [["env", "WHERE=here"], ["env", "WHERE=there"]])
    assert sorted(said.splitlines()) == ["rank 0 here", "rank 1 there", "rank 2 here"]


def test_a_rank_by_hand_that_fails_ends_them_all(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="by hand"):
        hand_launch.run(Path("/bin/false"), [[0], [1]], [[], []])


def test_the_configuration_of_slurm_names_each_node_with_a_port_of_its_own(tmp_path: Path) -> None:
    text = slurm.configuration(tmp_path, "host", [7000, 7001, 7002], cpus=2)
    nodes = [line for line in text.splitlines() if line.startswith("NodeName=")]
    assert nodes == [
        f"NodeName=n{index} NodeHostname=host NodeAddr=127.0.0.1 Port={7001 + index} CPUs=2 State=UNKNOWN" for index in range(2)
    ]
    assert f"AuthInfo=socket={tmp_path}/munge/socket" in text
    assert "SlurmctldPort=7000\n" in text


def test_free_ports_differ() -> None:
    assert len(set(slurm.free_ports(8))) == 8
