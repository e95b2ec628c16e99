"""Turns a fork into a process of an attempt's work: its limits, namespaces, keyring and signals, and the sentence on what does not execute.

It is of standard library alone, for shim and keeper, which start the tasks of an attempt and the ranks of its launches in the same place.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH110, PTH115
from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enumerations of `signal`, slow where each rank sets sixty
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from lattice_agent.standalone import namespaces, private_tmp, scratch_mount
from lattice_agent.standalone.records import NamedRecord
from lattice_agent.standalone.streams import UserIdentity

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

KEEPER_OOM_SCORE, WORK_OOM_SCORE = -900, 0
"""When memory is short the kernel takes the work, not the process that keeps its exit code, whatever the agent's own score."""
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 15, 36, 38
RT_SIGACTION, KEYCTL = {"x86_64": 13, "aarch64": 134}, {"x86_64": 250, "aarch64": 219}  # system call numbers
JOIN_SESSION_KEYRING, LINK, SESSION_KEYRING, USER_KEYRING = 1, 8, -3, -4
NAMESPACE_FD = 100
"""The descriptor of a shim or keeper that keeps the mount namespace in which it forks work, so that a keeper after it forks there too."""
NEW_PRIVILEGES_STAY = "the privileges of programs cannot be given up"
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
NOTHING: dict[str, Any] = {}
"""The value of fields that may be left out; nobody changes it."""
_libc = ctypes.CDLL(None, use_errno=True)


class WorkPlace(NamedRecord):
    """The place in which an attempt's work runs on this node: user, limits and mounts, decoded from the agent's JSON."""

    directory: str
    """The attempt's state directory."""
    run_directory: str
    boot: str
    workdir: str
    open_files: int
    work_procs: Sequence[str]
    """The files by which the work joins the scope: those of the v1 cgroups, then that of the v2 tree."""
    work_kill: str
    max_processes: int = 0
    core_bytes: int | None = None
    """The limit of core files that the work may raise; None: as the agent's own."""
    private_tmp: bool = False
    private_tmp_keep: Sequence[str] = ()
    hold_procs: str = ""
    """The file that names the process in whose mount namespace the work begins; empty: there is none."""
    mounts: Sequence[str] = ()
    """What is mounted there: a private /tmp goes on showing it, and the work gains no privileges."""
    scratch: str = ""
    """Its scratch space, which a private /tmp goes on showing; empty: there is none."""
    scratch_bytes: int = 0
    """The size of the file system in memory that is mounted there for the work; 0: none is, the directory itself is the space."""
    container: dict[str, Any] = NOTHING
    """The fields of `container_tasks.Container` in which the work runs; empty: it runs on the node itself."""
    grace_seconds: float = 30.0
    """The time between TERM and KILL for launches that outlive the work's own tasks."""
    user: int | None = None
    group: int | None = None
    groups: Sequence[int] = ()

    @property
    def tmp_place(self) -> str:
        """Returns the path of the directory that holds the work's own /tmp."""
        return private_tmp.path_of(self.directory, self.boot)

    @property
    def identity(self) -> UserIdentity:
        """Returns the user that the work runs as."""
        return UserIdentity(self.user, self.group, tuple(self.groups))

    @property
    def has_namespace(self) -> bool:
        """Tells whether the work begins in a mount namespace of its own that no container makes."""
        return not self.container and bool(self.hold_procs or self.scratch_bytes or self.private_tmp)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enters, for the block in which work is forked, the mount namespaces with its software, scratch space and own /tmp.

        The innermost one is kept open (`NAMESPACE_FD`), for keepers that start more of it.
        """
        held: AbstractContextManager[None] = nullcontext()
        tmp: AbstractContextManager[None] = nullcontext()
        space: AbstractContextManager[None] = nullcontext()
        if self.hold_procs:
            held = namespaces.entered(self.hold_procs)
        if self.scratch_bytes:
            space = scratch_mount.entered(self.scratch, self.scratch_bytes, self.identity)
        if self.private_tmp:
            places = (self.workdir, self.directory, *self.mounts, *filter(None, (self.scratch,)))
            tmp = private_tmp.entered(self.tmp_place, self.identity, self.private_tmp_keep, places)
        with held, space, tmp:
            if self.has_namespace:
                keep_namespace()
            yield

    @property
    def limits(self) -> list[tuple[bool, int, int]]:
        """Returns the resource limits of the work in the order in which they are set: whether only the soft one is, RLIMIT_*, its value."""
        found = [(False, limit, resource.RLIM_INFINITY) for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_STACK)]
        found.append((False, resource.RLIMIT_NOFILE, self.open_files))
        if self.core_bytes is not None:
            found.append((True, resource.RLIMIT_CORE, self.core_bytes))
        if self.max_processes:
            found.append((False, resource.RLIMIT_NPROC, self.max_processes))
        return found

    def set_limits(self) -> None:
        """Sets the resource limits of the work, as far as this process may, for itself and its descendants."""
        for softly, limit, wanted in self.limits:
            (limit_softly if softly else raise_limit)(limit, wanted)


# the process that keeps work


def detach(report: int, name: bytes) -> None:
    """Leaves the runner's session and closes its descriptors but `report`, so that signals of a terminal or an operator do not reach this
    process, which is called `name` from then on.
    """
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, name)
    score_for_oom(KEEPER_OOM_SCORE)
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


def await_readable(seconds: float, *fds: int) -> None:
    """Waits until something can be read from one of these descriptors, so long at most; unlike select(2) it knows those above 1023."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(1000 * seconds)


