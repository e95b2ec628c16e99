"""Encodes and decodes the binary frames of launches: between `srun`, agents and keepers; no I/O.

A frame is its payload's length (four bytes, big endian), its type (one byte), and the payload, at most 16 MiB. It uses the standard library
alone, for keepers. The table of the types: docs/explanation/formats.md (launch frames 1).
"""

from __future__ import annotations

import struct

from lattice_agent.standalone.records import Record

HEAD = struct.Struct(">IB")
MAX_PAYLOAD = 16 << 20
INPUT_WINDOW = 64 << 10
"""A ROOM of n says that input has been taken up to n − INPUT_WINDOW: a client keeps what is beyond, and sends it again after a break."""
OUTPUT_BYTES = 64 << 10
"""Most bytes of output in one frame."""

LAUNCH, INPUT, SIGNAL, HAD, OPENED, CONTENT = 1, 2, 3, 4, 5, 6
"""From a client to an agent; INPUT, SIGNAL and HAD also from an agent to a keeper."""
ACCEPTED, OUTPUT, ENDED, SAY, OPEN, ROOM, FINISHED, REFUSED, READ = 16, 17, 18, 19, 20, 21, 22, 23, 24
"""From an agent to a client; OUTPUT, ENDED and ROOM also from a keeper to an agent."""
EXCHANGE, KEEPER_SAY, DONE, EXCHANGED, END, STATE, GO, STARTED = 32, 33, 34, 35, 36, 37, 38, 39
"""Between an agent and a keeper: EXCHANGED, END and GO go to the keeper, the others come from it, STATE first after each connect."""
CLOSED, HANGUP = 49, 50
"""Between agents: all of the launch is removed on the node (CLOSED, with its keeper's note), the client's process has ended (HANGUP)."""

REQUEST_ID, ARGUMENT, VARIABLE, DIRECTORY, UMASK, LIMIT, STDIN, RESUMED, STEP = 1, 2, 3, 4, 5, 6, 7, 8, 9
"""The tags of the fields of a LAUNCH."""
STDOUT, STDERR = 1, 2
REQUEST_ID_BYTES = 16
MOST_FIELDS = 1 << 18
"""Fields of a LAUNCH: more arguments and variables than the kernel passes on to a program with the usual limit of its stack."""

_FIELD = struct.Struct(">BI")
_INPUT = struct.Struct(">Q")
_HAD = struct.Struct(">HQ")
_ACCEPTED = struct.Struct(">IH")
_OUTPUT = struct.Struct(">HQBI")
_ENDED = struct.Struct(">HQIBB")
_OPEN = struct.Struct(">BB")
_UMASK = struct.Struct(">I")
_OPENED = struct.Struct(">BB")


class FrameError(ValueError):
    """Raised for bytes that are no frame, or a frame whose payload has another form than its type; the text says which."""


class Frame(Record):
    """One frame: its type and its payload."""

    kind: int
    payload: bytes


class Decoder:
    """Cuts a stream of bytes, however it is split, into frames; keeps the beginning of an incomplete one."""

    def __init__(self, most: int = MAX_PAYLOAD) -> None:
        """Refuses payloads above `most` bytes."""
        self._most, self._buffer = most, bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that are complete with this data; raises FrameError for a payload above the limit, by its length alone."""
        self._buffer += data
        found, at = list[Frame](), 0
        while len(self._buffer) - at >= HEAD.size:
            length, kind = HEAD.unpack_from(self._buffer, at)
            if length > self._most:
                raise FrameError(f"a frame of {length} bytes is above the limit of {self._most}")
            begin = at + HEAD.size
            if len(self._buffer) < begin + length:
                break
            found.append(Frame(kind, bytes(self._buffer[begin : begin + length])))
            at = begin + length
        del self._buffer[:at]
        return found

    def rest(self) -> bytes:
        """Returns the bytes of an incomplete frame, which are kept no longer."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


def encode(kind: int, payload: bytes = b"") -> bytes:
    """Returns the bytes of one frame; raises FrameError for a payload above 16 MiB."""
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a frame of {len(payload)} bytes is above the limit of {MAX_PAYLOAD}")
    return HEAD.pack(len(payload), kind) + payload


