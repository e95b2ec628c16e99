"""Keeps one attempt, as a process of its own: starts the tasks as the user, copies their output, writes the exit record.

It is of standard library alone, with `cgroup_signals.py`, `container_tasks.py`, `durable.py`, `forks.py`, `leftovers.py`, `meters.py`,
`namespaces.py`, `private_tmp.py`, `scratch_mount.py`, `streams.py` and `task_start.py` beside it; `runner.py` loads it and runs it in a
fork. It is session leader and subreaper, stands in `SCOPE/shim` while the tasks stand in `SCOPE/work/main`, survives agent and runner, and
ends when no process of the work is left, the ranks of launches included.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH118, PTH120, PTH208
from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from lattice_agent.standalone import cgroup_signals, container_tasks, durable, forks, leftovers, meters, private_tmp, streams
from lattice_agent.standalone.records import Record
from lattice_agent.standalone.streams import (
    PARTIAL_SECONDS,
    PIPE_BYTES,
    Inlet,
    LogStream,
    OutputFile,
    OutputStream,
    StartFailure,
)
from lattice_agent.standalone.task_start import (
    NOTHING,
    PR_SET_PDEATHSIG,
    WORK_OOM_SCORE,
    WorkPlace,
    catch_child_ends,
    detach,
    exec_sentence,
    give_up_new_privileges,
    join_own_keyring,
    prctl,
    reset_signals,
    score_for_oom,
    send,
    start_ticks,
    write_file,
)

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any, NoReturn

F_SETPIPE_SZ = 1031


class Launch(WorkPlace):
    """Everything that decides what is started, decoded from the agent's JSON."""

    uid_text: str
    attempt: int
    argv: list[str]
    environment: dict[str, str]
    task_environments: list[dict[str, str]]
    first_rank: int
    stdout: str
    stderr: str
    log_bytes: int
    shim_procs: str
    meters: dict[str, str] = NOTHING
    """By name, the files in which the kernel counts what the work uses (`meters.read`)."""
    remove_leftovers: bool = False
    private: dict[str, str] = NOTHING
    """Variables of Secrets: written and printed nowhere, and stronger than those of `environment`."""
    alone: bool = False
    """Whether nobody has asked for this start before, so that no other shim can take the right: a failure is then the end."""
    note: str = ""


class Task(Record):
    """One task and its end; `status` is the wait status, None: it has not ended."""

    rank: int
    pid: int
    start: float
    end: float = 0.0
    status: int | None = None
    usage: tuple[float, float, int] = (0.0, 0.0, 0)


class StopWatch(Record):
    """The clock of one attempt, whose times differ by what has passed even if somebody sets the machine's clock meanwhile.

    It holds the same moment on two clocks.
    """

    epoch: float
    boottime: float

    def now(self) -> float:
        """Returns seconds since the epoch, as if nobody had set the clock since the start."""
        return self.epoch + time.clock_gettime(time.CLOCK_BOOTTIME) - self.boottime


