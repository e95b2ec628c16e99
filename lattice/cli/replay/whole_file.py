"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lattice.errors import Rejected


def write_whole(path: Path, parts: Iterable[bytes], flag: str) -> None:
    """Write a file that takes its place when all of it is there; a device or pipe is written to. Refusals name the flag."""
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
    """A file beside `path` that takes its place when everything is written, and vanishes otherwise."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