class LaunchRequest(Record):
    """The payload of a LAUNCH: what a client asks for, with everything that its process has and a launch inherits."""

    request_id: bytes
    argv: tuple[bytes, ...]
    variables: tuple[bytes, ...] = ()
    """NAME=VALUE each, as the client has them."""
    directory: bytes = b"/"
    umask: int = 0o022
    limits: tuple[bytes, ...] = ()
    """NAME=VALUE each: soft limits that the client's tasks inherit."""
    has_input: bool = False
    """Whether standard input is a stream; False: it is closed or /dev/null."""
    resumed: tuple[tuple[int, int], ...] = ()
    """Of a request that was made before: by node index, the number of the last frame that the client has written out."""
    step: int | None = None
    """The step's number that an agent has told this client before; None: none has."""


def encode_launch(request: LaunchRequest) -> bytes:
    """Returns the payload of a LAUNCH."""
    fields = [(REQUEST_ID, request.request_id), *((ARGUMENT, word) for word in request.argv)]
    fields += [(VARIABLE, text) for text in request.variables]
    fields += [(DIRECTORY, request.directory), (UMASK, _UMASK.pack(request.umask)), *((LIMIT, text) for text in request.limits)]
    fields += [(STDIN, bytes([request.has_input])), *((RESUMED, _HAD.pack(*had)) for had in request.resumed)]
    fields += [] if request.step is None else [(STEP, _UMASK.pack(request.step))]
    return b"".join(_FIELD.pack(tag, len(value)) + value for tag, value in fields)


def decode_launch(payload: bytes) -> LaunchRequest:
    """Returns the request of a LAUNCH's payload; passes over fields of unknown tags.

    Raises FrameError for a field that is cut off, malformed or stands twice, for too many of them, and where request id or arguments are
    missing.
    """
    several: dict[int, list[bytes]] = {ARGUMENT: [], VARIABLE: [], LIMIT: [], RESUMED: []}
    single: dict[int, bytes] = {}
    at = count = 0
    while at < len(payload):
        if (count := count + 1) > MOST_FIELDS:
            raise FrameError(f"there are more than {MOST_FIELDS} arguments and variables, which is the limit: put them into a file")
        tag, length = _unpacked(_FIELD, payload, at)
        begin, at = at + _FIELD.size, at + _FIELD.size + length
        if at > len(payload):
            raise FrameError(f"field {tag} is cut off: {len(payload) - begin} of {length} bytes")
        if tag in several:
            several[tag].append(payload[begin:at])
        elif tag in single:
            raise FrameError(f"field {tag} stands twice")
        else:
            single[tag] = payload[begin:at]
    request_id, directory = single.get(REQUEST_ID, b""), single.get(DIRECTORY, b"/")
    if len(request_id) != REQUEST_ID_BYTES:
        raise FrameError(f"the request id has {len(request_id)} bytes, not {REQUEST_ID_BYTES}")
    if not several[ARGUMENT]:
        raise FrameError("there are no arguments")
    if any(b"\0" in text for text in (*several[ARGUMENT], *several[VARIABLE], *several[LIMIT], directory)):
        raise FrameError("a text contains a NUL character")
    (umask,) = _unpacked(_UMASK, single.get(UMASK, _UMASK.pack(0o022)))
    resumed = tuple((index, number) for index, number in (_unpacked(_HAD, text) for text in several[RESUMED]))
    return LaunchRequest(
        request_id, tuple(several[ARGUMENT]), tuple(several[VARIABLE]), directory, umask & 0o777, tuple(several[LIMIT]),
        single.get(STDIN, b"\0") == b"\1", resumed, _unpacked(_UMASK, single[STEP])[0] if STEP in single else None,
    )  # fmt: skip


def encode_input(offset: int, data: bytes) -> bytes:
    """Returns the payload of an INPUT: bytes of standard input from this offset on; empty bytes: the input ends there."""
    return _INPUT.pack(offset) + data


def decode_input(payload: bytes) -> tuple[int, bytes]:
    """Returns offset and bytes of an INPUT; raises FrameError."""
    (offset,) = _unpacked(_INPUT, payload)
    return offset, payload[_INPUT.size :]


def encode_signal(number: int) -> bytes:
    """Returns the payload of a SIGNAL."""
    return bytes([number])


def decode_signal(payload: bytes) -> int:
    """Returns the signal's number; raises FrameError for one that is none."""
    if len(payload) != 1 or not 1 <= payload[0] <= 64:
        raise FrameError(f"no signal: {payload[:8]!r}")
    return payload[0]


def encode_had(index: int, number: int) -> bytes:
    """Returns the payload of a HAD: of the node with this index, the number of the last frame that needs not be kept any more."""
    return _HAD.pack(index, number)


