"""Real processes: started as the user, once, with their output, their limits and their exit codes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lattice.daemon.clock import SystemClock
from lattice.errors import Rejected, Retry, Stale
from lattice_agent.attempts import ExitRecord, Key, NodeWork, Running, Seen
from lattice_agent.host import processes
from lattice_agent.host.linux import LinuxHost
from lattice_agent.host.scopes import ProcessScopes
from lattice_agent.host.watch import SHIM_SECONDS
from lattice_agent.standalone import durable
from lattice_agent.standalone.shim import StopWatch
from lattice_agent.state.log_store import LogReader
from tests.unit.agent.machine import STOPPED, UID, AheadClock, Ends, machine, needs_root, open_directory, until, work

pytestmark = [pytest.mark.root, needs_root()]
KEY = Key(UID, 1)


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        yield path


async def prepare_and_start(host: LinuxHost, ours: NodeWork) -> Running:
    await host.prepare(ours)
    return await host.start(ours)


async def run(host: LinuxHost, ends: Ends, **changes: Any) -> ExitRecord:
    ours = work(**changes)
    await host.prepare(ours)
    await host.start(ours)
    return await ends.record()


def printed(host: LinuxHost, stream: str = "stdout", key: Key = KEY) -> str:
    reader = LogReader(host.journal.directory(key), stream)
    text = b"".join(entry.data for entry in reader.read(1 << 30)).decode()
    reader.close()
    return text


async def test_the_work_runs_as_the_user_in_its_directory_and_its_exit_code_is_kept(place: Path) -> None:
    async with machine(place) as (host, ends):
        record = await run(host, ends, entrypoint="sh -c 'id -un; id -gn; umask; pwd; echo oops >&2; exit 3'")
        assert printed(host) == "nobody\nnogroup\n0022\n/tmp\n"
        assert printed(host, "stderr") == "oops\n"
        assert [(task.rank, task.code, task.signal) for task in record.tasks] == [(0, 3, 0)]
        assert record.boot == host.facts().boot_id
        assert await host.remaining(KEY) == 0
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []


async def test_private_variables_reach_the_tasks_and_stand_in_no_file_and_in_no_other_process(place: Path) -> None:
    value = "hunter2-of-the-host-test"
    script = '#!/bin/sh\n[ "$TOKEN" = "$FIRST$SECOND" ] && [ "$MODE" = plain ] || exit 7\nexec sleep 300\n'
    async with machine(place) as (host, ends):
        halves = {"FIRST": value[:10], "SECOND": value[10:]}
        ours = work(script=script, tasks=2, total_tasks=2, variables={"MODE": "plain", **halves})
        await host.prepare(ours)
        running = await host.start(ours, {"TOKEN": value, "MODE": value})
        await until(lambda: len(host.scopes.work(KEY)) == 2)
        said = await asyncio.to_thread(texts_of, place, (running.pid, host.runner_client.pid, os.getpid()))
        assert value not in said
        assert value[:10] in said, "what is no secret stands there"
        await host.kill(KEY)
        assert [task.signal for task in (await ends.record()).tasks] == [9, 9]
        assert value not in await asyncio.to_thread(texts_of, place)


async def test_a_path_of_a_secret_is_used_and_not_told(place: Path) -> None:
    async with machine(place) as (host, _):
        ours = work(entrypoint="no-such-program")
        await host.prepare(ours)
        with pytest.raises(Rejected) as caught:
            await host.start(ours, {"PATH": "/hunter2"})
        assert "'no-such-program' cannot be executed" in caught.value.message
        assert "hunter2" not in caught.value.message + await asyncio.to_thread(texts_of, place)


def texts_of(directory: Path, pids: tuple[int, ...] = ()) -> str:
    """Everything that stands in files there, and what /proc shows of these processes."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    files += [Path(f"/proc/{pid}/{what}") for pid in pids for what in ("environ", "cmdline")]
    return "".join(path.read_bytes().decode(errors="replace") for path in files)


