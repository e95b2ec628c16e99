"""Launches on real processes: all ranks or none, once, as the user; no byte lost or doubled; nothing outlives its attempt."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lattice.errors import NotFound, Rejected
from lattice_agent.attempts import Key
from lattice_agent.host.launch_cgroups import LaunchEntrances
from lattice_agent.host.linux import LinuxHost
from lattice_agent.standalone import durable, frames, leftovers
from lattice_agent.standalone.task_start import WorkPlace
from tests.unit.agent.launch_listener import Listener, keepers_of, launch, shell
from tests.unit.agent.machine import STOPPED, UID, Ends, has_cgroups, machine, needs_root, open_directory, until, work

pytestmark = [pytest.mark.root, needs_root(), pytest.mark.skipif(not has_cgroups(), reason="launches need cgroups")]
KEY = Key(UID, 1)


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        path.chmod(0o777)
        yield path


@asynccontextmanager
async def attempt(place: Path, *, swept: bool = True, starter: str | None = None, **changes: Any) -> AsyncIterator[tuple[LinuxHost, Ends]]:
    """A host with an attempt that runs: a script that sleeps, unless changed."""
    async with machine(place, swept=swept, starter=starter) as (host, ends):
        fields: dict[str, Any] = {"grace_seconds": 0.5} | ({} if "script" in changes else {"entrypoint": "sleep 300"}) | changes
        await host.prepare(work(**fields))
        await host.start(work(**fields))
        try:
            yield host, ends
        finally:
            Listener.close_all()


async def ran(host: LinuxHost, asked: dict[str, Any]) -> Listener:
    """Starts a launch and hears it to its end; what is left is removed."""
    await keepers_of(host).start(KEY, asked)
    listener = await Listener.connect(host, KEY, asked["number"])
    await asyncio.to_thread(listener.listen, until="done")
    assert listener.done is not None
    assert await keepers_of(host).end_launch(KEY, asked["number"]) is None
    return listener


def scope(host: LinuxHost) -> Path:
    """The attempt's cgroup."""
    return keepers_of(host).cgroups.scope(KEY)


def left(host: LinuxHost) -> list[str]:
    """What of launches is left: cgroups and files."""
    run = host.journal.run_directory(KEY)
    found = [*scope(host).glob("keep/*/"), *scope(host).glob("work/launch-*/"), *run.glob("keep-*")]
    return [path.name for path in found]


@pytest.mark.parametrize("starter", [None, ""], ids=["by the starter", "by the keeper"])
async def test_a_rank_has_user_directory_umask_variables_and_soft_limits_of_its_caller(place: Path, starter: str | None) -> None:
    async with attempt(place, starter=starter) as (host, _):
        text = "id -un; umask; pwd; echo $X$Y$PMI_FD; test $SLURM_TASK_PID = $$ && ulimit -Sn; ulimit -Sc; cat; exit 3"
        asked = shell(text, umask=0o027, workdir="/usr", soft_limits={"NOFILE": 333, "CORE": 0, "UNKNOWN": 5})
        asked["environment"] |= {"X": "\udcff", "PMI_FD": "9", "SLURM_PROCID": "5"}
        asked["ranks"] = [{"rank": 5, "environment": {"Y": "rank"}}]
        listener = await ran(host, asked)
        assert listener.output == {(1, 5): b"nobody\n0027\n/usr\n\xffrank\n333\n0\n"}
        assert listener.ended == {5: (3, 0)}
        assert listener.done is not None
        assert [entry[:3] for entry in listener.done["ranks"]] == [[5, 3, 0]]
        assert left(host) == []


