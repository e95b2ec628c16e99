"""Exchanges one HTTP/1.1 request over an open socket, as far as an answer of the gateway needs.

Python's own client loads the parsers of e-mail, which takes longer than the answer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from lattice.units import is_digits

if TYPE_CHECKING:
    from socket import socket

LONGEST_LINE: Final = 65_536
MOST_HEADERS: Final = 100


class BadAnswerError(OSError):
    """Raised when the answer is no HTTP, or ended too early."""


class PlainAnswer(NamedTuple):
    """The head of an answer, its headers by names in lower case, and its body, read as it arrives."""

    status: int
    headers: Mapping[str, str]
    body: BinaryIO


def exchange(connection: socket, method: str, host: str, target: str, headers: Mapping[str, str], body: bytes | None) -> PlainAnswer:
    """Sends a request with `Connection: close` and reads the head of the answer, whatever its status; raises OSError where the connection
    fails, the answer is no HTTP, or a header holds a line end.
    """
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Accept-Encoding: identity", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise BadAnswerError("a header holds the end of a line")
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
    stream = connection.makefile("rb")
    try:
        return _read_answer(stream)
    except OSError:
        stream.close()  # as long as it is open, closing the connection does nothing
        raise


def _read_answer(stream: BinaryIO) -> PlainAnswer:
    """Returns status and headers of an answer, with its body yet to read; interim answers are skipped.

    Raises BadAnswerError where it is no HTTP.
    """
    status, received = _read_head(stream)
    while 100 <= status < 200:
        status, received = _read_head(stream)
    chunked = received.get("transfer-encoding", "").lower() == "chunked"
    length = received.get("content-length", "")
    if not chunked and length and not is_digits(length):
        raise BadAnswerError(f"the length of the answer is {length!r}")
    left = None if chunked or not length else int(length)
    return PlainAnswer(status, received, io.BufferedReader(_AnswerBody(stream, chunked=chunked, left=left), LONGEST_LINE))


def _read_head(stream: BinaryIO) -> tuple[int, dict[str, str]]:
    """Returns the status and the headers, names in lower case, of one answer.

    Raises BadAnswerError where these do not parse or are too many.
    """
    version, _, rest = _read_line(stream).partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not is_digits(code):
        raise BadAnswerError("the answer does not begin as one of HTTP does")
    headers: dict[str, str] = {}
    while line := _read_line(stream):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
        if len(headers) > MOST_HEADERS:
            raise BadAnswerError(f"the answer has more than {MOST_HEADERS} headers")
    return int(code), headers


def _read_line(stream: BinaryIO) -> str:
    """Returns one line without its end. Raises BadAnswerError where it is too long or the connection ended within it."""
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise BadAnswerError("the connection ended within the head of an answer")
    return line.decode("latin-1").rstrip("\r\n")


class _AnswerBody(io.RawIOBase):
    """The body of an answer, as a stream; raises where the connection ends before it does."""

    def __init__(self, stream: BinaryIO, *, chunked: bool, left: int | None) -> None:
        self._stream = stream
        self._chunked = chunked
        self._left = 0 if chunked else left
        self._ended = False

    def readable(self) -> bool:
        """Returns True, as a stream that is read must."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Reads the bytes that have arrived, waiting for the first of them; returns how many, 0 at the end.

        Raises BadAnswerError where the connection ends within the answer.
        """
        if self._chunked and not self._left and not self._ended:
            self._begin_chunk()
        if self._ended or self._left == 0:
            return 0
        view = memoryview(buffer) if self._left is None else memoryview(buffer)[: self._left]
        count = self._stream.readinto1(view)  # type: ignore[attr-defined]
        if not count and self._left is not None:
            raise BadAnswerError("the connection ended within an answer")
        if self._left is not None:
            self._left -= count
            if self._chunked and not self._left:
                _read_line(self._stream)
        return int(count)

    def close(self) -> None:
        """Closes the stream of the answer, and so the socket where nothing else holds it."""
        self._stream.close()
        super().close()

    def _begin_chunk(self) -> None:
        """Reads the length of the next chunk; the last one ends the body, with its trailers ignored.

        Raises BadAnswerError where the length does not parse.
        """
        size = _read_line(self._stream).partition(";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError as error:
            raise BadAnswerError(f"the length of a chunk is {size!r}") from error
        if not self._left:
            self._ended = True
            while _read_line(self._stream):
                pass  # trailers say nothing
