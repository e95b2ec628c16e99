"""An open answer of the gateway: whatever it is, no connection outlives it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lattice.cli.stream import open_stream
from lattice.errors import Denied, LatticeError, Retry
from lattice.kube.kubeconfig import ClusterConfig

REFUSAL = b'{"message":"no","reason":"ListForbidden"}'
DENIED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL)
HANGS_UP_LATE_SECONDS = 60


@contextmanager
def gateway(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """The address of a gateway that answers once, and what it hears after that: nothing, as soon as its caller has hung up."""
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(answer)
            connection.settimeout(HANGS_UP_LATE_SECONDS)
            heard.append(connection.recv(1))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
        server.join()


@pytest.mark.parametrize(("answer", "error"), [(DENIED, Denied), (b"no HTTP\r\n", Retry)], ids=["refusal", "no answer"])
def test_an_answer_that_is_an_error_leaves_no_connection(answer: bytes, error: type[LatticeError]) -> None:
    # What was raised holds on to its frames, so that nothing of theirs is closed by being forgotten.
    with gateway(answer) as (url, heard), pytest.raises(error) as raised:
        open_stream(ClusterConfig(server=url), url, "", "/v1/status", None, 60)
    assert (heard, raised.type) == ([b""], error)


def test_a_stream_closes_its_connection_and_its_lines_come_as_they_are() -> None:
    with gateway(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na\nb\n") as (url, heard):
        stream = open_stream(ClusterConfig(server=url), url, "", "/v1/status", None, 60)
        assert list(stream.lines()) == [b"a\n", b"b\n"]
        stream.close()
    assert heard == [b""]