def owners_of(pid: int) -> list[str]:
    """The user ids of a process: real, effective, saved, and that of its files."""
    return next(line.split()[1:] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:"))


async def test_no_signal_of_a_rank_reaches_its_keeper(place: Path) -> None:
    async with attempt(place) as (host, _):
        text = "for how in STOP TERM KILL; do kill -$how $PPID 2> /dev/null && echo reached; done; echo through; exit 4"
        listener = await ran(host, shell(text))
        assert (listener.output, listener.ended) == ({(1, 0): b"through\n"}, {0: (4, 0)})
        slow = shell("sleep 30")
        await keepers_of(host).start(KEY, slow | {"number": 2})
        keeper = int((scope(host) / "keep/2/cgroup.procs").read_text())
        assert owners_of(keeper) == ["0"] * 4, "real, effective, saved: none is one that work may signal"


async def test_a_lying_head_chooses_neither_the_user_of_its_ranks_nor_their_place(place: Path) -> None:
    async with attempt(place) as (host, _):
        lie = dict.fromkeys((*WorkPlace.__annotations__, *LaunchEntrances.__annotations__), "/lie") | {"mounts": (), "private_tmp": True}
        del lie["workdir"]
        lie |= {"user": 0, "group": 0, "groups": [0], "work_procs": [], "keep_procs": "", "container": {"runtime": "/bin/sh"}, "lie": 1,
                "starter": "/bin/false"}  # fmt: skip
        asked = shell("id -u; id -g; id -G; ulimit -Hn; grep -c launch-1$ /proc/self/cgroup") | lie
        listener = await ran(host, asked)
        assert listener.ended == {0: (0, 0)}
        assert listener.output[1, 0].startswith(b"65534\n65534\n65534\n1024\n")
        assert (await ran(host, shell(asked["argv"][2]))).output == listener.output
        assert left(host) == []


@pytest.mark.parametrize(
    "changes",
    [{"number": 5.7}, {"number": "../1"}, {"number": -1}, {"environment": None}, {"environment": {"A": 1}}, {"environment": ["A"]}],
    ids=str,
)
async def test_a_description_of_another_form_is_refused(place: Path, changes: dict[str, Any]) -> None:
    async with attempt(place) as (host, _):
        with pytest.raises(Rejected, match="the launch is not described"):
            await keepers_of(host).start(KEY, shell("true") | changes)
        assert left(host) == []


async def test_every_rank_writes_whole_lines_behind_its_label(place: Path) -> None:
    async with attempt(place) as (host, _):
        text = "printf 'a\\nb'; sleep 0.3; printf 'c\\n\\n'; printf oops >&2"
        listener = await ran(host, shell(text, ranks=12, label=2))
        for rank in range(12):
            label = b"%02d: " % rank
            assert listener.output[1, rank] == label + b"a\n" + label + b"bc\n" + label + b"\n"
            assert listener.output[2, rank] == label + b"oops\n"


async def test_a_partial_line_is_passed_on_after_a_moment_and_at_once_where_nothing_is_buffered(place: Path) -> None:
    async with attempt(place) as (host, _):
        for number, unbuffered in ((1, False), (2, True)):
            await keepers_of(host).start(KEY, shell("printf prompt; sleep 300", number=number, unbuffered=unbuffered))
            listener = await Listener.connect(host, KEY, number)
            await asyncio.to_thread(listener.listen, until="output")
            assert listener.output == {(1, 0): b"prompt"}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"argv": ["/no/such/program"]}, "'/no/such/program' cannot be executed: No such file or directory"),
        ({"argv": ["nosuchprogram"]}, "it is not in PATH=/usr/bin:/bin"),
        ({"argv": ["/etc/passwd"]}, "'/etc/passwd' cannot be executed: Permission denied"),
        ({"stdout": "/etc/out"}, "the output file '/etc/out' cannot be opened: Permission denied"),
        ({"stdin": "/no/such/file"}, "the input file '/no/such/file' cannot be opened: No such file or directory"),
        ({"stdout": "/dev/full"}, "is a device or belongs to the kernel"),
        ({"stdin": "/proc/self/maps"}, "the input file '/proc/self/maps' belongs to the kernel; let the program itself open it"),
    ],
)
@pytest.mark.parametrize("starter", [None, ""], ids=["by the starter", "by the keeper"])
async def test_all_ranks_begin_or_none(place: Path, bad: dict[str, Any], said: str, starter: str | None) -> None:
    witness = place / "witness"
    async with attempt(place, starter=starter) as (host, _):
        asked = shell(f"echo x >> {witness}", ranks=8)
        asked["ranks"][5] |= bad
        with pytest.raises(Rejected) as refused:
            await keepers_of(host).start(KEY, asked)
        assert said in refused.value.message
        assert not witness.exists()
        assert left(host) == []
        assert (await ran(host, shell("true"))).ended == {0: (0, 0)}, "the number may be started again: nothing of it ran"


