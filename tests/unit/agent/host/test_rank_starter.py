"""The program that forks ranks beside the keeper's own fork: the same process, the same sentences, and no step out of order."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from lattice_agent.standalone.rank_start import LaunchDescription, RankFailure, RankStart
from lattice_dev.build import STARTER_SOURCE
from tests.unit.agent.machine import needs_root, open_directory, rank_starter

pytestmark = [
    pytest.mark.root, needs_root(), pytest.mark.skipif(shutil.which("cc") is None, reason="the starter is compiled"),
]  # fmt: skip
SANITIZED = ("-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
NOBODY = {"user": 65534, "group": 65534, "groups": [65534, 12]}


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the checks of the compiler, which end it where one fails."""
    program = tmp_path_factory.mktemp("starter") / "starter"
    subprocess.run(["cc", *SANITIZED, "-o", str(program), str(STARTER_SOURCE)], check=True)
    return program


def described(place: Path, **changes: Any) -> dict[str, Any]:
    """One rank of nobody's that runs a line of shell, unless changed."""
    return {
        "number": 1, "argv": ["/bin/true"], "environment": {"PATH": "/usr/bin:/bin"}, "ranks": [{"rank": 7}], "keep_procs": "",
        "directory": str(place), "run_directory": str(place), "boot": "boot-1", "workdir": str(place), "open_files": 512,
        "work_procs": [], "work_kill": "",
    } | NOBODY | changes  # fmt: skip


def ran(fields: dict[str, Any], *, inherits: bool = False) -> tuple[list[bytes], str]:
    """What each rank has written, and why the launch could not begin."""
    start = RankStart(
        LaunchDescription(**deepcopy(fields)), lambda _rank: with_text() if inherits else -1, lambda _rank, fd: {"PMI_FD": str(fd)}
    )
    said = ""
    try:
        start.prepare()
        start.await_users()
        start.await_ready()
        start.release()
        start.go()
    except RankFailure as failure:
        said = f"{failure.rank}: {failure}"
        for rank in filter(lambda rank: rank.pid, start.ranks):
            with suppress(OSError):
                os.kill(rank.pid, signal.SIGKILL)
    written = []
    for rank in start.ranks:
        if (inherited := start.ends[rank.asked.local].pmi) >= 0:
            os.close(inherited)
        if rank.pid:
            os.waitpid(rank.pid, 0)
        ends = start.ends[rank.asked.local]
        if ends.kept_out >= 0:
            readable = select.select([ends.kept_out], [], [], 5.0)[0]
            written.append(os.read(ends.kept_out, 65536) if readable else b"")
        for fd in {ends.kept_out, ends.kept_err, ends.kept_in} - {-1}:
            os.close(fd)
    return written, said


def with_text() -> int:
    """A descriptor that a rank may inherit, with something to read."""
    reading, writing = os.pipe()
    os.write(writing, b"inherited\n")
    os.close(writing)
    return reading


STATE = r"""
grep -E '^(Umask|Uid|Gid|Groups|Cap|NoNewPrivs|Sig[BIC]|Shd|Cpus_allowed_list)' /proc/self/status | grep -v SigCgt
cat /proc/self/limits /proc/self/oom_score_adj
pwd
test $(cut -d' ' -f6 /proc/$$/stat) = $$ && echo leads its session
test "$SLURM_TASK_PID" = $$ && echo task pid
for fd in /proc/$$/fd/*; do readlink $fd | sed 's/[0-9]*]$//;s/^pipe.*/pipe/'; done | sort
tr '\0' '\n' </proc/$$/environ | grep -v -e SLURM_TASK_PID -e PMI_FD | sort
cat <&$PMI_FD
grep -c . /proc/keys | sed 's/.*/keys/'
"""


@pytest.mark.parametrize("of", ["the program", "the program, sanitized"])
def test_a_rank_of_the_starter_is_the_process_that_one_of_the_keeper_s_is(of: str, sanitized: Path) -> None:
    program = rank_starter() if of == "the program" else sanitized
    with open_directory() as place:
        cpu = min(os.sched_getaffinity(0))
        changes: dict[str, Any] = {
            "environment": {"PATH": "/usr/bin:/bin", "COMMON": "a=b=c", "ODD": "\udcff", "PMI_FD": "9", "OWN": "common", "EMPTY": ""},
            "ranks": [{"rank": 7, "cpus": [cpu], "environment": {"OWN": "7", "SLURM_PROCID": "7"}}, {"rank": 8, "environment": {"X": "8"}}],
            "argv": ["sh", "-c", STATE], "umask": 0o027, "core_bytes": 4096, "max_processes": 4000, "hold_procs": "held",
            "soft_limits": {"NOFILE": 100, "CORE": -1, "UNKNOWN": 3, "STACK": 1 << 23},
        }  # fmt: skip
        found = [ran(described(place, **changes, starter=starter), inherits=True) for starter in ("", str(program))]
        assert found[0] == found[1]
        assert found[0][1] == ""
        for expected in (b"NoNewPrivs:\t1", b"Groups:\t12 65534", b"Umask:\t0027", b"CapPrm:\t0000000000000000", b"leads its session"):
            assert all(expected in text for text in found[0][0])
        assert b"OWN=7\n" in found[1][0][0]
        assert b"OWN=common\n" in found[1][0][1]
        assert (b"task pid" in found[1][0][0], b"task pid" in found[1][0][1]) == (True, False)


