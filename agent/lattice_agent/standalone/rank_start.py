"""Starts the ranks of a launch on one node: each stands at a gate, ready to execute its program, before any of them does.

It is of standard library alone, for the keeper, whose children the ranks are. What they open, look up and enter is theirs: they do it as
the user, in the attempt's mount namespaces, and a failure is said through a pipe, never by an exit code.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH112, PTH118
from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from lattice_agent.standalone import container_tasks, forks, rank_starter, streams
from lattice_agent.standalone.records import Record
from lattice_agent.standalone.stopped_ranks import stopped_sentence
from lattice_agent.standalone.streams import OutputFile, StartFailure
from lattice_agent.standalone.task_start import (
    NOTHING,
    PR_SET_PDEATHSIG,
    WORK_OOM_SCORE,
    WorkPlace,
    await_readable,
    exec_sentence,
    give_up_new_privileges,
    join_own_keyring,
    prctl,
    reset_signals,
    score_for_oom,
    trim_memory,
    write_file,
)

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any, NoReturn

READY_SECONDS, LOOK_SECONDS = 45.0, 1.0
"""Time for all ranks to stand at the gate; a directory or file that does not answer for longer fails the launch."""
ENDED_SECONDS = 0.1
"""How often ranks on their way to the gate are looked at for one that was killed: a look asks about each of them."""
START_SECONDS = 55.0
"""Time for all ranks to execute their programs, from the fork or from the frame GO; the agent waits 60 s for the former."""
AS_USER, AT_GATE = b"u", b"g"
"""What a rank writes once it runs as the user, and once it stands at the gate."""
MOST_SENTENCE = 4000
"""Bytes of one rank's failure: what a pipe takes whole."""
PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where a program is looked up for an environment without PATH."""
TRIMMED_CHARACTERS = 128 << 10
"""With more characters of variables, their memory is given back to the kernel once the ranks have them, which takes half a millisecond."""
CALLERS = ("PMI_", "PMIX_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD")
"""The beginnings of variables by which another rank, the caller perhaps, finds its PMI."""
WEAKER = {"MPIR_CVAR_PMI_VERSION": ("MPICH_PMI_VERSION",), "JSM_JSRUN_PORT": ("SLURM_STEP_ID",)}
"""Variables of a rank's PMI server that yield to the caller's own, and to those others."""
RANK_FD = container_tasks.GATE + 1
"""The number at which a rank in a container finds the descriptor that it inherits."""


class LaunchDescription(WorkPlace):
    """Everything that decides what one launch starts on one node, decoded from the agent's JSON; texts are bytes by `surrogateescape`."""

    number: int
    argv: list[str]
    environment: dict[str, str]
    ranks: list[dict[str, Any]]
    """The fields of `RankDescription`, by rank."""
    keep_procs: str
    umask: int = 0o022
    soft_limits: dict[str, int] = NOTHING
    """Soft limits by name without RLIMIT_, -1: none; they hold as far as the work's own limits let them."""
    label: int = 0
    """The digits of the widest rank, which stands before each line of output; 0: no rank does."""
    unbuffered: bool = False
    append: bool = False
    stdin: str = "none"
    """Who gets the caller's input: `all`, `none`, or a rank."""
    go: bool = True
    """Whether the ranks pass the gate as soon as all stand at it; else the frame GO opens it."""
    pmi: dict[str, Any] = NOTHING
    """The fields of `pmi.ranks.Service`; empty: no PMI is served."""
    pmix_host: str = ""
    """The program that serves PMIx to the ranks of this node; empty: none does."""
    lingers: bool = False
    """Whether it lasts until what its ranks have left behind has ended: daemons that an mpirun has started."""
    namespace_procs: Sequence[str] = ()
    """The files that name processes of root's in this scope that may keep the work's mount namespace, those asked first first."""
    meters: dict[str, str] = NOTHING
    node: str = ""
    """This node's name, for sentences."""
    starter: str = ""
    """The program that forks the ranks (`starter.c`); where it is not there, or of another release, the keeper itself does."""

    @property
    def ranks_procs(self) -> str:
        """Returns the file by which ranks join their cgroup in the v2 tree."""
        return self.work_procs[-1] if self.work_procs else ""