async def test_a_node_of_many_cores_starts_more_ranks_than_select_knows_descriptors(place: Path) -> None:
    async with attempt(place) as (host, _):
        assert await ran(host, shell("exit 0", ranks=300)) is not None


async def test_ranks_wait_at_the_gate_until_they_are_let_through(place: Path) -> None:
    witness = place / "witness"
    async with attempt(place) as (host, _):
        await keepers_of(host).start(KEY, shell(f"echo x >> {witness}", ranks=3, go=False))
        listener = await Listener.connect(host, KEY)
        await asyncio.to_thread(listener.listen, until="state")
        await asyncio.to_thread(listener.listen, 0.3)
        assert (listener.state["execed"], witness.exists()) == (False, False)
        listener.send(frames.GO)
        await asyncio.to_thread(listener.listen, until="done")
        assert (listener.started, witness.read_text()) == ([b""], "x\n" * 3)


async def test_a_program_that_vanishes_at_the_gate_ends_the_launch_with_its_reason(place: Path) -> None:
    program = place / "program"
    program.write_text("#!/bin/sh\nexec sleep 300\n")
    program.chmod(0o755)
    async with attempt(place) as (host, _):
        asked = launch("/bin/sleep", "300", ranks=2, go=False)
        asked["ranks"][1]["argv"] = [str(program)]
        await keepers_of(host).start(KEY, asked)
        program.unlink()
        listener = await Listener.connect(host, KEY)
        listener.send(frames.GO)
        await asyncio.to_thread(listener.listen, until="done")
        assert b"cannot be executed" in listener.started[0]
        assert listener.ended == {0: (137, 9), 1: (127, 0)}


async def test_a_keeper_hears_the_agent_while_a_rank_does_not_execute_its_program(place: Path) -> None:
    async with attempt(place) as (host, _):
        await keepers_of(host).start(KEY, launch("/bin/sleep", "300", ranks=2, go=False))
        pids = [int(line) for line in (scope(host) / "work/launch-1/cgroup.procs").read_text().split()]
        os.kill(pids[0], signal.SIGSTOP)
        listener = await Listener.connect(host, KEY)
        listener.send(frames.GO)
        await asyncio.to_thread(listener.listen, 0.5)
        assert (listener.started, listener.ended) == ([], {}), "one of them has not executed its program"
        listener.send(frames.END, b"\1")
        await asyncio.to_thread(listener.listen, until="done")
        assert listener.ended == {0: (137, 9), 1: (137, 9)}


async def test_a_program_whose_file_does_not_answer_keeps_nobody_from_removing_leftovers(place: Path) -> None:
    program = place / "program"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    async with attempt(place) as (host, _):
        fd = os.open(program, os.O_RDONLY)
        held = signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # who opens it waits for 45 s, or until it is given back
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(keepers_of(host).start(KEY, launch(str(program))))
            try:
                await until(lambda: has_text(scope(host) / "work/launch-1/cgroup.procs"))
                assert await asyncio.to_thread(is_free_for_removal)
                assert not starting.done()
            finally:
                os.close(fd)
                signal.signal(signal.SIGIO, held)
        listener = await Listener.connect(host, KEY)
        await asyncio.to_thread(listener.listen, until="done")
        assert listener.ended == {0: (3, 0)}


def has_text(path: Path) -> bool:
    """Whether a file has something in it."""
    return path.exists() and path.read_text() != ""


def is_free_for_removal() -> bool:
    """Whether the lock of removals can be taken."""
    with leftovers.locked(fcntl.LOCK_EX) as alone:
        return alone


async def test_input_reaches_all_ranks_or_the_one_that_is_named(place: Path) -> None:
    data = random.Random(1).randbytes(300_000)
    async with attempt(place) as (host, _):
        for number, (who, readers) in enumerate({"all": (0, 1, 2), "1": (1,), "none": ()}.items(), 1):
            await keepers_of(host).start(KEY, launch("/bin/cat", ranks=3, number=number, stdin=who))
            listener = await Listener.connect(host, KEY, number)
            await asyncio.to_thread(give, listener, data)
            await asyncio.to_thread(listener.listen, until="done")
            assert listener.output == {(1, rank): data for rank in readers}
            assert set(listener.ended.values()) == {(0, 0)}