def catch_child_ends() -> int:
    """Returns a descriptor that becomes readable whenever a child may have ended; it is non-blocking."""
    wake, wake_end = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def send(report: int, what: dict[str, Any]) -> None:
    """Writes an answer as JSON into the pipe to the runner; passes over a runner that is gone."""
    with suppress(OSError):
        os.write(report, json.dumps(what).encode())


def keep_namespace() -> None:
    """Keeps the present mount namespace open as `NAMESPACE_FD`; does nothing where that is in use."""
    with suppress(OSError):
        here = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        kept = fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, NAMESPACE_FD)
        os.close(here)
        if kept != NAMESPACE_FD:
            os.close(kept)


def kept_namespace(procs: str) -> tuple[int, int] | None:
    """Opens the mount namespace that the process of a cgroup file keeps (`keep_namespace`), and its IPC namespace; returns both.

    None: there is no such process, or it keeps none. Only processes of root's own may stand in that cgroup.
    """
    pid, place = only_pid(procs), -1
    with suppress(OSError):
        if pid and os.readlink(f"/proc/{pid}/fd/{NAMESPACE_FD}").startswith("mnt:"):
            place = os.open(f"/proc/{pid}/fd/{NAMESPACE_FD}", os.O_RDONLY | os.O_CLOEXEC)
            ipc = os.open(f"/proc/{pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
            if only_pid(procs) == pid:
                return place, ipc
            os.close(ipc)
    if place >= 0:
        os.close(place)
    return None


def only_pid(procs: str) -> int:
    """Returns the pid of the only process that a cgroup file names; 0: there is not exactly one."""
    with suppress(OSError, ValueError):
        pids = read_file(procs).split()
        return int(pids[0]) if len(pids) == 1 else 0
    return 0


@contextmanager
def in_namespace(mounts: int) -> Iterator[None]:
    """Moves this process (of one thread) for the block into a mount namespace, by its descriptor; nothing can be imported inside."""
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_namespace(mounts, CLONE_NEWNS)
        try:
            with namespaces.without_imports():
                yield
        finally:
            set_namespace(home, CLONE_NEWNS)
    finally:
        os.close(home)


def set_namespace(fd: int, kind: int) -> None:
    """Moves this process into a namespace of this kind (CLONE_NEW*), by its descriptor; raises OSError."""
    if _libc.setns(fd, kind):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# the process that becomes work


def reset_signals() -> None:
    """Restores all signal handlers and the mask, so that the work inherits no signal that Python ignores."""
    signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        _signal.signal(number, _signal.SIG_DFL)
    call = RT_SIGACTION.get(os.uname().machine)
    for hidden in (32, 33) if call else ():  # the C library's own, which its functions do not let anybody set
        _libc.syscall(call, hidden, bytes(32), None, 8)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def give_up_new_privileges() -> None:
    """Sets no_new_privs for this process and its descendants, so that setuid programs, which might read files of the user, give no rights.

    Raises OSError where the kernel refuses.
    """
    nothing = ctypes.c_ulong(0)
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing):
        raise OSError(ctypes.get_errno(), NEW_PRIVILEGES_STAY)


def join_own_keyring() -> None:
    """Leaves the agent's session keyring, which all work would share, for a new one linked to the user's keys, as a login has."""
    if call := KEYCTL.get(os.uname().machine):
        _libc.syscall(call, JOIN_SESSION_KEYRING, None)
        _libc.syscall(call, LINK, USER_KEYRING, SESSION_KEYRING)


def exec_sentence(argv: Sequence[str], environment: dict[str, str], error: BaseException, *, shows_path: bool = True) -> str:
    """Returns the sentence on a command that cannot be executed: the kernel's message, and what is missing or too long where that can be
    told.
    """
    path = environment.get("PATH", "") if shows_path else None
    return failed_exec(argv[0], path, error, lambda: os.path.exists(argv[0]), lambda: count_characters(argv, environment))


def failed_exec(command: str, path: str | None, error: BaseException, exists: Callable[[], bool], characters: Callable[[], int]) -> str:
    """Returns the sentence on a command that cannot be executed, as `exec_sentence`: `path` is what PATH holds, None where that is not
    said, `exists` tells whether the command's file does, `characters` how many its arguments and variables have.
    """
    short = command if len(command) <= 200 else command[:200] + "…"
    said = (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    sentence = f"{short!r} cannot be executed: {said}"
    if isinstance(error, FileNotFoundError):
        if "/" not in command:
            return f"{sentence}; it is not in PATH" + (f"={path}" if path is not None else "")
        if exists():
            return f"{sentence}; the file exists, but not the interpreter that it names"
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return f"{sentence}; arguments and environment have {characters()} characters, one of them may have 131071"
    return sentence


def count_characters(argv: Sequence[str], environment: dict[str, str]) -> int:
    """Returns how many characters arguments and variables have, with what stands between and behind those of a variable."""
    return sum(map(len, argv)) + sum(map(len, environment)) + sum(map(len, environment.values())) + 2 * len(environment)


# system calls


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


def score_for_oom(score: int) -> None:
    """Sets how soon the kernel takes this process when memory is short (-1000 … 1000); without the right nothing changes."""
    with suppress(OSError):
        write_file("/proc/self/oom_score_adj", str(score).encode())


def trim_memory() -> None:
    """Gives memory that is free in this process back to the kernel, where the C library can."""
    with suppress(AttributeError):
        _libc.malloc_trim(0)


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


def write_file(path: str, data: bytes) -> None:
    """Writes into an existing file by one call; raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def read_file(path: str) -> bytes:
    """Returns the content of a file of the kernel's, 1 MiB at most; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)
