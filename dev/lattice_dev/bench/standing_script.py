"""A batch script that stands in an allocation, or in a job of Slurm's, and runs others in its folder when it is told to.

So launches of several schedulers are measured by turns, each by one that has its nodes already and waits while another one's turn is on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lattice.errors import Corrupt, Retry

NEXT, READY, SCRIPT, END = "next", "ready", "stand.sh", "end"
LOOK_SECONDS: Final = 0.02
TEXT: Final = f"""\
#!/bin/bash
cd "{{folder}}"
exec 3<>{NEXT}
touch {READY}
while read -r name <&3 && [ "$name" != {END} ]; do
  bash "./$name" > "$name.part" 2>&1
  echo $? > "$name.code"
  mv "$name.part" "$name.out"
done
"""


class StandingScript:
    """Runs scripts through a standing one, whose folder it prepares."""

    def __init__(self, folder: Path, uid: int) -> None:
        """Makes the pipe and the script in a folder of this user's."""
        self.folder = folder
        os.mkfifo(folder / NEXT, 0o600)
        os.chown(folder / NEXT, uid, uid)
        (folder / SCRIPT).write_text(TEXT.format(folder=folder), encoding="utf-8")

    @property
    def text(self) -> str:
        """Returns the text of the script that stands."""
        return (self.folder / SCRIPT).read_text(encoding="utf-8")

    def await_ready(self, *, within: float) -> None:
        """Waits until the script stands; raises Retry where it takes too long."""
        self._await(self.folder / READY, within, lambda: None)

    def run(self, name: str, script: str, *, within: float, meanwhile: Callable[[Path], None] | None = None) -> str:
        """Runs a script, whose name no other one has had, and returns what it writes; calls `meanwhile` now and then with the file of that.

        Raises Retry where it takes too long, Corrupt, with what it has written, where it ends with another code than 0.
        """
        (self.folder / name).write_text(script, encoding="utf-8")
        self._tell(name)
        part, out = self.folder / f"{name}.part", self.folder / f"{name}.out"
        self._await(out, within, lambda: meanwhile(part) if meanwhile is not None else None)
        said, code = out.read_text(encoding="utf-8", errors="replace"), (self.folder / f"{name}.code").read_text(encoding="ascii").strip()
        if code != "0":
            raise Corrupt(f"the script {name} ended with {code}: {said[-1000:]}", reason="LaunchFailed")
        return said

    def finish_script(self) -> None:
        """Has the standing script end."""
        self._tell(END)

    def _tell(self, name: str) -> None:
        """Writes a line to the script's pipe; raises Retry where nobody reads it."""
        try:
            fd = os.open(self.folder / NEXT, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Retry(f"the standing script in {self.folder} has gone: {error.strerror}", reason="LaunchFailed") from error
        try:
            os.write(fd, f"{name}\n".encode())
        finally:
            os.close(fd)

    def _await(self, file: Path, within: float, meanwhile: Callable[[], None]) -> None:
        """Waits until a file is there; raises Retry where it takes too long."""
        until = time.monotonic() + within
        while not file.exists():
            if time.monotonic() > until:
                raise Retry(f"{file.name} in {file.parent} is not there within {within:g} s", reason="NotInTime")
            meanwhile()
            time.sleep(LOOK_SECONDS)
