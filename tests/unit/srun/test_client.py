"""The client `srun` beside an agent that does everything an agent may do, and what it may not."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import random
import resource
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lattice_dev.build import SRUN_SOURCE, STUB_FLAGS, build_srun
from lattice_dev.progress import terminal
from lattice_dev.waiting import HostClock
from tests.unit.srun.agent import (
    CONTENT,
    INPUT,
    OPEN,
    OPENED,
    OUTPUT,
    PATIENCE,
    READ,
    REFUSED,
    SAY,
    SIGNAL,
    TIMES,
    Agent,
    Call,
    accepted,
    ended,
    finished,
    frame,
    output,
    room,
)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
INTERRUPT = b"srun: interrupt (one more within 1 sec to abort)\n"


@pytest.fixture(scope="module")
def program() -> Path:
    return build_srun(terminal(HostClock()), os.environ)


@pytest.fixture(scope="module")
def program_of_other_times(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("other-times") / "srun"
    subprocess.run(["cc", *STUB_FLAGS, *TIMES, "-o", str(made), str(SRUN_SOURCE)], check=True)
    return made


@pytest.fixture
def agent(tmp_path: Path, program: Path) -> Iterator[Agent]:
    with Agent(tmp_path, program) as there:
        yield there


@pytest.fixture
def calm(tmp_path: Path, program_of_other_times: Path) -> Iterator[Agent]:
    """An agent whose client has other times."""
    with Agent(tmp_path, program_of_other_times) as there:
        yield there


def end(client: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = client.communicate(timeout=PATIENCE)
    return client.returncode, out, err


def until(true: Callable[[], object]) -> None:
    """Waits for what the client does and nobody is told."""
    give_up = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def descriptors(client: subprocess.Popen[bytes]) -> set[str]:
    """What the descriptors of a client are."""
    found = set()
    for path in Path(f"/proc/{client.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(path.readlink()))
    return found


def connections(client: subprocess.Popen[bytes]) -> set[str]:
    return {name for name in descriptors(client) if name.startswith("socket:")}


def is_waiting(client: subprocess.Popen[bytes]) -> bool:
    """Whether it has begun, and waits for something to do."""
    state = Path(f"/proc/{client.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return state == b"S" and "anon_inode:[signalfd]" in descriptors(client)


def has_taken(client: subprocess.Popen[bytes], number: int) -> bool:
    """Whether a signal that it was sent has come to it."""
    lines = Path(f"/proc/{client.pid}/status").read_text(encoding="utf-8").splitlines()
    pending = next(line.split()[1] for line in lines if line.startswith("ShdPnd:"))
    return not int(pending, 16) & 1 << number - 1


def unread(fd: int, kind: int = termios.FIONREAD) -> int:
    """The bytes that a pipe holds; with TIOCOUTQ the memory of what was sent and the other side has not read."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, kind, count)
    return count[0]


def until_stuck(client: subprocess.Popen[bytes]) -> None:
    """Waits until nothing more goes into the client's standard output."""
    assert client.stdout is not None
    fd = client.stdout.fileno()
    until(lambda: unread(fd) > fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) - 4096)


