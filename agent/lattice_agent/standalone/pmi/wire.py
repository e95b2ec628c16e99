"""Reads and writes the bytes of PMI-1 and PMI-2: bytes in, messages out and back, without input or output.

Every conversation begins with PMI-1 lines, `cmd=init pmi_version=1 pmi_subversion=1` and a line end. A line that asks for version 2 is the
last one: after it come PMI-2 frames, six ASCII bytes of decimal length, padded with blanks, and `cmd=NAME;key=value;…`, where a semicolon
inside a value is doubled.
"""

from __future__ import annotations

from collections.abc import Iterable

HEADER_BYTES = 6
MAX_LINE_BYTES = 32 << 10
MAX_FRAME_BYTES = 128 << 10
MAX_SPAWN_BYTES = 128 << 10
"""The lines of one `mcmd=spawn … endcmd` together."""
SHOWN_BYTES = 60

_TO_THE_END = {b"put": b" value=", b"abort": b" message="}
"""The last field of a line, by command, whose value may have blanks."""


class MalformedMessage(ValueError):
    """Tells what a rank sent that is no PMI message, or which limit it is above."""


class Message:
    """One request of a rank, or one reply; `framed` tells a PMI-2 frame from a PMI-1 line. Of a key that comes twice the first counts."""

    __slots__ = ("command", "fields", "framed")

    def __init__(self, command: bytes, fields: dict[bytes, bytes], *, framed: bool = False) -> None:
        self.command, self.fields, self.framed = command, fields, framed

    def value(self, key: bytes) -> bytes:
        """Returns the value of a field; empty where it is absent."""
        return self.fields.get(key, b"")


class MessageDecoder:
    """Takes the bytes of one rank as they come, in any pieces, and returns whole messages."""

    def __init__(self) -> None:
        self.malformed: MalformedMessage | None = None
        """The reason that nothing more can be read."""
        self._buffer = bytearray()
        self._framed = False
        self._spawn: Message | None = None
        self._spawn_bytes = 0

    @property
    def partial(self) -> bool:
        """Returns whether a message has begun that is not whole."""
        return bool(self._buffer) or self._spawn is not None

    def feed(self, data: bytes) -> list[Message]:
        """Returns the messages that these bytes complete, up to what is none: that is told by `malformed`."""
        found: list[Message] = []
        if self.malformed:
            return found
        self._buffer += data
        try:
            while (message := self._next_frame() if self._framed else self._next_line()) is not None:
                if message.command:
                    found.append(message)
        except MalformedMessage as error:
            self.malformed = error
            self._buffer.clear()
        return found

    def _next_line(self) -> Message | None:
        """Returns the next line's message, without a command where there is nothing to answer; None: no whole line is there."""
        end = self._buffer.find(b"\n", 0, MAX_LINE_BYTES)
        if end < 0:
            if len(self._buffer) >= MAX_LINE_BYTES:
                raise MalformedMessage(f"a PMI line of {MAX_LINE_BYTES} bytes or more; the limit is {MAX_LINE_BYTES - 1}")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        if self._spawn is not None:
            return self._next_of_spawn(self._spawn, line)
        message = parse_line(line)
        if line.startswith(b"mcmd="):
            self._spawn, self._spawn_bytes = message, len(line)
            return Message(b"", {})
        self._framed = message.command == b"init" and message.value(b"pmi_version") == b"2"
        return message

    def _next_of_spawn(self, begun: Message, line: bytes) -> Message:
        """Adds one line to a request of several; returns the request with `endcmd`, else a message without a command."""
        if line.strip() == b"endcmd":
            self._spawn = None
            return begun
        self._spawn_bytes += len(line) + 1
        if self._spawn_bytes > MAX_SPAWN_BYTES:
            raise MalformedMessage(f"a PMI request of {self._spawn_bytes} bytes in lines; the limit is {MAX_SPAWN_BYTES}")
        key, _, value = line.partition(b"=")
        begun.fields.setdefault(key, value)
        return Message(b"", {})

    def _next_frame(self) -> Message | None:
        """Returns the next frame's message; None: no whole frame is there."""
        if len(self._buffer) < HEADER_BYTES:
            return None
        header = bytes(self._buffer[:HEADER_BYTES])
        digits = header.strip(b" \0")
        if not digits.isdigit():
            raise MalformedMessage(f"a PMI frame begins with {_shown(header)}, where its length should be")
        length = int(digits)
        if length > MAX_FRAME_BYTES:
            raise MalformedMessage(f"a PMI frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
        if len(self._buffer) < HEADER_BYTES + length:
            return None
        body = bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + length])
        del self._buffer[: HEADER_BYTES + length]
        return parse_frame(body)


