"""Keeps one attempt, as a process of its own: starts the tasks as the user, copies their output, writes the exit record.

It is of standard library alone, with `container_tasks.py`, `durable.py`, `forks.py`, `streams.py`, `leftovers.py`, `meters.py`,
`namespaces.py`, `private_tmp.py` and `scratch_mount.py` beside it; `runner.py` loads it and runs it in a fork. It is session leader and
subreaper, stands in `SCOPE/shim` while the tasks stand in `SCOPE/work/main`, survives agent and runner, and ends when no process of the
work is left.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH110, PTH118, PTH208
from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from lattice_agent.standalone import container_tasks, durable, forks, leftovers, meters, namespaces, private_tmp, scratch_mount, streams
from lattice_agent.standalone.records import Record
from lattice_agent.standalone.streams import (
    PARTIAL_SECONDS,
    PIPE_BYTES,
    Inlet,
    LogStream,
    OutputFile,
    OutputStream,
    StartFailure,
    UserIdentity,
)

TYPE_CHECKING = False  # as typing's, which a shim does not load
if TYPE_CHECKING:
    from typing import Any, NoReturn

SHIM_OOM_SCORE, WORK_OOM_SCORE = -900, 0
"""When memory is short the kernel takes the work, not the process that keeps its exit code, whatever the agent's own score."""
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, F_SETPIPE_SZ = 1, 15, 36, 38, 1031

RT_SIGACTION, KEYCTL = {"x86_64": 13, "aarch64": 134}, {"x86_64": 250, "aarch64": 219}  # system call numbers
JOIN_SESSION_KEYRING, LINK, SESSION_KEYRING, USER_KEYRING = 1, 8, -3, -4
_libc = ctypes.CDLL(None, use_errno=True)


class Launch(Record):
    """Everything that decides what is started, decoded from the agent's JSON."""

    directory: str
    run_directory: str
    uid_text: str
    attempt: int
    boot: str
    argv: list[str]
    environment: dict[str, str]
    task_environments: list[dict[str, str]]
    first_rank: int
    workdir: str
    stdout: str
    stderr: str
    log_bytes: int
    open_files: int
    shim_procs: str
    work_procs: list[str]
    """The files by which tasks join the scope: those of the v1 cgroups, then that of the v2 tree."""
    work_kill: str
    meters: dict[str, str]
    """By name, the files in which the kernel counts what the work uses (`meters.read`)."""
    private_tmp_keep: list[str]
    mounts: list[str]
    """What is mounted where `hold_procs` leads: a private /tmp goes on showing it, and the tasks gain no privileges."""
    container: dict[str, Any]
    """The fields of `container_tasks.Container` in which the tasks run; empty: they run on the node itself."""
    private: dict[str, str]
    """Variables of Secrets: written and printed nowhere, and stronger than those of `environment`."""
    groups: list[int]
    max_processes: int = 0
    core_bytes: int | None = None
    """The limit of core files that the work may raise; None: as the agent's own."""
    remove_leftovers: bool = False
    private_tmp: bool = False
    hold_procs: str = ""
    """The file that names the process in whose mount namespace the tasks begin; empty: there is none."""
    scratch: str = ""
    """Its scratch space, which a private /tmp goes on showing; empty: there is none."""
    scratch_bytes: int = 0
    """The size of the file system in memory that is mounted there for the tasks; 0: none is, the directory itself is the space."""
    alone: bool = False
    """Whether nobody has asked for this start before, so that no other shim can take the right: a failure is then the end."""
    note: str = ""
    user: int | None = None
    group: int | None = None

    @property
    def tmp_place(self) -> str:
        """Returns the path of the directory that holds the tasks' own /tmp."""
        return private_tmp.path_of(self.directory, self.boot)

    @property
    def identity(self) -> UserIdentity:
        """Returns the user that the tasks run as."""
        return UserIdentity(self.user, self.group, tuple(self.groups))


class Task(Record):
    """One task and its end; `status` is the wait status, None: it has not ended."""

    rank: int
    pid: int
    start: float
    end: float = 0.0
    status: int | None = None
    usage: tuple[float, float, int] = (0.0, 0.0, 0)


def prctl(option: int, value: int | bytes) -> None:
    """Calls prctl(2) with one argument; passes over an error."""
    _libc.prctl(option, value, 0, 0, 0)


