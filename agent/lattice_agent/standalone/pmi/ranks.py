"""Holds the descriptors by which the ranks of one launch on one node speak PMI, in the poll loop of their keeper.

Each rank inherits one end of a pair of sockets; the keeper calls `serve` for the other end, and carries the payloads of `outgoing` and
`receive` to and from the hub. A launch on one node has its hub here.
"""

from __future__ import annotations

import _socket
import os
import select
from contextlib import suppress

from lattice_agent.standalone.pmi.exchange import FENCE, RING, LaunchFailure, MalformedPayload, NodeExchange, Payload
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.mapping import process_mapping
from lattice_agent.standalone.pmi.pmix_calls import PmixListener
from lattice_agent.standalone.pmi.session import BEFORE, CLOSED, FINALIZED, INITIALIZED, PmiJob, RankSession
from lattice_agent.standalone.records import Record

RECEIVE_BYTES = 64 << 10
END_SECONDS = 2.0
"""How long a rank may live with its end closed between init and finalize: mostly its exit follows at once, and says more."""
LATE_SECONDS = 60.0
"""After so long in a fence the ranks that others wait for are named."""


class Service(Record):
    """The facts of a launch that its PMI server needs: a unique text, the ranks of each node, the index of this node, the nodes' names."""

    identity: str
    nodes: list[list[int]]
    node: int
    names: list[str]


class RankEnd(Record):
    """The keeper's end of one rank's sockets; `child` is the rank's end until it is given away."""

    sock: _socket.socket
    session: RankSession
    child: int
    mask: int = select.POLLIN
    closed_at: float | None = None
    open: bool = True


