"""Ranks at the gate, as real processes of this one: what holds one up ends the launch, and what they have is released."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lattice_agent.standalone import rank_start
from lattice_agent.standalone.rank_start import Ends, LaunchDescription, RankDescription, RankFailure, RankStart
from lattice_agent.standalone.stopped_ranks import has_pipe, is_stopped, silence, stopped_sentence
from tests.unit.agent.host.test_scopes import REFUSE_CLONE3
from tests.unit.agent.host.test_shim import launch
from tests.unit.agent.machine import rank_starter


def until(true: Callable[[], bool]) -> None:
    """Waits for what processes do."""
    end = time.monotonic() + 90
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def described(place: Path) -> dict[str, Any]:
    """Two ranks of this user that wait at the gate."""
    return {
        "number": 1, "argv": ["/bin/sleep", "300"], "environment": {"PATH": "/usr/bin:/bin"}, "ranks": [{"rank": 0}, {"rank": 1}],
        "keep_procs": "", "directory": str(place), "run_directory": str(place), "boot": "boot-1", "workdir": str(place),
        "open_files": 1024, "work_procs": [], "work_kill": "", "go": False,
    }  # fmt: skip


@contextmanager
def at_the_gate(place: Path, forked: Callable[[RankStart], None] = lambda _: None, **changes: Any) -> Iterator[RankStart]:
    """Two ranks of this user that stand at the gate, unless changed; `forked` is called while they are on their way to it."""
    start = RankStart(LaunchDescription(**described(place) | changes), lambda _rank: -1, lambda _rank, _fd: {})
    try:
        start.prepare()
        forked(start)
        start.await_users()
        start.await_ready()
        yield start
    finally:
        for rank in start.ranks:
            with suppress(OSError):
                os.kill(rank.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(rank.pid, 0)
        for ends in start.ends.values():
            for fd in (ends.kept_out, ends.kept_err):
                os.close(fd)


STOPPED = (
    "rank 1 on node n7 is stopped (state T in /proc/PID/stat) and did not reach its start within {} s: a process of the same user has "
    "stopped it, as kill(-1, SIGSTOP) does; have it stop only processes that it has started, then start the launch again"
)


def test_ranks_that_do_not_execute_in_time_fail_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: time.sleep(3600))
    with at_the_gate(tmp_path) as start:
        before = time.monotonic()
        start.open_gate()
        assert before + rank_start.START_SECONDS <= start.exec_until <= time.monotonic() + rank_start.START_SECONDS
        time.sleep(0.3)
        assert not start.have_executed()
        start.exec_until = time.monotonic()
        with pytest.raises(RankFailure, match="not all of its ranks can execute their programs: a file does not answer for 55 s"):
            start.have_executed()


@pytest.mark.parametrize("starter", ["", "built"], ids=["by the keeper", "by the starter"])
def test_ranks_that_are_stopped_at_the_gate_are_named(tmp_path: Path, starter: str) -> None:
    with at_the_gate(tmp_path, node="n7", starter=starter and str(rank_starter())) as start:
        os.kill(start.ranks[1].pid, signal.SIGSTOP)
        start.open_gate()
        until(lambda: b"sleep" in Path(f"/proc/{start.ranks[0].pid}/comm").read_bytes())
        os.kill(start.ranks[0].pid, signal.SIGSTOP)
        until(lambda: is_stopped(start.ranks[0].pid) and is_stopped(start.ranks[1].pid))
        assert not start.have_executed()
        start.exec_until = time.monotonic()
        with pytest.raises(RankFailure) as caught:
            start.have_executed()
        assert str(caught.value) == STOPPED.format(55), "the other one executes its program, and was stopped then"


def test_ranks_that_are_stopped_on_their_way_to_the_gate_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_rank_1(self: RankStart, asked: RankDescription, ends: Ends) -> int:
        if asked.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return take(self, asked, ends)

    take = RankStart._take_descriptors
    monkeypatch.setattr(RankStart, "_take_descriptors", stop_rank_1)
    monkeypatch.setattr(rank_start, "READY_SECONDS", 1.0)
    with (
        pytest.raises(RankFailure) as caught,
        at_the_gate(tmp_path, lambda start: until(lambda: is_stopped(start.ranks[1].pid)), node="n7"),
    ):
        pass
    assert str(caught.value) == STOPPED.format(1)


def test_many_stopped_ranks_are_counted(tmp_path: Path) -> None:
    read, write = os.pipe()
    stopped = [subprocess.Popen(["/bin/sh", "-c", "kill -STOP $$"], pass_fds=[read]) for _ in range(10)]
    try:
        until(lambda: all(is_stopped(each.pid) for each in stopped))
        said = stopped_sentence({rank: each.pid for rank, each in enumerate(stopped)}, write, "n7", 45.0)
        assert said.startswith(
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more on node n7 are stopped (state T in /proc/PID/stat) and did not reach"
        )
        assert silence(stopped[0].pid, "n7", 30.0).startswith("its host on node n7 is stopped (state T in /proc/PID/stat) for 30 s")
        assert silence(os.getpid(), "n7", 30.0) == "it does not answer for 30 s"
        assert not has_pipe(os.getpid(), 0)
    finally:
        for each in stopped:
            each.kill()
            each.wait()
        os.close(read)
        os.close(write)


START = """
import json
from lattice_agent.standalone import keeper, rank_start, shim
fields = json.loads(sys.argv[3])
if "ranks" in fields:
    answer = keeper._begin(keeper.Keeper(rank_start.LaunchDescription(**fields)))
    print(answer["failure"], answer.get("unfit", False))
else:
    print(*shim._start(shim.Shim(shim.Launch(**fields), shim.StopWatch(0.0, 0.0))))
"""


@pytest.mark.parametrize("of", ["keeper", "shim"])
def test_a_cgroup_at_its_limit_is_no_fault_of_the_node(tmp_path: Path, of: str) -> None:
    place = {"work_procs": [str(tmp_path / "cgroup.procs")], "directory": str(tmp_path), "run_directory": str(tmp_path)}
    fields = described(tmp_path) if of == "keeper" else launch(tmp_path)
    command = [sys.executable, "-c", REFUSE_CLONE3 + START, "", str(errno.EAGAIN), json.dumps(fields | place)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert said.stdout.endswith("the allocation has no process or memory left: start fewer False\n"), said


def test_ranks_have_their_words_and_variables_and_the_keeper_does_not(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "argv": ["/bin/sh", "-c", 'printf "%s %s" "$COMMON" "$OWN"'], "environment": {"PATH": "/bin", "COMMON": "c" * 9},
        "ranks": [{"rank": 0, "environment": {"OWN": "o"}}, {"rank": 1, "argv": ["/bin/echo", "other"]}],
    }  # fmt: skip
    with at_the_gate(tmp_path, **changes) as start:
        start.release()
        kept = [start.launch.environment, start.launch.argv, start.launch.ranks, *(rank.asked.environment for rank in start.ranks)]
        assert not any(kept)
        start.go()
        for rank in start.ranks:
            os.waitpid(rank.pid, 0)
        assert [os.read(start.ends[local].kept_out, 100) for local in (0, 1)] == [b"ccccccccc o", b"other\n"]