def start_ticks(pid: int | str) -> int:
    """Returns field 22 of /proc/PID/stat, the start time in clock ticks since the boot; with the pid it identifies a process.

    Raises OSError where there is no such process.
    """
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return int(os.read(fd, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(fd)


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
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def start(self) -> None:
        """Joins the shim's cgroup, opens the output files and starts all tasks; raises StartFailure when one cannot be executed.

        Tasks that were started before that one are left to `end_leftovers`. Raises OSError where the node is at fault.
        """
        launch = self.launch
        if launch.shim_procs:
            _write(launch.shim_procs, b"0")
        self._open_files()
        if launch.note:
            self.err.write(time.time(), f"lattice: {launch.note}\n".encode(errors="replace"))
        if launch.container:
            self._start_in_container(container_tasks.Container(**launch.container))
            return
        errors_r, errors_w = os.pipe()
        with os.fdopen(errors_r, "rb") as failures:
            try:
                with self._namespace():
                    for local, variables in enumerate(launch.task_environments):
                        self._start_task(local, launch.environment | launch.private | variables, errors_w)
            finally:
                os.close(errors_w)
            said = failures.read()
        if said:
            raise StartFailure(said.decode(errors="replace").splitlines()[0])

    @contextmanager
    def _namespace(self) -> Iterator[None]:
        """Enters, for the block in which tasks are forked, the mount namespaces with the work's software, scratch space and own /tmp."""
        launch = self.launch
        held: AbstractContextManager[None] = nullcontext()
        tmp: AbstractContextManager[None] = nullcontext()
        if launch.hold_procs:
            held = namespaces.entered(launch.hold_procs)
        space: AbstractContextManager[None] = nullcontext()
        if launch.scratch_bytes:
            space = scratch_mount.entered(launch.scratch, launch.scratch_bytes, launch.identity)
        if launch.private_tmp:
            places = (launch.workdir, launch.directory, *launch.mounts, *filter(None, (launch.scratch,)))
            tmp = private_tmp.entered(launch.tmp_place, launch.identity, launch.private_tmp_keep, places)
        with held, space, tmp:
            yield

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
            pids, self._gate = container_tasks.start(container, calls, launch.work_procs, lambda: _set_limits(launch))
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
        while self._reap():
            if self.launch.work_kill:
                with suppress(OSError):
                    _write(self.launch.work_kill, b"1")
            for pid in descendants(os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self._reap():
                self._await_child()
        while self.launch.container and meters.is_populated(self.launch.work_kill):  # process 1 of the container reaps these
            with suppress(OSError):
                _write(self.launch.work_kill, b"1")
            self._await_child()

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


def _become_task(launch: Launch, environment: dict[str, str], ends: tuple[int, int, int], shim: int, joins: list[str]) -> NoReturn:
    """Turns a fresh fork into the task; an error on the way goes through the error pipe, never into an exit code.

    It joins the cgroups whose files `joins` names; `ends` are its output, its errors and the error pipe.
    """
    try:
        for procs in joins:
            _write(procs, b"0")
        score_for_oom(WORK_OOM_SCORE)
        os.setsid()
        _reset_signals()
        _set_limits(launch)
        launch.identity.become()
        if launch.hold_procs:
            _give_up_new_privileges()
        _join_own_keyring()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.umask(0o022)
        try:
            os.chdir(launch.workdir)
        except OSError as error:
            raise StartFailure(f"the working directory {launch.workdir!r} cannot be entered: {error.strerror}") from error
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ends[0], 1)
        os.dup2(ends[1], 2)
        if os.getppid() == shim:
            os.execvpe(launch.argv[0], launch.argv, environment)  # noqa: S606 - this is what a shim is for
    except StartFailure as failure:
        os.write(ends[2], f"{failure}\n".encode(errors="replace"))
    except BaseException as error:
        os.write(ends[2], (_exec_sentence(launch, environment, error) + "\n").encode(errors="replace")[:4096])
    finally:
        os._exit(127)


def _set_limits(launch: Launch) -> None:
    """Sets the resource limits of the work, as far as this process may, for itself and its descendants."""
    for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_STACK):
        raise_limit(limit, resource.RLIM_INFINITY)
    raise_limit(resource.RLIMIT_NOFILE, launch.open_files)
    if launch.core_bytes is not None:
        limit_softly(resource.RLIMIT_CORE, launch.core_bytes)
    if launch.max_processes:
        raise_limit(resource.RLIMIT_NPROC, launch.max_processes)


def _give_up_new_privileges() -> None:
    """Sets no_new_privs for this process and its descendants, so that setuid programs, which might read files of the user, give no rights.

    Raises OSError where the kernel refuses.
    """
    nothing = ctypes.c_ulong(0)
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing):
        raise OSError(ctypes.get_errno(), "the privileges of programs cannot be given up")