def decode_had(payload: bytes) -> tuple[int, int]:
    """Returns node index and frame number of a HAD; raises FrameError."""
    index, number = _unpacked(_HAD, payload, exact=True)
    return index, number


def encode_accepted(step: int, nodes: int, interrupts: int = 0) -> bytes:
    """Returns the payload of an ACCEPTED: the step's number, and how many nodes it has.

    `interrupts` 1: one Ctrl-C is passed on at once; 2: it ends the launch; 0: two within a second do.
    """
    return _ACCEPTED.pack(step, nodes) + (bytes([interrupts]) if interrupts else b"")


def decode_accepted(payload: bytes) -> tuple[int, int]:
    """Returns step number and nodes of an ACCEPTED; raises FrameError."""
    step, nodes = _unpacked(_ACCEPTED, payload)
    return step, nodes


class Output(Record):
    """The payload of an OUTPUT: bytes that a rank has written to a stream (1 or 2); `number` counts the frames of its node from 1."""

    index: int
    number: int
    stream: int
    rank: int
    data: bytes


def encode_output(output: Output) -> bytes:
    """Returns the payload of an OUTPUT."""
    return _OUTPUT.pack(output.index, output.number, output.stream, output.rank) + output.data


def decode_output(payload: bytes) -> Output:
    """Returns the content of an OUTPUT; raises FrameError."""
    index, number, stream, rank = _unpacked(_OUTPUT, payload)
    if stream not in (STDOUT, STDERR):
        raise FrameError(f"no stream: {stream}")
    return Output(index, number, stream, rank, payload[_OUTPUT.size :])


class RankEnded(Record):
    """The payload of an ENDED: a rank's exit code, or 128 + n and the signal n; `number` counts the frames of its node from 1."""

    index: int
    number: int
    rank: int
    code: int
    signal: int


def encode_ended(ended: RankEnded) -> bytes:
    """Returns the payload of an ENDED."""
    return _ENDED.pack(ended.index, ended.number, ended.rank, ended.code, ended.signal)


def decode_ended(payload: bytes) -> RankEnded:
    """Returns the content of an ENDED; raises FrameError."""
    return RankEnded(*_unpacked(_ENDED, payload, exact=True))


def encode_open(stream: int, path: bytes, *, append: bool) -> bytes:
    """Returns the payload of an OPEN: the client writes this stream into that file from now on."""
    return _OPEN.pack(stream, append) + path


def decode_open(payload: bytes) -> tuple[int, bool, bytes]:
    """Returns stream, whether to append, and path of an OPEN; raises FrameError."""
    stream, append = _unpacked(_OPEN, payload)
    return stream, bool(append), payload[_OPEN.size :]


def decode_opened(payload: bytes) -> tuple[int, int]:
    """Returns stream and errno (0: it is open) of an OPENED; raises FrameError."""
    stream, error = _unpacked(_OPENED, payload, exact=True)
    return stream, error


def encode_room(offset: int) -> bytes:
    """Returns the payload of a ROOM: input may be sent up to this offset."""
    return _INPUT.pack(offset)


def decode_room(payload: bytes) -> int:
    """Returns the offset of a ROOM; raises FrameError."""
    (offset,) = _unpacked(_INPUT, payload, exact=True)
    return int(offset)


def encode_refused(code: int, sentence: str) -> bytes:
    """Returns the payload of a REFUSED, or with an empty sentence of a FINISHED: the exit code, and why."""
    return bytes([code & 0xFF]) + sentence.encode(errors="replace")


def decode_refused(payload: bytes) -> tuple[int, str]:
    """Returns exit code and sentence of a REFUSED or FINISHED; raises FrameError."""
    if not payload:
        raise FrameError("an end without an exit code")
    return payload[0], payload[1:].decode(errors="replace")


def encode_numbered(number: int, data: bytes = b"") -> bytes:
    """Returns the payload of an EXCHANGE or a DONE of a keeper: the frame's number, and its content."""
    return _INPUT.pack(number) + data


def decode_numbered(payload: bytes) -> tuple[int, bytes]:
    """Returns frame number and content of an EXCHANGE or a DONE; raises FrameError."""
    return decode_input(payload)


def _unpacked(form: struct.Struct, payload: bytes, at: int = 0, *, exact: bool = False) -> tuple[int, ...]:
    """Returns the numbers that the payload has at this place; raises FrameError where it is too short, with `exact` also where too long."""
    if len(payload) - at < form.size or (exact and len(payload) != form.size):
        raise FrameError(f"{len(payload) - at} bytes where {form.size} are needed")
    return form.unpack_from(payload, at)
