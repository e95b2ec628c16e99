"""Has a small static program (`starter.c`) fork the ranks of a launch: a fork of this interpreter takes three times as much processor.

It is of standard library alone, for the keeper. It describes the ranks to the program, and makes sentences of the steps that fail there.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH118, PTH120
from __future__ import annotations

import errno
import os
import resource
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from lattice_agent.standalone import forks, streams
from lattice_agent.standalone.records import Record
from lattice_agent.standalone.task_start import NEW_PRIVILEGES_STAY, count_characters, exec_sentence, failed_exec

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Protocol

    class Launch(Protocol):
        """Holds the fields of `rank_start.LaunchDescription` that are read here."""

        argv: list[str]
        umask: int
        soft_limits: dict[str, int]
        append: bool
        workdir: str
        work_procs: Sequence[str]
        hold_procs: str
        user: int | None
        group: int | None
        groups: Sequence[int]

        @property
        def limits(self) -> list[tuple[bool, int, int]]:
            """Returns the limits of the work."""
            raise NotImplementedError

    class AskedRank(Protocol):
        """Holds the fields of `rank_start.RankDescription` that are read here."""

        rank: int
        local: int
        argv: Sequence[str]
        cpus: Sequence[int]
        stdin: str
        stdout: str

        @property
        def errors(self) -> str:
            """Returns the file for standard error."""
            raise NotImplementedError

        @property
        def own_errors(self) -> bool:
            """Tells whether that is not the file for standard output."""
            raise NotImplementedError

    class RankEnds(Protocol):
        """Holds the fields of `rank_start.Ends` that are read here."""

        out: int
        err: int
        into: int
        pmi: int


FORMAT, FIXED = 0x315452415453, 16
"""The first word of a description, and how many words of all ranks stand before the lists: words have 64 bits."""
NOT_UNDERSTOOD = 64
"""The exit code of a program of another release, which has done nothing."""
TOLD = struct.Struct("=iiq")
"""What the program tells of each rank: its pid or -1, the error, the time of its fork in nanoseconds."""
INHERITED_FD = 3
"""The number at which a rank finds the descriptor that it inherits."""
TASK_PID = "SLURM_TASK_PID"
"""The variable that the program fills in, of a rank that Slurm would call a task."""
STEPS = (
    "begin", "privileges", "directory", "input", "input of the kernel", "output", "output unread", "output unsuitable", "errors",
    "errors unread", "errors unsuitable", "descriptors", "program", "execute",
)  # fmt: skip
"""The steps of a rank that may fail (`enum step`)."""


class GateEnds(Record):
    """The keeper's pid, and the ends of its pipes that ranks have: where they wait, say that they are there, and say what fails."""

    keeper: int
    waiting: int
    arriving: int
    failing: int


class Words(Record):
    """Holds of a rank what a sentence on it names, while its words themselves are dropped."""

    command: str
    path: str
    characters: int
    of_arguments: int


class Forks(Record):
    """The ranks that were forked, in order: their pids and the times of the forks; and why there are not more of them, 0: there are all."""

    begun: list[tuple[int, float]]
    error: int

    def check(self) -> None:
        """Raises CgroupFull where the attempt may have no more processes, OSError where another reason keeps ranks from being forked."""
        if self.error:
            raise forks.refusal(OSError(self.error, os.strerror(self.error)))


class UnusableWords(Exception):
    """Raised for a rank whose arguments or variables nothing can be executed with; its text is the sentence."""

    def __init__(self, sentence: str, rank: int) -> None:
        super().__init__(sentence)
        self.rank = rank