def give(listener: Listener, data: bytes) -> None:
    """Sends input as far as there is room, doubled and with gaps now and then, and its end."""
    chance, at = random.Random(2), 0
    while at < len(data):
        listener.listen(until=lambda at=at: listener.room > at or listener.done)  # type: ignore[misc]
        if listener.done:
            return
        until_ = min(len(data), listener.room)
        begin = max(0, at - chance.choice((0, 0, 1000)))
        listener.send(frames.INPUT, frames.encode_input(until_ + 10, b"gap"))
        listener.send(frames.INPUT, frames.encode_input(begin, data[begin:until_]))
        at = max(at, until_)
    listener.send(frames.INPUT, frames.encode_input(len(data), b""))


async def test_output_goes_to_files_of_the_user_truncated_or_appended_and_with_labels(place: Path) -> None:
    async with attempt(place) as (host, _):
        for number, (label, append) in enumerate(((0, False), (0, False), (1, True)), 1):
            asked = shell("echo out; echo err >&2", ranks=2, number=number, label=label, append=append, workdir=str(place))
            for rank in asked["ranks"]:
                rank["stdout"] = f"out-{rank['rank']}"
            assert (await ran(host, asked)).output == {}
        assert [(place / f"out-{rank}").read_text() for rank in (0, 1)] == [f"out\nerr\n{rank}: out\n{rank}: err\n" for rank in (0, 1)]
        assert (place / "out-0").owner() == "nobody"


async def test_errors_have_a_file_of_their_own_or_stay_the_caller_s_beside_a_file_for_the_output(place: Path) -> None:
    async with attempt(place) as (host, _):
        for number, label in ((1, 0), (2, 1)):
            asked = shell("echo out; echo err >&2", number=number, label=label, workdir=str(place))
            asked["ranks"] = [{"rank": 0, "stdout": "only-out", "stderr": "-"}, {"rank": 1, "stderr": "only-err"}]
            listener = await ran(host, asked)
            first, second = (b"0: ", b"1: ") if label else (b"", b"")
            assert listener.output == {(2, 0): first + b"err\n", (1, 1): second + b"out\n"}
            texts = [(place / name).read_text() for name in ("only-out", "only-err")]
            assert texts == (["0: out\n", "1: err\n"] if label else ["out\n", "err\n"])


async def test_a_reader_that_acknowledges_nothing_stops_the_ranks_after_a_mebibyte_and_loses_no_byte(place: Path) -> None:
    async with attempt(place) as (host, _):
        pid, _ = await keepers_of(host).start(KEY, shell("yes | head -c 20000000"))
        listener = await Listener.connect(host, KEY, hearing=False)
        await asyncio.to_thread(listener.listen, until=lambda: len(listener.output.get((1, 0), b"")) > 900_000)
        await asyncio.to_thread(listener.listen, 0.5)
        assert 900_000 < len(listener.output[1, 0]) < 1_500_000
        assert resident(pid) < 16 << 20
        listener.hearing = True
        listener.had(listener.numbers[-1])
        await asyncio.to_thread(listener.listen, until="done")
        assert listener.output[1, 0] == b"y\n" * 10_000_000
        assert listener.numbers == list(range(1, len(listener.numbers) + 1))


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_a_keeper_takes_little_memory(place: Path) -> None:
    async with attempt(place) as (host, _):
        pid, _ = await keepers_of(host).start(KEY, shell("sleep 300", ranks=16))
        assert resident(pid) <= 12 << 20