def wait_for(client: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Reads standard error until it ends so."""
    assert client.stderr is not None
    said = b""
    while not said.endswith(text):
        assert select.select([client.stderr], [], [], PATIENCE)[0], said
        piece = os.read(client.stderr.fileno(), 4096)
        assert piece, said
        said += piece
    return said


# The request


def test_the_request_has_all_that_a_launch_inherits(agent: Agent, tmp_path: Path) -> None:
    client = agent.start(line='umask 027; ulimit -S -n 77; exec "$SRUN" -n 4 ./a.out "x y" ""', environ={"A": "1=2\n3"}, cwd=tmp_path)
    call = agent.accept()
    assert call.field(2) == [str(agent.program).encode(), b"-n", b"4", b"./a.out", b"x y", b""]
    assert b"A=1=2\n3" in call.field(3)
    assert [call.field(tag) for tag in (4, 5, 7, 8, 9)] == [[bytes(tmp_path)], [struct.pack(">I", 0o027)], [b"\0"], [], []]
    limits = dict(limit.decode().split("=") for limit in call.field(6))
    assert set(limits) == {"CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS"}
    assert limits["NOFILE"] == "77"
    assert limits["CPU"] == ("unlimited" if resource.getrlimit(resource.RLIMIT_CPU)[0] == -1 else limits["CPU"])
    (request,) = call.field(1)
    assert len(request) == 16
    call.send(accepted(), finished(5))
    assert end(client) == (5, b"", b"")


def test_each_call_has_a_request_id_of_its_own(agent: Agent) -> None:
    agent.start("x")
    agent.start("x")
    assert agent.accept().field(1) != agent.accept().field(1)


def test_a_stream_as_input_is_told(agent: Agent) -> None:
    agent.start("x", stdin=subprocess.PIPE)
    assert agent.accept().field(7) == [b"\1"]


def test_closed_descriptors_harm_nothing(agent: Agent) -> None:
    client = agent.start(line='exec "$SRUN" x 0<&- 1>&- 2>&-')
    call = agent.accept()
    assert call.field(7) == [b"\0"]
    call.send(accepted(), output(1, b"lost\n"), output(2, b"lost\n", stream=2), frame(SAY, b"lost\n"))
    call.had(2)
    call.send(finished())
    assert end(client)[0] == 0, "as of a program that nobody listens to"


def test_the_socket_may_lie_deeper_than_an_address_is_long(tmp_path: Path, program: Path) -> None:
    with Agent(tmp_path / ("deep" * 30) / ("deeper" * 20), program) as agent:
        client = agent.start("x")
        agent.accept().send(accepted(), finished())
        assert end(client) == (0, b"", b"")


# Output


def test_output_is_written_as_it_is_and_acknowledged_after(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    call.send(accepted(2), output(1, b"a\0b"), output(1, b"err\n", node=1, stream=2), output(4, b"", node=1), ended(9, node=1))
    told = {struct.unpack(">HQ", call.expect(4))}
    while (0, 1) not in told or (1, 9) not in told:
        told.add(struct.unpack(">HQ", call.expect(4)))
    call.send(frame(SAY, b"srun: error: n1: task 1: Killed\n"), finished(137))
    assert end(client) == (137, b"a\0b", b"err\nsrun: error: n1: task 1: Killed\n")


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_frames_may_be_split_and_coalesced_anywhere(agent: Agent, size: int) -> None:
    client = agent.start("x")
    call = agent.accept()
    lines = [f"line {number}\n".encode() * (number % 40) for number in range(1, 60 if size == 1 else 100)]
    stream = accepted() + b"".join(output(number, line) for number, line in enumerate(lines, start=1)) + finished(3)
    for at in range(0, len(stream), size):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            call.connection.sendall(stream[at : at + size])
    assert end(client) == (3, b"".join(lines), b"")


def test_nothing_is_acknowledged_or_lost_while_standard_output_is_slow(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    line, count = b"x" * 65535 + b"\n", 40
    call.send(accepted(), output(1, line))
    call.had(1)
    call.connection.setblocking(False)
    sent = 1
    with contextlib.suppress(BlockingIOError):
        while sent < count:
            call.send(output(sent + 1, line))
            sent += 1
    call.connection.settimeout(PATIENCE)
    waiting = list[int]()
    for _ in range(3):  # it has turned round with the second frame in its way: the first time it may read the rest of that
        client.send_signal(signal.SIGUSR1)
        assert call.expect(SIGNAL) == bytes([signal.SIGUSR1])
        waiting.append(unread(call.connection.fileno(), termios.TIOCOUTQ))
    assert sent < count, "the client reads on though nobody takes its output"
    assert waiting[1] == waiting[2] > 0
    client.kill()


def test_a_slow_reader_gets_every_byte(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    data = random.Random(1).randbytes(3_000_000)
    pieces = [data[at : at + 50_000] for at in range(0, len(data), 50_000)]

    if os.fork() == 0:
        try:
            call.send(accepted(), *(output(number, piece) for number, piece in enumerate(pieces, start=1)), finished())
        finally:
            os._exit(0)
    assert client.stdout is not None
    got = b""
    while piece := os.read(client.stdout.fileno(), 30_000):
        got += piece
        time.sleep(0.002)
    os.wait()
    assert got == data
    assert client.wait(PATIENCE) == 0


def test_one_frame_may_have_sixteen_megabytes(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    data = b"z" * ((16 << 20) - 15)
    if os.fork() == 0:
        try:
            call.send(accepted(), output(1, data), finished())
        finally:
            os._exit(0)
    code, out, err = end(client)
    os.wait()
    assert (code, out == data, err) == (0, True, b"")


def test_a_reader_that_goes_ends_the_launch_as_it_ends_a_program(calm: Agent) -> None:
    client = calm.start(line='"$SRUN" x | { head -c 2; exec <&-; echo gone >&2; }')
    call = calm.accept()
    call.send(accepted(), output(1, b"aaaa"))
    call.had(1)
    wait_for(client, b"gone\n")
    call.send(output(2, b"bbbb"), output(3, b"cccc"))
    passed = list[int]()
    while len(passed) < 2:
        kind, payload = call.receive()
        passed += [payload[0]] if kind == SIGNAL else []
    assert passed == [signal.SIGPIPE, signal.SIGKILL], "a program that ignores the first is killed"
    call.send(finished(137))
    assert end(client)[:2] == (0, b"aa")


def test_a_full_disk_is_said_and_is_no_success(agent: Agent) -> None:
    client = agent.start(line='exec "$SRUN" x > /dev/full')
    call = agent.accept()
    call.send(accepted(), output(1, b"a\n"), output(2, b"b\n"))
    call.had(2)
    call.send(finished(0))
    assert end(client) == (1, b"", b"srun: error: standard output cannot be written, what follows is lost: No space left on device\n")


def test_an_answer_needs_no_launch(agent: Agent) -> None:
    client = agent.start("--version")
    agent.accept().send(output(1, b"lattice-srun 1\n"), finished())
    assert end(client) == (0, b"lattice-srun 1\n", b"")


def test_a_refusal_is_said_with_its_code(agent: Agent) -> None:
    client = agent.start("-n0", "x")
    agent.accept().send(frame(REFUSED, b"\x01--ntasks=0: '0' is no number from 1 on"))
    assert end(client) == (1, b"", b"srun: error: --ntasks=0: '0' is no number from 1 on\n")


# Files that the caller names


def test_files_are_opened_as_the_caller_and_written(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"before\n")
    (tmp_path / "in").write_bytes(b"input")
    client = agent.start("x", cwd=tmp_path)
    call = agent.accept()
    call.send(frame(OPEN, b"\1\0new"), frame(OPEN, b"\2\1old"), frame(OPEN, b"\0\0in"))
    assert [call.expect(OPENED) for _ in range(3)] == [b"\1\0", b"\2\0", b"\0\0"]
    call.send(accepted(), output(1, b"out\n"), output(2, b"err\n", stream=2), room(65536))
    got = sorted(call.receive() for _ in range(3))
    assert got[:2] == [(INPUT, struct.pack(">Q", 0) + b"input"), (INPUT, struct.pack(">Q", 5))]
    call.send(finished())
    assert end(client) == (0, b"", b"")
    assert ((tmp_path / "new").read_bytes(), (tmp_path / "old").read_bytes()) == (b"out\n", b"before\nerr\n")


def test_one_file_takes_both_streams_in_order_and_is_opened_once(agent: Agent, tmp_path: Path) -> None:
    client = agent.start("x", cwd=tmp_path)
    call = agent.accept()
    call.send(frame(OPEN, b"\3\0both"), accepted(), output(1, b"a\n"), output(2, b"b\n", stream=2))
    assert call.expect(OPENED) == b"\3\0"
    call.had(2)
    call.send(frame(OPEN, b"\3\0both"))
    assert call.expect(OPENED) == b"\3\0"
    call.send(output(3, b"c\n"), finished())
    assert end(client)[0] == 0
    assert (tmp_path / "both").read_bytes() == b"a\nb\nc\n", "opened again it would be empty"


def test_a_file_that_cannot_be_opened_is_said(agent: Agent, tmp_path: Path) -> None:
    client = agent.start("x", cwd=tmp_path)
    call = agent.accept()
    call.send(frame(OPEN, b"\1\0missing/out"))
    assert call.expect(OPENED) == bytes([1, errno.ENOENT])
    call.send(frame(REFUSED, b"\1not started"))
    assert end(client)[2].startswith(b"srun: error: Could not open stdout file missing/out: No such file or directory\n")


def test_a_small_file_is_read_for_the_agent(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "mp").write_bytes(b"* hostname\n")
    (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))
    agent.start("x", cwd=tmp_path)
    call = agent.accept()
    call.send(frame(READ, b"mp"), frame(READ, b"none"), frame(READ, b"large"))
    assert call.expect(CONTENT) == b"\0* hostname\n"
    assert call.expect(CONTENT) == bytes([errno.ENOENT])
    assert call.expect(CONTENT) == bytes([errno.EFBIG])


# Input


def test_input_goes_as_far_as_there_is_room_and_ends(agent: Agent) -> None:
    client = agent.start("x", stdin=subprocess.PIPE)
    call = agent.accept()
    call.send(accepted(), room(4))
    assert client.stdin is not None
    client.stdin.write(b"0123456789")
    client.stdin.close()
    client.stdin = None
    assert call.expect(INPUT) == struct.pack(">Q", 0) + b"0123"
    call.send(room(8))
    assert call.expect(INPUT) == struct.pack(">Q", 4) + b"4567"
    call.send(room(100))
    assert [call.expect(INPUT) for _ in range(2)] == [struct.pack(">Q", 8) + b"89", struct.pack(">Q", 10)]
    call.send(finished())
    assert end(client) == (0, b"", b"")


def test_without_room_input_is_left_to_others(agent: Agent) -> None:
    client = agent.start(line='printf "a\\nb\\n" | { "$SRUN" x; cat; }')
    agent.accept().send(accepted(), finished())
    assert end(client) == (0, b"a\nb\n", b"")


def test_much_input_arrives_whole_through_breaks(agent: Agent, tmp_path: Path) -> None:
    data = random.Random(2).randbytes(700_000)
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as source:
        client = agent.start("x", stdin=source)
    call = agent.accept()
    call.send(accepted(), room(65536))
    got, breaks, done = b"", 0, False
    while not done:
        payload = call.expect(INPUT)
        (offset,), piece = struct.unpack_from(">Q", payload), payload[8:]
        assert offset <= len(got), "bytes are missing"
        got += piece[len(got) - offset :] if len(piece) > len(got) - offset else b""
        done = not piece and offset == len(got)
        if breaks < len(got) // 150_000:
            breaks += 1
            call.close()
            call = agent.accept()
            assert call.field(9) == [struct.pack(">I", 7)]
            call.send(accepted())
        call.send(room(len(got) + 65536))
    assert got == data
    call.send(finished())
    assert end(client)[0] == 0


def test_after_a_break_no_input_is_sent_before_there_is_room_again(agent: Agent) -> None:
    client = agent.start("x", stdin=subprocess.PIPE)
    call = agent.accept()
    call.send(accepted(), room(100))
    assert client.stdin is not None
    client.stdin.write(b"0123")
    client.stdin.flush()
    assert call.expect(INPUT) == struct.pack(">Q", 0) + b"0123"
    call.close()
    call = agent.accept()
    call.send(accepted(), output(1, b""))
    call.had(1)
    client.send_signal(signal.SIGUSR1)
    assert call.expect(SIGNAL) == bytes([signal.SIGUSR1]), "it has told what it had to tell"
    call.send(room(100))
    assert call.expect(INPUT) == struct.pack(">Q", 0) + b"0123"
    client.stdin.close()
    client.stdin = None
    assert call.expect(INPUT) == struct.pack(">Q", 4)
    call.send(finished())
    assert end(client)[0] == 0


# Signals


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT, signal.SIGALRM]
)
def test_signals_are_passed_on(agent: Agent, number: int) -> None:
    client = agent.start("x")
    call = agent.accept()
    call.send(accepted(), output(1, b""))
    call.had(1)
    client.send_signal(number)
    assert call.expect(SIGNAL) == bytes([number])
    call.send(finished(128 + number))
    assert end(client) == (128 + number, b"", b"")


def test_the_first_interrupt_asks_the_second_is_passed_on_the_third_kills(calm: Agent) -> None:
    client = calm.start("x")
    call = calm.accept()
    call.send(accepted(), output(1, b""))
    call.had(1)
    client.send_signal(signal.SIGINT)
    wait_for(client, INTERRUPT)
    client.send_signal(signal.SIGINT)
    assert call.expect(SIGNAL) == bytes([signal.SIGINT])
    client.send_signal(signal.SIGINT)
    assert call.expect(SIGNAL) == bytes([signal.SIGKILL])


def test_two_interrupts_far_apart_are_two_first_ones(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    call.send(accepted(), output(1, b""))
    call.had(1)
    client.send_signal(signal.SIGINT)
    wait_for(client, INTERRUPT)
    time.sleep(1.1)
    client.send_signal(signal.SIGINT)
    wait_for(client, INTERRUPT)
    client.send_signal(signal.SIGUSR1)
    assert call.expect(SIGNAL) == bytes([signal.SIGUSR1]), "no interrupt was passed on"


@pytest.mark.parametrize(("flag", "number"), [(b"\1", signal.SIGINT), (b"\2", signal.SIGTERM)])
def test_the_first_interrupt_may_be_enough(agent: Agent, flag: bytes, number: int) -> None:
    client = agent.start("x")
    call = agent.accept()
    call.send(accepted(flags=flag), output(1, b""))
    call.had(1)
    client.send_signal(signal.SIGINT)
    assert call.expect(SIGNAL) == bytes([number])


def test_signals_that_the_caller_ignores_stay_ignored(agent: Agent) -> None:
    client = agent.start(line='trap "" HUP INT; exec "$SRUN" x')
    call = agent.accept()
    call.send(accepted(), output(1, b""))
    call.had(1)
    client.send_signal(signal.SIGHUP)
    client.send_signal(signal.SIGINT)
    client.send_signal(signal.SIGUSR1)
    assert call.expect(SIGNAL) == bytes([signal.SIGUSR1])


def test_a_request_that_waits_ends_with_a_signal(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    call.send(frame(SAY, b"srun: it waits\n"))
    wait_for(client, b"waits\n")
    client.send_signal(signal.SIGINT)
    assert client.wait(PATIENCE) == 130
    assert call.connection.recv(1) == b""


def test_signals_come_while_standard_output_is_stuck(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    call.send(accepted(), output(1, b"x" * 150_000))
    until_stuck(client)
    client.send_signal(signal.SIGTERM)
    assert call.expect(SIGNAL) == bytes([signal.SIGTERM])


# An agent that goes and comes


def test_after_a_restart_it_asks_again_from_what_it_had(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    request = call.field(1)
    call.send(accepted(3), output(1, b"a"), output(5, b"b", node=2))
    assert client.stdout is not None
    assert os.read(client.stdout.fileno(), 1) + os.read(client.stdout.fileno(), 1) == b"ab"
    call.close()
    call = agent.accept()
    assert call.field(1) == request
    assert call.field(8) == [struct.pack(">HQ", 0, 1), struct.pack(">HQ", 2, 5)]
    assert call.field(9) == [struct.pack(">I", 7)]
    call.send(accepted(3), output(1, b"a"), output(2, b"c"), output(5, b"b", node=2), output(6, b"d", node=2))
    told = {struct.unpack(">HQ", call.expect(4)) for _ in range(2)}
    while not {(0, 2), (2, 6)} <= told:
        told.add(struct.unpack(">HQ", call.expect(4)))
    call.send(finished(4))
    assert end(client) == (4, b"cd", b""), "doubled frames are written once"


def test_a_restart_in_the_middle_of_a_stuck_frame_neither_loses_nor_doubles(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    data = random.Random(3).randbytes(400_000)
    call.send(accepted(), output(1, data), output(2, b"two"), output(3, b"half")[:9])
    until_stuck(client)
    call.close()
    call = agent.accept()
    assert call.field(8) == [], "the first frame is not yet written"
    if os.fork() == 0:
        try:
            call.send(accepted(), output(1, data), output(2, b"two"), output(3, b"three"), finished())
            call.receive()
        finally:
            os._exit(0)
    code, out, err = end(client)
    os.wait()
    assert (code, out == data + b"twothree", err) == (0, True, b"")


def test_random_breaks_lose_and_double_no_byte(agent: Agent) -> None:
    dice = random.Random(4)
    data = dice.randbytes(60_000)
    pieces = [data[at : at + 300] for at in range(0, len(data), 300)]
    client = agent.start("x")
    assert client.stdout is not None
    os.set_blocking(client.stdout.fileno(), True)
    call = agent.accept()
    got = b""
    for _ in range(30):
        had = struct.unpack(">HQ", call.field(8)[0])[1] if call.field(8) else 0
        stream = accepted() + b"".join(output(number, piece) for number, piece in list(enumerate(pieces, start=1))[had : had + 12])
        call.send(stream[: dice.randrange(12, len(stream) + 1)])
        call.close()
        call = agent.accept()
    had = struct.unpack(">HQ", call.field(8)[0])[1] if call.field(8) else 0
    call.send(accepted(), *(output(number, piece) for number, piece in list(enumerate(pieces, start=1))[max(0, had - 3) :]), finished())
    got, _ = client.communicate(timeout=PATIENCE)
    assert got == data


def test_signals_of_the_time_without_agent_are_passed_on_when_it_is_back(agent: Agent) -> None:
    client = agent.start("x")
    call = agent.accept()
    call.send(accepted(), output(1, b""))
    call.had(1)
    before = connections(client)
    agent.stop()
    call.close()
    until(lambda: not before & connections(client))
    client.send_signal(signal.SIGTERM)
    until(lambda: has_taken(client, signal.SIGTERM))
    agent.listen()
    call = agent.accept()
    call.send(accepted())
    assert call.expect(SIGNAL) == bytes([signal.SIGTERM])


def test_two_interrupts_end_it_where_no_agent_is(calm: Agent) -> None:
    client = calm.start("x")
    call = calm.accept()
    call.send(accepted(), output(1, b""))
    call.had(1)
    before = connections(client)
    calm.stop()
    call.close()
    until(lambda: not before & connections(client))
    client.send_signal(signal.SIGINT)
    wait_for(client, INTERRUPT)
    client.send_signal(signal.SIGINT)
    assert client.wait(PATIENCE) == 130


def test_an_agent_that_is_not_there_yet_is_waited_for(calm: Agent) -> None:
    calm.stop()
    calm.path.unlink()
    client = calm.start("x")
    until(lambda: is_waiting(client))
    calm.listen()
    calm.accept().send(accepted(), finished(2))
    assert end(client) == (2, b"", b"")


def test_outside_an_allocation_it_says_what_to_do(tmp_path: Path, program: Path) -> None:
    (tmp_path / "bin").mkdir()
    shutil.copy(program, tmp_path / "bin/srun")
    done = subprocess.run([tmp_path / "bin/srun", "hostname"], env={}, capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"lattice submit --ntasks=N --wait -- APP" in done.stderr


# Bytes that no agent sends


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff\xff\xff\x11",
        frame(99),
        frame(0),
        frame(OUTPUT, b"short"),
        frame(OUTPUT, struct.pack(">HQBI", 0, 1, 7, 0)),
        frame(OUTPUT, struct.pack(">HQBI", 9, 1, 1, 0)),
        frame(OUTPUT, struct.pack(">HQBI", 0, 0, 1, 0)),
        frame(OPEN, b"\1"),
        frame(OPEN, b"\1\0a\0b"),
        frame(OPEN, b"\4\0a"),
        frame(OPEN, b"\1\0" + b"a" * 5000),
        frame(READ, b""),
        frame(21, b"x"),
        room(1 << 63),
        frame(22, b""),
        frame(REFUSED, b""),
        accepted(0),
        frame(18, b"x" * 15),
        frame(18, struct.pack(">HQIBB", 5, 1, 0, 0, 0)),
    ],
    ids=str,
)
def test_what_is_no_frame_breaks_the_connection_and_at_last_the_client(calm: Agent, bad: bytes) -> None:
    client = calm.start("x")
    for _ in range(5):
        calm.accept().send(accepted(), bad)
    code, out, err = end(client)
    assert (code, out) == (1, b"")
    assert err.startswith(b"srun: error: the agent of this node sent what this srun does not understand (a frame ")


def test_no_bytes_crash_it(calm: Agent, tmp_path: Path) -> None:
    for seed in range(40):
        dice = random.Random(seed)
        calm.listen_anew()
        client = calm.start("x", stdin=subprocess.PIPE, cwd=tmp_path)
        for _ in range(5):
            if not calm.is_called(client):
                break
            call = calm.accept()
            kinds = [dice.choice((16, 17, 18, 19, 21, 24, dice.randrange(256))) for _ in range(dice.randrange(1, 8))]
            with contextlib.suppress(OSError):
                call.send(*(frame(kind, dice.randbytes(dice.choice((0, 1, 6, 8, 15, 16, 40)))) for kind in kinds), dice.randbytes(30))
            call.close()
        client.kill()
        assert client.wait(PATIENCE) >= 0 or client.returncode == -signal.SIGKILL, f"seed {seed}: {client.returncode}"


def test_a_call_has_no_more_memory_than_its_frames_need(agent: Agent) -> None:
    client = agent.start("x")
    call: Call = agent.accept()
    call.send(accepted(1), *(output(number, b"x" * 1000) for number in range(1, 60)))
    call.had(59)
    status = Path(f"/proc/{client.pid}/status").read_text(encoding="utf-8")
    (resident,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident < 2048, f"{resident} KiB"