class Texts:
    """Collects texts, each of them once, with a null byte behind it; a text is named by its place."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """Returns where a text stands; raises ValueError for one with a null byte, or that has no bytes."""
        found = self._places.get(text)
        if found is None:
            encoded = text.encode(errors="surrogateescape")
            if b"\0" in encoded:
                raise ValueError("embedded null byte")
            found = self._places[text] = len(self.data)
            self.data += encoded + b"\0"
        return found

    def place_variables(self, values: Mapping[str, str]) -> list[int]:
        """Returns where variables stand; raises ValueError as `place`, and as `os.execve` for a name that none may have."""
        if any(not name or "=" in name[1:] for name in values):
            raise ValueError("illegal environment variable name")
        return [self.place(f"{name}={value}") for name, value in values.items()]


class RankStarter:
    """Starts all ranks of a launch by one call of the program, and says why one of them could not begin."""

    def __init__(self, program: int, launch: Launch) -> None:
        """Executes the program that the descriptor `program` stands for: it is opened before a mount namespace may hide it."""
        self._program, self._launch = program, launch
        self._words: dict[int, Words] = {}

    def start(
        self, ranks: Sequence[AskedRank], ends: Mapping[int, RankEnds], environments: Sequence[Mapping[str, str]],
        gate: GateEnds,
    ) -> Forks | None:  # fmt: skip
        """Forks the ranks, and has them go to the gate; None: the program is of another release, and has done nothing.

        `ends` are by the ranks' numbers on the node, `environments` in their order. Raises UnusableWords, CgroupFull where the attempt may
        have no more processes, and OSError.
        """
        cgroup = _open_cgroup(self._launch.work_procs[-1] if self._launch.work_procs else "")
        told, telling = os.pipe()
        try:
            described = self._describe(ranks, ends, environments, (*_words_of(gate), telling, cgroup))
            own = [fd for asked in ranks for fd in _descriptors(ends[asked.local])]
            pid = _spawn(self._program, described, {*own, gate.waiting, gate.arriving, gate.failing, telling, cgroup} - {-1})
        except BaseException:
            os.close(told)
            raise
        finally:
            for fd in {telling, cgroup} - {-1}:
                os.close(fd)
        return _told(told, pid, len(ranks))

    def failure(self, asked: AskedRank, step: int, error: int, *, exists: bool) -> str:
        """Returns why a rank could not begin: the step that has failed, its error, and whether the program's file exists."""
        place, kind, strerror = self._launch.workdir, STEPS[step], os.strerror(error)
        output = os.path.join(place, asked.errors if kind.startswith("errors") else asked.stdout)
        match kind:
            case "directory":
                return f"the working directory {place!r} cannot be entered: {strerror}"
            case "input":
                return str(streams.unopened_input(asked.stdin or os.devnull, error))
            case "input of the kernel":
                return str(streams.unsuitable_input(asked.stdin))
            case "output unsuitable" | "errors unsuitable":
                return str(streams.unsuitable_output(output))
            case "output" | "output unread" | "errors" | "errors unread":
                return str(streams.unopened_output(output, error))
        words = self._words[asked.local]
        failure = OSError(error, NEW_PRIVILEGES_STAY if kind == "privileges" else strerror)
        path, characters = (words.path, words.characters) if kind in ("program", "execute") else ("", words.of_arguments)
        return failed_exec(words.command, path, failure, lambda: exists, lambda: characters)

    def _describe(
        self, ranks: Sequence[AskedRank], ends: Mapping[int, RankEnds], environments: Sequence[Mapping[str, str]],
        gate: Sequence[int],
    ) -> bytes:  # fmt: skip
        """Returns the description of the ranks for the program (`struct launch`, `struct rank`); raises UnusableWords."""
        launch, texts = self._launch, Texts()
        shared = _shared(environments)
        described, places, most = list[int](), list[int](), 0
        for asked, environment in zip(ranks, environments, strict=True):
            argv, own = asked.argv or launch.argv, {name: environment[name] for name in environment if name not in shared}
            is_task = "SLURM_PROCID" in own or "SLURM_PROCID" in shared
            own |= {TASK_PID: ""} if is_task else {}
            outputs = (os.path.join(launch.workdir, path) if path else "" for path in (asked.stdout, asked.own_errors and asked.errors))
            try:
                places = places or texts.place_variables(shared)
                files = [texts.place(path) if path else -1 for path in (asked.stdin, *outputs)]
                arguments, assignments = [texts.place(text) for text in argv], texts.place_variables(own)
            except ValueError as error:
                raise UnusableWords(exec_sentence(argv, shared | own, error), asked.rank) from error
            count = count_characters(argv, {})
            whole = count + count_characters((), shared) + count_characters((), own)
            self._words[asked.local] = Words(argv[0], own.get("PATH", shared.get("PATH", "")), whole, count)
            described += [asked.rank, *_descriptors(ends[asked.local]), *files, list(own).index(TASK_PID) if is_task else -1]
            described += [*_listed(asked.cpus), *_listed(arguments), *_listed(assignments)]
            most = max(most, len(argv) + len(shared) + len(own) + 2)
        return self._join(texts, (len(ranks), most, *gate), (*_listed(places), *described))

    def _join(self, texts: Texts, numbers: Sequence[int], rest: Sequence[int]) -> bytes:
        """Returns a whole description of the numbers of ranks and gate, of the launch, and of the rest behind them."""
        launch = self._launch
        user = (-1, -1) if launch.user is None or launch.group is None else (launch.user, launch.group)
        workdir, procs = texts.place(launch.workdir), [texts.place(path) for path in launch.work_procs]
        soft = [(getattr(resource, f"RLIMIT_{name}", None), wanted) for name, wanted in launch.soft_limits.items()]
        lists = (
            _listed(launch.groups), _listed([word for limit in launch.limits for word in limit]),
            _listed([word for number, wanted in soft if number is not None for word in (number, wanted)]), _listed(procs),
        )  # fmt: skip
        known = (*numbers, *user, launch.umask, bool(launch.hold_procs), not launch.append, workdir)
        behind = [word for each in lists for word in each]
        words = array("q", (FORMAT, 8 * (2 + len(known) + len(behind) + len(rest)), *known, *behind, *rest))
        return words.tobytes() + texts.data