@pytest.mark.parametrize("seed", range(5))
async def test_no_byte_is_lost_or_doubled_however_often_the_agent_goes_and_whatever_it_had_heard(place: Path, seed: int) -> None:
    chance = random.Random(seed)
    count = 60_000
    async with attempt(place) as (host, _):
        await keepers_of(host).start(KEY, shell(f"seq 1 {count}; exit 4", ranks=2))
        had, lines, ended = 0, {0: b"", 1: b""}, dict[int, tuple[int, int]]()
        while True:
            listener = await Listener.connect(host, KEY, hearing=False)
            await asyncio.to_thread(listener.listen, chance.choice((0.0, 0.005, 0.02)))
            await asyncio.to_thread(listener.listen, until="numbers")
            assert listener.state["first"] <= had + 1, "what was not acknowledged is kept"
            fresh = [number for number in listener.numbers if number > had]
            assert fresh == list(range(had + 1, had + 1 + len(fresh)))
            for rank, data, end in listener.fresh(had):
                lines[rank] += data
                ended |= {rank: end} if end else {}
            had = max((had, *listener.numbers))
            if listener.done:
                listener.had(had)
                break
            if chance.random() < 0.8:
                listener.had(had)
            listener.close()
        expected = b"".join(b"%d\n" % number for number in range(1, count + 1))
        assert lines == {0: expected, 1: expected}
        assert ended == {0: (4, 0), 1: (4, 0)}


async def test_a_launch_begins_once_however_often_it_is_asked_for_and_survives_agent_and_runner(place: Path) -> None:
    witness = place / "witness"
    async with attempt(place, swept=False) as (host, _):
        asked = shell(f"echo x >> {witness}; while ! test -e {place}/go; do sleep 0.05; done; echo done; exit 6")
        first = await keepers_of(host).start(KEY, asked)
        os.kill(host.runner_client.pid, signal.SIGKILL)
        assert await keepers_of(host).start(KEY, asked) == first
    async with machine(place) as (host, _):
        await host.attempts()
        assert await keepers_of(host).start(KEY, asked) == first
        (place / "go").touch()
        listener = await Listener.connect(host, KEY)
        await asyncio.to_thread(listener.listen, until="done")
        assert (listener.output, listener.ended, witness.read_text()) == ({(1, 0): b"done\n"}, {0: (6, 0)}, "x\n")
        Listener.close_all()


LOOP = "while :; do sleep 0.05; done"
DEAF = f"trap '' TERM; echo ready; {LOOP}"


async def ready(host: LinuxHost, asked: dict[str, Any]) -> Listener:
    """Starts a launch, and waits until each of its ranks has said that it is ready."""
    await keepers_of(host).start(KEY, asked)
    listener = await Listener.connect(host, KEY, asked["number"])
    await asyncio.to_thread(listener.listen, until=lambda: listener.said_by_all(len(asked["ranks"]), b"ready\n"))
    return listener


async def test_signals_reach_the_ranks_and_an_end_comes_by_term(place: Path) -> None:
    async with attempt(place, grace_seconds=3600) as (host, _):
        text = f"trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo ready; {LOOP}"
        listener = await ready(host, shell(text, ranks=2))
        listener.send(frames.SIGNAL, frames.encode_signal(signal.SIGUSR1))
        await asyncio.to_thread(listener.listen, until=lambda: listener.said_by_all(2, b"ready\nusr1\n"))
        assert listener.said_by_all(2, b"ready\nusr1\n")
        listener.send(frames.END)
        await asyncio.to_thread(listener.listen, until="done")
        assert listener.said_by_all(2, b"ready\nusr1\nterm\n")
        assert listener.ended == {0: (5, 0), 1: (5, 0)}


async def test_ranks_that_pass_over_term_are_killed_after_the_grace(place: Path) -> None:
    async with attempt(place, grace_seconds=0.5) as (host, _):
        listener = await ready(host, shell(DEAF, ranks=2))
        begun = time.monotonic()
        listener.send(frames.END)
        await asyncio.to_thread(listener.listen, until="done")
        assert time.monotonic() - begun > 0.4
        assert listener.ended == {0: (137, 9), 1: (137, 9)}


async def test_what_a_rank_leaves_behind_ends_with_the_launch(place: Path) -> None:
    async with attempt(place) as (host, _):
        listener = await ran(host, shell("setsid sleep 300 & setsid yes > /dev/null & exit 2"))
        assert listener.ended == {0: (2, 0)}
        assert left(host) == []


