"""What stands on this machine, looked at while others make and remove theirs: what goes meanwhile is left out, and is no error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def below(root: Path) -> Iterator[Path]:
    """Yields every file and directory below one; nothing where it is not there. Links are not followed."""
    for directory, directories, files in os.walk(root):
        yield from (Path(directory, name) for name in (*directories, *files))


def loop_files() -> Iterator[tuple[Path, str]]:
    """Yields the file of the kernel and the file behind it of each loop device."""
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            yield file, file.read_text()