class RankDescription(Record):
    """One rank as it is asked for; what is empty is as the launch has it."""

    rank: int
    argv: Sequence[str] = ()
    environment: dict[str, str] = NOTHING
    cpus: Sequence[int] = ()
    stdout: str = ""
    stderr: str = ""
    """Files relative to the working directory; empty: the streams. An empty `stderr` beside a `stdout` is the same file, `-` the stream."""
    stdin: str = ""
    """A file; empty: what `stdin` of the launch says."""
    local: int = 0
    """Its number on this node, from 0."""

    @property
    def errors(self) -> str:
        """Returns the file for standard error; empty: the stream."""
        return "" if self.stderr == "-" else self.stderr or self.stdout

    @property
    def own_errors(self) -> bool:
        """Tells whether standard error goes to a file that standard output does not go to."""
        return bool(self.errors) and self.errors != self.stdout


class Rank(Record):
    """One rank and its end; `status` is the wait status, None: it has not ended."""

    asked: RankDescription
    pid: int = 0
    start: float = 0.0
    end: float = 0.0
    status: int | None = None
    usage: tuple[float, float, int] = (0.0, 0.0, 0)
    told: bool = False
    """Whether its end was made a frame."""

    @property
    def code(self) -> int:
        """Returns the exit code as a shell has it: 128 + n for signal n."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        return code if code >= 0 else 128 - code

    @property
    def signal(self) -> int:
        """Returns the signal that ended it; 0: none."""
        return max(0, -os.waitstatus_to_exitcode(self.status or 0))


class Ends(Record):
    """The ends of one rank's descriptors: its own, which the keeper closes after the fork, and the keeper's; -1: there is none."""

    out: int = -1
    err: int = -1
    into: int = -1
    pmi: int = -1
    kept_out: int = -1
    kept_err: int = -1
    kept_in: int = -1
    out_file: OutputFile | None = None
    err_file: OutputFile | None = None

    def close_own(self) -> None:
        """Closes the rank's ends but that of PMI, whose server does so itself."""
        for fd in {self.out, self.err, self.into} - {-1}:
            os.close(fd)
        self.out = self.err = self.into = -1


class RankFailure(StartFailure):
    """Raised where a launch cannot start; `rank` is the one at fault, None: none is."""

    def __init__(self, sentence: str, rank: int | None = None) -> None:
        super().__init__(sentence)
        self.rank = rank


def _described(asked: dict[str, Any], local: int) -> RankDescription:
    """Returns a rank as it is asked for, with its number on this node where that is not given."""
    fields: dict[str, Any] = {"local": local, **asked}
    return RankDescription(**fields)


