"""Holds the keeper's side of the conversation with a launch's PMIx host (`pmix/host.c`): bytes in and out, entries into the exchange.

The host serves the ranks by libpmix and decides nothing: a fence enters the exchange once all ranks of this node stand in it, data of a
rank on another node is fetched there, and what a rank says of itself (connected, finalized, aborted) is known here; no input or output.
Both sides send frames of `frames.py`, with types of their own. What the host sends is the user's, who may have put another program in its
place: it can end its own launch, and nothing else.
"""

from __future__ import annotations

import struct

from lattice_agent.standalone import frames
from lattice_agent.standalone.pmi.exchange import MAX_STORE_BYTES, LaunchFailure, NodeExchange
from lattice_agent.standalone.records import Record

JOB, FENCE_DATA, MODEX_DATA, MODEX_ASKED = 1, 2, 3, 4
"""To the host: the launch; the answer to a fence and to a request for data, in pieces; a request for the data of a rank of this node."""
READY, VARIABLES, CONNECTED, FINALIZED, ABORTED, FENCE, MODEX, MODEX_FOUND, SAID, FAILED, LOST = range(16, 27)
"""From the host: it serves; one rank's variables, its steps, its abort; a fence and its data; a request for the data of a rank elsewhere;
the data of one here; a line for people; why it ends; a rank whose connection has broken."""
PIECE_BYTES, MAX_FRAME_BYTES = 1 << 20, 2 << 20
MOST_FETCHES, MOST_TEXT, MOST_LINES = 4096, 1000, 100
SUCCESS, NOT_FOUND, OUT_OF_RESOURCE = 0, -46, -29
"""States of PMIx."""
MPICH_CHOICE, OPENMPI_HINT = "MPIR_CVAR_PMI_VERSION", "JSM_JSRUN_PORT"
_NUMBER, _TWO, _DATA = struct.Struct(">I"), struct.Struct(">II"), struct.Struct(">IiB")
_OWN = ("PMIX_", "OMPI_", "PRTE_")
"""The beginnings of variables that a host may set for ranks: it is the user's process, but what ranks find is to be his launch's."""


class PmixJob(Record):
    """The launch as its PMIx host is told of it; `place`: the directory for files of libpmix; `nodes`: the ranks of each node."""

    name: str
    user: int
    group: int
    place: str
    nodes: list[list[int]]
    node: int
    names: list[str]

    def encode(self) -> bytes:
        """Returns the payload of the frame JOB: texts, each with a NUL behind it."""
        texts = [self.name, str(self.user), str(self.group), self.place, str(sum(map(len, self.nodes))), str(self.node)]
        for name, ranks in zip(self.names, self.nodes, strict=True):
            texts += [name, ",".join(map(str, sorted(ranks)))]
        return b"".join(text.encode() + b"\0" for text in texts)


