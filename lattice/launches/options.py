"""Reads srun's arguments and variables into one frozen value (`srun(1)` of Slurm; getopt's rules)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.errors import Rejected
from lattice.launches import option_values as values
from lattice.launches.option_table import REFUSED_VARIABLES, SHORT, SRUN, VARIABLES
from lattice.launches.option_values import ALL, DEFAULT_DISTRIBUTION, CpuBind, Distribution, Export, GpuBind
from lattice.launches.usage import HELP, MPI_LIST, USAGE, VERSION
from lattice.scripts.options import Argument, Option, find
from lattice.units import is_digits

MOST_OPTIONS: Final = 4096
"""Options of one launch, each letter counted."""
MOST_NAME: Final = 1024
"""Characters of a launch's name."""
MOST_SENTENCE: Final = 1000
"""Characters of the sentence about one option: values may have mebibytes."""


@dataclass(frozen=True)
class LaunchDefaults:
    """The wishes of the allocation and of its script for every launch; variables and arguments are stronger."""

    nodes: int = 1
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus_per_task: int | None = None
    distribution: str = ""
    """As `--distribution` has it; empty: not asked."""
    cpu_bind: str = ""
    """As `--cpu-bind` has it; empty: not asked."""
    uenv: str = ""
    view: str = ""
    mpi: str = "auto"


@dataclass(frozen=True)
class PrintedText:
    """The text that srun prints instead of a launch: help, usage, version, the kinds of PMI."""

    text: str


@dataclass(frozen=True)
class LaunchOptions:
    """One launch as its caller asks for it; None and empty: not asked."""

    command: tuple[str, ...] = ()
    """The program and its arguments; with `multi_prog` the file of programs."""
    tasks: int | None = None
    nodes: tuple[int, int] | None = None
    tasks_asked: bool = False
    """Whether `tasks` is an argument of this launch: else it is a variable, or the allocation's."""
    nodes_asked: bool = False
    """Whether `nodes` is an argument of this launch."""
    cpus_per_task: int | None = None
    tasks_per_node: int | None = None
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    relative: int | None = None
    distribution: Distribution = DEFAULT_DISTRIBUTION
    chdir: str = ""
    """The working directory, relative to the caller's."""
    job_name: str = ""
    output: str = ""
    error: str = ""
    input: str = ""
    open_append: bool | None = None
    label: bool = False
    unbuffered: bool = False
    overcommit: bool = False
    exact: bool = False
    overlap: bool = False
    immediate: float | None = None
    """Seconds for which CPUs in use are waited for; None: without end."""
    kill_on_bad_exit: bool = False
    wait_seconds: float | None = None
    """Seconds after the first task's end after which the others are ended; None: they are not."""
    quiet: int = 0
    verbose: int = 0
    time_seconds: float | None = None
    jobid: str = ""
    multi_prog: bool = False
    external_launcher: bool = False
    disable_status: bool = False
    quit_on_interrupt: bool = False
    preserve_env: bool = False
    export: Export = ALL
    mpi: str = "auto"
    propagate: frozenset[str] | None = None
    """The soft limits of the caller that hold for tasks; None: all."""
    cpu_bind: CpuBind = field(default_factory=CpuBind)
    threads_per_core: int = 0
    """Threads of each core that tasks may use; 0: all."""
    gpus: int | None = None
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    gpu_bind: GpuBind = field(default_factory=GpuBind)
    notes: tuple[str, ...] = ()
    """Sentences for `-v`: options without a meaning here."""

    @property
    def name(self) -> str:
        """Returns the launch's name: `--job-name`, else that of its program without directories."""
        return self.job_name or (self.command[0].rpartition("/")[2][:MOST_NAME] if self.command else "")


@dataclass(frozen=True)
class _GivenOption:
    """One option with its value (None: it has none), as it was written."""

    name: str
    value: str | None
    place: str
    from_command_line: bool


def parse(argv: Sequence[str], environ: Mapping[str, str], defaults: LaunchDefaults = LaunchDefaults()) -> LaunchOptions | PrintedText:
    """Returns the launch that srun was called for, or the text that it prints instead.

    `argv` begins with srun's own name. Raises Rejected, with option, value and what to do, for options that are not served, unknown or
    malformed, and where no program is named.
    """
    notes: list[str] = []
    asked, command = _read_arguments(argv[1:], notes)
    if answer := _answer(asked):
        return answer
    for name in REFUSED_VARIABLES:
        if environ.get(name):
            raise Rejected(f"{name}={environ[name]}: what it asks for is not done here; unset it for this launch", reason="NotServed")
    fields = _inherit(defaults, environ)
    for one in asked:
        _apply(fields, one, defaults)
    if not command:
        raise Rejected("no program is named: write srun [OPTIONS] PROGRAM [ARGUMENTS]; `srun --help` lists the options", reason="BadOption")
    if (names := {one.name for one in asked}) & {"exact", "exclusive"} and "overlap" in names:
        raise Rejected("--exact and --overlap contradict each other: give one of them", reason="BadOption")
    if fields.get("external_launcher"):
        fields |= _OF_EXTERNAL_LAUNCHER
    return LaunchOptions(command=command, notes=tuple(notes), **fields)


