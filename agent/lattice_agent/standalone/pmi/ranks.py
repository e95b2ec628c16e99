"""Holds the descriptors by which the ranks of one launch on one node speak PMI, in the poll loop of their keeper.

Each rank inherits one end of a pair of sockets; the keeper calls `serve` for the other end, and carries the payloads of `outgoing` and
`receive` to and from the hub. A launch on one node has its hub here.
"""

from __future__ import annotations

import _socket
import os
import select
from contextlib import suppress

from lattice_agent.standalone.pmi.exchange import FENCE, PMIX, RING, LaunchFailure, NodeExchange, RankAnswer, broken_fence
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.mapping import process_mapping
from lattice_agent.standalone.pmi.payloads import MalformedPayload, Payload
from lattice_agent.standalone.pmi.pmix_calls import PmixListener
from lattice_agent.standalone.pmi.pmix_end import PmixEnd
from lattice_agent.standalone.pmi.pmix_session import PmixJob, PmixSession
from lattice_agent.standalone.pmi.session import BEFORE, CLOSED, FINALIZED, INITIALIZED, PmiJob, RankSession
from lattice_agent.standalone.records import Record

RECEIVE_BYTES = 64 << 10
END_SECONDS = 2.0
"""How long a rank may live with its end closed between init and finalize: mostly its exit follows at once, and says more."""
LATE_SECONDS = 60.0
"""After so long in a fence the ranks that others wait for are named, unless the site says otherwise."""
MOST_NAMED = 20
"""Ranks of one node that are named; of more, that there are more."""


