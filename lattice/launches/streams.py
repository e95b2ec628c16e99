"""Decides where input comes from and output goes: files that `srun` opens for all tasks, and files that each task opens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.launches.options import LaunchOptions
from lattice.units import is_digits

NO_ARRAY: Final = 4294967294
"""The number that Slurm writes for `%a` outside of an array."""
INPUT, OUTPUT, ERROR, BOTH = 0, 1, 2, 3
"""Streams of a file that srun opens; BOTH: output and error go to the same file."""
MOST_PATH: Final = 4096
"""Characters of a file's name, before and after its letters are replaced: the kernel takes no longer one."""
NOWHERE: Final = "/dev/null"
STREAM: Final = "-"
"""A task's error that goes to srun though its output is a file of its own."""
_SYMBOL: Final = re.compile(r"%(?:(%)|([0-9]{0,2})([A-Za-z]))")
_OF_TASK: Final = frozenset("tnN")


@dataclass(frozen=True)
class FileNames:
    """The values of the pattern letters that are the same for all tasks of a launch."""

    number: int
    step: int
    job_name: str
    user: str


@dataclass(frozen=True)
class OpenedFile:
    """A file that srun opens for all tasks, relative to its caller's directory."""

    stream: int
    path: str
    append: bool = False


@dataclass(frozen=True)
class TaskFiles:
    """The files of one task, relative to its working directory; empty: the stream of srun.

    An empty `stderr` beside a `stdout` means the same file; `STREAM` means srun's stream in spite of it.
    """

    stdin: str = ""
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Streams:
    """The streams of a launch: the files that srun opens, and which tasks read its input: `all`, `none`, or a rank."""

    opened: tuple[OpenedFile, ...]
    stdin: str
    append: bool
    names: FileNames
    patterns: Mapping[int, str]
    """By stream, the pattern of a file of each task's own, or the rank whose stream alone is passed on."""

    own_error: bool = False
    """Whether error is asked for by itself; else it goes where output goes."""

    def of_task(self, rank: int, node: str, node_index: int) -> TaskFiles:
        """Returns the files of one task; `node_index` counts the launch's nodes from 0."""
        own: dict[str, str | int] = {"t": rank, "n": node_index, "N": node.partition(".")[0]}
        found = {stream: self._file(pattern, rank, own) for stream, pattern in self.patterns.items()}
        stderr = found.get(ERROR, "")
        if found.get(OUTPUT) and not stderr and self.own_error:
            stderr = STREAM
        return TaskFiles(found.get(INPUT, ""), found.get(OUTPUT, ""), stderr)

    def _file(self, pattern: str, rank: int, own: Mapping[str, str | int]) -> str:
        """Returns the file of one task for a stream; empty: srun's stream."""
        if is_digits(pattern):
            return "" if int(pattern) == rank else NOWHERE
        return expand_name(pattern, self.names, own) if pattern else ""


def plan_streams(options: LaunchOptions, names: FileNames, tasks: int) -> Streams:
    """Returns where the streams of a launch with this many tasks come from and go to; raises Rejected for names that are too long."""
    output, error = _asked(options.output, tasks), _asked(options.error, tasks)
    opened, patterns = [], dict[int, str]()
    stdin = "all"
    source = _asked(options.input, tasks)
    if source == NOWHERE or is_digits(source):
        stdin = "none" if source == NOWHERE else source
    elif source and _is_of_task(source):
        patterns[INPUT] = source
    elif source:
        opened.append(OpenedFile(INPUT, expand_name(source, names)))
    append = bool(options.open_append)
    shared = [(stream, text) for stream, text in ((OUTPUT, output), (ERROR, error)) if text and not _is_of_task(text)]
    paths = {stream: expand_name(text, names) for stream, text in shared}
    if OUTPUT in paths and (not options.error or paths.get(ERROR) == paths[OUTPUT]):
        opened.append(OpenedFile(BOTH, paths[OUTPUT], append))
    else:
        opened.extend(OpenedFile(stream, path, append) for stream, path in paths.items())
    if output and OUTPUT not in paths:
        patterns[OUTPUT] = output
    if error and ERROR not in paths:
        patterns[ERROR] = error
    return Streams(tuple(opened), stdin, append, names, patterns, bool(options.error))


def expand_name(pattern: str, names: FileNames, of_task: Mapping[str, str | int] | None = None) -> str:
    """Returns the name of a file that a pattern means: `%j` as Slurm has it, `%4t` padded with zeros, `%%` a `%`.

    An unknown letter stays as it is; a backslash anywhere switches expansion off, and is removed. Raises Rejected for a long one.
    """
    _check_length(pattern)
    if "\\" in pattern:
        return pattern.replace("\\", "")
    values: dict[str, str | int] = {
        "j": names.number,
        "A": names.number,
        "a": NO_ARRAY,
        "J": f"{names.number}.{names.step}",
        "s": names.step,
        "u": names.user,
        "x": names.job_name.replace("/", "_"),
        **(of_task or {}),
    }

    def symbol(match: re.Match[str]) -> str:
        """Returns the text for one `%` symbol; an unknown letter stays as it is."""
        if match[1]:
            return "%"
        value = values.get(match[3])
        if value is None:
            return match[0]
        return f"{value:0{min(int(match[2] or 0), 10)}d}" if isinstance(value, int) else value

    name = _SYMBOL.sub(symbol, pattern)
    _check_length(name)
    return name


def _check_length(name: str) -> None:
    """Raises Rejected for the name of a file that is too long."""
    if len(name) > MOST_PATH:
        raise Rejected(
            f"the file {name[:40]}… has {len(name)} characters, the limit is {MOST_PATH}: give a shorter name", reason="BadOption"
        )


def _asked(text: str, tasks: int) -> str:
    """Returns a stream as it is asked for: empty for srun's own, `/dev/null`, the rank whose stream alone counts, or a pattern."""
    if text.lower() in ("", "all"):
        return ""
    if text.lower() == "none":
        return NOWHERE
    if is_digits(text, 9) and int(text) < tasks:
        return str(int(text))
    return f"./{text}" if is_digits(text, len(text)) else text


def _is_of_task(text: str) -> bool:
    """Tells whether each task has a file of its own: by its pattern, by rank, or because there is to be none."""
    if text == NOWHERE or is_digits(text):
        return True
    return "\\" not in text and any(match[3] in _OF_TASK for match in _SYMBOL.finditer(text) if match[3])
