"""The process that keeps one attempt: it starts the tasks as the user, copies their output, writes the exit record.

One file of standard library, loaded by `runner.py` and run in a fork of it. It is session leader and subreaper,
stands in `SCOPE/shim` while the tasks stand in `SCOPE/work`, survives agent and runner, and ends when no process
of the work is left. Formats: docs/explanation/formats.md (exit record 1, log segment 1, state directory 1).
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH104, PTH108, PTH110, PTH118, PTH208
from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

FORMAT = 1
SEGMENTS = 8
RECORD = struct.Struct("<dQI")
"""Of a log segment: when it was read, bytes lost before it, bytes that follow."""
MAX_RECORD = 256 << 10
MAX_PARTIAL = 64 << 10
PARTIAL_SECONDS = 0.2
PIPE_BYTES = 256 << 10
SHIM_OOM_SCORE, WORK_OOM_SCORE = -900, 0
"""When memory is short the work goes, not the process that keeps its exit code; whatever the agent's own score is."""
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, F_SETPIPE_SZ = 1, 15, 36, 1031

RT_SIGACTION = {"x86_64": 13, "aarch64": 134}  # system call numbers
_libc = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):
    """The work cannot be started; the text is the sentence for people."""


@dataclass(frozen=True)
class Launch:
    """Everything that decides what is started, as JSON brings it."""

    directory: str
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
    work_procs: str
    work_kill: str
    note: str = ""
    user: int | None = None
    group: int | None = None
    groups: list[int] = field(default_factory=list)


@dataclass
class Task:
    """One task, and how it ended (`status` is the wait status)."""

    rank: int
    pid: int
    start: float
    end: float = 0.0
    status: int | None = None
    usage: tuple[float, float, int] = (0.0, 0.0, 0)


def prctl(option: int, value: int | bytes) -> None:
    """prctl(2) with one argument."""
    _libc.prctl(option, value, 0, 0, 0)