async def test_the_ranks_of_a_keeper_that_is_killed_are_killed_and_removed(place: Path) -> None:
    async with attempt(place) as (host, _):
        pid, _ = await keepers_of(host).start(KEY, shell("setsid sleep 300 & exec sleep 300", ranks=2))
        listener = await Listener.connect(host, KEY)
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(listener.listen, until="closed")
        assert (listener.closed, listener.done) == (True, None)
        assert await keepers_of(host).end_launch(KEY, 1) is None
        assert left(host) == []
        with pytest.raises(NotFound):
            await keepers_of(host).connect(KEY, 1)


# the end of the attempt


HELD = "sh -c 'while ! test -e end; do sleep 0.05; done'"
"""A script that ends once there is a file `end` in its directory."""


async def test_the_end_of_the_script_ends_its_launches_by_term_and_nothing_is_left(place: Path) -> None:
    async with attempt(place, entrypoint=HELD, workdir=str(place), grace_seconds=3600) as (host, ends):
        listener = await ready(host, shell(f"trap 'echo t >> {place}/term; exit 5' TERM; echo ready; {LOOP}"))
        (place / "end").touch()
        await asyncio.to_thread(listener.listen, until="done")
        record = await ends.record()
        assert [task.code for task in record.tasks] == [0]
        assert (listener.ended, (place / "term").read_text()) == ({0: (5, 0)}, "t\n")
        assert host.scopes.whole(KEY) == []
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []


async def test_the_end_of_the_script_kills_launches_that_pass_over_term_and_nothing_is_left(place: Path) -> None:
    async with attempt(place, entrypoint=HELD, workdir=str(place), grace_seconds=0.5) as (host, ends):
        await keepers_of(host).start(KEY, shell(f"trap '' TERM; touch {place}/deaf; {LOOP}"))
        await until((place / "deaf").exists)
        (place / "end").touch()
        record = await ends.record()
        assert [task.code for task in record.tasks] == [0]
        assert host.scopes.whole(KEY) == []
        told = await keepers_of(host).end_launch(KEY, 1)
        assert told is not None
        assert told["ranks"][0][:3] == [0, 137, 9], "a keeper that nobody heard has written down what it knew"
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_an_attempt_that_is_ended_leaves_no_rank_no_keeper_and_no_scope(place: Path, how: str) -> None:
    async with attempt(place) as (host, ends):
        for number in (1, 2, 3):
            await keepers_of(host).start(KEY, shell("trap '' TERM; setsid sleep 300 & sleep 300", number=number, ranks=4))
        if how == "kill":
            await host.kill(KEY)
        else:
            assert await host.terminate(KEY, STOPPED)
        assert await ends.record() is not None
        assert host.scopes.whole(KEY) == []
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []


async def test_no_launch_begins_once_its_attempt_is_being_ended(place: Path) -> None:
    async with attempt(place, entrypoint="sh -c \"trap '' TERM; while :; do sleep 0.1; done\"") as (host, ends):
        await host.terminate(KEY, STOPPED)
        with pytest.raises(Rejected) as refused:
            await keepers_of(host).start(KEY, shell("true"))
        assert refused.value.message == "its allocation is over"
        await host.kill(KEY)
        await ends.next()
        await host.forget(KEY)
        with pytest.raises(Rejected):
            await keepers_of(host).start(KEY, shell("true"))
        assert host.scopes.standing_scopes() == []


IDLE: dict[str, Any] = {"tasks": 0, "node": "n2", "nodes": ("n1", "n2"), "rank_of_node": 1}


async def test_a_node_without_tasks_gives_its_ranks_term_and_is_over_once_they_have_ended(place: Path) -> None:
    async with attempt(place, **IDLE, grace_seconds=3600) as (host, ends):
        dying = f"echo term; while ! test -e {place}/go; do sleep 0.05; done; echo t > {place}/term; exit 0"
        listener = await ready(host, shell(f"trap '{dying}' TERM; echo ready; {LOOP}"))
        assert await host.terminate(KEY, STOPPED)
        await asyncio.to_thread(listener.listen, until=lambda: listener.said_by_all(1, b"ready\nterm\n"))
        assert ends.none()
        (place / "go").touch()
        await asyncio.to_thread(listener.listen, until="done")
        record = await ends.record()
        assert (record.tasks, record.failure, (place / "term").read_text()) == ((), "", "t\n")
        assert host.scopes.whole(KEY) == []