async def test_a_signal_is_shown_as_128_plus_its_number(place: Path) -> None:
    async with machine(place) as (host, ends):
        record = await run(host, ends, script="#!/bin/sh\nkill -SEGV $$\n")
        assert [(task.code, task.signal) for task in record.tasks] == [(139, 11)]


async def test_every_exit_code_from_0_to_255_is_kept_as_it_is(place: Path) -> None:
    async with machine(place) as (host, ends):
        record = await run(host, ends, entrypoint="sh -c 'exit $LATTICE_PROCID'", tasks=256, total_tasks=256)
        assert sorted((task.rank, task.code, task.signal) for task in record.tasks) == [(code, code, 0) for code in range(256)]


async def test_every_signal_that_ends_a_process_is_told_from_an_exit_code(place: Path) -> None:
    harmless = {"CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH"}
    deadly = [number for number in range(1, 32) if signal.Signals(number).name.removeprefix("SIG") not in harmless]
    async with machine(place) as (host, ends):
        script = f"#!/bin/sh\nulimit -c 0\nset -- {' '.join(map(str, deadly))}\nshift $LATTICE_PROCID\nkill -$1 $$\n"
        record = await run(host, ends, entrypoint="sh script", tasks=len(deadly), total_tasks=len(deadly), workdir=str(laid(place, script)))
        found = sorted((task.rank, task.code, task.signal) for task in record.tasks)
        assert found == [(rank, 128 + number, number) for rank, number in enumerate(deadly)]


def laid(place: Path, script: str) -> Path:
    """A directory with this script."""
    (place / "script").write_text(script)
    return place


async def test_every_task_has_its_rank_its_session_and_its_own_code(place: Path) -> None:
    async with machine(place) as (host, ends):
        script = "sh -c 'echo $LATTICE_PROCID $(cut -d\" \" -f6 /proc/$$/stat | grep -cx $$); exit $LATTICE_LOCAL_RANK'"
        record = await run(host, ends, entrypoint=script, tasks=4, first_rank=8, total_tasks=12)
        assert sorted((task.rank, task.code) for task in record.tasks) == [(8, 0), (9, 1), (10, 2), (11, 3)]
        assert sorted(printed(host).splitlines()) == ["10 1", "11 1", "8 1", "9 1"]


async def test_the_work_starts_with_default_signals_and_nothing_but_three_descriptors(place: Path) -> None:
    async with machine(place) as (host, ends):
        # exec, because a shell blocks all signals of its own for a moment whenever it starts something
        await run(host, ends, entrypoint="sh -c 'ls /proc/$$/fd; ulimit -n; exec grep -E \"Sig(Ign|Blk)\" /proc/self/status'")
        assert printed(host).split() == ["0", "1", "2", "1024", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16]


async def test_what_the_tasks_leave_behind_is_killed_and_the_record_written(place: Path) -> None:
    async with machine(place) as (host, ends):
        record = await run(host, ends, script="#!/bin/sh\nsetsid sleep 300 &\n(trap '' TERM; sleep 300) &\nexit 5\n")
        assert record.tasks[0].code == 5
        assert not host.scopes.populated(KEY)