class RankStart:
    """Forks the ranks of one launch, has them wait at the gate, and opens it."""

    def __init__(
        self, launch: LaunchDescription, connect: Callable[[int], int], variables: Callable[[int, int], Mapping[str, str]]
    ) -> None:
        """Asks `connect` for the descriptor that a rank inherits (-1: none), and `variables` for what it must know of that."""
        self.launch = launch
        self._connect, self._variables = connect, variables
        self.ranks = [Rank(_described(asked, local)) for local, asked in enumerate(launch.ranks)]
        self.ends: dict[int, Ends] = {}
        """By rank's number on the node."""
        self._gate = self._failures = -1
        self._ready, self._arrived = -1, b""
        self._begun, self._told = 0.0, b""
        self.exec_until = 0.0
        """When, on the monotonic clock, all ranks must have executed their programs."""
        self._program = rank_starter.open_program("" if launch.container else launch.starter)
        self._starter: rank_starter.RankStarter | None = None
        """What says why a rank that it has forked could not begin; None: the ranks say so themselves."""
        self._shared: dict[str, str] | None = None
        """The caller's variables that all ranks get, until they have them; None: not chosen yet."""
        self._guard = -1
        """Of ranks in a container: they end where this is closed."""

    # the fork

    def prepare(self) -> None:
        """Starts all ranks up to the gate, in the namespace that this process stands in; raises RankFailure, OSError for the node's fault.

        Ranks that were started before the one that failed are left to the caller.
        """
        self._begun = time.monotonic()
        self.ends = {rank.asked.local: self._open_ends(rank.asked) for rank in self.ranks}
        try:
            if self.launch.container:
                self._start_in_container()
            else:
                self._fork_all()
        finally:
            for ends in self.ends.values():
                ends.close_own()

    def await_users(self) -> None:
        """Waits until all ranks run as the user, before anything of his can hold them up; raises RankFailure as `await_ready`."""
        self._await(AS_USER)

    def await_ready(self) -> None:
        """Waits until all ranks stand at the gate; raises RankFailure with what the first that cannot says, or where one is too slow."""
        self._await(AT_GATE)
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1

    def _await(self, place: bytes) -> None:
        """Waits until all ranks have written that they are so far; raises RankFailure."""
        if self._ready < 0:
            return
        until, look = self._begun + READY_SECONDS, time.monotonic() + ENDED_SECONDS
        poll = select.poll()
        poll.register(self._ready, select.POLLIN)
        poll.register(self._failures, select.POLLIN)
        while self._arrived.count(place) < len(self.ranks):
            ready = dict(poll.poll(1000 * ENDED_SECONDS))
            now = time.monotonic()
            if self._failures in ready and (said := os.read(self._failures, 65536)):
                raise self._failure(said)
            if self._ready in ready:
                self._arrived += os.read(self._ready, 4096)
            elif now > until:
                why = f"not all of its ranks can begin: their directory or files do not answer for {READY_SECONDS:g} s"
                raise RankFailure(self._stopped(self._ready, READY_SECONDS) or why)
            if now >= look and self._arrived.count(place) < len(self.ranks):
                if any(has_ended(rank.pid) for rank in self.ranks):
                    raise self._gone()
                look = now + ENDED_SECONDS

    def _gone(self) -> RankFailure:
        """Returns the failure of ranks that ended before they could begin."""
        said = self._said()
        return self._failure(said) if said else RankFailure("a rank was killed before it could begin")

    def go(self) -> None:
        """Lets all ranks execute their programs, and waits until they have; raises RankFailure as `have_executed`."""
        self.open_gate()
        while not self.have_executed():
            await_readable(LOOK_SECONDS, self._failures)

    def open_gate(self) -> None:
        """Lets all ranks execute their programs; `have_executed` tells when they have."""
        if self.launch.container:
            container_tasks.open_gate(self._guard, len(self.ranks))
            return
        self.exec_until = (self._begun if self.launch.go else time.monotonic()) + START_SECONDS
        container_tasks.open_gate(self._gate, len(self.ranks))
        os.close(self._gate)
        self._gate = -1
        os.set_blocking(self._failures, False)

    @property
    def executing(self) -> int:
        """Returns the descriptor that is readable when ranks have executed their programs, or could not; -1: none still has to."""
        return self._failures if self._gate < 0 else -1

    def have_executed(self) -> bool:
        """Returns whether all ranks have executed their programs, or have ended; raises RankFailure where one cannot, or is too slow.

        Ranks that could are left to the caller.
        """
        whole = self._failures < 0 or self._has_read_failures()
        if not whole and time.monotonic() < self.exec_until:
            return False
        stopped = self._stopped(self._failures, START_SECONDS) if not whole else ""
        if self._failures >= 0:
            os.close(self._failures)
            self._failures = -1
        if self._told:
            raise self._failure(self._told)
        if not whole:
            why = f"not all of its ranks can execute their programs: a file does not answer for {START_SECONDS:g} s"
            raise RankFailure(stopped or why)
        return True

    def _stopped(self, pipe: int, seconds: float) -> str:
        """Returns the sentence on ranks that are stopped while they hold a pipe, after so many seconds; empty: none is."""
        return stopped_sentence({rank.asked.rank: rank.pid for rank in self.ranks if rank.pid}, pipe, self.launch.node, seconds)

    def _has_read_failures(self) -> bool:
        """Reads what failing ranks have said; returns whether none can say more."""
        with suppress(BlockingIOError):
            while data := os.read(self._failures, 65536):
                self._told += data
            return True
        return False

    def release(self) -> None:
        """Drops words and variables of the ranks, which have them; a launch may have many MiB."""
        own = sum(sum(map(len, rank.asked.environment.values())) for rank in self.ranks)
        large = own + sum(map(len, self.launch.environment.values())) > TRIMMED_CHARACTERS
        self.launch.environment.clear()
        self._shared = None
        self.launch.argv.clear()
        self.launch.ranks.clear()
        for rank in self.ranks:
            rank.asked.environment, rank.asked.argv = NOTHING, ()
        if large:
            trim_memory()

    def _said(self) -> bytes:
        """Returns what failing ranks have said so far."""
        os.set_blocking(self._failures, False)
        with suppress(BlockingIOError):
            return os.read(self._failures, 65536)
        return b""

    def _failure(self, said: bytes) -> RankFailure:
        """Returns the failure that the first rank has said: in a sentence, or as the step that has failed."""
        if self._starter is None:
            return failure_of(said)
        number, step, error, exists = map(int, said.splitlines()[0].split())
        asked = next(rank.asked for rank in self.ranks if rank.asked.rank == number)
        return RankFailure(self._starter.failure(asked, step, error, exists=bool(exists)), number)

    def _open_ends(self, asked: RankDescription) -> Ends:
        """Opens the pipes of one rank, and the labelled files, to which the keeper writes; raises StartFailure."""
        ends, launch = Ends(), self.launch
        if launch.container and not launch.label:  # the runtime's process opens no file as the user
            ends.out, ends.err = self._direct_files(asked)
        elif launch.label:
            ends.out_file, ends.err_file = self._labelled_files(asked)
        if ends.out < 0 and (ends.out_file or not asked.stdout):
            ends.kept_out, ends.out = os.pipe()
        if ends.err < 0 and (ends.err_file or not asked.errors):
            ends.kept_err, ends.err = os.pipe()
        if not asked.stdin and launch.stdin in ("all", str(asked.rank)):
            ends.into, ends.kept_in = os.pipe()
            os.set_blocking(ends.kept_in, False)
        elif asked.stdin and launch.container:
            with launch.identity.acting():
                ends.into = open_input(os.path.join(launch.workdir, asked.stdin))
        for fd in (ends.kept_out, ends.kept_err):
            if fd >= 0:
                os.set_blocking(fd, False)
        return ends

    def _direct_files(self, asked: RankDescription) -> tuple[int, int]:
        """Opens the output files of a rank for itself, as the user; -1 for a stream without one."""
        out = err = -1
        with self.launch.identity.acting():
            if asked.stdout:
                out = self._opened(asked.stdout)
            if asked.errors:
                err = self._opened(asked.errors) if asked.own_errors else os.dup(out)
        for fd in {out, err} - {-1}:
            os.set_blocking(fd, True)
        return out, err

    def _labelled_files(self, asked: RankDescription) -> tuple[OutputFile | None, OutputFile | None]:
        """Opens the output files of a rank whose lines the keeper labels, as the user; one file for both where they are the same."""
        out = err = None
        identity = self.launch.identity
        with identity.acting():
            if asked.stdout:
                out = OutputFile(asked.stdout, self._opened(asked.stdout), identity)
            if asked.own_errors:
                err = OutputFile(asked.errors, self._opened(asked.errors), identity)
        return out, err if asked.own_errors or not asked.errors else out

    def _opened(self, path: str) -> int:
        """Opens an output file as this process's effective user, made or truncated as asked; raises StartFailure."""
        return streams.open_output(os.path.join(self.launch.workdir, path), truncate=not self.launch.append)

    def _fork_all(self) -> None:
        """Forks the ranks, which wait at the gate."""
        self._failures, failing = os.pipe()
        self._ready, arriving = os.pipe()
        waiting, self._gate = os.pipe()
        gate = rank_starter.GateEnds(os.getpid(), waiting, arriving, failing)
        try:
            for rank in self.ranks:
                self.ends[rank.asked.local].pmi = self._connect(rank.asked.rank)
            if not self._start_by_program(gate):
                self._fork_each(gate)
        finally:
            for fd in (failing, arriving, waiting):
                os.close(fd)

    def _start_by_program(self, gate: rank_starter.GateEnds) -> bool:
        """Has the program start the ranks; returns False where there is none, or one of another release."""
        if self._program < 0:
            return False
        starter, fd = rank_starter.RankStarter(self._program, self.launch), rank_starter.INHERITED_FD
        asked = [rank.asked for rank in self.ranks]
        environments = [self._environment(each, fd if self.ends[each.local].pmi >= 0 else -1) for each in asked]
        try:
            forked = starter.start(asked, self.ends, environments, gate)
        except rank_starter.UnusableWords as words:
            raise RankFailure(str(words), words.rank) from words
        finally:
            os.close(self._program)
            self._program = -1
        if forked is None:
            return False
        self._starter = starter
        for rank, (pid, start) in zip(self.ranks, forked.begun, strict=False):
            rank.pid, rank.start = pid, start
        forked.check()
        return True

    def _fork_each(self, gate: rank_starter.GateEnds) -> None:
        """Forks this process for each rank."""
        *beside, procs = self.launch.work_procs or [""]
        for rank in self.ranks:
            ends = self.ends[rank.asked.local]
            rank.start = time.time()
            rank.pid, inside = forks.fork_into(procs)
            if rank.pid == 0:
                self._become(rank.asked, ends, gate, beside if inside else self.launch.work_procs)
            ends.close_own()

    # the process that becomes a rank

    def _become(self, asked: RankDescription, ends: Ends, gate: rank_starter.GateEnds, joins: Sequence[str]) -> NoReturn:
        """Turns a fresh fork into a rank, which waits at the gate, then executes; `starter.c` takes the same steps in the same order."""
        launch, argv = self.launch, asked.argv or self.launch.argv
        environment: dict[str, str] = {}
        try:
            close_others(ends.out, ends.err, ends.into, ends.pmi, gate.waiting, gate.arriving, gate.failing)
            for procs in joins:
                write_file(procs, b"0")
            score_for_oom(WORK_OOM_SCORE)
            os.setsid()
            reset_signals()
            launch.set_limits()
            if asked.cpus:
                os.sched_setaffinity(0, asked.cpus)
            launch.identity.become()
            os.write(gate.arriving, AS_USER)
            if launch.hold_procs:
                give_up_new_privileges()
            join_own_keyring()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.umask(launch.umask)
            enter(launch.workdir)
            environment = self._environment(asked, self._take_descriptors(asked, ends))
            if "SLURM_PROCID" in environment:
                environment["SLURM_TASK_PID"] = str(os.getpid())
            set_soft_limits(launch.soft_limits)
            program = find_program(argv[0], environment.get("PATH", PATH))
            os.write(gate.arriving, AT_GATE)
            os.close(gate.arriving)
            if os.read(gate.waiting, 1) == b"1" and os.getppid() == gate.keeper:
                os.execve(program, list(argv), environment)  # noqa: S606 - this is what a keeper is for
            os._exit(127)
        except StartFailure as failure:
            say_failure(gate.failing, asked.rank, str(failure))
        except BaseException as error:
            say_failure(gate.failing, asked.rank, exec_sentence(argv, environment, error))
        finally:
            os._exit(127)

    def _take_descriptors(self, asked: RankDescription, ends: Ends) -> int:
        """Puts standard input, output and errors in their places: pipes, /dev/null, or files that are opened as the user.

        Returns the number at which the rank finds the descriptor that it inherits, -1: there is none.
        """
        into = ends.into if ends.into >= 0 else open_input(asked.stdin or os.devnull)
        out = ends.out if ends.out >= 0 else self._opened(asked.stdout)
        if ends.err >= 0:
            err = ends.err
        elif asked.own_errors:
            err = self._opened(asked.errors)
        else:
            err = out
        for place, fd in enumerate((into, out, err)):
            os.set_blocking(fd, True)
            os.dup2(fd, place)
        if ends.pmi < 0:
            return -1
        return fcntl.fcntl(ends.pmi, fcntl.F_DUPFD, 3)

    def _environment(self, asked: RankDescription, fd: int) -> dict[str, str]:
        """Returns the variables of a rank; `fd`: the number at which it finds the descriptor that it inherits, -1: none.

        The caller's own way to PMI is none of a rank's.
        """
        if self._shared is None:
            self._shared = {name: value for name, value in self.launch.environment.items() if not name.startswith(CALLERS)}
        own = self._shared | asked.environment
        served = dict(self._variables(asked.rank, fd)) if fd >= 0 else {}
        weaker = {name for name, others in WEAKER.items() if name in own or any(other in own for other in others)}
        return own | {name: value for name, value in served.items() if name not in weaker}

    # in a container

    def _start_in_container(self) -> None:
        """Starts the ranks in the attempt's container, where they wait at its gate; raises OSError where the runtime fails."""
        launch = self.launch
        own = {"workdir": launch.workdir, "label": f"launch-{launch.number}-", "options": stub_options(launch)}
        container, calls = container_tasks.Container(**(launch.container | own)), list[container_tasks.Call]()
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for rank in self.ranks:
                ends = self.ends[rank.asked.local]
                ends.pmi = self._connect(rank.asked.rank)
                environment = self._environment(rank.asked, RANK_FD if ends.pmi >= 0 else -1)
                into = ends.into if ends.into >= 0 else null
                argv, cpus = rank.asked.argv or launch.argv, tuple(rank.asked.cpus)
                calls.append(container_tasks.Call(argv, environment, ends.out, ends.err, into, ends.pmi, cpus))
            pids, self._guard = container_tasks.begin(container, calls, launch.work_procs, launch.set_limits)
        finally:
            os.close(null)
        for rank, pid in zip(self.ranks, pids, strict=True):
            rank.pid, rank.start = pid, time.time()