class PmixSession:
    """The conversation with one host; `out` collects the bytes for it, `said` lines for the launch's standard error."""

    def __init__(self, job: PmixJob, exchange: NodeExchange) -> None:
        self.out = bytearray(frames.encode(JOB, job.encode()))
        self.said: list[str] = []
        self.ready = False
        self.failed = ""
        """Why it serves nothing; empty: it may."""
        self.variables: dict[int, dict[str, str]] = {}
        self.connected: set[int] = set()
        self.finalized: set[int] = set()
        self.lost: set[int] = set()
        self._job, self._exchange, self._node = job, exchange, job.names[job.node]
        self._own = frozenset(job.nodes[job.node])
        self._decoder = frames.Decoder(MAX_FRAME_BYTES)
        self._fence: int | None = None
        self._pieces: dict[tuple[int, int], bytearray] = {}
        self._held_bytes = 0

    @property
    def has_news(self) -> bool:
        """Tells whether there is something for the host, or for people."""
        return bool(self.out or self.said)

    def variables_of(self, rank: int, *, pmi: bool) -> dict[str, str]:
        """Returns the variables by which a rank finds the host; beside PMI-1 and PMI-2 (`pmi`) MPICH is told to take those.

        MPICH 5 refuses to choose between PMI_SIZE and PMIX_NAMESPACE; OpenMPI 4.1 takes a rank outside Slurm for a world of its own without
        JSM_JSRUN_PORT.
        """
        return self.variables.get(rank, {}) | ({MPICH_CHOICE: "1"} if pmi else {}) | {OPENMPI_HINT: "1"}

    def take_bytes(self, data: bytes) -> None:
        """Takes bytes of the host; what is no frame of one ends the launch."""
        try:
            for frame in self._decoder.feed(data):
                self._take(frame.kind, frame.payload)
        except (frames.FrameError, struct.error, ValueError) as error:
            self._end("Garbage", f"the PMIx host on {self._node} sent what no host does: {error}")

    def note_end(self, how: str) -> None:
        """Notes that the host's process has ended while ranks run; `how` ends the sentence "the PMIx host …"."""
        why = f": {self.failed}" if self.failed else ""
        self._end("PmixHostDied", f"the PMIx host on {self._node}, which serves its ranks, {how}{why}")

    def answer_fence(self, data: bytes) -> None:
        """Lets the ranks of this node leave the fence with the data of all nodes."""
        number, self._fence = self._fence, None
        if number is not None:
            self._send_data(FENCE_DATA, number, SUCCESS, data)

    def answer_fetch(self, number: int, state: int, data: bytes) -> None:
        """Passes the data of a rank of another node on."""
        self._send_data(MODEX_DATA, number, state, data)

    def request_data(self, number: int, rank: int) -> None:
        """Asks for the data of a rank of this node, which `NodeExchange.answer_fetch` is told."""
        self.out += frames.encode(MODEX_ASKED, _TWO.pack(number, rank))

    def _take(self, kind: int, payload: bytes) -> None:
        """Does what one frame says; raises ValueError or struct.error for one that no host sends."""
        if kind in (CONNECTED, FINALIZED, LOST):
            {CONNECTED: self.connected, FINALIZED: self.finalized, LOST: self.lost}[kind].add(self._rank(_NUMBER.unpack(payload)[0]))
        elif kind == FENCE:
            self._take_fence(payload)
        elif kind == MODEX:
            number, rank = _TWO.unpack(payload)
            if not self._exchange.fetch(number, rank):
                self.answer_fetch(number, NOT_FOUND, b"")
        elif kind == MODEX_FOUND:
            number, state, more = _DATA.unpack_from(payload)
            whole = self._collect(MODEX_FOUND, number, more, payload)
            if whole is not None:
                self._exchange.answer_fetch(number, state, whole)
        elif kind == ABORTED:
            self._take_abort(payload)
        elif kind == VARIABLES:
            self._take_variables(payload)
        elif kind == READY:
            self.ready = self.variables.keys() == self._own
            if not self.ready:
                raise ValueError("it is ready without the variables of all ranks")
        elif kind == SAID:
            self.said += [_text(payload)] if len(self.said) < MOST_LINES else []
        elif kind == FAILED:
            self.failed = self.failed or _text(payload)
            if self.ready:  # it exits next, and ranks may be seen to end before it
                self.note_end("has ended")
        else:
            raise ValueError(f"a frame {kind}")

    def _take_variables(self, payload: bytes) -> None:
        """Keeps the variables of one rank."""
        rank = self._rank(_NUMBER.unpack_from(payload)[0])
        pairs = (text.partition("=") for text in payload[_NUMBER.size :].decode("utf-8", "surrogateescape").split("\0"))
        self.variables[rank] = {name: value for name, equals, value in pairs if equals and name.startswith(_OWN)}

    def _take_abort(self, payload: bytes) -> None:
        """Ends the launch for a rank that has called abort."""
        rank, state = _TWO.unpack_from(payload)
        code, message = state & 255, _text(payload[_TWO.size :])
        told = f" with exit code {code}" if code else ""
        said = f": {message}" if message not in ("", "N/A") else ""
        rank = self._rank(rank)
        self._exchange.fail(LaunchFailure(rank, self._node, "Aborted", f"rank {rank} on {self._node} called abort{told}{said}", code or 1))

    def _take_fence(self, payload: bytes) -> None:
        """Enters a fence with this node's data, once that is whole."""
        number, _, more = _DATA.unpack_from(payload)
        whole = self._collect(FENCE, number, more, payload)
        if whole is None:
            return
        if self._fence is None and self._exchange.join_pmix(whole):
            self._fence = number
        else:
            self._send_data(FENCE_DATA, number, OUT_OF_RESOURCE, b"")

    def _collect(self, kind: int, number: int, more: int, payload: bytes) -> bytes | None:
        """Adds a piece; returns the whole with the last one. Raises ValueError for more than the limit together."""
        piece = payload[_DATA.size :]
        self._held_bytes += len(piece)
        if self._held_bytes > MAX_STORE_BYTES or len(self._pieces) > MOST_FETCHES:
            raise ValueError(
                f"data of {self._held_bytes} bytes in {len(self._pieces)} answers; the limits are {MAX_STORE_BYTES}, {MOST_FETCHES}"
            )
        held = self._pieces.setdefault((kind, number), bytearray())
        held += piece
        if more:
            return None
        self._held_bytes -= len(held)
        return bytes(self._pieces.pop((kind, number)))

    def _send_data(self, kind: int, number: int, state: int, data: bytes) -> None:
        """Sends an answer in pieces."""
        for at in range(0, len(data) or 1, PIECE_BYTES):
            more = at + PIECE_BYTES < len(data)
            self.out += frames.encode(kind, _DATA.pack(number, state, more) + data[at : at + PIECE_BYTES])

    def _rank(self, number: int) -> int:
        """Returns a rank of this node; raises ValueError for another."""
        if number not in self._own:
            raise ValueError(f"rank {number} is none of this node")
        return number

    def _end(self, reason: str, sentence: str) -> None:
        """Ends the launch."""
        self._exchange.fail(LaunchFailure(-1, self._node, reason, sentence))


def _text(payload: bytes) -> str:
    """Returns one line of text that a terminal can show."""
    text = payload[:MOST_TEXT].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else " " for one in text).strip()