class RankServer:
    """Serves PMI to the ranks of one launch on this node."""

    def __init__(self, service: Service, poll: select.poll, user: int | None = None) -> None:
        """Serves ranks that run as the user with this uid; None: as this process."""
        self._service, self._poll = service, poll
        self._name = service.names[service.node]
        self._exchange = NodeExchange(service.nodes, service.node, self._name)
        size = sum(map(len, service.nodes))
        self._job = PmiJob(service.identity.encode(), size, process_mapping(service.nodes))
        self._hub = Hub(service.nodes, service.names) if len(service.nodes) == 1 else None
        self._pmix = PmixListener(poll, user) if size > 1 else None
        self._ends: dict[int, RankEnd] = {}
        self._by_rank: dict[int, RankEnd] = {}
        self._lines: list[str] = []
        self._now = 0.0
        self._told_failure = False
        self._late: dict[str, float] = {}
        self._late_said: set[str] = set()
        self._paused = False

    def __contains__(self, fd: int) -> bool:
        """Returns whether a descriptor is one of this server's."""
        return fd in self._ends or (self._pmix is not None and fd in self._pmix)

    @property
    def failure(self) -> LaunchFailure | None:
        """Returns why the launch must end now; None: it goes on."""
        return self._exchange.failure

    @property
    def waiting(self) -> bool:
        """Returns whether `tick` has something to do once time has passed."""
        return self._exchange.waited_for or any(end.closed_at is not None for end in self._by_rank.values())

    def connect(self, rank: int) -> int:
        """Returns the rank's end, which it is to inherit; raises OSError where no sockets can be made."""
        mine, child = _socket.socketpair()
        mine.setblocking(False)
        end = RankEnd(mine, RankSession(rank, self._job, self._exchange), child.detach())
        self._ends[mine.fileno()] = self._by_rank[rank] = end
        self._poll.register(mine.fileno(), end.mask)
        return end.child

    def disconnect_child(self, rank: int) -> None:
        """Closes the keeper's copy of the rank's end, so that the end of all who have inherited it is seen."""
        end = self._by_rank[rank]
        if end.child >= 0:
            os.close(end.child)
            end.child = -1

    def variables(self, rank: int, fd: int) -> dict[str, str]:
        """Returns the variables by which a rank finds the descriptor and its place, as Hydra and Slurm set them."""
        local = sorted(self._service.nodes[self._service.node])
        return {
            "PMI_FD": str(fd),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(self._job.size),
            "PMI_SPAWNED": "0",
            "PMI_JOBID": self._service.identity,
            "MPI_LOCALRANKID": str(local.index(rank)),
            "MPI_LOCALNRANKS": str(len(local)),
        } | (self._pmix.variables() if self._pmix is not None else {})

    def serve(self, fd: int, events: int, now: float) -> None:
        """Reads from a rank and writes to it, as `events` of the poll allow."""
        self._now = now
        if self._pmix is not None and fd in self._pmix:
            if self._pmix.take_call(fd):
                self._note_pmix()
            return
        end = self._ends[fd]
        if events & select.POLLOUT:
            self._flush(end)
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._read(end)
        self._settle(end.session.rank)

    def _note_pmix(self) -> None:
        """Ends the launch where a rank asks for PMIx, and none here has found the others by PMI."""
        if all(end.session.state == BEFORE for end in self._by_rank.values()):
            sentence = (
                f"SilentSingletons: a rank on {self._name} asks for PMIx (as OpenMPI does), which is not served: each rank would be alone; "
                "use a program of MPICH, or its own mpirun; --mpi=none where single ranks are meant"
            )
            self._exchange.fail(LaunchFailure(-1, self._name, "SilentSingletons", sentence))

    def tick(self, now: float) -> None:
        """Ends the launch for a rank that has closed its end too early, and names ranks that others have waited for long."""
        self._now = now
        for end in self._by_rank.values():
            if end.closed_at is not None and now - end.closed_at >= END_SECONDS:
                end.closed_at, rank = None, end.session.rank
                sentence = f"rank {rank} on {self._name} closed PMI after init and before finalize"
                self._exchange.fail(LaunchFailure(rank, self._name, "RankDied", sentence))
        for kind in (FENCE, RING):
            missing = self._exchange.late_ranks(kind) if self._exchange.waited_for else frozenset[int]()
            if not missing:
                self._late.pop(kind, None)
                self._late_said.discard(kind)
            elif now - self._late.setdefault(kind, now) >= LATE_SECONDS and kind not in self._late_said:
                self._late_said.add(kind)
                named = ", ".join(map(str, sorted(missing)[:20])) + (" …" if len(missing) > 20 else "")
                self._lines.append(f"a PMI {kind} waits on {self._name} for rank {named} since {LATE_SECONDS:.0f} s; it goes on waiting")

    def ended(self, rank: int, code: int, signal: int, now: float) -> None:
        """Takes the end of a rank's process; one between init and finalize ends the launch."""
        self._now, end = now, self._by_rank[rank]
        for _ in range(64):  # the last words, an abort perhaps
            if not (end.open and self._read(end)):
                break
        state = end.session.state
        how = f"was ended by signal {signal}" if signal else f"ended with exit code {code}"
        if state == INITIALIZED:
            sentence = f"rank {rank} on {self._name} {how} after init and before finalize"
            self._exchange.fail(LaunchFailure(rank, self._name, "RankDied", sentence, 128 + signal if signal else code or 1))
        self._exchange.note_end(rank, f"{how} {'after finalize' if state == FINALIZED else 'without PMI'}")
        end.closed_at = None
        self._close(end)
        self._settle(rank)

    def receive(self, payload: Payload) -> None:
        """Takes a message of the hub; passes over what is none."""
        with suppress(MalformedPayload):
            self._exchange.receive(payload)
        self._settle()

    def pause(self, *, paused: bool) -> None:
        """Reads nothing more of ranks while paused, so that the hub can take what they have said."""
        if paused != self._paused:
            self._paused = paused
            for end in self._by_rank.values():
                self._watch(end)

    def outgoing(self) -> list[Payload]:
        """Returns the messages for the hub since the last call; none where it is here."""
        if self._hub is not None:
            return []
        payloads, self._exchange.outgoing = self._exchange.outgoing, []
        return payloads

    def said(self) -> list[str]:
        """Returns the lines for the launch's standard error since the last call; of a launch on one node its failure too."""
        lines, self._lines = self._lines, []
        if self._hub is not None and self.failure is not None and not self._told_failure:
            self._told_failure = True
            lines.append(f"error: {self.failure.sentence}")
        return lines

    def close(self) -> None:
        """Closes all descriptors."""
        for rank, end in self._by_rank.items():
            self.disconnect_child(rank)
            self._close(end)
        if self._pmix is not None:
            self._pmix.close()

    def _settle(self, *touched_ranks: int) -> None:
        """Carries messages to the hub inside and answers to the ranks until nothing is left to do, and writes replies out."""
        todo = set(touched_ranks)
        while True:
            if self._hub is not None:
                self._ask_own_hub(self._hub)
            answers, self._exchange.answers = self._exchange.answers, []
            for answer in answers:
                self._by_rank[answer.rank].session.answer_waiting(answer)
                todo.add(answer.rank)
            if not todo:
                return
            for rank in todo:
                end = self._by_rank[rank]
                self._flush(end)
                self._lines += end.session.said
                end.session.said.clear()
            todo.clear()

    def _ask_own_hub(self, hub: Hub) -> None:
        """Carries messages between this node and the hub inside."""
        payloads, self._exchange.outgoing = self._exchange.outgoing, []
        for payload in payloads:
            for _, reply in hub.receive(0, payload):
                self._exchange.receive(reply)
        if hub.failure and not self._exchange.failure:
            self._exchange.fail(hub.failure)

    def _read(self, end: RankEnd) -> bool:
        """Reads what a rank has sent; returns False where there is nothing more."""
        try:
            data = end.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._hang_up(end)
            return False
        end.session.take_bytes(data)
        return True

    def _flush(self, end: RankEnd) -> None:
        """Writes replies to a rank as far as it reads them, serves what waited for that, and sets what the poll is to watch."""
        session = end.session
        while end.open and session.out:
            try:
                del session.out[: end.sock.send(session.out)]
            except BlockingIOError:
                break
            except OSError:
                self._hang_up(end)
            session.proceed()
        if end.open and session.state == CLOSED:
            self._close(end)
        self._watch(end)

    def _watch(self, end: RankEnd) -> None:
        """Sets what the poll is to watch of a rank."""
        if end.open:
            session = end.session
            mask = (0 if session.busy or self._paused else select.POLLIN) | (select.POLLOUT if session.out else 0)
            if mask != end.mask:
                end.mask = mask
                self._poll.modify(end.sock.fileno(), mask)

    def _hang_up(self, end: RankEnd) -> None:
        """Notes that a rank has closed its end: nothing more can be read or written."""
        self._close(end)
        if end.session.state == INITIALIZED:
            end.closed_at = self._now

    def _close(self, end: RankEnd) -> None:
        """Closes the keeper's end of a rank's sockets."""
        if end.open:
            end.open = False
            self._poll.unregister(end.sock.fileno())
            del self._ends[end.sock.fileno()]
            end.sock.close()