def stub_options(launch: LaunchDescription) -> list[str]:
    """Returns what the stub, which becomes a rank in the container, sets before: the caller's umask and soft limits."""
    limits = [(getattr(resource, f"RLIMIT_{name}", None), wanted) for name, wanted in launch.soft_limits.items()]
    return [f"umask={launch.umask:o}", *(f"soft={number}:{wanted}" for number, wanted in limits if number is not None)]


def close_others(*kept: int) -> None:
    """Closes all descriptors but the standard ones and these: a rank may open few files, and holds none of other ranks or the keeper."""
    begin = 3
    for fd in sorted({fd for fd in kept if fd >= begin}):
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, 1 << 20)


def enter(workdir: str) -> None:
    """Enters the working directory; raises StartFailure with a sentence."""
    try:
        os.chdir(workdir)
    except OSError as error:
        raise StartFailure(f"the working directory {workdir!r} cannot be entered: {error.strerror}") from error


def open_input(path: str) -> int:
    """Opens a file for standard input; waits for no writer of a pipe. Raises StartFailure, also for a file of the kernel's, which would
    tell of the process that opens it, a fork of root's.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise streams.unopened_input(path, error.errno or 0) from error
    if streams.is_of_kernel(fd):
        os.close(fd)
        raise streams.unsuitable_input(path)
    return fd


def set_soft_limits(limits: Mapping[str, int]) -> None:
    """Sets soft limits by their names without RLIMIT_; one beyond the hard limit becomes that one, an unknown one is passed over."""
    for name, wanted in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is None:
            continue
        with suppress(ValueError, OSError):
            hard = resource.getrlimit(number)[1]
            beyond = hard != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > hard)
            resource.setrlimit(number, (hard if beyond else wanted, hard))


def find_program(name: str, path: str) -> str:
    """Returns the path of a program that this process may execute, looked up in `path` where the name holds no slash; raises OSError."""
    if "/" in name:
        _check_program(name)
        return name
    refused: OSError | None = None
    for directory in path.split(":"):
        candidate = os.path.join(directory or ".", name)
        try:
            _check_program(candidate)
        except PermissionError as error:
            refused = error
        except OSError:
            continue
        else:
            return candidate
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _check_program(path: str) -> None:
    """Raises OSError for what cannot be executed: nothing, a directory, or a file without the right."""
    os.stat(path)  # noqa: PTH116 - its error says why
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def say_failure(fd: int, rank: int, sentence: str) -> None:
    """Writes why a rank cannot start into the pipe of failures, whole."""
    text = sentence.replace("\n", " ").encode(errors="replace")[:MOST_SENTENCE]
    os.write(fd, f"{rank} ".encode() + text + b"\n")


def failure_of(said: bytes) -> RankFailure:
    """Returns the failure that the first rank has said (`say_failure`)."""
    rank, _, sentence = said.decode(errors="replace").splitlines()[0].partition(" ")
    return RankFailure(sentence, int(rank))


def has_ended(pid: int) -> bool:
    """Tells whether a child has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
