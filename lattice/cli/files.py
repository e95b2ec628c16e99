"""Reads files that people name, with errors that say why not, and writes files so that they appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lattice.errors import Rejected


def read_file(path: str, most: int, reason: str = "BadInput") -> bytes:
    """Returns the contents of a file that a person named; raises Rejected with `reason` where it has more than `most` bytes.

    What cannot be read at all is Rejected as BadInput.
    """
    if not path:
        raise Rejected("the name of the file is empty", reason="BadInput")
    try:
        with Path(path).open("rb") as file:
            return read_bounded(file, most, path, reason)
    except FileNotFoundError as error:
        raise Rejected(f"there is no file {path}", reason="BadInput") from error
    except IsADirectoryError as error:
        raise Rejected(f"{path} is a directory: name a file in it", reason="BadInput") from error
    except OSError as error:
        raise Rejected(f"{path} cannot be read: {error.strerror or error}", reason="BadInput") from error


def read_bounded(file: BinaryIO, most: int, name: str, reason: str = "BadInput") -> bytes:
    """Returns the rest of an open file, called `name` in the error; raises Rejected where that is more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise Rejected(f"{name} is longer than {most} bytes", reason=reason)
    return data


def write_whole(path: Path, parts: Iterable[bytes], flag: str) -> None:
    """Writes a file beside its path and renames it when complete; follows links, and writes straight to a device or pipe.

    Raises Rejected, naming `flag`, where it cannot be written; a file at the path is then as before.
    """
    path = path.resolve()
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as stream:
                stream.writelines(parts)
            return
        with _unfinished(path) as file:
            file.writelines(parts)
    except OSError as error:
        raise Rejected(f"{flag}: {path} cannot be written: {error.strerror}", reason="BadInput") from error


@contextmanager
def _unfinished(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file beside `path` that is renamed to it at the end of the block, or deleted on an error.

    Raises OSError where one of its name is left from before.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
