"""Holds one rank's PMI conversation: its requests in, replies and entries into the node's exchange out, without input or output."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from lattice_agent.standalone.pmi import mapping
from lattice_agent.standalone.pmi.exchange import FENCE, MAX_KEY_BYTES, MAX_VALUE_BYTES, RING, LaunchFailure, NodeExchange, RankAnswer
from lattice_agent.standalone.pmi.wire import MalformedMessage, Message, MessageDecoder, encode_frame, encode_line
from lattice_agent.standalone.records import Record

NAME_BYTES, KEY_BYTES = 256, 64
"""The limits that PMI-1 tells, of the name of the launch and of keys (longer keys are taken too, as Hydra does)."""
PMI2_FAIL, PMI2_INVALID = 14, 2
"""Results of PMI-2: any other error, and an argument that cannot be."""
HELD_MESSAGES, UNREAD_BYTES = 64, 256 << 10
"""Requests of one rank that wait behind one that is not answered, and replies that it has not read; with more its bytes are not read."""

BEFORE, INITIALIZED, FINALIZED, CLOSED = "before init", "initialized", "finalized", "closed"
Fields = Iterable[tuple[bytes, bytes]]


class PmiJob(Record):
    """The facts of a launch that its ranks ask for."""

    identity: bytes
    size: int
    mapping: bytes | None
    largest_value: int = MAX_VALUE_BYTES

    def attribute(self, key: bytes) -> bytes | None:
        """Returns an attribute of the job."""
        match key:
            case mapping.KEY:
                return self.mapping
            case b"universeSize":
                return b"%d" % self.size
        return None


class RankSession:
    """One rank's conversation; `out` collects the bytes for it, `said` lines for the launch's standard error."""

    def __init__(self, rank: int, job: PmiJob, exchange: NodeExchange) -> None:
        self.rank, self.state = rank, BEFORE
        self.out = bytearray()
        self.said: list[str] = []
        self._job, self._exchange = job, exchange
        self._decoder = MessageDecoder()
        self._held: deque[Message] = deque()
        self._waiting: dict[str, Message] = {}
        """The requests that wait for others, by what they wait for."""
        self._lines: dict[bytes, Callable[[Message], None]] = {
            b"initack": self._take_port, b"init": self._init, b"get_maxes": self._tell_maxes, b"get_appnum": self._tell_appnum,
            b"get_my_kvsname": self._tell_name, b"get_universe_size": self._tell_size, b"put": self._put_line, b"get": self._get_line,
            b"barrier_in": self._enter_fence, b"finalize": self._finalize, b"abort": self._abort, b"spawn": self._refuse_spawn,
            b"publish_name": self._ask_name, b"lookup_name": self._ask_name, b"unpublish_name": self._ask_name,
            b"create_kvs": self._refuse_line, b"destroy_kvs": self._refuse_line, b"getbyidx": self._refuse_line,
        }  # fmt: skip
        self._frames: dict[bytes, Callable[[Message], None]] = {
            b"fullinit": self._full_init, b"job-getid": self._tell_job, b"info-getjobattr": self._tell_job_attribute,
            b"info-putnodeattr": self._put_attribute, b"info-getnodeattr": self._get_attribute, b"kvs-put": self._put_frame,
            b"kvs-get": self._get_frame, b"kvs-fence": self._enter_fence, b"ring": self._enter_ring, b"finalize": self._finalize,
            b"abort": self._abort, b"spawn": self._refuse_spawn, b"name-publish": self._ask_name, b"name-lookup": self._ask_name,
            b"name-unpublish": self._ask_name, b"job-connect": self._refuse_frame, b"job-disconnect": self._refuse_frame,
        }  # fmt: skip

    @property
    def busy(self) -> bool:
        """Returns whether so much waits that no more of the rank's bytes should be read."""
        return len(self._held) >= HELD_MESSAGES or len(self.out) >= UNREAD_BYTES

    def take_bytes(self, data: bytes) -> None:
        """Takes bytes of the rank. What is no PMI ends the launch, or, before its init, only this conversation."""
        if self.state == CLOSED:
            return
        for message in self._decoder.feed(data):
            if message.command == b"abort" and self.state == INITIALIZED:
                self._abort(message)  # at once: another thread of the rank may wait in a fence
            else:
                self._held.append(message)
        self.proceed()
        if self._decoder.malformed:
            self._end_for_garbage(self._decoder.malformed)

    def answer_waiting(self, answer: RankAnswer) -> None:
        """Answers a request that has waited, and serves those behind it."""
        message = self._waiting.pop(answer.subject, None)
        if message is None:
            return
        match answer.subject:
            case "fence" if message.framed:
                self._reply(message, ())
            case "fence":
                self._line(b"barrier_out", [(b"rc", b"0")])
            case "ring":
                count, left, right = answer.value
                self._reply(message, [(b"ring-count", b"%d" % count), (b"ring-left", left), (b"ring-right", right)])
            case "attribute":
                self._reply(message, [(b"found", b"TRUE"), (b"value", answer.value)])
            case "name":
                self._tell_about_name(message, *answer.value)
        self.proceed()

    def proceed(self) -> None:
        """Serves requests in order, up to one that must wait; one of another thread (`thrid`) need not wait for that."""
        while self._held and self.state != CLOSED and len(self.out) < UNREAD_BYTES:
            if any(not message.value(b"thrid") for message in self._waiting.values()):
                return
            try:
                self._serve(self._held.popleft())
            except MalformedMessage as error:
                self._end_for_garbage(error)

    def _serve(self, message: Message) -> None:
        """Serves one request; raises MalformedMessage for one that nobody may send now."""
        name = message.command.decode("ascii", "replace")
        if self.state != INITIALIZED and message.command not in (b"init", b"initack"):
            raise MalformedMessage(f"the PMI request {name[:40]!r} {'after finalize' if self.state == FINALIZED else 'before init'}")
        handler = (self._frames if message.framed else self._lines).get(message.command)
        if handler is not None:
            handler(message)
        elif message.framed:
            self._refuse_frame(message)
        else:
            self._refuse_line(message)

    def _end_for_garbage(self, error: MalformedMessage) -> None:
        """Closes the conversation for what is no PMI; a rank that had said init takes its launch along."""
        sentence = f"rank {self.rank} on {self._exchange.name} sent {error}"
        if self.state == INITIALIZED:
            self._exchange.fail(LaunchFailure(self.rank, self._exchange.name, "Garbage", sentence))
        elif self.state == BEFORE:
            self.said.append(f"{sentence}; PMI is closed for it")
        self.state = CLOSED

    # Replies

    def _line(self, command: bytes, fields: Fields) -> None:
        """Sends a PMI-1 line; what a value must not have there becomes an underscore."""
        self.out += encode_line(command, [(key, value.replace(b"\n", b"_")) for key, value in fields])

    def _reply(self, message: Message, fields: Fields, result: int = 0, error: str = "") -> None:
        """Sends the PMI-2 reply to a request: its thread where it names one, the fields, the result, and an error's text."""
        thread = [(b"thrid", message.fields[b"thrid"])] if message.value(b"thrid") else []
        failed = [(b"errmsg", error.encode())] if error else []
        self.out += encode_frame(message.command + b"-response", [*thread, *fields, (b"rc", b"%d" % result), *failed])

    def _refuse_line(self, message: Message) -> None:
        """Refuses a PMI-1 request that is not served."""
        self._line(message.command[:64] + b"_result", [(b"rc", b"-1"), (b"msg", b"not_served")])

    def _refuse_frame(self, message: Message) -> None:
        """Refuses a PMI-2 request that is not served."""
        name = message.command[:64]
        self._reply(Message(name, message.fields, framed=True), (), PMI2_FAIL, f"{name.decode('ascii', 'replace')} is not served")

    # Requests that both versions have

    def _init(self, message: Message) -> None:
        """Begins the conversation in the version that the rank asks for; from then on its death ends the launch."""
        version = message.value(b"pmi_version")
        known = version in (b"1", b"2")
        told = [(b"pmi_version", version if known else b"2"), (b"pmi_subversion", b"1" if version == b"1" else b"0")]
        self._line(b"response_to_init", [*told, (b"rc", b"0" if known else b"-1")])
        if known:
            self.state = INITIALIZED

    def _take_port(self, message: Message) -> None:
        """Answers a client that connects by PMI_PORT, which says its rank first."""
        if message.value(b"pmiid") != b"%d" % self.rank:
            raise MalformedMessage(f"the PMI identity {message.value(b'pmiid')[:20]!r} of another rank")
        self._line(b"initack", [(b"rc", b"0")])
        for key, value in ((b"size", self._job.size), (b"rank", self.rank), (b"debug", 0)):
            self._line(b"set", [(key, b"%d" % value)])

    def _enter_fence(self, message: Message) -> None:
        """Lets the rank wait until all ranks have entered."""
        self._enter(FENCE, message)

    def _enter(self, kind: str, message: Message, value: tuple[int, bytes, bytes] | None = None) -> None:
        """Lets the rank enter a fence or ring; a thread that enters while another one of it waits there is refused."""
        if kind in self._waiting:
            self._reply(message, (), PMI2_FAIL, f"another thread waits in a {kind}")
            return
        self._waiting[kind] = message
        self._exchange.join_round(kind, self.rank, value)

    def _finalize(self, message: Message) -> None:
        """Ends the conversation; the rank may end as it likes."""
        self.state = FINALIZED
        if message.framed:
            self._reply(message, ())
        else:
            self._line(b"finalize_ack", [(b"rc", b"0")])

    def _abort(self, message: Message) -> None:
        """Ends the launch; the rank expects no reply."""
        text = message.value(b"msg" if message.framed else b"message").decode("utf-8", "replace")[:500].strip()
        digits, node = message.value(b"exitcode"), self._exchange.name
        code = int(digits) & 255 if digits.isdigit() and len(digits) < 10 else 1
        told = f" with exit code {code}" if digits else ""
        said = f": {text}" if text and text != "abort" else ""
        sentence = f"rank {self.rank} on {node} called abort{told}{said}"
        self._exchange.fail(LaunchFailure(self.rank, node, "Aborted", sentence, code or 1))

    def _refuse_spawn(self, message: Message) -> None:
        """Refuses to start more processes, and says so for people."""
        self.said.append(f"rank {self.rank} asks for more processes (MPI_Comm_spawn), which is not served; start all of them with srun -n")
        if message.framed:
            self._reply(message, (), PMI2_FAIL, "spawn is not served: start all processes with srun -n")
        else:
            self._line(b"spawn_result", [(b"rc", b"-1"), (b"msg", b"spawn_is_not_served")])

    def _ask_name(self, message: Message) -> None:
        """Asks the hub to publish, look up or withdraw a name."""
        verb = message.command.replace(b"name-", b"").replace(b"_name", b"").decode("ascii")
        name, port = message.value(b"name" if message.framed else b"service"), message.value(b"port")
        if not name or len(name) > MAX_KEY_BYTES or len(port) > MAX_VALUE_BYTES or "name" in self._waiting:
            self._tell_about_name(message, done=False, port=b"")
            return
        self._waiting["name"] = message
        self._exchange.request_name(self.rank, verb, name, port)

    def _tell_about_name(self, message: Message, done: bool, port: bytes) -> None:
        """Answers what became of a name."""
        looked_up = message.command in (b"name-lookup", b"lookup_name")
        if message.framed:
            found = [(b"found", b"TRUE"), (b"value", port)] if done else [(b"found", b"FALSE")]
            self._reply(message, found if looked_up else (), 0 if done else 1)
            return
        name = {b"publish_name": b"publish_result", b"lookup_name": b"lookup_result"}.get(message.command, b"unpublish_result")
        told = [(b"port", port)] if looked_up and done else []
        result = [(b"info", b"ok"), (b"rc", b"0"), (b"msg", b"success")] if done else [(b"info", b"fail"), (b"rc", b"1"), (b"msg", b"fail")]
        self._line(name, [*told, *result])

    # PMI-1

    def _tell_maxes(self, _message: Message) -> None:
        """Tells the limits of names, keys and values."""
        limits = ((b"kvsname_max", NAME_BYTES), (b"keylen_max", KEY_BYTES), (b"vallen_max", self._job.largest_value))
        self._line(b"maxes", [(b"rc", b"0"), *((key, b"%d" % value) for key, value in limits)])

    def _tell_appnum(self, _message: Message) -> None:
        """Tells the number of the program, which is always 0."""
        self._line(b"appnum", [(b"rc", b"0"), (b"appnum", b"0")])

    def _tell_name(self, _message: Message) -> None:
        """Tells the unique name of the launch, which names its pairs, and MPI's segments of shared memory."""
        self._line(b"my_kvsname", [(b"rc", b"0"), (b"kvsname", self._job.identity)])

    def _tell_size(self, _message: Message) -> None:
        """Tells how many processes the launch has."""
        self._line(b"universe_size", [(b"rc", b"0"), (b"size", b"%d" % self._job.size)])

    def _put_line(self, message: Message) -> None:
        """Keeps a pair."""
        refusal = self._exchange.put(message.value(b"key"), message.value(b"value"))
        told = [(b"rc", b"-1"), (b"msg", refusal.replace(" ", "_").encode())] if refusal else [(b"rc", b"0"), (b"msg", b"success")]
        self._line(b"put_result", told)

    def _get_line(self, message: Message) -> None:
        """Tells the value of a key, of the job or of a rank."""
        key = message.value(b"key")
        value = self._job.mapping if key == mapping.KEY else self._exchange.get(key)
        if value is None:
            self._line(b"get_result", [(b"rc", b"-1"), (b"msg", b"key_%s_not_found" % key), (b"value", b"unknown")])
        else:
            self._line(b"get_result", [(b"rc", b"0"), (b"msg", b"success"), (b"value", value)])

    # PMI-2

    def _full_init(self, message: Message) -> None:
        """Tells the rank who it is."""
        facts = ((b"pmi-version", 2), (b"pmi-subversion", 0), (b"rank", self.rank), (b"size", self._job.size), (b"appnum", 0))
        fields = [(key, b"%d" % value) for key, value in facts]
        self._reply(message, [*fields, (b"debugged", b"FALSE"), (b"pmiverbose", b"FALSE")])

    def _tell_job(self, message: Message) -> None:
        """Tells the unique name of the launch."""
        self._reply(message, [(b"jobid", self._job.identity)])

    def _tell_job_attribute(self, message: Message) -> None:
        """Tells an attribute of the job."""
        self._tell_found(message, self._job.attribute(message.value(b"key")))

    def _tell_found(self, message: Message, value: bytes | None) -> None:
        """Tells a value, or that there is none."""
        self._reply(message, [(b"found", b"FALSE")] if value is None else [(b"found", b"TRUE"), (b"value", value)])

    def _put_attribute(self, message: Message) -> None:
        """Keeps an attribute of the node."""
        refusal = self._exchange.put_attribute(message.value(b"key"), message.value(b"value"))
        self._reply(message, (), PMI2_INVALID if refusal else 0, refusal)

    def _get_attribute(self, message: Message) -> None:
        """Tells an attribute of the node, once somebody has put it where the rank will wait."""
        key = message.value(b"key")
        value = self._exchange.attribute(key)
        if value is None and message.value(b"wait") == b"TRUE" and "attribute" not in self._waiting:
            self._waiting["attribute"] = message
            self._exchange.await_attribute(self.rank, key)
        else:
            self._tell_found(message, value)

    def _put_frame(self, message: Message) -> None:
        """Keeps a pair."""
        refusal = self._exchange.put(message.value(b"key"), message.value(b"value"))
        self._reply(message, (), PMI2_INVALID if refusal else 0, refusal)

    def _get_frame(self, message: Message) -> None:
        """Tells the value of a key that a rank had put before the last fence."""
        self._tell_found(message, self._exchange.get(message.value(b"key")))

    def _enter_ring(self, message: Message) -> None:
        """Lets the rank wait for the values of its neighbours, in order of ranks."""
        digits = message.value(b"ring-count") or b"1"
        left, right = message.value(b"ring-left"), message.value(b"ring-right")
        if not digits.isdigit() or len(digits) > 9 or len(left) > MAX_VALUE_BYTES or len(right) > MAX_VALUE_BYTES:
            self._reply(message, (), PMI2_INVALID, f"a count, and values of at most {MAX_VALUE_BYTES} bytes")
            return
        self._enter(RING, message, (int(digits), left, right))