async def test_a_node_without_tasks_kills_ranks_that_pass_over_term_also_those_that_an_earlier_agent_started(place: Path) -> None:
    async with attempt(place, swept=False, **IDLE, grace_seconds=3600) as (host, _):
        await ready(host, shell(DEAF, ranks=3))
    async with machine(place) as (host, ends):
        (known,) = await host.attempts()
        assert (known.alive, known.populated) == (True, True)
        assert await host.terminate(KEY, STOPPED)
        await asyncio.sleep(0.3)
        assert ends.none()
        await host.kill(KEY)
        assert (await ends.record()).tasks == ()
        assert host.scopes.whole(KEY) == []
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []


async def test_a_node_without_tasks_and_without_ranks_is_over_without_a_grace(place: Path) -> None:
    async with attempt(place, **IDLE, grace_seconds=3600) as (host, ends):
        assert (await ran(host, shell("true"))).ended == {0: (0, 0)}
        assert await host.terminate(KEY, STOPPED)
        assert (await ends.record()).tasks == ()


# where ranks run


async def test_ranks_share_tmp_shared_memory_and_message_queues_with_the_script_and_with_each_other(place: Path) -> None:
    script = "#!/bin/sh\necho one > /tmp/own; echo two > /dev/shm/own; ipcmk -Q > /tmp/queue; sleep 300\n"
    async with attempt(place, script=script, private_tmp=True) as (host, _):
        text = "while ! test -s /tmp/queue; do sleep 0.05; done; cat /tmp/own /dev/shm/own; ipcs -q | grep -c nobody"
        listener = await ran(host, shell(text, ranks=2))
        assert listener.output == {(1, 0): b"one\ntwo\n1\n", (1, 1): b"one\ntwo\n1\n"}
        assert not os.path.exists("/tmp/own")  # noqa: ASYNC240, PTH110
        await ran(host, shell("echo three > /dev/shm/later", number=2))
        assert (await ran(host, shell("cat /dev/shm/later", number=3))).output == {(1, 0): b"three\n"}


async def test_a_rank_runs_on_the_processors_that_it_is_given(place: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    async with attempt(place) as (host, _):
        asked = shell("grep Cpus_allowed_list /proc/self/status", ranks=1)
        asked["ranks"][0]["cpus"] = [cpu]
        assert (await ran(host, asked)).output == {(1, 0): b"Cpus_allowed_list:\t%d\n" % cpu}


async def until_noted(host: LinuxHost) -> None:
    """Waits until the script's end is noted; the launch that it has left is then told to end, and does not."""
    await until((host.journal.run_directory(KEY) / durable.CLOSED).exists)
    assert host.journal.exit_record(KEY) is None, "the shim waits for the launch"


async def test_a_shim_killed_while_it_waits_for_launches_has_told_the_code_of_its_script(place: Path) -> None:
    async with attempt(place, script=f"#!/bin/sh\nwhile [ ! -e {place}/go ]; do sleep 0.05; done\nexit 5\n", grace_seconds=3600) as (
        host,
        ends,
    ):
        (await ready(host, shell(DEAF))).close()
        running = host.journal.claimed(KEY)
        assert running is not None
        (place / "go").touch()
        await until_noted(host)
        os.kill(running.pid, signal.SIGKILL)
        assert [(task.code, task.signal) for task in (await ends.record()).tasks] == [(5, 0)]
        assert not host.scopes.populated(KEY)


async def test_an_agent_that_finds_all_of_an_attempt_killed_tells_the_code_of_its_script(place: Path) -> None:
    script = f"#!/bin/sh\nwhile [ ! -e {place}/go ]; do sleep 0.05; done\nexit 6\n"
    async with attempt(place, swept=False, script=script, grace_seconds=3600) as (host, _):
        (await ready(host, shell(DEAF))).close()
        (place / "go").touch()
        await until_noted(host)
        host.close()
        host.scopes.kill(KEY, whole=True)
        await until(lambda: not host.scopes.populated(KEY))
        async with machine(place) as (heir, _ends):
            [known] = await heir.attempts()
            assert known.exit is not None
            assert ([task.code for task in known.exit.tasks], known.alive) == ([6], False)