class Shim:
    """Keeps one attempt, from its claim to its exit record."""

    def __init__(self, launch: Launch, watch: StopWatch) -> None:
        self.launch = launch
        self.watch = watch
        self.tasks: dict[int, Task] = {}
        self.inlets: dict[int, Inlet] = {}
        self.files: list[OutputFile] = []
        self._gate = -1
        """The descriptor with which tasks in a container end, so that none outlives this process."""
        self.out, self.err = (OutputStream(LogStream(launch.directory, name, launch.log_bytes)) for name in ("stdout", "stderr"))
        self._wake = catch_child_ends()

    def start(self) -> None:
        """Joins the shim's cgroup, opens the output files and starts all tasks; raises StartFailure when one cannot be executed.

        Tasks that were started before that one are left to `end_leftovers`. Raises OSError where the node is at fault.
        """
        launch = self.launch
        if launch.shim_procs:
            write_file(launch.shim_procs, b"0")
        self._open_files()
        if launch.note:
            self.err.write(time.time(), f"lattice: {launch.note}\n".encode(errors="replace"))
        if launch.container:
            self._start_in_container(container_tasks.Container(**launch.container))
            return
        errors_r, errors_w = os.pipe()
        with os.fdopen(errors_r, "rb") as failures:
            try:
                with launch.entered():
                    for local, variables in enumerate(launch.task_environments):
                        self._start_task(local, launch.environment | launch.private | variables, errors_w)
            finally:
                os.close(errors_w)
            said = failures.read()
        if said:
            raise StartFailure(said.decode(errors="replace").splitlines()[0])

    def _open_files(self) -> None:
        """Opens the user's output files with his rights, one file once for both streams; raises StartFailure for one that cannot take
        output.
        """
        launch, opened = self.launch, dict[str, OutputFile]()
        with launch.identity.acting():
            for stream, path in ((self.out, launch.stdout), (self.err, launch.stderr or launch.stdout)):
                if path and path not in opened:
                    opened[path] = OutputFile(
                        path, streams.open_output(os.path.join(launch.workdir, path), truncate=False), launch.identity
                    )
                    self.files.append(opened[path])
                stream.file = opened.get(path)

    def _start_in_container(self, container: container_tasks.Container) -> None:
        """Starts all tasks in the attempt's container; raises OSError where that is not possible, and leaves none behind."""
        launch, pipes, calls = self.launch, list[tuple[int, int]](), list[container_tasks.Call]()
        try:
            for variables in launch.task_environments:
                (out_r, out_w), (err_r, err_w) = _wide_pipe(), _wide_pipe()
                pipes.append((out_r, err_r))
                calls.append(container_tasks.Call(launch.argv, launch.environment | launch.private | variables, out_w, err_w))
            pids, self._gate = container_tasks.start(container, calls, launch.work_procs, launch.set_limits)
        finally:
            for call in calls:
                os.close(call.out)
                os.close(call.err)
        started = self.watch.now()
        for local, (pid, (out, err)) in enumerate(zip(pids, pipes, strict=True)):
            self.tasks[pid] = Task(launch.first_rank + local, pid, started)
            self.inlets |= {out: Inlet(out, self.out), err: Inlet(err, self.err)}

    def _start_task(self, local: int, environment: dict[str, str], errors: int) -> None:
        """Forks one task (`local`: its number on this node, from 0) with pipes for its output; its errors before exec go into `errors`.

        Raises OSError.
        """
        (out_r, out_w), (err_r, err_w) = _wide_pipe(), _wide_pipe()
        started, shim = self.watch.now(), os.getpid()
        *beside, work = self.launch.work_procs or [""]
        pid, inside = forks.fork_into(work)
        if pid == 0:
            _become_task(self.launch, environment, (out_w, err_w, errors), shim, beside if inside else self.launch.work_procs)
        os.close(out_w)
        os.close(err_w)
        self.tasks[pid] = Task(self.launch.first_rank + local, pid, started)
        self.inlets |= {out_r: Inlet(out_r, self.out), err_r: Inlet(err_r, self.err)}

    def copy_output(self) -> None:
        """Copies the tasks' output to log segments and output files until the last task has ended."""
        poll = select.poll()
        for fd in (self._wake, *self.inlets):
            poll.register(fd, select.POLLIN)
        self._reap()
        while any(task.status is None for task in self.tasks.values()):
            waiting = any(inlet.waiting for inlet in self.inlets.values())
            ready = poll.poll(PARTIAL_SECONDS * 1000 if waiting else None)
            now = time.time()
            for fd, _ in ready:
                if fd == self._wake:
                    os.read(fd, 4096)
                elif not self.inlets[fd].read_pipe(now):
                    poll.unregister(fd)
                    self.inlets.pop(fd).drain(now)
            for inlet in self.inlets.values():
                if inlet.overdue(now):
                    inlet.flush(now)
            self._reap()

    def end_leftovers(self) -> None:
        """Kills the processes that the tasks left behind, and reaps all of them."""
        kill = os.path.join(os.path.dirname(self.launch.work_kill), "main/cgroup.kill") if self.launch.work_kill else ""
        while self._reap():
            if kill:
                cgroup_signals.kill(kill)
            for pid in descendants(os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self._reap():
                self._await_child()
        while self.launch.container and meters.is_populated(kill):  # process 1 of the container reaps these
            cgroup_signals.kill(kill)
            self._await_child()

    def end_launches(self) -> None:
        """Ends the launches that outlive the tasks, by TERM, and KILL after the work's grace; none begins from now on.

        Where launches are closed already, the agent ends the attempt, and its TERM to all of the work is enough: a program may take a
        second one as the order to save nothing more.
        """
        terminates = not durable.are_launches_closed(self.launch.run_directory)
        with suppress(OSError):  # the directory is gone, and with it whatever a launch needs
            durable.close_launches(self.launch.run_directory)
        if self.launch.work_kill:
            ranks = os.path.join(os.path.dirname(self.launch.work_kill), "launch-*/cgroup.procs")
            cgroup_signals.end(ranks, self.launch.work_kill, self.launch.grace_seconds, terminates=terminates)

    def _await_child(self) -> None:
        """Waits until a child may have ended, 20 ms at most."""
        select.select([self._wake], [], [], 0.02)
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def drain(self) -> None:
        """Copies the output that is still in the pipes, notes in the log what files did not take, and closes the log."""
        now = time.time()
        for inlet in self.inlets.values():
            inlet.drain(now)
        for file in self.files:
            if file.lost:
                lost = f"lattice: {file.lost} bytes were not written to {file.path}: {file.error}\n"
                self.err.log.write(now, lost.encode(errors="replace"))
        self.out.log.close()
        self.err.log.close()

    def _reap(self) -> bool:
        """Reaps every child that has ended; returns False when no child is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if task := self.tasks.get(pid):
                task.end, task.status = self.watch.now(), status
                task.usage = (usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
                with suppress(OSError):  # there is no room, or the start has failed: the exit record tells
                    durable.note_task_end(self.launch.run_directory, _task_entry(task))

    def note_tasks(self) -> None:
        """Notes the tasks that were started, and from now on each end: this process may be killed before it writes the record."""
        with suppress(OSError):
            started = [{"rank": task.rank, "pid": task.pid, "start": task.start} for task in self.tasks.values()]
            durable.note_tasks(self.launch.run_directory, started)

    def record(self, failure: str, *, unfit: bool = False) -> bytes:
        """Returns the content of the exit record; with a `failure` it holds no tasks. `unfit`: the node is at fault."""
        launch = self.launch
        tasks = [] if failure else [_task_entry(task) for task in self.tasks.values()]
        spent = sum(task.usage[0] + task.usage[1] for task in self.tasks.values())
        return durable.encode_exit(
            launch.uid_text, launch.attempt, launch.boot, tasks, self.watch.now(), failure, unfit=unfit,
            use=meters.read(launch.meters, cpu_seconds=spent),
        )  # fmt: skip


def _wide_pipe() -> tuple[int, int]:
    """Returns a pipe for output; a wider one where the kernel allows that, which it limits for ordinary users."""
    read_end, write_end = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(write_end, F_SETPIPE_SZ, PIPE_BYTES)
    return read_end, write_end


def _task_entry(task: Task) -> dict[str, Any]:
    """Returns the entry of a task in the exit record; a signal gives the code 128 + signal."""
    code = os.waitstatus_to_exitcode(task.status or 0)
    return {
        "rank": task.rank,
        "pid": task.pid,
        "code": code if code >= 0 else 128 - code,
        "signal": max(0, -code),
        "start": task.start,
        "end": task.end,
        "utime": task.usage[0],
        "stime": task.usage[1],
        "maxrss": task.usage[2],
    }


def descendants(*roots: int) -> list[int]:
    """Returns the pids of all processes below `roots`, which are not among them, by the parents that /proc shows."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                fd = os.open(f"/proc/{entry}/stat", os.O_RDONLY)
                try:
                    parent = int(os.read(fd, 4096).rpartition(b")")[2].split()[1])
                finally:
                    os.close(fd)
                children.setdefault(parent, []).append(int(entry))
    found, todo = list[int](), list(roots)
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += below
    return found


def _become_task(launch: Launch, environment: dict[str, str], ends: tuple[int, int, int], shim: int, joins: Sequence[str]) -> NoReturn:
    """Turns a fresh fork into the task; an error on the way goes through the error pipe, never into an exit code.

    It joins the cgroups whose files `joins` names; `ends` are its output, its errors and the error pipe.
    """
    try:
        for procs in joins:
            write_file(procs, b"0")
        score_for_oom(WORK_OOM_SCORE)
        os.setsid()
        reset_signals()
        launch.set_limits()
        launch.identity.become()
        if launch.hold_procs:
            give_up_new_privileges()
        join_own_keyring()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.umask(0o022)
        try:
            os.chdir(launch.workdir)
        except OSError as error:
            raise StartFailure(f"the working directory {launch.workdir!r} cannot be entered: {error.strerror}") from error
        if "SLURM_PROCID" in environment:
            environment["SLURM_TASK_PID"] = str(os.getpid())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ends[0], 1)
        os.dup2(ends[1], 2)
        if os.getppid() == shim:
            os.execvpe(launch.argv[0], launch.argv, environment)  # noqa: S606 - this is what a shim is for
    except StartFailure as failure:
        os.write(ends[2], f"{failure}\n".encode(errors="replace"))
    except BaseException as error:
        sentence = exec_sentence(launch.argv, environment, error, shows_path="PATH" not in launch.private)
        os.write(ends[2], (sentence + "\n").encode(errors="replace")[:4096])
    finally:
        os._exit(127)


