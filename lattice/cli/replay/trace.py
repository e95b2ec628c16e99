"""Reads a trace: its lines, plain or gzip; its format, from the first line; and the engine that it and the flags call for.

A file that ends early is an error, never a shorter trace.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from lattice.cli.replay.flags import FOR_COUNTS, FOR_PRODUCTION, ONLY_OF
from lattice.cli.replay.progress import Progress
from lattice.errors import Rejected

if TYPE_CHECKING:
    from lattice.cli.console import Console

GZIP: Final = b"\x1f\x8b"
OTHERS: Final = {
    b"BZh": ("bzip2", "bzip2 -dc"),
    b"\xfd7zXZ": ("xz", "xz -dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"PK\x03\x04": ("zip", "unzip -p"),
    b"\x1f\x9d": ("compress", "uncompress -c"),
}
"""By the first bytes of other packed files: the program's name, and the command that unpacks to standard output."""
MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark that some editors put before a text in UTF-8."""
LONGEST_LINE: Final = 16 * 1024 * 1024
"""Bytes after which a line is cut, and then refused: a file without line ends is no trace. The nodes of a large machine are one line."""
_STEP: Final = 4096
"""Lines between two updates of the progress bar."""


def run(console: Console, path: str | None) -> int:
    """Replays a trace: reads its first line, chooses the engine, and runs it; returns the engine's exit code.

    `path`: the folder to write, None: none. Raises Rejected for flags that do not go with the trace or the engine.
    """
    progress = Progress(console.outside.stderr, console.outside.now, quiet=console.args.quiet)
    try:
        found, lines = sniff(trace_lines(console.args.trace, console.outside.stdin, progress))
        form = console.args.format or found
        refuse_flags_of_others(console, form)
        if engine(console, form, path) == "counts":
            from lattice.cli.replay import counts

            return counts.run(console, lines, progress)
        from lattice.cli.replay import production

        return production.run(console, form, lines, progress, path)
    finally:
        progress.close()


def sniff(lines: Iterable[bytes]) -> tuple[str, Iterator[bytes]]:
    """Returns the format, told by the first line that is not blank (`jsonl` for `{`, `sacct` for a header with JobID, else `swf`), and all
    lines, that one included.
    """
    lines = iter(lines)
    seen: list[bytes] = []
    for line in lines:
        seen.append(line)
        text = line.strip()
        if text:
            is_sacct = b"jobid" in text.lower() and not text.startswith(b";")
            found = "jsonl" if text.startswith(b"{") else "sacct" if is_sacct else "swf"
            return found, chain(seen, lines)
    return "swf", iter(seen)


def refuse_flags_of_others(console: Console, form: str) -> None:
    """Raises Rejected (`BadInput`) for a flag without meaning for this trace, which would otherwise be ignored silently."""
    for place, names in ONLY_OF.items():
        for name in names:
            if place != form and getattr(console.args, name) not in (None, False):
                flag, meant = (
                    name.replace("_", "-"),
                    "traces of sacct" if place == "sacct" else "traces in SWF" if place == "swf" else place,
                )
                shown = {"swf": "in SWF", "sacct": "of sacct", "jsonl": "in JSON lines"}[form]
                raise Rejected(f"--{flag} is for {meant}, this is a trace {shown}: leave it out", reason="BadInput")


def engine(console: Console, form: str, path: str | None) -> str:
    """Returns `counts` or `production`: the one that is named, else production where a flag, an inventory, a folder or the format needs it;
    raises Rejected for flags of both, or of another engine than the one named.
    """
    args = console.args
    production = [f"--{name.replace('_', '-')}" for name in FOR_PRODUCTION if getattr(args, name) is not None]
    if path is not None:
        production.append("-o FOLDER")
    if isinstance(args.nodes, str):
        production.append("an inventory")
    if form != "swf":
        production.append("a trace in JSON lines" if form == "jsonl" else "a trace of sacct")
    counts = [f"--{name}" for name in FOR_COUNTS if getattr(args, name) is not None]
    if production and (counts or args.engine == "counts"):
        ours = counts[0] if counts else "--engine=counts"
        raise Rejected(f"{ours} is of the counts-only engine, {production[0]} of the production engine: choose one", reason="BadInput")
    if counts and args.engine == "production":
        raise Rejected(f"{counts[0]} is of the counts-only engine: leave it out with --engine=production", reason="BadInput")
    return str(args.engine or ("production" if production else "counts"))


def trace_lines(path: str, stdin: BinaryIO, progress: Progress) -> Iterator[bytes]:
    """Yields each line of the file (`-`: standard input), plain or gzip, with its end; raises Rejected (`BadTrace`) when it cannot be read
    to its end, or is packed otherwise.

    A line above 16 MiB comes in pieces.
    """
    with ExitStack() as open_files:
        raw, size = _open(path, stdin, open_files)
        path = "standard input" if path == "-" else path
        first = raw.peek(6)
        for magic, (name, unpack) in OTHERS.items():
            if first.startswith(magic):
                hint = f"unpack it first: {unpack} FILE | lattice replay - …"
                raise Rejected(f"{path} is packed with {name}; gzip and plain text are read: {hint}", reason="BadTrace")
        text = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=raw))) if first.startswith(GZIP) else raw
        at = 0
        try:
            for at, line in enumerate(iter(lambda: text.readline(LONGEST_LINE), b""), start=1):
                yield line.removeprefix(MARK) if at == 1 else line
                if at % _STEP == 0 and size:
                    progress.show("reading", raw.tell() / size)
        except EOFError as error:
            raise Rejected(f"{path} is truncated: its gzip data end in the middle, after line {at}", reason="BadTrace") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise Rejected(f"{path} is damaged after line {at}: {error}", reason="BadTrace") from error
        except OSError as error:
            raise Rejected(f"{path} cannot be read: {error}", reason="BadTrace") from error


def _open(path: str, stdin: BinaryIO, open_files: ExitStack) -> tuple[io.BufferedReader, int]:
    """Returns a reader that can peek, and the file's size in bytes, 0: unknown. Raises Rejected where it cannot be read."""
    if path == "-":
        return io.BufferedReader(cast("io.RawIOBase", stdin)), 0
    try:
        file = open_files.enter_context(Path(path).open("rb"))  # noqa: SIM115 - the caller's stack closes it
    except OSError as error:
        raise Rejected(f"{path} cannot be read: {error.strerror}", reason="BadTrace") from error
    return file, Path(path).stat().st_size