class Service(Record):
    """The facts of a launch that its PMI server needs: a unique text, the ranks of each node, the index of this node, the nodes' names.

    After `late_seconds` in a fence the ranks are named that others of this node wait for.
    """

    identity: str
    nodes: list[list[int]]
    node: int
    names: list[str]
    late_seconds: float = LATE_SECONDS
    pmix: str = ""
    """The name of the launch for PMIx, which nobody else can guess; empty: no PMIx is served."""
    pmi: bool = True
    """Whether ranks find PMI-1 and PMI-2; not where PMIx alone is asked for."""


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
        self._pmix = PmixListener(poll, user) if size > 1 and not service.pmix else None
        self._host: PmixEnd | None = None
        self._ends: dict[int, RankEnd] = {}
        self._by_rank: dict[int, RankEnd] = {}
        self._lines: list[str] = []
        self._now = 0.0
        self._told_failure = False
        self._absent: dict[int, str] = {}
        """Ranks that have ended without PMI or PMIx, and how."""
        self._lost: dict[int, float] = {}
        self._late: dict[str, float] = {}
        self._late_said: dict[str, int] = {}
        self._paused = False

    def __contains__(self, fd: int) -> bool:
        """Returns whether a descriptor is one of this server's."""
        return fd in self._ends or (self._pmix is not None and fd in self._pmix) or (self._host is not None and fd == self._host.fd)

    @property
    def failure(self) -> LaunchFailure | None:
        """Returns why the launch must end now; None: it goes on."""
        return self._exchange.failure

    @property
    def waiting(self) -> bool:
        """Returns whether `tick` has something to do once time has passed."""
        lost = self._host is not None and self._host.session.lost
        return self._exchange.waited_for or bool(lost) or any(end.closed_at is not None for end in self._by_rank.values())

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
        found = self._host.session.variables_of(rank, pmi=self._service.pmi) if self._host is not None else {}
        if not self._service.pmi:
            return found
        return (
            found
            | {
                "PMI_FD": str(fd),
                "PMI_RANK": str(rank),
                "PMI_SIZE": str(self._job.size),
                "PMI_SPAWNED": "0",
                "PMI_JOBID": self._service.identity,
                "MPI_LOCALRANKID": str(local.index(rank)),
                "MPI_LOCALNRANKS": str(len(local)),
            }
            | (self._pmix.variables() if self._pmix is not None else {})
        )

    def serve(self, fd: int, events: int, now: float) -> None:
        """Reads from a rank and writes to it, as `events` of the poll allow."""
        self._now = now
        if self._host is not None and fd == self._host.fd:
            self._host.serve_host(events)
            self._settle()
            return
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

    def open_host(self, sock: _socket.socket, user: int, group: int, place: str) -> None:
        """Begins to serve PMIx by a host at the other end of a socket; `place`: the directory for its files."""
        facts = self._service
        job = PmixJob(facts.pmix, user, group, place, facts.nodes, facts.node, facts.names)
        self._host = PmixEnd(sock, PmixSession(job, self._exchange), self._poll)
        self._settle()

    @property
    def host_state(self) -> tuple[bool, str]:
        """Returns whether the PMIx host serves, and why it does not (empty: it may yet)."""
        if self._host is None:
            return False, "there is none"
        failure = self._exchange.failure
        return self._host.session.ready, self._host.session.failed or (failure.sentence if failure is not None else "")

    def host_ended(self, code: int, signal: int) -> None:
        """Takes the end of the PMIx host's process, which ends the launch: its ranks would spin, or become worlds of their own."""
        if self._host is not None:
            self._host.drain()
            self._host.close()
            self._host.session.note_end(f"was ended by signal {signal}" if signal else f"ended with exit code {code}")
            self._settle()

    def tick(self, now: float) -> None:
        """Ends the launch for a rank that has closed its end too early, and names ranks that others have waited for long."""
        self._now = now
        if self._host is not None:
            self._look_for_lost(self._host.session)
        for end in self._by_rank.values():
            if end.closed_at is not None and now - end.closed_at >= END_SECONDS:
                end.closed_at, rank = None, end.session.rank
                sentence = f"rank {rank} on {self._name} closed PMI after init and before finalize"
                self._exchange.fail(LaunchFailure(rank, self._name, "RankDied", sentence))
        for kind in (FENCE, RING):
            if not self._exchange.is_waited_for(kind):
                self._late.pop(kind, None)
            elif now - self._late.setdefault(kind, now) >= self._service.late_seconds:
                self._name_late(kind, self._service.late_seconds)

    def _name_late(self, kind: str, seconds: float) -> None:
        """Names, once a fence or ring, the ranks of this node that others have waited for so long."""
        number, missing = self._exchange.round_number(kind), sorted(self._exchange.late_ranks(kind))
        if self._late_said.get(kind) != number:
            self._late_said[kind] = number
            named = ", ".join(map(str, missing[:MOST_NAMED])) + (" …" if len(missing) > MOST_NAMED else "")
            place, of = (
                (kind, "some of ") if kind == PMIX else (f"PMI {kind}", "")
            )  # libpmix does not say which of a node's ranks are missing
            self._lines.append(f"a {place} waits on {self._name} for {of}rank {named} since {seconds:.0f} s; it goes on waiting")

    def ended(self, rank: int, code: int, signal: int, now: float) -> None:
        """Takes the end of a rank's process; one between init and finalize ends the launch."""
        self._now, end = now, self._by_rank[rank]
        for _ in range(64):  # the last words, an abort perhaps
            if not (end.open and self._read(end)):
                break
        state = self._state(end)
        how = f"was ended by signal {signal}" if signal else f"ended with exit code {code}"
        if state == INITIALIZED and self._host is not None and self._host.fd < 0:
            self._host.session.note_end("has ended")  # and the rank for lack of it
        elif state == INITIALIZED:
            sentence = f"rank {rank} on {self._name} {how} after init and before finalize"
            self._exchange.fail(LaunchFailure(rank, self._name, "RankDied", sentence, 128 + signal if signal else code or 1))
        self._exchange.note_end(rank, f"{how} {'after finalize' if state == FINALIZED else 'without PMI'}")
        end.closed_at = None
        if state == BEFORE:
            self._absent.setdefault(rank, how)
            self._look_for_absent()
        self._close(end)
        self._settle(rank)

    def _state(self, end: RankEnd) -> str:
        """Returns how far a rank is, by PMI or PMIx, whichever it speaks."""
        state, rank = end.session.state, end.session.rank
        if self._host is None or state == INITIALIZED:
            return state
        self._host.drain()
        session = self._host.session
        return state if rank not in session.connected else FINALIZED if rank in session.finalized else INITIALIZED

    def _look_for_absent(self) -> None:
        """Ends the launch where a rank has begun by PMIx, and another of this node has ended without: all of them enter the first fence."""
        waiting = self._host.session.connected if self._host is not None else ()
        for rank, how in self._absent.items() if waiting else ():
            if rank not in waiting:
                self._exchange.fail(broken_fence(PMIX, rank, self._name, f"{how} without PMIx", f"rank {min(waiting)}"))
                return

    def _look_for_lost(self, session: PmixSession) -> None:
        """Ends the launch for a rank whose connection to the PMIx host has broken before finalize, if its process goes on."""
        for rank in session.lost - session.finalized:
            end = self._by_rank[rank]
            if end.open and end.closed_at is None and rank not in self._lost:
                self._lost[rank] = self._now
            if rank in self._lost and end.open and self._now - self._lost[rank] >= END_SECONDS:
                sentence = f"rank {rank} on {self._name} closed PMIx after init and before finalize"
                self._exchange.fail(LaunchFailure(rank, self._name, "RankDied", sentence))

    def receive(self, payload: Payload) -> None:
        """Takes a message of the hub; passes over what is none."""
        with suppress(MalformedPayload):
            self._exchange.receive(payload)
        asked, self._exchange.late = self._exchange.late, []
        for kind, seconds in asked:
            self._name_late(kind, seconds)
        self._settle()

    def pause(self, *, paused: bool) -> None:
        """Reads nothing more of ranks while paused, so that the hub can take what they have said."""
        if paused != self._paused:
            self._paused = paused
            for end in self._by_rank.values():
                self._watch(end)
            if self._host is not None:
                self._host.pause(paused=paused)

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
        if self._host is not None:
            self._host.close()

    def _settle(self, *touched_ranks: int) -> None:
        """Carries messages to the hub inside and answers to the ranks until nothing is left to do, and writes replies out."""
        todo = set(touched_ranks)
        while True:
            if self._hub is not None:
                self._ask_own_hub(self._hub)
            answers, self._exchange.answers = self._exchange.answers, []
            for answer in answers:
                if answer.rank < 0:
                    self._answer_host(answer)
                else:
                    self._by_rank[answer.rank].session.answer_waiting(answer)
                    todo.add(answer.rank)
            if self._host is not None and (self._host.session.has_news or self._exchange.rank_data.asked or self._absent):
                self._settle_host(self._host)
            if not todo and not (self._hub is not None and self._exchange.outgoing):
                return
            for rank in todo:
                end = self._by_rank[rank]
                self._flush(end)
                self._lines += end.session.said
                end.session.said.clear()
            todo.clear()

    def _answer_host(self, answer: RankAnswer) -> None:
        """Passes an answer on to the PMIx host."""
        if self._host is not None and answer.subject == PMIX:
            self._host.session.answer_fence(answer.value)
        elif self._host is not None:
            self._host.session.answer_fetch(*answer.value)

    def _settle_host(self, host: PmixEnd) -> None:
        """Asks the PMIx host what other nodes ask of it, and writes to it."""
        asked, self._exchange.rank_data.asked = self._exchange.rank_data.asked, []
        for number, rank in asked:
            host.session.request_data(number, rank)
        self._lines += host.session.said
        host.session.said.clear()
        self._look_for_absent()
        host.write_host()

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