def _inherit(defaults: LaunchDefaults, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the allocation and srun's variables ask, by field; raises Rejected, with the variable, for one that does not read."""
    fields: dict[str, Any] = {
        "tasks": defaults.tasks,
        "nodes": (defaults.nodes, defaults.nodes),
        "tasks_per_node": defaults.tasks_per_node,
        "cpus_per_task": defaults.cpus_per_task,
        "gpus_per_task": defaults.gpus_per_task,
        "mpi": defaults.mpi,
    }
    if defaults.distribution:
        fields["distribution"] = values.read_distribution(defaults.distribution)
    if defaults.cpu_bind:
        fields["cpu_bind"] = values.read_cpu_bind(defaults.cpu_bind)
    for name, slot in VARIABLES:
        value = environ.get(name, "")
        if not value or (SRUN[slot].argument is Argument.NONE and slot != "verbose" and not values.read_switch(value)):
            continue
        if slot == "distribution" and value == "plane":
            value = f"plane={environ.get('SLURM_DIST_PLANESIZE', '')}"  # Slurm gives its size apart
        _apply(fields, _GivenOption(slot, value, f"{name}={value}", False), defaults)
    return fields


# Arguments, as getopt reads them


def _read_arguments(words: Sequence[str], notes: list[str]) -> tuple[list[_GivenOption], tuple[str, ...]]:
    """Returns the options before the program, and the program with its arguments; adds a note for each option that is passed over."""
    rest, asked = deque(words), list[_GivenOption]()
    while rest:
        word = rest.popleft()
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = find(SRUN, name)
            if option is None:
                raise Rejected(f"unrecognized option '--{name}': `srun --help` lists the options", reason="UnknownOption", fields=(name,))
            _take(option, value if equals else None, rest, asked, notes)
        elif word.startswith("-") and len(word) > 1:
            _take_letters(word[1:], rest, asked, notes)
        else:
            rest.appendleft(word)
            break
    return asked, tuple(rest)


def _take_letters(letters: str, rest: deque[str], asked: list[_GivenOption], notes: list[str]) -> None:
    """Takes one word of one-letter options: switches together, and at their end one whose argument is the rest of the word, or the next."""
    for place, letter in enumerate(letters, 1):
        if letter not in SHORT:
            raise Rejected(f"invalid option -- '{letter}': `srun --help` lists the options", reason="UnknownOption", fields=(letter,))
        option = SRUN[SHORT[letter]]
        if option.argument is Argument.NONE:
            _take(option, None, rest, asked, notes)
            continue
        _take(option, letters[place:] or None, rest, asked, notes)
        return


def _take(option: Option, value: str | None, rest: deque[str], asked: list[_GivenOption], notes: list[str]) -> None:
    """Adds one option, whose value it takes out of `rest` where it needs one; raises Rejected where it is refused, or a value is missing or
    one too many, or where there are too many options.
    """
    name = option.name
    if len(asked) + len(notes) >= MOST_OPTIONS:
        raise Rejected(f"there are more than {MOST_OPTIONS} options, which is the limit: give each once", reason="BadOption")
    if option.argument is Argument.NONE and value is not None:
        raise Rejected(f"--{name}={value}: it takes no value", reason="BadOption", fields=(name,))
    if option.argument is Argument.REQUIRED and value is None:
        if not rest:
            raise Rejected(f"--{name}: it needs a value", reason="BadOption", fields=(name,))
        value = rest.popleft()
    place = f"--{name}" if value is None else f"--{name}={value}"
    if option.refused and value not in ("none", "NONE"):
        raise Rejected(f"{place}: {option.refused}", reason="NotServed", fields=(name,))
    if option.ignored:
        notes.append(f"{place} means nothing for a launch: {option.ignored}")
    elif not option.refused:
        asked.append(_GivenOption(option.slot, value, place, True))


def _answer(asked: Sequence[_GivenOption]) -> PrintedText | None:
    """Returns the text for an option that asks for one; None: none does."""
    texts = {
        ("help", None): HELP,
        ("usage", None): USAGE,
        ("version", None): VERSION,
        ("mpi", "list"): MPI_LIST,
    }
    return next((PrintedText(texts[one.name, one.value]) for one in asked if (one.name, one.value) in texts), None)


# Values


def _read_name(text: str) -> str:
    """Returns a launch's name; raises Rejected for a long one, since names of files repeat it."""
    if len(text) > MOST_NAME:
        raise Rejected(f"it has {len(text)} characters, the limit is {MOST_NAME}")
    return text


_READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "ntasks": ("tasks", values.read_count),
    "nodes": ("nodes", values.read_nodes),
    "cpus-per-task": ("cpus_per_task", values.read_count),
    "ntasks-per-node": ("tasks_per_node", values.read_count),
    "nodelist": ("nodelist", values.read_node_names),
    "exclude": ("exclude", values.read_node_names),
    "relative": ("relative", values.read_number),
    "distribution": ("distribution", values.read_distribution),
    "chdir": ("chdir", str),
    "job-name": ("job_name", _read_name),
    "output": ("output", str),
    "error": ("error", str),
    "input": ("input", str),
    "open-mode": ("open_append", values.read_open_mode),
    "wait": ("wait_seconds", lambda text: values.read_seconds(text) or None),
    "time": ("time_seconds", values.read_time),
    "gpus": ("gpus", values.read_gpus),
    "gpus-per-node": ("gpus_per_node", values.read_gpus),
    "gpus-per-task": ("gpus_per_task", values.read_gpus),
    "gres": ("gpus_per_node", values.read_gres),
    "gpu-bind": ("gpu_bind", values.read_gpu_bind),
    "jobid": ("jobid", str),
    "export": ("export", values.read_export),
    "mpi": ("mpi", values.read_mpi),
    "cpu-bind": ("cpu_bind", values.read_cpu_bind),
    "hint": ("threads_per_core", values.read_hint),
    "threads-per-core": ("threads_per_core", values.read_count),
    "kill-on-bad-exit": ("kill_on_bad_exit", values.read_switch),
    "immediate": ("immediate", values.read_seconds),
    "propagate": ("propagate", values.read_propagate),
}
"""By option with a value, the field that it sets and the function that reads it."""
_WITHOUT_VALUE: Final = {"kill-on-bad-exit": "1", "immediate": "1", "propagate": "ALL"}
"""By option whose value may be left out, the value that it then has."""