def parse_line(line: bytes) -> Message:
    """Returns the message of a PMI-1 line without its end; words without `=` are passed over. Raises MalformedMessage."""
    first, _, rest = line.partition(b" ")
    name, _, command = first.partition(b"=")
    if name not in (b"cmd", b"mcmd") or not command:
        raise MalformedMessage(f"{_shown(line)} is no PMI message")
    last = _TO_THE_END.get(command, b"")
    words, found, tail = (b" " + rest).partition(last) if last else (rest, b"", b"")
    fields: dict[bytes, bytes] = {}
    for word in words.split(b" "):
        key, equals, value = word.partition(b"=")
        if equals:
            fields.setdefault(key, value)
    if found:
        fields.setdefault(last.strip(b" ="), tail)
    return Message(command, fields)


def parse_frame(body: bytes) -> Message:
    """Returns the message of a PMI-2 frame without its header; raises MalformedMessage.

    Passed over are bytes after the last semicolon or after a NUL behind one, which MPICH 4.0.2 adds, and pieces without `=`.
    """
    junk = body.find(b";\0")
    body = body[: junk + 1] if junk >= 0 else body[: body.rfind(b";") + 1]
    fields: dict[bytes, bytes] = {}
    for piece in _split_pieces(body):
        key, equals, value = piece.partition(b"=")
        if equals:
            fields.setdefault(key, value)
    command = fields.pop(b"cmd", b"")
    if not command:
        raise MalformedMessage(f"{_shown(body)} is no PMI message")
    return Message(command, fields, framed=True)


def _split_pieces(body: bytes) -> list[bytes]:
    """Returns the pieces of a frame between single semicolons, doubled ones made one."""
    if b";;" not in body:
        return body.split(b";")
    pieces, piece, start = list[bytes](), b"", 0
    while (end := body.find(b";", start)) >= 0:
        piece += body[start:end]
        if body[end + 1 : end + 2] == b";":
            piece, start = piece + b";", end + 2
            continue
        pieces.append(piece)
        piece, start = b"", end + 1
    return [*pieces, piece + body[start:]]


def encode(message: Message) -> bytes:
    """Returns the bytes of a message: a line or a frame, its fields in order."""
    return encode_frame(message.command, message.fields.items()) if message.framed else encode_line(message.command, message.fields.items())


def encode_line(command: bytes, fields: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Returns a PMI-1 line; raises ValueError for a line end in it."""
    line = b" ".join((b"cmd=" + command, *(key + b"=" + value for key, value in fields)))
    if b"\n" in line:
        raise ValueError("a line end in a PMI line")
    return line + b"\n"


def encode_frame(command: bytes, fields: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Returns a PMI-2 frame, semicolons in values doubled; raises ValueError where it is longer than its header can say."""
    pairs = ((b"cmd", command), *fields)
    body = b"".join(key + b"=" + value.replace(b";", b";;") + b";" for key, value in pairs)
    if len(body) > 999_999:
        raise ValueError(f"a PMI frame of {len(body)} bytes")
    return b"%6d" % len(body) + body


def _shown(data: bytes) -> str:
    """Returns the first bytes as text that a terminal can show."""
    return repr(data[:SHOWN_BYTES])[1:] + ("…" if len(data) > SHOWN_BYTES else "")