def start_ticks(pid: int | str) -> int:
    """Field 22 of /proc/PID/stat: with the pid it names a process."""
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return int(os.read(fd, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(fd)


def write_durably(directory: str, name: str, data: bytes, *, mode: int = 0o600, exclusive: bool = False) -> None:
    """Writes DIRECTORY/NAME by tmp, fsync and rename; `exclusive` refuses to replace (FileExistsError)."""
    path, draft = os.path.join(directory, name), os.path.join(directory, f".{name}.{os.getpid()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        if exclusive:
            os.link(draft, path)
        else:
            os.rename(draft, path)
    finally:
        with suppress(OSError):
            os.unlink(draft)
    sync_directory(directory)


def sync_directory(directory: str) -> None:
    """Makes the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def encode_claim(pid: int, ticks: int, started: float, boottime: float) -> bytes:
    """The file `shim`: the right to start this attempt, taken once."""
    return f"{FORMAT}\n{pid} {ticks} {started!r} {boottime!r}\n".encode()


def claim(directory: str, data: bytes) -> None:
    """Takes the right to start; FileExistsError when it is taken. Not fsynced: it matters in this boot only."""
    draft = os.path.join(directory, f".shim.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, data)
        os.link(draft, os.path.join(directory, "shim"))
    finally:
        os.close(fd)
        os.unlink(draft)


def become(user: int, group: int, groups: list[int]) -> None:
    """Becomes the user for good."""
    os.setgroups(groups)
    os.setgid(group)
    os.setuid(user)


@contextmanager
def acting_as(user: int | None, group: int | None, groups: list[int]) -> Iterator[None]:
    """Opens files with the user's rights; does nothing without ids. For single-threaded processes only."""
    if user is None or group is None:
        yield
        return
    own = os.getgroups()
    os.setgroups(groups)
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(own)


def open_output(path: str, *, truncate: bool) -> int:
    """Opens an output file for appending; a FIFO, a socket or a block device is refused, a character device is never waited for."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | (os.O_TRUNC if truncate else 0)
    try:
        fd = os.open(path, flags, 0o644)
    except OSError as error:
        why = "is neither a regular file nor a character device" if error.errno == errno.ENXIO else f"cannot be opened: {error.strerror}"
        raise Failure(f"the output file {path!r} {why}") from error
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(fd)
        raise Failure(f"the output file {path!r} is neither a regular file nor a character device")
    os.set_blocking(fd, stat.S_ISREG(mode))  # a terminal that nobody reads must not hold the work up
    return fd


class OutputFile:
    """A file of the user's that gets a copy; what it does not take is counted and the work goes on."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd, self.lost, self.error = path, fd, 0, ""

    def write(self, data: bytes) -> None:
        """Writes all of it, or counts what is lost."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError as error:
            self.lost += len(view)
            self.error = error.strerror or str(error)


class LogStream:
    """One stream's rotating segments; the oldest is dropped beyond `keep_bytes`, what a full disk loses is counted."""

    def __init__(self, directory: str, name: str, keep_bytes: int) -> None:
        self._prefix = os.path.join(directory, name + ".")
        self._segment_bytes = max(4096, keep_bytes // SEGMENTS)
        self._fd, self._number, self._size = -1, 0, 0
        self._position, self._lost = 0, 0

    def write(self, now: float, data: bytes) -> None:
        """Appends it as records of at most 256 KiB."""
        for at in range(0, len(data), MAX_RECORD):
            self._append(now, data[at : at + MAX_RECORD])

    def close(self) -> None:
        """Notes what was lost last; nothing is written afterwards."""
        if self._lost:
            self._append(time.time(), b"")
        if self._fd >= 0:
            os.close(self._fd)

    def _append(self, now: float, part: bytes) -> None:
        try:
            if self._fd < 0 or self._size >= self._segment_bytes:
                self._rotate()
            head = RECORD.pack(now, self._lost, len(part))
            written = os.writev(self._fd, [head, part])
        except OSError:
            written = -1
        if written != RECORD.size + len(part):
            self._lost += len(part)
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            return
        self._size += written
        self._position += self._lost + len(part)
        self._lost = 0

    def _rotate(self) -> None:
        """Begins the next segment; on a full disk the old one stays current and the caller counts."""
        number = self._number + 1
        path = f"{self._prefix}{number}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        head = f"{FORMAT} {self._position}\n".encode()
        try:
            if os.write(fd, head) != len(head):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._number, self._size = fd, number, len(head)
        with suppress(FileNotFoundError):
            os.unlink(f"{self._prefix}{number - SEGMENTS}")


class Stream:
    """Where one of the two streams goes: log segments, and a file when asked."""

    def __init__(self, log: LogStream) -> None:
        self.log = log
        self.file: OutputFile | None = None

    def write(self, now: float, data: bytes) -> None:
        """Writes to both; neither can stop the work."""
        self.log.write(now, data)
        if self.file:
            self.file.write(data)


class Inlet:
    """The read end of one task's pipe: passes whole lines on, partial ones after a moment."""

    def __init__(self, fd: int, stream: Stream) -> None:
        self.fd, self._stream, self._pending, self.since = fd, stream, b"", 0.0
        os.set_blocking(fd, False)

    def read(self, now: float) -> bool:
        """Takes what is there; False at the end."""
        try:
            data = os.read(self.fd, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._accept(now, data)
        return bool(data)

    def _accept(self, now: float, data: bytes) -> None:
        whole, newline, rest = (self._pending + data).rpartition(b"\n")
        if newline:
            self._stream.write(now, whole + newline)
        if rest and (newline or not self._pending):
            self.since = now
        self._pending = rest
        if len(rest) > MAX_PARTIAL:
            self.flush(now)

    def overdue(self, now: float) -> bool:
        """Whether a partial line has waited long enough."""
        return bool(self._pending) and not 0 <= now - self.since < PARTIAL_SECONDS

    @property
    def waiting(self) -> bool:
        """Whether a partial line is held back."""
        return bool(self._pending)

    def flush(self, now: float) -> None:
        """Passes a partial line on."""
        if self._pending:
            self._stream.write(now, self._pending)
            self._pending = b""

    def drain(self, now: float) -> None:
        """Takes all that is left without waiting, then closes."""
        with suppress(BlockingIOError):
            while data := os.read(self.fd, PIPE_BYTES):
                self._accept(now, data)
        self.flush(now)
        os.close(self.fd)


@dataclass(frozen=True)
class StopWatch:
    """Times of one attempt that differ by what has passed, whoever sets the machine's clock meanwhile: one moment on two clocks."""

    epoch: float
    boottime: float

    def now(self) -> float:
        """Seconds since the epoch, as they would be had nobody set the clock."""
        return self.epoch + time.clock_gettime(time.CLOCK_BOOTTIME) - self.boottime


class Shim:
    """One attempt, from the claim to the exit record."""

    def __init__(self, launch: Launch, watch: StopWatch) -> None:
        self.launch = launch
        self.watch = watch
        self.tasks: dict[int, Task] = {}
        self.inlets: dict[int, Inlet] = {}
        self.files: list[OutputFile] = []
        self.out, self.err = (Stream(LogStream(launch.directory, name, launch.log_bytes)) for name in ("stdout", "stderr"))
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def start(self) -> None:
        """Starts all tasks; raises Failure with none of them left when one cannot be executed."""
        launch = self.launch
        if launch.shim_procs:
            _write(launch.shim_procs, b"0")
        self._open_files()
        if launch.note:
            self.err.write(time.time(), f"lattice: {launch.note}\n".encode())
        errors_r, errors_w = os.pipe()
        with os.fdopen(errors_r, "rb") as failures:
            try:
                for local, variables in enumerate(launch.task_environments):
                    self._start_task(local, launch.environment | variables, errors_w)
            finally:
                os.close(errors_w)
            said = failures.read()
        if said:
            raise Failure(said.decode(errors="replace").splitlines()[0])

    def _open_files(self) -> None:
        launch, opened = self.launch, dict[str, OutputFile]()
        with acting_as(launch.user, launch.group, launch.groups):
            for stream, path in ((self.out, launch.stdout), (self.err, launch.stderr or launch.stdout)):
                if path and path not in opened:
                    opened[path] = OutputFile(path, open_output(os.path.join(launch.workdir, path), truncate=False))
                    self.files.append(opened[path])
                stream.file = opened.get(path)

    def _start_task(self, local: int, environment: dict[str, str], errors: int) -> None:
        (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
        for fd in (out_w, err_w):
            with suppress(OSError):  # only a wider pipe; the kernel limits it for ordinary users
                fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
        started, shim = self.watch.now(), os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_task(self.launch, environment, (out_w, err_w, errors), shim)
        os.close(out_w)
        os.close(err_w)
        self.tasks[pid] = Task(self.launch.first_rank + local, pid, started)
        self.inlets |= {out_r: Inlet(out_r, self.out), err_r: Inlet(err_r, self.err)}

    def keep(self) -> None:
        """Copies output until the last task has ended."""
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
                elif not self.inlets[fd].read(now):
                    poll.unregister(fd)
                    self.inlets.pop(fd).drain(now)
            for inlet in self.inlets.values():
                if inlet.overdue(now):
                    inlet.flush(now)
            self._reap()

    def end(self) -> None:
        """Kills what the tasks left behind, reaps all of it, takes the last output."""
        while self._reap():
            if self.launch.work_kill:
                with suppress(OSError):
                    _write(self.launch.work_kill, b"1")
            for pid in descendants(os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self._reap():
                select.select([self._wake], [], [], 0.02)
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
        now = time.time()
        for inlet in self.inlets.values():
            inlet.drain(now)
        for file in self.files:
            if file.lost:
                self.err.log.write(now, f"lattice: {file.lost} bytes were not written to {file.path}: {file.error}\n".encode())
        self.out.log.close()
        self.err.log.close()

    def _reap(self) -> bool:
        """Reaps who has ended; False when no child is left."""
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
        """The exit record."""
        launch = self.launch
        tasks = [] if failure else [_task_entry(task) for task in self.tasks.values()]
        return encode_exit(launch.uid_text, launch.attempt, launch.boot, tasks, self.watch.now(), failure, unfit=unfit)


def _task_entry(task: Task) -> dict[str, Any]:
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


def encode_exit(
    uid: str, attempt: int, boot: str, tasks: list[dict[str, Any]], end: float, failure: str = "", *, unfit: bool = False
) -> bytes:
    """The text of an exit record (1); `unfit`: the node's own fault, not the work's."""
    body: dict[str, Any] = {"uid": uid, "attempt": attempt, "boot": boot, "tasks": tasks, "end": end}
    if failure:
        body["failure"] = failure
    if unfit:
        body["unfit"] = True
    return f"{FORMAT}\n{json.dumps(body)}\n".encode()


def keep_exit(directory: str, data: bytes) -> None:
    """Writes the exit record, on a full disk into the room that the reserve held; gives up only without a directory."""
    delay = 0.02
    while True:
        try:
            write_durably(directory, "exit", data)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            with suppress(OSError):
                os.unlink(os.path.join(directory, "reserve"))
            time.sleep(delay)
            delay = min(2 * delay, 2.0)
        else:
            with suppress(OSError):
                os.unlink(os.path.join(directory, "reserve"))
            return


def descendants(*roots: int) -> list[int]:
    """All processes below `roots`, from the parents that /proc shows."""
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


def _become_task(launch: Launch, environment: dict[str, str], ends: tuple[int, int, int], shim: int) -> NoReturn:
    """Turns a fresh fork into the task; what hinders it goes through the error pipe, never into an exit code."""
    try:
        if launch.work_procs:
            _write(launch.work_procs, b"0")
        score_for_oom(WORK_OOM_SCORE)
        os.setsid()
        _reset_signals()
        for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_STACK):
            raise_limit(limit, resource.RLIM_INFINITY)
        raise_limit(resource.RLIMIT_NOFILE, launch.open_files)
        if launch.user is not None and launch.group is not None:
            become(launch.user, launch.group, launch.groups)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.umask(0o022)
        try:
            os.chdir(launch.workdir)
        except OSError as error:
            raise Failure(f"the working directory {launch.workdir!r} cannot be entered: {error.strerror}") from error
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ends[0], 1)
        os.dup2(ends[1], 2)
        if os.getppid() == shim:
            os.execvpe(launch.argv[0], launch.argv, environment)  # noqa: S606 - this is what a shim is for
    except Failure as failure:
        os.write(ends[2], f"{failure}\n".encode())
    except BaseException as error:
        os.write(ends[2], (_exec_sentence(launch, environment, error) + "\n").encode(errors="replace")[:4096])
    finally:
        os._exit(127)


def _exec_sentence(launch: Launch, environment: dict[str, str], error: BaseException) -> str:
    command = launch.argv[0] if len(launch.argv[0]) <= 200 else launch.argv[0][:200] + "…"
    said = (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    sentence = f"{command!r} cannot be executed: {said}"
    if isinstance(error, FileNotFoundError):
        if "/" not in launch.argv[0]:
            return f"{sentence}; it is not in PATH={environment.get('PATH', '')}"
        if os.path.exists(launch.argv[0]):
            return f"{sentence}; the file exists, but not the interpreter that it names"
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        size = sum(map(len, launch.argv)) + sum(len(name) + len(value) + 2 for name, value in environment.items())
        return f"{sentence}; arguments and environment have {size} characters, one of them may have 131071"
    return sentence


def _reset_signals() -> None:
    """The work inherits no ignored signal of Python's, no mask."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    call = RT_SIGACTION.get(os.uname().machine)
    for hidden in (32, 33) if call else ():  # the C library's own, which its functions do not let anybody set
        _libc.syscall(call, hidden, bytes(32), None, 8)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def score_for_oom(score: int) -> None:
    """Says how soon the kernel may take this process when memory is short (-1000 … 1000); without the right nothing changes."""
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", str(score).encode())


def raise_limit(limit: int, wanted: int) -> None:
    """Sets soft and hard limit, or, without the right, the soft one as near as the hard one lets it."""
    try:
        resource.setrlimit(limit, (wanted, wanted))
    except (ValueError, OSError):
        hard = resource.getrlimit(limit)[1]
        soft = hard if wanted == resource.RLIM_INFINITY or 0 <= hard < wanted else wanted
        resource.setrlimit(limit, (soft, hard))


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _detach(report: int) -> None:
    """Leaves the runner's session and descriptors; a terminal's or operator's signals do not reach the shim."""
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
    """Keeps one attempt from beginning to end. `report` gets one JSON line: running, taken or failure."""
    _detach(report)
    running = (os.getpid(), start_ticks("self"), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
    try:
        claim(launch.directory, encode_claim(*running))
    except FileExistsError:
        tell(report, {"taken": True})
        return
    except FileNotFoundError:
        tell(report, {"failure": f"the directory {launch.directory} of the attempt is gone", "unfit": True})
        return
    except OSError as error:
        tell(report, {"failure": f"its state cannot be written: {error}", "unfit": True})
        return
    shim, failure, unfit = Shim(launch, StopWatch(*running[2:])), "", False
    try:
        shim.start()
    except (Failure, OSError) as error:
        failure, unfit = str(error), not isinstance(error, Failure)
    else:
        tell(report, {"running": running})
        os.close(report)
        shim.keep()
    shim.end()
    keep_exit(launch.directory, shim.record(failure, unfit=unfit))
    if failure:
        tell(report, {"failure": failure, "unfit": unfit})


def tell(report: int, what: dict[str, Any]) -> None:
    """One line to the runner, who may be gone."""
    with suppress(OSError):
        os.write(report, json.dumps(what).encode())
