"""The lines of a trace, gzip or plain by what its first bytes say; a file that ends early is an error, never a shorter trace."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from lattice.errors import Rejected

if TYPE_CHECKING:
    from lattice.cli.replay.progress import Progress

GZIP: Final = b"\x1f\x8b"
OTHERS: Final = {
    b"BZh": ("bzip2", "bzip2 -dc"),
    b"\xfd7zXZ": ("xz", "xz -dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"PK\x03\x04": ("zip", "unzip -p"),
    b"\x1f\x9d": ("compress", "uncompress -c"),
}
"""First bytes of other packed files: the program's name, and how it unpacks to standard output."""
MARK: Final = b"\xef\xbb\xbf"
"""Bytes that some editors put before the first line of a text in UTF-8."""
LONGEST_LINE: Final = 16 * 1024 * 1024
"""A line is cut here and refused by its reader: what has no line ends is no trace. The nodes of a great machine are one line."""
_STEP: Final = 4096
"""Lines between two reports of progress."""


def trace_lines(path: str, stdin: BinaryIO, progress: Progress) -> Iterator[bytes]:
    """Each line of the file, or of standard input for `-`; Rejected (`BadTrace`) when it cannot be read to its end."""
    with ExitStack() as open_files:
        raw, size = _opened(path, stdin, open_files)
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


def _opened(path: str, stdin: BinaryIO, open_files: ExitStack) -> tuple[io.BufferedReader, int]:
    """A reader that can peek, and the size of the file, 0 where it is not known."""
    if path == "-":
        return io.BufferedReader(cast("io.RawIOBase", stdin)), 0
    try:
        file = open_files.enter_context(Path(path).open("rb"))  # noqa: SIM115 - the caller's stack closes it
    except OSError as error:
        raise Rejected(f"{path} cannot be read: {error.strerror}", reason="BadTrace") from error
    return file, Path(path).stat().st_size