def run(launch: Launch, report: int) -> None:
    """Keeps one attempt: takes the right to start it, starts its tasks, copies their output, and writes the exit record after their end.

    Writes one JSON object into the descriptor `report`: `running`, `taken` (nothing is started), or `failure` with `unfit`.
    """
    detach(report, b"lattice-shim")
    running = (os.getpid(), start_ticks("self"), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
    shim, claim = Shim(launch, StopWatch(*running[2:])), durable.encode_claim(*running)
    try:
        durable.take_right(launch.run_directory, launch.directory, claim)
    except FileExistsError:
        send(report, {"taken": True})
        return
    except OSError as error:
        failure, unfit = _state_sentence(launch, error), True
        if not (launch.alone or durable.has_right(launch.run_directory, claim)):  # another shim may have it, or take it yet
            send(report, {"failure": failure, "unfit": unfit})
            return
    else:
        leftovers.separate_ipc()
        failure, unfit = _start(shim)
    if not failure:
        shim.note_tasks()
        send(report, {"running": running})
        os.close(report)
        shim.copy_output()
    shim.end_leftovers()
    shim.end_launches()
    record = shim.record(failure, unfit=unfit)
    with suppress(OSError):  # before the last output: a file that hangs must not take the exit code along
        durable.write_in_memory(launch.run_directory, durable.EXIT, record)
    shim.drain()
    if launch.private_tmp:
        private_tmp.remove(launch.tmp_place)
    if launch.remove_leftovers:
        shared = (leftovers.VAR_TMP,) if launch.private_tmp else leftovers.DIRECTORIES
        leftovers.remove(launch.user, running[2], keep=(launch.stdout, launch.stderr), directories=shared)
    durable.keep_exit(launch.run_directory, launch.directory, record)
    if failure:
        send(report, {"failure": failure, "unfit": unfit})


def _start(shim: Shim) -> tuple[str, bool]:
    """Starts the tasks; returns why that failed (empty: they run), and whether the node is at fault, as it is where the kernel refuses.

    Whatever else fails is an end of the work too: the right to start is taken, and nobody else would tell.
    """
    try:
        with leftovers.locked(fcntl.LOCK_SH):
            shim.start()
    except (StartFailure, OSError) as error:
        return str(error), not isinstance(error, (StartFailure, forks.CgroupFull))
    except Exception as error:
        return f"it cannot be started: {type(error).__name__}: {error}", isinstance(error, MemoryError)
    return "", False


def _state_sentence(launch: Launch, error: OSError) -> str:
    """Returns the sentence on state of an attempt that cannot be written."""
    if isinstance(error, FileNotFoundError):
        return f"the directory {launch.directory} of the attempt is gone"
    return f"its state cannot be written: {error}"
