"""Keeps one launch on one node, as a process of its own: starts its ranks, holds their streams, serves PMI, tells their ends.

It is of standard library alone, with `rank_start.py`, `rank_streams.py`, `keeper_link.py` and what the shim uses beside it; `runner.py`
runs it in a fork. It stands in `SCOPE/keep/N` while its ranks stand in `SCOPE/work/launch-N`, survives agent and runner, and ends once
the agent has acknowledged all that it had to tell, or with the attempt.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH118, PTH120
from __future__ import annotations

import fcntl
import json
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from lattice_agent.standalone import (
    cgroup_signals,
    durable,
    forks,
    frames,
    keeper_link,
    leftovers,
    meters,
    pmix_start,
    stopped_ranks,
    task_start,
)
from lattice_agent.standalone.frames import Frame, Output, RankEnded
from lattice_agent.standalone.keeper_link import AgentLink, KeptFrames
from lattice_agent.standalone.rank_start import LaunchDescription, Rank, RankFailure, RankStart
from lattice_agent.standalone.rank_streams import RankInput, RankOutput
from lattice_agent.standalone.streams import OutputFile, StartFailure

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

UNHEARD_SECONDS = 2.0
"""How long a keeper whose attempt is over waits for somebody who acknowledges what it has to tell."""
LOOK_SECONDS = 0.5
"""How often it looks then whether the attempt is over."""
KILL_AGAIN_SECONDS = 0.1
HOST_SECONDS = 30.0
"""Time for the PMIx host to serve."""
PMI_SECONDS = 1.0
"""How often PMI is asked what is due, while ranks wait for others."""
DRAIN_READS = 32
"""Most reads of one pipe, 64 KiB each, after the end of its rank: more than it may hold, whoever goes on writing."""


class Keeper:
    """Keeps the ranks of one launch on one node, from the fork to the acknowledgement of their ends."""

    def __init__(self, launch: LaunchDescription) -> None:
        self.launch = launch
        self.kept = KeptFrames()
        self._poll = select.poll()
        self._wake = task_start.catch_child_ends()
        self._poll.register(self._wake, select.POLLIN)
        self.link = AgentLink(self.kept, self._poll, self._state, self._hear)
        self._pmi = open_pmi(launch, self._poll)
        self.rank_start = RankStart(launch, self._connect, self._variables)
        self._outputs: dict[int, RankOutput] = {}
        self._of_rank: dict[int, list[int]] = {}
        """By rank: the descriptors of its output that are still open."""
        self._files: list[OutputFile] = []
        self._reading = True
        self._input = RankInput(())
        self._told_room = -1
        self._host_pid = 0
        """The PMIx host's; 0: there is none."""
        self.execed, self.failure = False, ""
        self._opening = False
        """Whether ranks were let through the gate, and not all are known to execute their programs."""
        self._kill_at: float | None = None
        self._kill_again = 0.0
        self._killed = False
        self.done = 0
        """The number of the last frame; 0: not all ranks have ended."""
        self._unheard_since: float | None = None

    @property
    def ranks(self) -> list[Rank]:
        """Returns the launch's ranks on this node."""
        return self.rank_start.ranks

    # the start

    def fork_ranks(self) -> None:
        """Forks all ranks, which run as the user then; raises RankFailure or OSError, with some of them left for `abandon`."""
        with entered(self.launch):
            if self.launch.pmix_host and self._pmi is not None:
                self._start_host()
            self.rank_start.prepare()
        self.rank_start.await_users()

    def _start_host(self) -> None:
        """Starts the PMIx host, and waits until it serves: ranks are forked with its variables. Raises RankFailure or OSError."""
        launch = self.launch
        self._host_pid, sock = pmix_start.start(launch)
        user, group = (os.getuid() if launch.user is None else launch.user), (os.getgid() if launch.group is None else launch.group)
        self._pmi.open_host(sock, user, group, pmix_start.PLACE)
        fd, until, ready, why = sock.fileno(), time.monotonic() + HOST_SECONDS, False, ""
        while not ready and not why:
            task_start.await_readable(0.1, self._wake, *([fd] if fd in self._pmi else ()))
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
            self._reap()
            if fd in self._pmi:
                self._pmi.serve(fd, select.POLLIN | select.POLLOUT, time.monotonic())
            ready, why = self._pmi.host_state
            if time.monotonic() > until:
                why = why or stopped_ranks.silence(self._host_pid, launch.node, HOST_SECONDS)
        if not ready:
            raise RankFailure(f"PMIx cannot be served: {why}")

    def start_ranks(self) -> None:
        """Has the forked ranks go up to the gate, and with `go` beyond it; raises RankFailure or OSError, as `fork_ranks`."""
        self.rank_start.await_ready()
        for rank in self.ranks:
            self._open_streams(rank)
        writers = [ends.kept_in for ends in self.rank_start.ends.values() if ends.kept_in >= 0]
        self._input = RankInput(writers)
        if self._pmi is not None:
            for rank in self.ranks:
                self._pmi.disconnect_child(rank.asked.rank)
        self.rank_start.release()
        if self.launch.go:
            self.rank_start.go()
            self.execed = True

    def abandon(self) -> None:
        """Kills the ranks of a launch that cannot start, and reaps them."""
        self._end_group(0.0)
        while self._reap():
            cgroup_signals.kill(self.launch.work_kill)
            task_start.await_readable(0.01, self._wake)

    def _open_streams(self, rank: Rank) -> None:
        """Begins to read what one rank writes."""
        ends, asked = self.rank_start.ends[rank.asked.local], rank.asked
        label = f"{asked.rank:0{self.launch.label}d}: ".encode() if self.launch.label else b""
        for stream, fd, file in ((frames.STDOUT, ends.kept_out, ends.out_file), (frames.STDERR, ends.kept_err, ends.err_file)):
            if fd < 0:
                continue
            if file is not None and file not in self._files:
                self._files.append(file)
            take = file.write if file is not None else self._sender(stream, asked.rank)
            self._outputs[fd] = RankOutput(fd, label, take, unbuffered=self.launch.unbuffered)
            self._of_rank.setdefault(asked.rank, []).append(fd)
            self._poll.register(fd, select.POLLIN)

    def _sender(self, stream: int, rank: int) -> Callable[[bytes], None]:
        """Returns a function that makes frames of what a rank has written to a stream."""

        def take(data: bytes) -> None:
            self.kept.keep_frame(lambda number: frames.encode(frames.OUTPUT, frames.encode_output(Output(0, number, stream, rank, data))))

        return take

    def _connect(self, rank: int) -> int:
        """Returns the descriptor of PMI that a rank inherits; -1: none is served."""
        return int(self._pmi.connect(rank)) if self._pmi is not None else -1

    def _variables(self, rank: int, fd: int) -> Mapping[str, str]:
        """Returns the variables by which a rank finds PMI at this descriptor."""
        found: Mapping[str, str] = self._pmi.variables(rank, fd) if self._pmi is not None else {}
        return found

    # the loop

    def keep(self) -> None:
        """Carries streams, signals and ends until all that there is to tell is acknowledged, or the attempt is over and nobody hears it."""
        while True:
            self._turn()
            if self.done and self.kept.first > self.done:
                keeper_link.remove_socket(self.launch.run_directory, self.launch.number)
                return
            if self.done and self._is_unheard():
                self._write_end()
                return

    def _turn(self) -> None:
        """Waits for what comes next, and does it."""
        writers = self._input.writers
        for fd in writers:
            self._poll.register(fd, select.POLLOUT)
        ready = self._poll.poll(1000 * self._wait_seconds())
        for fd in writers:
            self._poll.unregister(fd)
        now = time.monotonic()
        for fd, events in ready:
            self._serve(fd, events, now)
        self._watch_gate()
        for output in self._outputs.values():
            if (held := output.held_until) is not None and held <= now:
                output.flush()
        self._reap()
        if self._pmi is not None:
            self._serve_pmi(now)  # a rank's death too is told before the end, and after it what a new hub asks
        self._tell_ends(now)
        self._end_on_time(now)
        self._tell_room()
        self.link.flush()
        self._watch_outputs()

    def _serve(self, fd: int, events: int, now: float) -> None:
        """Serves one descriptor as poll has said; one that was closed meanwhile is passed over."""
        if fd == self._wake:
            with suppress(BlockingIOError):
                os.read(fd, 4096)
        elif fd in self._outputs:
            if not self.kept.full and not self._outputs[fd].read_rank(now):
                self._close_output(fd)
        elif self._pmi is not None and fd in self._pmi:
            self._pmi.serve(fd, events, now)
        elif self.link.owns(fd):
            self.link.serve(fd, events)
        elif fd == self.rank_start.executing:
            pass  # what it says is read in each turn
        elif events & select.POLLOUT:
            self._input.write_ranks()
        elif events & (select.POLLERR | select.POLLHUP):
            self._input.hung_up(fd)

    def _wait_seconds(self) -> float:
        """Returns how long to wait at most until something is due."""
        now = time.monotonic()
        due = [held for output in self._outputs.values() if (held := output.held_until) is not None]
        if self._opening:
            due.append(self.rank_start.exec_until)
        if self._kill_at is not None and not self.done:
            due.append(max(self._kill_at, self._kill_again))
        if self._pmi is not None and self._pmi.waiting and not self.done:
            due.append(now + PMI_SECONDS)
        if self.done or (self.launch.lingers and all(rank.told for rank in self.ranks)):
            due.append(now + LOOK_SECONDS)
        return max(0.0, min(due, default=now + 3600.0) - now) + 0.001

    def _watch_outputs(self) -> None:
        """Reads what ranks write and say by PMI, or lets them wait while too much is not acknowledged."""
        if self._pmi is not None:
            self._pmi.pause(paused=self.kept.overfull)
        reading = not self.kept.full
        if reading != self._reading:
            self._reading = reading
            for fd in self._outputs:
                if reading:
                    self._poll.register(fd, select.POLLIN)
                else:
                    self._poll.unregister(fd)

    def _close_output(self, fd: int) -> None:
        """Closes a pipe that has come to its end."""
        if self._reading:
            self._poll.unregister(fd)
        self._outputs.pop(fd).close()
        for fds in self._of_rank.values():
            if fd in fds:
                fds.remove(fd)

    # the agent

    def _state(self) -> dict[str, Any]:
        """Returns what an agent that connects is told first; how much input may be sent follows."""
        self._told_room = -1
        return {
            "number": self.launch.number, "pid": os.getpid(), "execed": self.execed, "failure": self.failure, "input": self._input.offset,
            "room": self._input.room, "first": self.kept.first, "frames": self.kept.last,
        }  # fmt: skip

    def _hear(self, frame: Frame) -> None:
        """Does what a frame of the agent says; raises FrameError for one that breaks the rules. An unknown one is passed over."""
        match frame.kind:
            case frames.HAD:
                self.kept.acknowledge(frames.decode_had(frame.payload)[1])
            case frames.INPUT:
                self._input.accept(*frames.decode_input(frame.payload))
            case frames.SIGNAL:
                self._signal(frames.decode_signal(frame.payload))
            case frames.GO:
                self._go()
            case frames.END:
                self._end_group(0.0 if frame.payload == b"\1" else self.launch.grace_seconds)
            case frames.EXCHANGED if self._pmi is not None:
                self._pmi.receive(frame.payload)
            case _:
                pass  # of an agent that knows more

    def _go(self) -> None:
        """Lets the ranks execute their programs; `_watch_gate` says what becomes of that."""
        if self.execed or self.failure or self._opening:
            return
        self._opening = True
        self.rank_start.open_gate()
        if self.rank_start.executing >= 0:
            self._poll.register(self.rank_start.executing, select.POLLIN)

    def _watch_gate(self) -> None:
        """Says once all ranks that were let through the gate execute their programs; where one cannot, kills all, and says why."""
        if not self._opening:
            return
        watched = self.rank_start.executing
        try:
            self.execed = self.rank_start.have_executed()
        except (RankFailure, OSError) as error:
            self.failure = str(error)
            self._end_group(0.0)
        if self.execed or self.failure:
            self._opening = False
            if watched >= 0:
                self._poll.unregister(watched)
            self.link.say(frames.STARTED, self.failure.encode(errors="replace"))

    def _signal(self, number: int) -> None:
        """Sends a signal to every rank's process group, and to the rank itself where it has none of its own."""
        for rank in self.ranks:
            if rank.status is None and rank.pid:
                try:
                    os.killpg(rank.pid, number)
                except OSError:
                    with suppress(OSError):
                        os.kill(rank.pid, number)

    def _tell_room(self) -> None:
        """Tells the agent how much input may be sent, where that has changed."""
        if self._input.room != self._told_room and self.link.connected:
            self._told_room = self._input.room
            self.link.say(frames.ROOM, frames.encode_room(self._told_room))

    # PMI

    def _serve_pmi(self, now: float) -> None:
        """Passes on what PMI has to tell, and ends the launch here where it has failed."""
        pmi = self._pmi
        pmi.tick(now)
        failure = pmi.failure
        for payload in pmi.outgoing():
            self._keep_exchange(payload)
        for text in pmi.said():
            self.link.say(frames.KEEPER_SAY, f"srun: {text}".encode(errors="replace"))
        if failure is not None and not self._killed and not self.done:
            self._killed = True
            self._end_group(0.0)

    def _keep_exchange(self, payload: bytes) -> None:
        """Keeps a frame of what PMI tells other nodes."""
        self.kept.keep_frame(lambda number: frames.encode(frames.EXCHANGE, frames.encode_numbered(number, payload)))

    # the end

    def _end_group(self, grace_seconds: float) -> None:
        """Ends all processes of the launch on this node: TERM, and KILL after the grace; a shorter grace than before counts."""
        until = time.monotonic() + grace_seconds
        if self._kill_at is None and grace_seconds > 0:
            cgroup_signals.terminate(self.launch.ranks_procs)
        self._kill_at = until if self._kill_at is None else min(until, self._kill_at)
        self._end_on_time(time.monotonic())

    def _end_on_time(self, now: float) -> None:
        """Sends KILL once the grace is over, again and again while a rank is left."""
        if self._kill_at is not None and now >= max(self._kill_at, self._kill_again) and not self.done:
            cgroup_signals.kill(self.launch.work_kill)
            if not self.launch.work_kill:
                self._signal(9)
            self._kill_again = now + KILL_AGAIN_SECONDS

    def _reap(self) -> bool:
        """Reaps every child that has ended; returns False when no child is left."""
        ranks = {rank.pid: rank for rank in self.ranks if rank.pid}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._host_pid:
                self._note_host_end(os.waitstatus_to_exitcode(status))
            elif rank := ranks.get(pid):
                rank.end, rank.status = time.time(), status
                rank.usage = (usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
                if self._pmi is not None:
                    self._pmi.ended(rank.asked.rank, rank.code, rank.signal, time.monotonic())

    def _note_host_end(self, code: int) -> None:
        """Notes that the PMIx host has ended, which is a failure while ranks run or are to run."""
        self._host_pid = 0
        if not self.done and (not self.ranks[0].pid or any(rank.status is None for rank in self.ranks)):
            self._pmi.host_ended(max(0, code), max(0, -code))

    def _tell_ends(self, now: float) -> None:
        """Makes a frame of each rank's end, behind its output as far as that is in the pipes; after the last one, of the launch's."""
        if self.done or self._opening:
            return
        for rank in self.ranks:
            if rank.status is not None and not rank.told and self._has_output_of(rank, now):
                rank.told = True
                self._keep_ended(rank.asked.rank, rank.code, rank.signal)
        if all(rank.told for rank in self.ranks) and not self._lingers():
            self._finish(now)

    def _lingers(self) -> bool:
        """Tells whether its ranks have ended well, and daemons that they have left behind go on, for which it lasts."""
        return self.launch.lingers and all(rank.status == 0 for rank in self.ranks) and meters.is_populated(self.launch.work_kill)

    def _keep_ended(self, rank: int, code: int, ended_by: int) -> None:
        """Keeps a frame of a rank's end."""
        self.kept.keep_frame(lambda number: frames.encode(frames.ENDED, frames.encode_ended(RankEnded(0, number, rank, code, ended_by))))

    def _has_output_of(self, rank: Rank, now: float) -> bool:
        """Reads what an ended rank has left in its pipes; returns False while more is there than may be read now."""
        for fd in list(self._of_rank.get(rank.asked.rank, ())):
            output = self._outputs[fd]
            output.idle = False
            for _ in range(DRAIN_READS):
                if self.kept.full:
                    return False
                if not output.read_rank(now):
                    self._close_output(fd)
                    break
                if output.idle:
                    break
            if fd in self._outputs:
                output.flush()
        return True

    def _finish(self, now: float) -> None:
        """Kills what the ranks have left behind, passes the rest of its output on, and tells the end of the launch on this node."""
        cgroup_signals.kill(self.launch.work_kill)
        cgroup_signals.await_empty(self.launch.work_kill, KILL_AGAIN_SECONDS)
        for fd in list(self._outputs):
            for _ in range(DRAIN_READS):
                if self._outputs[fd].idle or not self._outputs[fd].read_rank(now):
                    break
            self._close_output(fd)
        self._input.close()
        self._tell_lost_bytes()
        end = json.dumps(self._end()).encode()
        self.kept.keep_frame(lambda number: frames.encode(frames.DONE, frames.encode_numbered(number, end)))
        self.done = self.kept.last
        with suppress(OSError):
            os.rmdir(os.path.dirname(self.launch.ranks_procs))  # noqa: PTH106

    def _tell_lost_bytes(self) -> None:
        """Says of each labelled file which bytes it did not take."""
        for file in self._files:
            if file.lost:
                said = f"{file.lost} bytes were not written to {file.path}: {file.error}"
                self.link.say(frames.KEEPER_SAY, said.encode(errors="replace"))

    def _end(self) -> dict[str, Any]:
        """Returns the end of the launch on this node, as the step log has it; times in seconds, `maxrss` in KiB."""
        ranks = [
            [rank.asked.rank, rank.code, rank.signal, rank.start, rank.end, *rank.usage] for rank in self.ranks if rank.status is not None
        ]
        spent = sum(rank.usage[0] + rank.usage[1] for rank in self.ranks)
        largest = max((rank.usage[2] for rank in self.ranks), default=0) << 10
        use = meters.read(self.launch.meters, cpu_seconds=spent)
        return {
            "failure": self.failure,
            "ranks": ranks,
            "cpu_seconds": use.get("cpu_seconds", 0.0),
            "peak_memory": use.get("peak_memory", largest),
        }

    def _is_unheard(self) -> bool:
        """Tells whether the attempt is over, and nobody has acknowledged the end for a while."""
        if not durable.are_launches_closed(self.launch.run_directory):
            self._unheard_since = None
            return False
        if self._unheard_since is None:
            self._unheard_since = time.monotonic()
        return time.monotonic() - self._unheard_since >= UNHEARD_SECONDS

    def _write_end(self) -> None:
        """Writes what nobody has heard into the attempt's run directory."""
        with suppress(OSError):
            data = json.dumps(self._end()).encode()
            durable.write_in_memory(self.launch.run_directory, keeper_link.end_name(self.launch.number), data)
            keeper_link.remove_socket(self.launch.run_directory, self.launch.number)


def open_pmi(launch: LaunchDescription, poll: select.poll) -> Any:
    """Returns the server of PMI for the launch's ranks, whose code is loaded by launches that ask for it alone; None: they do not."""
    if not launch.pmi:
        return None
    from lattice_agent.standalone.pmi import ranks  # type: ignore[import-untyped,unused-ignore]

    return ranks.RankServer(ranks.Service(**launch.pmi), poll, launch.user)


@contextmanager
def entered(launch: LaunchDescription) -> Iterator[None]:
    """Enters, for the block in which ranks are forked, the namespaces of the attempt's work: those that a shim or keeper keeps, else
    new ones like them.
    """
    for procs in launch.namespace_procs if launch.has_namespace else ():
        if (kept := task_start.kept_namespace(procs)) is not None:
            mounts, ipc = kept
            task_start.set_namespace(ipc, task_start.CLONE_NEWIPC)
            os.close(ipc)
            place: AbstractContextManager[None] = task_start.in_namespace(mounts)
            break
    else:
        mounts = -1
        join_ipc(launch.namespace_procs)
        place = launch.entered() if launch.has_namespace else nullcontext()
    try:
        with place:
            yield
    finally:
        if mounts >= 0:
            os.close(mounts)


def join_ipc(candidates: Sequence[str]) -> None:
    """Joins the IPC namespace of the attempt's first process among these cgroup files; makes a new one where there is none."""
    for procs in candidates:
        with suppress(OSError):
            if pid := task_start.only_pid(procs):
                fd = os.open(f"/proc/{pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if task_start.only_pid(procs) == pid:
                        task_start.set_namespace(fd, task_start.CLONE_NEWIPC)
                        return
                finally:
                    os.close(fd)
    leftovers.separate_ipc()


def run(launch: LaunchDescription, report: int) -> None:
    """Keeps one launch on this node; answers once through `report`, when its ranks have begun, or stand at the gate where it waits for GO.

    The answer: `pid` and `ticks`; `taken` where a keeper of this launch stands or has stood; or `failure`, with `rank`, `unfit`, `closed`.
    """
    task_start.detach(report, b"lattice-keep")
    keeper, answer = Keeper(launch), {"pid": os.getpid(), "ticks": task_start.start_ticks("self")}
    failure = _claim(keeper)
    if not failure:
        failure = _begin(keeper)
        if failure:
            keeper.abandon()
            keeper.link.close()
            keeper_link.remove_socket(launch.run_directory, launch.number)
    task_start.send(report, failure or answer)
    os.close(report)
    if not failure:
        keeper.keep()


def _claim(keeper: Keeper) -> dict[str, Any]:
    """Takes the right to start the launch, in the keeper's cgroup; returns the answer where that is not possible, else nothing."""
    launch = keeper.launch
    try:
        if launch.keep_procs:
            task_start.write_file(launch.keep_procs, b"0")
        if os.path.exists(os.path.join(launch.run_directory, keeper_link.end_name(launch.number))):  # noqa: PTH110
            return {"taken": True}
        keeper.link.listen(launch.run_directory, launch.number)
    except FileExistsError:
        return {"taken": True}
    except OSError as error:
        return {"failure": f"the launch cannot be kept: {error}", "unfit": True}
    if durable.are_launches_closed(launch.run_directory):
        keeper.link.close()
        keeper_link.remove_socket(launch.run_directory, launch.number)
        return {"failure": "its allocation is over", "closed": True}
    return {}


def _begin(keeper: Keeper) -> dict[str, Any]:
    """Starts the ranks; returns the answer where that has failed, else nothing."""
    try:
        with leftovers.locked(fcntl.LOCK_SH):
            keeper.fork_ranks()
        keeper.start_ranks()
    except RankFailure as failure:
        return {"failure": str(failure)} | ({} if failure.rank is None else {"rank": failure.rank})
    except (StartFailure, forks.CgroupFull) as failure:
        return {"failure": str(failure)}
    except OSError as error:
        return {"failure": str(error), "unfit": True}
    except Exception as error:
        return {"failure": f"it cannot be started: {type(error).__name__}: {error}", "unfit": isinstance(error, MemoryError)}
    return {}