def _exec_sentence(launch: Launch, environment: dict[str, str], error: BaseException) -> str:
    """Returns the sentence on a command that cannot be executed: the kernel's message, and what is missing or too long where that can be
    told.
    """
    command = launch.argv[0] if len(launch.argv[0]) <= 200 else launch.argv[0][:200] + "…"
    said = (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    sentence = f"{command!r} cannot be executed: {said}"
    if isinstance(error, FileNotFoundError):
        if "/" not in launch.argv[0]:
            return f"{sentence}; it is not in PATH" + ("" if "PATH" in launch.private else f"={environment.get('PATH', '')}")
        if os.path.exists(launch.argv[0]):
            return f"{sentence}; the file exists, but not the interpreter that it names"
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        size = sum(map(len, launch.argv)) + sum(len(name) + len(value) + 2 for name, value in environment.items())
        return f"{sentence}; arguments and environment have {size} characters, one of them may have 131071"
    return sentence


def _reset_signals() -> None:
    """Restores all signal handlers and the mask, so that the work inherits no signal that Python ignores."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    call = RT_SIGACTION.get(os.uname().machine)
    for hidden in (32, 33) if call else ():  # the C library's own, which its functions do not let anybody set
        _libc.syscall(call, hidden, bytes(32), None, 8)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _join_own_keyring() -> None:
    """Leaves the agent's session keyring, which all work would share, for a new one linked to the user's keys, as a login has."""
    if call := KEYCTL.get(os.uname().machine):
        _libc.syscall(call, JOIN_SESSION_KEYRING, None)
        _libc.syscall(call, LINK, USER_KEYRING, SESSION_KEYRING)


def score_for_oom(score: int) -> None:
    """Sets how soon the kernel takes this process when memory is short (-1000 … 1000); without the right nothing changes."""
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", str(score).encode())


def raise_limit(limit: int, wanted: int) -> None:
    """Sets soft and hard limit of a resource (RLIMIT_*); without the right, the soft one as near to `wanted` as the hard one allows."""
    try:
        resource.setrlimit(limit, (wanted, wanted))
    except (ValueError, OSError):
        hard = resource.getrlimit(limit)[1]
        soft = hard if wanted == resource.RLIM_INFINITY or 0 <= hard < wanted else wanted
        resource.setrlimit(limit, (soft, hard))


def limit_softly(limit: int, wanted: int) -> None:
    """Sets the soft limit of a resource (RLIMIT_*) to `wanted` and the hard one to infinity, so that the process may raise the former.

    Without the right the hard one stays, and the soft one does not go beyond it.
    """
    with suppress(ValueError, OSError):
        resource.setrlimit(limit, (wanted, resource.RLIM_INFINITY))
        return
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _write(path: str, data: bytes) -> None:
    """Writes into an existing file by one call; raises OSError."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _detach(report: int) -> None:
    """Leaves the runner's session and closes its descriptors, so that signals of a terminal or an operator do not reach the shim."""
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"lattice-shim")
    score_for_oom(SHIM_OOM_SCORE)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    os.closerange(3, report)
    os.closerange(report + 1, 1 << 20)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    raise_limit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def run(launch: Launch, report: int) -> None:
    """Keeps one attempt: takes the right to start it, starts its tasks, copies their output, and writes the exit record after their end.

    Writes one JSON object into the descriptor `report`: `running`, `taken` (nothing is started), or `failure` with `unfit`.
    """
    _detach(report)
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
        send(report, {"running": running})
        os.close(report)
        shim.copy_output()
    shim.end_leftovers()
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
        return str(error), not isinstance(error, StartFailure)
    except Exception as error:
        return f"it cannot be started: {type(error).__name__}: {error}", isinstance(error, MemoryError)
    return "", False


def _state_sentence(launch: Launch, error: OSError) -> str:
    """Returns the sentence on state of an attempt that cannot be written."""
    if isinstance(error, FileNotFoundError):
        return f"the directory {launch.directory} of the attempt is gone"
    return f"its state cannot be written: {error}"


def send(report: int, what: dict[str, Any]) -> None:
    """Writes an answer as JSON into the pipe to the runner; passes over a runner that is gone."""
    with suppress(OSError):
        os.write(report, json.dumps(what).encode())