def open_program(path: str) -> int:
    """Returns a descriptor of the program, -1 where it is not there."""
    with suppress(OSError):
        return os.open(path, os.O_PATH | os.O_CLOEXEC) if path else -1
    return -1


def _shared(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the variables that are the same in all environments, but for that which the program fills in."""
    shared = set(environments[0].items())
    for environment in environments[1:]:
        shared.intersection_update(environment.items())
    return {name: value for name, value in environments[0].items() if name != TASK_PID and (name, value) in shared}


def _words_of(gate: GateEnds) -> tuple[int, int, int, int]:
    """Returns what the program is told of the gate."""
    return gate.keeper, gate.waiting, gate.arriving, gate.failing


def _descriptors(end: RankEnds) -> list[int]:
    """Returns the descriptors of a rank, -1 for those that it has not: output, errors, input, and the one that it inherits."""
    return [end.out, end.err, end.into, end.pmi]


def _listed(values: Sequence[int]) -> list[int]:
    """Returns values behind their count."""
    return [len(values), *values]


def _open_cgroup(procs: str) -> int:
    """Opens the cgroup in which ranks begin; -1: there is none, or it is gone."""
    with suppress(OSError):
        return os.open(os.path.dirname(procs), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if procs else -1
    return -1


def _spawn(program: int, described: bytes, inherited: Iterable[int]) -> int:
    """Executes the program with a description and these descriptors; returns its pid. Raises CgroupFull and OSError."""
    file = os.memfd_create("ranks")
    try:
        rest = memoryview(described)
        while rest:
            rest = rest[os.write(file, rest) :]
        for fd in (file, *inherited):
            os.set_inheritable(fd, True)
        return os.posix_spawn(f"/proc/self/fd/{program}", ["lattice-start", str(file)], {})
    except OSError as error:
        raise forks.refusal(error) from error
    finally:
        os.close(file)


def _told(told: int, pid: int, ranks: int) -> Forks | None:
    """Returns what the program says of the ranks that it forks, and waits for its end; None where it did not understand."""
    data = b""
    try:
        while len(data) < ranks * TOLD.size and (more := os.read(told, 65536)):
            data += more
    finally:
        os.close(told)
        status = os.waitpid(pid, 0)[1]
    if not data and os.waitstatus_to_exitcode(status) == NOT_UNDERSTOOD:
        return None
    rows = list(TOLD.iter_unpack(data[: len(data) // TOLD.size * TOLD.size]))
    begun = [(pid, at / 1e9) for pid, _, at in rows if pid > 0]
    error = next((error for _, error, _ in rows if error), 0 if len(begun) == ranks else errno.EINTR)
    return Forks(begun, error)