LONG = "x" * 140_000
BAD: dict[str, dict[str, Any]] = {
    "no such program": {"argv": ["/no/such/program"]},
    "not in PATH": {"argv": ["nosuchprogram"]},
    "a word of 300 characters": {"argv": ["/" + "x" * 300]},
    "no PATH": {"argv": ["nosuchprogram"], "environment": {}},
    "an empty PATH": {"argv": ["passwd"], "environment": {"PATH": ""}, "workdir": "/etc"},
    "a file without the right": {"argv": ["/etc/passwd"]},
    "a directory": {"argv": ["/etc"]},
    "an empty word": {"argv": [""]},
    "no interpreter": {"argv": ["./orphan"]},
    "no program at all": {"argv": ["./garbage"]},
    "an argument too long": {"argv": ["/bin/true", LONG]},
    "a variable too long": {"environment": {"PATH": "/bin", "LONG": "ä" + LONG}},
    "a null byte": {"argv": ["/bin/true", "a\0b"]},
    "a null byte in a variable": {"environment": {"A": "a\0b"}},
    "a variable without a name": {"environment": {"": "a"}},
    "an equals sign in a name": {"environment": {"A=B": "a"}},
    "no text at all": {"argv": ["/bin/true", "\ud800"]},
    "no directory": {"workdir": "/no/such/place"},
    "a directory of root's": {"workdir": "/root"},
    "no input": {"ranks": [{"rank": 7, "stdin": "missing"}]},
    "input of the kernel's": {"ranks": [{"rank": 7, "stdin": "/proc/self/maps"}]},
    "output without the right": {"ranks": [{"rank": 7, "stdout": "/etc/out"}]},
    "output into a directory": {"ranks": [{"rank": 7, "stdout": "."}]},
    "output into a device": {"ranks": [{"rank": 7, "stdout": "/dev/full"}]},
    "output that nobody reads": {"ranks": [{"rank": 7, "stdout": "fifo"}]},
    "output into a pipe of root's": {"ranks": [{"rank": 7, "stdout": "secret"}]},
    "output of the kernel's": {"ranks": [{"rank": 7, "stdout": "/proc/self/comm"}]},
    "errors without the right": {"ranks": [{"rank": 7, "stderr": "/etc/err"}]},
    "errors beside output": {"ranks": [{"rank": 7, "stdout": "out", "stderr": "missing/err"}]},
    "a processor that is none": {"ranks": [{"rank": 7, "cpus": [60000]}]},
    "a cgroup without the right": {"work_procs": ["/etc"]},
}


@pytest.mark.parametrize("bad", BAD)
def test_a_rank_that_cannot_begin_says_the_same_by_the_starter(bad: str, sanitized: Path) -> None:
    with open_directory() as place:
        place.chmod(0o777)
        (place / "orphan").write_text("#!/no/such/interpreter\n")
        (place / "garbage").write_text("\x01\x02")
        for name in ("orphan", "garbage"):
            (place / name).chmod(0o755)
        os.mkfifo(place / "fifo", 0o666)
        (place / "fifo").chmod(0o666)
        os.mkfifo(place / "secret", 0o600)
        said = [ran(described(place, **BAD[bad], starter=starter))[1] for starter in ("", str(rank_starter()), str(sanitized))]
        assert said[0].startswith("7: ")
        assert said[1:] == [said[0]] * 2


def test_a_rank_joins_its_cgroups_before_it_is_the_user_s() -> None:
    with open_directory() as place:
        for name in ("v1", "v2"):
            (place / name).mkdir(mode=0o700)
            (place / name / "cgroup.procs").touch(mode=0o600)
        procs = [str(place / name / "cgroup.procs") for name in ("v1", "v2")]
        assert ran(described(place, work_procs=procs, starter=str(rank_starter()))) == ([b""], "")
        assert [Path(path).read_bytes() for path in procs] == [b"0", b"0"]


def test_a_program_of_another_release_does_nothing_and_the_keeper_forks_itself(tmp_path: Path) -> None:
    source = STARTER_SOURCE.read_text()
    other = tmp_path / "starter.c"
    other.write_text(source.replace("0x315452415453", "0x325452415453"))
    shutil.copy(STARTER_SOURCE.with_name("signals.h"), tmp_path)
    subprocess.run(["cc", "-o", str(tmp_path / "starter"), str(other)], check=True)
    with open_directory() as place:
        fields = described(place, argv=["/bin/echo", "ran"], ranks=[{"rank": 0}, {"rank": 1}])
        assert ran(fields | {"starter": str(tmp_path / "starter")}) == ([b"ran\n"] * 2, "")
        assert ran(fields | {"starter": str(tmp_path / "missing")}) == ([b"ran\n"] * 2, "")


def test_many_ranks_are_children_of_the_keeper_with_streams_of_their_own(sanitized: Path) -> None:
    with open_directory() as place:
        ranks = [{"rank": rank, "environment": {"RANK": str(rank)}} for rank in range(40)]
        fields = described(place, argv=["sh", "-c", "echo $RANK $PPID; set -- /proc/$$/fd/*; echo $#"], ranks=ranks, starter=str(sanitized))
        # the fourth descriptor is the shell's, which reads the directory
        assert ran(fields) == ([f"{rank} {os.getpid()}\n4\n".encode() for rank in range(40)], "")
