"""One exchange of HTTP/1.1: bodies of every form arrive whole, and what breaks off is never taken for an end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.cli.plain_http import BadAnswerError, PlainAnswer, exchange


@contextmanager
def answered(answer: bytes) -> Iterator[PlainAnswer]:
    """The answer of a server that says this and closes."""
    with asked(answer) as (found, _):
        yield found


@contextmanager
def asked(answer: bytes, body: bytes | None = None, **headers: str) -> Iterator[tuple[PlainAnswer, list[bytes]]]:
    ours, theirs = socket.socketpair()
    heard: list[bytes] = []

    def serve() -> None:
        with theirs, suppress(OSError):  # who is refused closes early
            heard.append(theirs.recv(65_536))
            theirs.sendall(answer)

    server = threading.Thread(target=serve)
    server.start()
    try:
        ours.settimeout(60)
        yield exchange(ours, "GET" if body is None else "POST", "gateway:8443", "/v1/status", headers, body), heard
    finally:
        ours.close()
        server.join()


def chunked(parts: list[bytes]) -> bytes:
    body = b"".join(b"%x;x=1\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\nTrailer: 1\r\n\r\n"


@given(parts=st.lists(st.binary(max_size=200), max_size=6))
@settings(deadline=None, max_examples=40)
def test_a_body_arrives_whole_in_each_form(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    sized = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(whole), whole)
    for answer in (chunked(parts), sized, b"HTTP/1.0 200 OK\r\n\r\n" + whole):
        with answered(answer) as found:
            assert (found.status, found.body.read()) == (200, whole)


def test_lines_come_as_they_are_and_the_head_is_read() -> None:
    with answered(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\na\nb\n") as found:
        assert (found.status, found.headers["retry-after"]) == (429, "7")
        assert [found.body.readline() for _ in range(3)] == [b"a\n", b"b\n", b""]


def test_the_request_says_where_it_goes_what_it_brings_and_that_it_is_the_only_one() -> None:
    with asked(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"{}", Accept="application/json") as (_, heard):
        head, _, body = heard[0].partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.splitlines() == [
        b"POST /v1/status HTTP/1.1", b"Host: gateway:8443", b"Accept-Encoding: identity", b"Connection: close",
        b"Accept: application/json", b"Content-Length: 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"B" * 70_000,
    ],
    ids=["nothing", "another protocol", "no end of the head", "no code", "no length", "too long a line"],
)  # fmt: skip
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(BadAnswerError), answered(answer):
        pass


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 9\r\n\r\nshort", b"Transfer-Encoding: chunked\r\n\r\n5\r\nsho", b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", b"Transfer-Encoding: chunked\r\n\r\nq\r\n"],
    ids=["length", "chunk", "no last chunk", "no number"],
)  # fmt: skip
def test_an_answer_that_breaks_off_is_an_error_and_no_end(body: bytes) -> None:
    with answered(b"HTTP/1.1 200 OK\r\n" + body) as found, pytest.raises(BadAnswerError):
        found.body.read()


def test_a_header_cannot_bring_another_one() -> None:
    with pytest.raises(BadAnswerError), asked(b"", None, Authorization="a\r\nX: y"):
        pass