_OF_EXTERNAL_LAUNCHER: Final[Mapping[str, Any]] = {
    "overlap": True, "exact": False, "overcommit": True, "cpu_bind": CpuBind("none"), "cpus_per_task": None, "gpus": None,
    "gpus_per_node": None, "gpus_per_task": None, "mpi": "none",
}  # fmt: skip
"""What `--external-launcher` asks for: the daemons of another launcher count no CPUs, and see all that the allocation has."""


def _apply(fields: dict[str, Any], one: _GivenOption, defaults: LaunchDefaults) -> None:
    """Sets the fields of one option; raises Rejected, with the place, for a value that does not read."""
    match one.name:
        case "uenv" | "view":
            _check_software(one, defaults)
        case "exclusive" if one.value in ("user", "mcs", "topo"):
            pass  # whole nodes are the allocation's anyway
        case "exact" | "exclusive":
            fields |= {"exact": True, "overlap": False}
        case "overlap":
            fields |= {"overlap": True, "exact": False}
        case "verbose" | "quiet":
            level = fields.get(one.name, 0) + 1
            fields[one.name] = level if one.value is None else int(one.value) if is_digits(one.value, 9) else 0
        case name if name not in _READERS:
            fields[name.replace("-", "_")] = True
        case name:
            field_name, read = _READERS[name]
            try:
                fields[field_name] = read(one.value if one.value is not None else _WITHOUT_VALUE[name])
            except Rejected as error:
                raise Rejected(_cut(f"{one.place}: {error.message}"), reason=error.reason, fields=(name,)) from error
            if one.from_command_line and field_name in ("tasks", "nodes"):
                fields[f"{field_name}_asked"] = True


def _cut(sentence: str) -> str:
    """Returns a sentence without what is beyond its limit in the middle."""
    half = MOST_SENTENCE // 2
    return sentence if len(sentence) <= MOST_SENTENCE else f"{sentence[:half]} … {sentence[-half:]}"


def _check_software(one: _GivenOption, defaults: LaunchDefaults) -> None:
    """Raises Rejected for software that is not the allocation's own."""
    has = defaults.uenv if one.name == "uenv" else defaults.view
    if (one.value or "").strip() == has:
        return
    own = f"this one has {has!r}" if has else "this one has none"
    raise Rejected(
        f"{one.place}: a launch runs in its allocation's software ({own}): leave it out, or submit with --{one.name}={one.value}",
        reason="NotServed",
        fields=(one.name,),
    )
