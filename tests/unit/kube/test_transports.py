"""What the transports do when a server dies in the middle: never a guess, never a write sent twice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from lattice.errors import Corrupt, Denied, LatticeError, NotFound, Rejected, Retry, Stale, UnknownOutcome
from lattice.kube.aiohttp import AiohttpCluster, connect
from lattice.kube.answers import warning_of
from lattice.kube.blocking import BlockingCluster
from lattice.kube.kubeconfig import ClusterConfig
from lattice.kube.resources import ALLOCATIONS, LEDGERS

Behaviour = Callable[[int, str], bytes | None]
"""Number of the request and its first line in; the whole answer, or None to cut the connection, out."""


def answer(status: str, body: str = "{}", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers])
    return f"{head}\r\n\r\n{body}".encode()


@contextlib.asynccontextmanager
async def server(behave: Behaviour) -> AsyncIterator[tuple[ClusterConfig, list[str]]]:
    """A server that does as told, and the first lines of what it got; each connection has a thread."""
    got: list[str] = []

    class Talk(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                while first := self.rfile.readline().decode().strip():
                    self._skip_rest()
                    got.append(first.split(" HTTP/")[0])
                    data = behave(len(got), got[-1])
                    if data is None:
                        return
                    self.wfile.write(data)

        def _skip_rest(self) -> None:
            length = 0
            while line := self.rfile.readline().decode().strip().lower():
                if line.startswith("content-length:"):
                    length = int(line.split(":")[1])
            self.rfile.read(length)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield ClusterConfig(server=f"http://127.0.0.1:{listener.server_address[1]}"), got
        finally:
            await asyncio.to_thread(listener.shutdown)
            thread.join()


@contextlib.asynccontextmanager
async def both(behave: Behaviour) -> AsyncIterator[tuple[dict[str, Any], list[str]]]:
    """The two transports on one server: name to a function that runs a verb on it."""
    async with server(behave) as (config, got), connect(config, user_agent="t", timeout_seconds=60) as cluster:

        async def no_wait(_: float) -> None:
            await asyncio.sleep(0)

        cluster._sleep = no_wait

        async def daemon(verb: str, *arguments: Any) -> Any:
            return await getattr(cluster, verb)(*arguments)

        async def one_shot(verb: str, *arguments: Any) -> Any:
            def run() -> Any:
                with BlockingCluster(config, timeout_seconds=60, sleep=lambda _: None) as blocking:
                    return getattr(blocking, verb)(*arguments)

            return await asyncio.to_thread(run)

        yield {"aiohttp": daemon, "blocking": one_shot}, got


TRANSPORTS = ["aiohttp", "blocking"]
WRITES = [
    pytest.param("create", (ALLOCATIONS, {"metadata": {"name": "a"}}, "ns"), id="create"),
    pytest.param("replace", (ALLOCATIONS, "a", {"metadata": {"name": "a"}}, "ns"), id="replace"),
    pytest.param("patch", (ALLOCATIONS, "a", {"spec": {}}, "ns"), id="patch"),
    pytest.param("delete", (ALLOCATIONS, "a", "ns"), id="delete"),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("verb", "arguments"), WRITES)
async def test_a_write_whose_connection_is_cut_is_of_unknown_outcome_and_sent_once(
    transport: str, verb: str, arguments: tuple[Any, ...]
) -> None:
    async with both(lambda number, line: None) as (do, got):
        with pytest.raises(UnknownOutcome, match="no answer came"):
            await do[transport](verb, *arguments)
        assert len(got) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_write_on_a_used_connection_that_is_cut_is_not_sent_twice(transport: str) -> None:
    async with server(lambda number, line: answer("200 OK") if line.startswith("GET") else None) as (config, got):
        if transport == "aiohttp":
            async with connect(config, user_agent="t") as cluster:
                await cluster.get(LEDGERS, "lattice")
                with pytest.raises(UnknownOutcome):
                    await cluster.replace(LEDGERS, "lattice", {}, subresource="status")
        else:
            await asyncio.to_thread(_get_then_replace, config)
        assert [line.split(" ")[0] for line in got] == ["GET", "PUT"]


def _get_then_replace(config: ClusterConfig) -> None:
    with BlockingCluster(config) as cluster:
        cluster.get(LEDGERS, "lattice")
        with pytest.raises(UnknownOutcome):
            cluster.replace(LEDGERS, "lattice", {}, subresource="status")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_read_whose_connection_is_cut_is_repeated(transport: str) -> None:
    async with both(lambda number, line: None if number < 3 else answer("200 OK", '{"a":1}')) as (do, got):
        assert await do[transport]("get", ALLOCATIONS, "a", "ns") == {"a": 1}
        assert len(got) >= 3


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_read_that_never_goes_through_is_retry(transport: str) -> None:
    async with both(lambda number, line: None) as (do, _):
        with pytest.raises(Retry, match="no answer"):
            await do[transport]("get", ALLOCATIONS, "a", "ns")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_write_that_is_told_to_wait_is_sent_again(transport: str) -> None:
    def behave(number: int, line: str) -> bytes:
        return answer("429 Too Many Requests", "{}", "Retry-After: 1") if number < 3 else answer("201 Created", '{"a":1}')

    async with both(behave) as (do, got):
        assert await do[transport]("create", ALLOCATIONS, {"metadata": {"name": "a"}}, "ns") == {"a": 1}
        assert len(got) == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("status", "body", "verb", "error"),
    [
        ("404 Not Found", '{"reason":"NotFound","message":"gone"}', "create", NotFound),
        ("409 Conflict", '{"reason":"Conflict"}', "patch", Stale),
        ("422 Unprocessable Entity", '{"reason":"Invalid"}', "patch", Rejected),
        ("403 Forbidden", '{"reason":"Forbidden"}', "patch", Denied),
        ("500 Internal Server Error", '{"reason":"InternalError"}', "patch", UnknownOutcome),
        ("504 Gateway Timeout", "no JSON", "patch", UnknownOutcome),
        ("500 Internal Server Error", '{"message":"etcdserver: mvcc: database space exceeded"}', "patch", Retry),
        ("422 Unprocessable Entity", '{"message":"paramKind kind `x` not yet synced to use for admission"}', "create", Retry),
        (
            "422 Unprocessable Entity",
            '{"message":"failed to configure policy: failed to find resource referenced by paramKind"}',
            "create",
            Retry,
        ),
        ("503 Service Unavailable", "", "patch", UnknownOutcome),
        ("500 Internal Server Error", "", "get", Retry),
        ("429 Too Many Requests", "", "patch", Retry),
        ("200 OK", "no JSON", "get", Corrupt),
    ],
)
async def test_each_status_is_the_error_that_says_what_to_do(
    transport: str, status: str, body: str, verb: str, error: type[LatticeError]
) -> None:
    arguments: tuple[Any, ...] = (ALLOCATIONS, {"metadata": {"name": "a"}}, "ns")
    if verb != "create":
        arguments = (ALLOCATIONS, "a", *([{}] if verb == "patch" else []), "ns")
    async with both(lambda number, line: answer(status, body)) as (do, _):
        with pytest.raises(error) as raised:
            await do[transport](verb, *arguments)
        assert type(raised.value) is error
        assert verb in raised.value.message


@pytest.mark.parametrize(("verb", "error"), [("get", Retry), ("patch", UnknownOutcome)])
async def test_a_server_that_never_answers_is_given_up(verb: str, error: type[LatticeError]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = ClusterConfig(server=f"http://127.0.0.1:{listener.getsockname()[1]}")
        async with connect(config, user_agent="t", timeout_seconds=0.05) as cluster:
            with pytest.raises(error):
                await _ask(cluster, verb)


def _ask(cluster: AiohttpCluster, verb: str) -> Awaitable[object]:
    return cluster.get(ALLOCATIONS, "a", "ns") if verb == "get" else cluster.patch(ALLOCATIONS, "a", {}, "ns")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("lattice.kube.blocking", ["aiohttp", "pydantic", "kubernetes", "asyncio", "prometheus_client"]),
        ("lattice.kube.aiohttp", ["pydantic", "kubernetes", "prometheus_client"]),
        ("lattice.daemon.metrics", ["aiohttp", "prometheus_client", "pydantic"]),
        ("lattice.daemon.queue", ["aiohttp", "msgspec", "pydantic"]),
    ],
)
def test_imports_stay_within_their_budget(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ('299 - "400 nodes are asked for"', "400 nodes are asked for"),
        ('299 - "tenant \\"physics\\" has no room"', 'tenant "physics" has no room'),
        ("299 no quotes", "299 no quotes"),
    ],
)
def test_a_warning_of_the_server_is_read_without_quotes_and_escapes(header: str, sentence: str) -> None:
    assert warning_of(header) == sentence


LISTED = '{"metadata":{"resourceVersion":"7"},"items":[{"of":"a"}]}'


def _by_path(number: int, line: str) -> bytes:
    return answer("200 OK", LISTED if line.endswith("allocations") else '{"one":1}')


def _ahead(config: ClusterConfig, *between: str) -> list[dict[str, Any]]:
    with BlockingCluster(config, timeout_seconds=60, sleep=lambda _: None) as cluster:
        cluster.ask_list(ALLOCATIONS, "ns")
        for name in between:
            assert cluster.get(ALLOCATIONS, name, "ns") == {"one": 1}
        return list(cluster.list(ALLOCATIONS, "ns").items)


async def test_a_list_that_was_asked_ahead_is_asked_once() -> None:
    async with server(_by_path) as (config, got):
        assert await asyncio.to_thread(_ahead, config) == [{"of": "a"}]
        assert len(got) == 1


async def test_another_verb_never_takes_the_answer_that_was_asked_ahead() -> None:
    async with server(_by_path) as (config, got):
        assert await asyncio.to_thread(_ahead, config, "a", "b") == [{"of": "a"}]
        async with asyncio.timeout(60):  # the connection of the first one is closed unread, and the server may come to read it last
            while len(got) < 4:  # noqa: ASYNC110 - a thread tells nobody
                await asyncio.sleep(0.01)
        assert [line.rpartition("/")[2] for line in got].count("allocations") == 2


async def test_a_list_asked_ahead_whose_connection_is_cut_is_asked_again() -> None:
    async with server(lambda number, line: None if number == 1 else _by_path(number, line)) as (config, got):
        assert await asyncio.to_thread(_ahead, config) == [{"of": "a"}]
        assert len(got) == 2


async def test_asking_ahead_of_a_server_that_is_not_there_leaves_the_error_to_the_list() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = ClusterConfig(server=f"http://127.0.0.1:{listener.getsockname()[1]}")
    with BlockingCluster(config, timeout_seconds=60, sleep=lambda _: None) as cluster:
        cluster.ask_list(ALLOCATIONS, "ns")
        with pytest.raises(Retry):
            cluster.list(ALLOCATIONS, "ns")
