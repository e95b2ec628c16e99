"""The outside of a program: log lines, endpoints, signals, exit codes, and the clock of tests."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from lattice.daemon import logs, metrics, process
from lattice.daemon.clock import ManualClock, SystemClock
from lattice.errors import Corrupt, LatticeError, Rejected, Stale

log = logging.getLogger("lattice.test")


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(format: str) -> str:  # noqa: A002
    stream = io.StringIO()
    logs.setup(format, "info", stream=stream)
    logs.event(log, "Placed", allocation="ml/train", nodes=4, message='two "words"', reason="")
    logs.event(log, "Unseen", logging.DEBUG, allocation="x")
    return stream.getvalue()


def test_a_text_line_has_time_level_logger_message_and_key_values() -> None:
    _, line = lines("text").split("Z ", 1)
    assert line == 'INFO lattice.test Placed allocation=ml/train nodes=4 message="two \\"words\\"" reason=""\n'


def test_a_json_line_has_the_same_keys() -> None:
    entry = json.loads(lines("json"))
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "lattice.test",
        "message": 'two "words"',
        "event": "Placed",
        "allocation": "ml/train",
        "nodes": 4,
        "reason": "",
    }


async def admit(caller: metrics.Caller) -> int:
    return {"Bearer right": 200, "": 401}.get(caller.authorization, 403)


async def ask(address: str, path: str, method: str = "GET", bearer: str = "") -> tuple[int, str]:
    host, port = metrics.split_address(address)
    reader, writer = await asyncio.open_connection(host, port)
    sent = f"authorization: Bearer {bearer}\r\n" if bearer else ""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{sent}\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split(" ")[1]), body


async def test_metrics_readiness_and_health_are_served() -> None:
    registry = CollectorRegistry()
    Counter("lattice_probe", "Probes.", registry=registry).inc()
    state = [(False, "waiting for the first list")]
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(metrics.serve(registry, "127.0.0.1:0", lambda: state[0], admit=admit, on_listen=listening.set_result))
        address = await listening
        assert await ask(address, "/readyz") == (503, "waiting for the first list\n")
        state[0] = (True, "leading")
        assert await ask(address, "/readyz?verbose") == (200, "leading\n")
        assert await ask(address, "/healthz") == (200, "ok\n")
        assert (await ask(address, "/metrics"))[0] == 401
        assert (await ask(address, "/metrics?x", bearer="wrong"))[0] == 403
        status, body = await ask(address, "/metrics", bearer="right")
        assert (status, "lattice_probe_total 1.0" in body) == (200, True)
        assert (await ask(address, "/other"))[0] == 404
        assert (await ask(address, "/metrics", "POST"))[0] == 405
        serving.cancel()


async def test_an_address_that_is_taken_or_wrong_is_rejected_and_none_serves_nothing() -> None:
    await metrics.serve(None, "", lambda: (True, ""), admit=admit)
    with pytest.raises(Rejected, match="no HOST:PORT"):
        await metrics.serve(None, "9101x", lambda: (True, ""), admit=admit)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        with pytest.raises(Rejected, match="cannot serve metrics on"):
            await metrics.serve(None, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: (True, ""), admit=admit)


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (ValueError("x"), 1), (Stale("lease lost"), 1), (Rejected("wrong"), 2), (Corrupt("not ours"), 3)],
    ids=lambda value: type(value).__name__ if value is None or isinstance(value, Exception) else str(value),
)
def test_the_exit_code_says_what_happened(error: Exception | None, code: int) -> None:
    async def failing() -> None:
        if error:
            raise error

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())

    assert process.run(main, "lattice-probe") == code


async def _cancelled_inside() -> None:
    """What leaks a cancellation: somebody else cancelled what is awaited."""
    inner = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


async def _done() -> None:
    pass


async def _exits() -> None:
    raise SystemExit(7)


@pytest.mark.parametrize(
    ("main", "code", "words"),
    [
        (_cancelled_inside, 1, ("Failed", "reason=Cancelled", "_cancelled_inside")),
        (_done, 0, ("Ended", "its main task is done")),
        (_exits, 7, ("Failed", "reason=SystemExit")),
    ],
    ids=["cancelled", "done", "exit"],
)
def test_the_last_line_says_why_it_ends_also_without_signal_and_error(main: Any, code: int, words: tuple[str, ...]) -> None:
    stream = io.StringIO()
    logs.setup("text", "info", stream=stream)
    with contextlib.suppress(SystemExit):
        assert process.run(main, "lattice-probe") == code
    last = stream.getvalue().split(" lattice.daemon.process ")[-1]
    assert all(word in last for word in words), last


@pytest.mark.parametrize("work", [_cancelled_inside, _done], ids=["cancelled", "done"])
def test_a_task_that_must_not_end_and_does_ends_its_process_with_its_name(work: Any) -> None:
    stream = io.StringIO()
    logs.setup("text", "info", stream=stream)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(process.endless(work()))
            group.create_task(process.endless(asyncio.sleep(60)))

    assert process.run(main, "lattice-probe") == 1
    assert f'reason=TaskEnded message="{work.__name__}' in stream.getvalue().splitlines()[-1]


_PROGRAM = """
import asyncio, sys
from lattice.daemon import logs, process
logs.setup("text", "info")
async def main():
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned", flush=True)
        if "stubborn" in sys.argv:
            await asyncio.sleep(60)
sys.exit(process.run(main, "lattice-probe"))
"""


@pytest.mark.parametrize(("argument", "signals", "code"), [("", 1, 0), ("stubborn", 2, 130)])
def test_the_first_signal_cancels_and_a_second_one_ends(argument: str, signals: int, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, argument], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stdout is not None
        assert "Started" in child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "cleaned\n"
        if signals == 2:
            child.send_signal(signal.SIGTERM)
        assert child.wait(20) == code
        assert ("Forced" if signals == 2 else "Stopped") in child.stderr.read().splitlines()[-1]


def test_the_root_of_the_tree_is_what_a_restart_may_cure() -> None:
    async def main() -> None:
        raise LatticeError("anything")

    assert process.run(main, "lattice-probe") == 1


async def test_the_clock_of_tests_wakes_each_sleeper_at_its_own_moment() -> None:
    clock = ManualClock(now=1000.0)
    woken: list[float] = []

    async def ticking() -> None:
        while True:
            await clock.sleep(2)
            woken.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        task = group.create_task(ticking())
        await clock.run_for(7)
        assert (woken, clock.monotonic(), clock.now()) == ([2.0, 4.0, 6.0], 7.0, 1007.0)
        clock.jump(-500)
        assert (clock.monotonic(), clock.now()) == (7.0, 507.0)
        task.cancel()
    assert clock.sleepers == 0


async def test_the_systems_clock_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() > before
    assert abs(clock.now() - time.time()) < 5


@pytest.mark.parametrize("port", ["65536", "²", "", "9" * 5000])
def test_an_address_whose_port_is_none_is_refused(port: str) -> None:
    with pytest.raises(Rejected, match="no HOST:PORT"):
        metrics.split_address(f"127.0.0.1:{port}")