async def test_term_is_heard_and_kill_ends_what_ignores_it_with_the_code_kept(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(script="#!/bin/bash\ntrap 'echo heard' TERM\necho on\nwhile :; do sleep 0.05; done\n")
        await host.prepare(ours)
        await host.start(ours)
        await until(lambda: "on" in printed(host))
        await host.terminate(KEY, STOPPED)
        await until(lambda: "heard" in printed(host))
        assert await host.remaining(KEY) > 0
        with pytest.raises(Retry, match="still has"):
            await host.forget(KEY)
        await host.kill(KEY)
        record = await ends.record()
        assert [(task.code, task.signal) for task in record.tasks] == [(137, 9)]
        assert await host.remaining(KEY) == 0


async def test_what_is_stopped_hears_term_and_what_is_stopped_and_deaf_is_killed(place: Path) -> None:
    async with machine(place) as (host, ends):
        script = "#!/bin/bash\ntrap 'exit 3' TERM\n(trap '' TERM; kill -STOP $BASHPID) &\necho on\nkill -STOP $$\nsleep 300 & wait\n"
        ours = work(script=script)
        await host.prepare(ours)
        await host.start(ours)
        await until(lambda: [processes.state(pid) for pid in host.scopes.work(KEY)] == ["T", "T"])
        await host.terminate(KEY, STOPPED)
        assert [(task.code, task.signal) for task in (await ends.record()).tasks] == [(3, 0)]
        deaf = work("deaf", script="#!/bin/bash\ntrap '' TERM\nwhile :; do kill -STOP $$; done\n")
        await host.prepare(deaf)
        await host.start(deaf)
        await until(lambda: [processes.state(pid) for pid in host.scopes.work(deaf.key)] == ["T"])
        await host.terminate(deaf.key, STOPPED)
        await host.kill(deaf.key)
        assert [task.signal for task in (await ends.record()).tasks] == [9]
        assert not host.scopes.populated(deaf.key)


async def test_when_memory_is_short_the_work_goes_before_the_process_that_keeps_its_code(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(entrypoint="sh -c 'cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj; sleep 300'")
        await host.prepare(ours)
        running = await host.start(ours)
        await until(lambda: len(printed(host).split()) == 2)
        own, shims = map(int, printed(host).split())
        mine = oom_score("self")
        assert own <= max(0, mine)
        assert shims == oom_score(running.pid) == (-900 if may_lower_oom_score() else mine)
        await host.kill(KEY)
        await ends.record()


def oom_score(pid: int | str) -> int:
    """What the kernel has been told of the process."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def may_lower_oom_score() -> bool:
    """CAP_SYS_RESOURCE, which a container may lack."""
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> 24 & 1)


async def test_a_thousand_short_processes_that_detach_are_reaped_and_none_is_left(place: Path) -> None:
    script = "#!/bin/bash\nfor at in {1..250}; do (setsid true & true & (true & ) & ); done\nexit 6\n"
    async with machine(place) as (host, ends):
        ours = work(script=script)
        await host.prepare(ours)
        await host.start(ours)
        assert (await ends.record()).tasks[0].code == 6
        assert not host.scopes.populated(KEY)


@pytest.mark.parametrize(
    ("changes", "reason", "sentence"),
    [
        (
            {"entrypoint": "no-such-program -x"},
            "StartFailed",
            "'no-such-program' cannot be executed: No such file or directory; it is not in PATH=",
        ),
        ({"entrypoint": "/etc/passwd"}, "StartFailed", "'/etc/passwd' cannot be executed: Permission denied"),
        ({"entrypoint": "{place}/junk"}, "StartFailed", "Exec format error"),
        ({"script": "#!/no/such/interpreter\n"}, "StartFailed", "the file exists, but not the interpreter that it names"),
        ({"entrypoint": "echo " + "x" * 1_000_000}, "StartFailed", "the entrypoint has 1000005 characters, 131071 are possible"),
        ({"variables": {"A": "x" * 200_000}}, "StartFailed", "Argument list too long; arguments and environment have"),
        ({"workdir": "/no/such/place"}, "StartFailed", "working directory '/no/such/place' cannot be entered: No such file"),
        ({"workdir": "/root"}, "StartFailed", "working directory '/root' cannot be entered: Permission denied"),
        ({"stdout": "/etc/out"}, "StartFailed", "output file '/etc/out' cannot be opened: Permission denied"),
        ({"stdout": "/tmp"}, "StartFailed", "output file '/tmp' cannot be opened: Is a directory"),
        ({"stdout": "{place}/fifo"}, "StartFailed", "fifo' is a pipe that nobody reads"),
        ({"stdout": "/dev/full"}, "StartFailed", "'/dev/full' is a device or belongs to the kernel"),
        ({"stdout": "/dev/ptmx"}, "StartFailed", "name a regular file, a pipe or /dev/null"),
        ({"stdout": "/proc/self/timerslack_ns"}, "StartFailed", "is a device or belongs to the kernel"),
        ({"stderr": "/proc/thread-self/attr/exec"}, "StartFailed", "is a device or belongs to the kernel"),
        ({"account": "no-such-user"}, "UserUnknown", "node n1 knows no user 'no-such-user'"),
        ({"account": "github:nobody"}, "UserUnknown", "spec.work.userPrefixes"),
        ({"account": "system:serviceaccount:x:nobody"}, "UserUnknown", "knows no user 'system:serviceaccount:x:nobody'"),
        ({"account": "root"}, "UserRefused", "its uid is 0"),
        ({"account": "daemon"}, "UserRefused", "its uid 1 is below 1000"),
    ],
)
async def test_what_cannot_start_says_why_and_leaves_nothing(place: Path, changes: dict[str, Any], reason: str, sentence: str) -> None:
    (place / "junk").write_bytes(b"\x00\x01junk")
    (place / "junk").chmod(0o755)
    os.mkfifo(place / "fifo")
    (place / "fifo").chmod(0o666)
    async with machine(place) as (host, ends):
        ours = work(**{name: value.replace("{place}", str(place)) if isinstance(value, str) else value for name, value in changes.items()})
        with pytest.raises(Rejected) as refusal:
            await prepare_and_start(host, ours)
        assert refusal.value.reason == reason
        assert sentence in refusal.value.message
        assert "n1" in refusal.value.message
        await until(lambda: host.scopes.remove_scope(KEY))
        assert ends.none()


async def test_what_was_refused_is_refused_after_a_restart_too_though_its_cause_is_gone(place: Path) -> None:
    missing = place / "later"
    ours = work(entrypoint="true", workdir=str(missing))
    async with machine(place) as (host, _):
        with pytest.raises(Rejected, match="cannot be entered"):
            await host.prepare(ours)
    missing.mkdir(mode=0o777)
    async with machine(place) as (host, _):
        known = await host.attempts()
        assert [one.key for one in known] == [KEY]
        assert known[0].exit is not None
        assert "cannot be entered" in known[0].exit.failure
        with pytest.raises(Stale):
            await host.prepare(ours)


async def test_a_missing_home_is_replaced_and_said_a_missing_workdir_is_refused(place: Path) -> None:
    async with machine(place) as (host, ends):
        await run(host, ends, entrypoint="pwd", workdir="")
        assert printed(host) == "/\n"
        assert "lattice: the home directory '/nonexistent' cannot be entered: No such file or directory; working in / instead" in printed(
            host, "stderr"
        )


async def test_output_files_are_the_users_and_hold_both_streams_when_only_one_is_named(place: Path) -> None:
    os.chown(place, 65534, 65534)
    (place / "out.txt").write_text("old\n")
    os.chown(place / "out.txt", 65534, 65534)
    async with machine(place) as (host, ends):
        await run(
            host,
            ends,
            entrypoint="sh -c 'echo one; until grep -q one out.txt; do sleep 0.05; done; echo two >&2'",
            workdir=str(place),
            stdout="out.txt",
        )
        assert (place / "out.txt").read_text() == "one\ntwo\n"
        await run(host, ends, uid="b", key=Key("b", 1), entrypoint="echo three", workdir=str(place), stdout="out.txt", append=True)
        assert (place / "out.txt").read_text() == "one\ntwo\nthree\n"
        made = work("c", entrypoint="true", workdir=str(place), stdout="new.out", stderr="new.err")
        await host.prepare(made)
        await host.start(made)
        await ends.record()
        status = (place / "new.err").stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (65534, 0o644)


async def test_a_full_output_file_does_not_stop_the_work_and_is_said(place: Path) -> None:
    with small_disk(place, "64k") as disk:
        os.chown(disk, 65534, 65534)
        fill(disk / "filler")
        async with machine(place) as (host, ends):
            record = await run(host, ends, entrypoint="sh -c 'echo hello; exit 4'", stdout=f"{disk}/out")
            assert record.tasks[0].code == 4
            assert printed(host) == "hello\n"
            assert f"6 bytes were not written to {disk}/out: No space left on device" in printed(host, "stderr")


async def test_a_pipe_that_nobody_empties_does_not_stop_the_work_and_is_said(place: Path) -> None:
    pipe = place / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with machine(place) as (host, ends):
            record = await run(host, ends, entrypoint="sh -c 'seq 100000; exit 4'", stdout=str(pipe))
            assert record.tasks[0].code == 4
            assert printed(host).split()[-1] == "100000"
            assert os.read(reader, 4).decode() == "1\n2\n"
            assert f"bytes were not written to {pipe}: Resource temporarily unavailable" in printed(host, "stderr")
    finally:
        os.close(reader)


async def test_a_directory_that_vanishes_takes_its_output_file_and_nothing_else(place: Path) -> None:
    home = place / "run"
    home.mkdir()
    for directory in (place, home):
        os.chown(directory, 65534, 65534)
    async with machine(place) as (host, ends):
        ours = work(script="#!/bin/sh\nrm -r $PWD\nseq 1000\nexit 8\n", workdir=str(home), stdout="out.txt")
        await host.prepare(ours)
        await host.start(ours)
        assert (await ends.record()).tasks[0].code == 8
        assert printed(host).split()[-1] == "1000"
        assert printed(host, "stderr") == ""
        gone = work("gone", workdir=str(place / "later"))
        (place / "later").mkdir(mode=0o777)
        await host.prepare(gone)
        (place / "later").rmdir()
        with pytest.raises(Rejected, match="cannot be entered: No such file") as refusal:
            await host.start(gone)
        assert refusal.value.reason == "StartFailed"


async def test_a_burst_of_ten_thousand_lines_loses_none_and_partial_lines_arrive(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(entrypoint="sh -c 'seq 10000; printf prompt; sleep 300'", tasks=2, total_tasks=2)
        await host.prepare(ours)
        await host.start(ours)
        await until(lambda: printed(host).count("prompt") == 2)
        lines = printed(host).replace("prompt", "").split()
        assert sorted(map(int, lines)) == sorted([*range(1, 10001)] * 2)
        await host.kill(KEY)
        await ends.record()


async def test_forty_eight_megabytes_at_once_are_kept_whole(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(entrypoint="sh -c 'yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 48000000'")
        await host.prepare(ours)
        await host.start(ours)
        await ends.record()
        assert len(printed(host)) == 48_000_000


async def test_what_has_ended_and_is_settled_is_recalled_from_the_disk(place: Path) -> None:
    async with machine(place) as (host, ends):
        assert await host.recall(KEY) is None
        ours = work(entrypoint="sh -c 'exit 7'")
        await host.prepare(ours)
        await host.start(ours)
        await ends.record()
        await host.forget(KEY)
        found = await host.recall(KEY)
        assert found is not None
        assert found.exit is not None
        assert ([task.code for task in found.exit.tasks], found.forgotten, found.alive) == ([7], True, False)


async def test_a_start_is_done_once_whoever_asks_again(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(entrypoint="sleep 300")
        await host.prepare(ours)
        await host.prepare(ours)
        first = await host.start(ours)
        assert await host.start(ours) == first
        with pytest.raises(Stale, match="was started on n1 already"):
            await host.prepare(ours)
        async with machine(place, swept=False) as (second, _):
            assert await second.start(ours) == first
        assert await host.remaining(KEY) == 1
        await host.kill(KEY)
        await ends.record()


async def test_what_was_ended_before_its_start_never_starts(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(entrypoint="sleep 300")
        await host.prepare(ours)
        await host.terminate(KEY, STOPPED)
        assert (await ends.record()).tasks == ()
        with pytest.raises(Rejected, match="ended before it was started"):
            await host.start(ours)
        assert await host.remaining(KEY) == 0


async def test_work_without_tasks_here_is_alive_until_it_is_ended(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(tasks=0, script="#!/bin/sh\n", user="no-such-user")
        await host.prepare(ours)
        running = await host.start(ours)
        assert running.pid == 0
        assert [known.alive for known in await host.attempts()] == [True]
        await host.kill(KEY)
        record = await ends.record()
        assert (record.tasks, record.failure) == ((), "")
        assert [(known.alive, known.populated) for known in await host.attempts()] == [(False, False)]
        await host.forget(KEY)


async def test_another_agent_adopts_what_runs_and_hears_its_end(place: Path) -> None:
    async with machine(place) as (host, _):
        ours = work(entrypoint=f"sh -c 'while ! test -e {place}/go; do sleep 0.05; done; exit 6'")
        await host.prepare(ours)
        running = await host.start(ours)
        host.close()
        async with machine(place, swept=False) as (heir, ends):
            [known] = await heir.attempts()
            assert (known.work, known.running, known.alive, known.boot_matches, known.exit) == (ours, running, True, True, None)
            (place / "go").touch()
            assert (await ends.record()).tasks[0].code == 6
            [known] = await heir.attempts()
            assert not known.alive
            assert known.exit is not None


async def test_a_killed_shim_takes_its_work_along_and_the_end_is_unknown(place: Path) -> None:
    async with machine(place) as (host, ends):
        ours = work(script="#!/bin/sh\nsetsid sleep 300 &\nsleep 300\n")
        await host.prepare(ours)
        running = await host.start(ours)
        await until(lambda: len(host.scopes.work(KEY)) >= 3)
        os.kill(running.pid, signal.SIGKILL)
        assert await ends.next() == (KEY, None)
        assert not host.scopes.populated(KEY)


async def test_what_had_ended_before_its_shim_was_killed_has_its_code(place: Path) -> None:
    async with machine(place) as (host, ends):
        script = f"#!/bin/sh\n[ $LATTICE_PROCID = 1 ] && exit 3\n[ $LATTICE_PROCID = 2 ] && exit 0\ntouch {place}/out/on\nsleep 300\n"
        (place / "out").mkdir(mode=0o777)
        (place / "out").chmod(0o777)
        ours = work(script=script, tasks=3, total_tasks=3)
        await host.prepare(ours)
        running = await host.start(ours)
        notes = host.journal.run_directory(KEY) / durable.TASKS
        await until(lambda: (place / "out/on").exists() and notes.read_text().count('"end"') == 2)
        os.kill(running.pid, signal.SIGKILL)
        record = await ends.record()
        assert [(task.rank, task.code, task.signal) for task in record.tasks] == [(1, 3, 0), (2, 0, 0)], "the first failure is known"
        assert host.journal.exit_record(KEY) == record
        assert (host.journal.directory(KEY) / durable.EXIT).exists()


async def test_a_stopped_shim_is_killed_with_its_work_gone_and_the_kernel_tells_how_that_ended(place: Path) -> None:
    clock = AheadClock()
    async with machine(place, clock=clock) as (host, ends):
        ours = work(script=f"#!/bin/sh\nwhile [ ! -e {place}/go ]; do sleep 0.05; done\nexit 5\n")
        await host.prepare(ours)
        running = await host.start(ours)
        os.kill(running.pid, signal.SIGSTOP)
        (place / "go").touch()
        await until(lambda: not host.scopes.work(KEY))
        await host.kill(KEY)
        await asyncio.sleep(0)  # it is looked after from now on
        clock.ahead += SHIM_SECONDS
        record = await ends.record()
        assert [(task.rank, task.code, task.signal) for task in record.tasks] == [(0, 5, 0)]
        assert record.tasks[0].start < record.tasks[0].end


async def test_a_killed_runner_is_replaced_and_nothing_that_runs_is_lost(place: Path) -> None:
    async with machine(place) as (host, ends):
        held = f"while ! test -e {place}/go; do sleep 0.05; done; exit 7"
        first, second = work("a", entrypoint=f"sh -c '{held}'"), work("b", entrypoint="sh -c 'exit 8'")
        await host.prepare(first)
        await host.start(first)
        os.kill(host.runner_client.pid, signal.SIGKILL)
        await host.prepare(second)
        await host.start(second)
        (place / "go").touch()
        codes = {}
        for _ in range(2):
            key, record = await ends.next()
            assert record is not None
            codes[key.uid] = record.tasks[0].code
        assert codes == {"a": 7, "b": 8}


async def test_the_runner_ends_with_its_agent(place: Path) -> None:
    async with machine(place) as (host, _):
        pid = host.runner_client.pid
        assert processes.state(pid) in ("S", "R", "D")
    assert processes.state(pid) == ""


async def test_a_stray_scope_is_shown_left_alone_and_killed_on_order(place: Path) -> None:
    async with machine(place) as (host, ends):
        stray = Key("stray", 3)
        host.scopes.make(stray)
        entrance = host.scopes.entrances(stray).work_procs[-1]
        child = subprocess.Popen(["sh", "-c", f"echo 0 > {entrance}; exec sleep 300"])  # noqa: ASYNC220
        await until(lambda: len(host.scopes.work(stray)) == 1)
        [known] = await host.attempts()
        assert (known.key, known.work, known.populated, known.boot_matches) == (stray, None, True, False)
        await asyncio.sleep(0.1)
        assert child.poll() is None
        await host.kill(stray)
        assert child.wait(90) == -9
        assert await ends.next() == (stray, None)
        await host.forget(stray)
        assert await host.attempts() == []


async def test_after_a_reboot_nothing_is_taken_for_running(place: Path) -> None:
    async with machine(place) as (host, _):
        host.journal.write_journal(work(), "another-boot")
        host.journal.claim(KEY, Running(os.getpid(), 1, 5.0, 5.0))
        [known] = await host.attempts()
        assert (known.boot_matches, known.alive, known.populated) == (False, False, False)


async def test_the_seq_only_grows_and_outlives_the_agent(place: Path) -> None:
    async with machine(place) as (host, _):
        await host.remember(Seen(12))
        await host.remember(Seen(11))
        instance = host.instance()
    async with machine(place) as (host, _):
        assert (host.seen().seq, host.instance()) == (12, instance)


async def test_without_cgroups_the_work_is_found_and_ended_by_its_processes(place: Path) -> None:
    async with machine(place) as (host, ends):
        host.scopes.close()
        host.scopes = host.watch.scopes = host.launcher.scopes = ProcessScopes(work().node)
        record = await run(host, ends, uid="alone-a", key=Key("alone-a", 1), script="#!/bin/sh\nsetsid sleep 300 &\nexit 2\n")
        assert record.tasks[0].code == 2
        key = Key("alone-b", 1)  # not KEY: on the whole machine it ends whatever names it, also what other tests run meanwhile
        ours = work(key.uid, script="#!/bin/sh\nsetsid sleep 300 &\nsleep 300\n")
        await host.prepare(ours)
        await host.start(ours)
        await until(lambda: len(host.scopes.work(key)) >= 3)
        await host.kill(key)
        end = (await ends.record()).tasks[0]
        assert end.signal == 9 or end.code == 137  # one process after another dies here: the shell may see its child die first
        assert await host.remaining(key) == 0


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A disk of this size of its own."""
    disk = place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


async def test_a_full_disk_takes_lines_but_not_the_exit_code(place: Path) -> None:
    with small_disk(place, "400k") as disk:
        async with machine(disk, place.name) as (host, ends):
            record = await run(host, ends, entrypoint="sh -c 'seq 200000; exit 9'")
            assert record.tasks[0].code == 9
            assert 0 < len(printed(host)) < 400_000


async def test_a_full_disk_refuses_a_start_with_a_sentence_and_keeps_the_seq_once_there_is_room(place: Path) -> None:
    with small_disk(place, "200k") as disk:
        async with machine(disk, place.name) as (host, ends):
            filler = disk / "filler"
            with pytest.raises(OSError, match="No space left"):
                filler.write_bytes(b"x" * 400_000)
            with pytest.raises(Rejected, match=r"not able to take it: its state cannot be written: .*No space left") as refusal:
                await host.prepare(work(entrypoint="true"))
            assert refusal.value.reason == "NodeUnfit"
            with pytest.raises(Retry, match="No space left"):
                await host.remember(Seen(7))
            filler.unlink()
            await host.remember(Seen(7))
            assert (host.journal.read_seen().seq, host.seen().seq) == (7, 7)
            assert ends.none()


async def test_a_disk_that_fills_before_the_start_gives_the_work_back_for_good_and_the_node_says_so(place: Path) -> None:
    with small_disk(place, "64m") as disk:
        async with machine(disk, place.name) as (host, ends):
            assert await host.flaw() == ""
            ours = work(entrypoint="true")
            await host.prepare(ours)
            fill(disk / "filler")
            with pytest.raises(Rejected, match="its state cannot be written") as refusal:
                await host.start(ours)
            assert refusal.value.reason == "NodeUnfit"
            assert re.fullmatch(f"its state directory {disk}/state has [01] MiB free, 16 MiB are needed", await host.flaw())
            (disk / "filler").unlink()
            assert await host.flaw() == ""
            assert ends.none()
        async with machine(disk, place.name) as (host, _):
            with pytest.raises(Stale):
                await host.prepare(ours)


def fill(path: Path) -> None:
    """Takes what is left of a disk, to the last page."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)


async def test_a_disk_that_was_short_of_room_needs_twice_as_much_before_it_is_well(place: Path) -> None:
    with small_disk(place, "40m") as disk:
        async with machine(disk, place.name) as (host, _):
            found = []
            for filled in (20, 28, 20, 4):
                (disk / "filler").write_bytes(b"x" * (filled << 20))
                found.append(bool(await host.flaw()))
            assert found == [False, True, True, False]
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)  # noqa: ASYNC221
            assert "mounted read-only" in await host.flaw()
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)  # noqa: ASYNC221


async def test_a_disk_that_runs_short_loses_old_output_first_and_no_exit_record(place: Path) -> None:
    with small_disk(place, "100m") as disk:
        async with machine(disk, place.name) as (host, ends):
            for uid in ("a", "b", "c"):
                await run(host, ends, uid=uid, key=Key(uid, 1), entrypoint="sh -c 'yes | head -c 9000000'")
            for uid in ("a", "b"):
                await host.forget(Key(uid, 1))
            assert await host.flaw() == ""
            assert [len(printed(host, key=Key(uid, 1))) for uid in ("a", "b", "c")] == [9_000_000] * 3
            (disk / "filler").write_bytes(b"x" * (12 << 20))
            assert await host.flaw() == ""
            assert [len(printed(host, key=Key(uid, 1))) for uid in ("a", "b", "c")] == [0, 9_000_000, 9_000_000]
            (disk / "filler").write_bytes(b"x" * (80 << 20))
            assert "MiB free" in await host.flaw()
            assert [len(printed(host, key=Key(uid, 1))) for uid in ("a", "b", "c")] == [0, 0, 9_000_000]
            assert all(host.journal.exit_record(Key(uid, 1)) for uid in ("a", "b", "c"))
            reader = LogReader(host.journal.directory(Key("a", 1)), "stdout")
            assert [entry.dropped for entry in reader.read()] == [9_000_000]
            reader.close()


def test_times_of_an_attempt_differ_by_what_has_passed_whoever_sets_the_clock() -> None:
    watch = StopWatch(1000.0, time.clock_gettime(time.CLOCK_BOOTTIME) - 5.0)
    first = watch.now()
    time.sleep(0.01)
    assert 1005.0 <= first < watch.now() < 1065.0


async def test_the_host_has_a_clock_of_the_machine_and_facts_that_are_true(place: Path) -> None:
    async with machine(place) as (host, _):
        found = host.facts()
        assert found.cpus >= 1
        assert found.memory_bytes > 1 << 28
        assert found.kernel == os.uname().release
        before, now = time.time(), SystemClock().now()
        assert before <= now <= time.time()
