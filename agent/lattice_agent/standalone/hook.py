"""Runs one hook of the site, in a fork of the runner: its output and its exit go back as one answer.

It is of standard library alone. The agent kills the cgroup in which it runs: nothing here has to survive.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH119
from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

STDOUT_BYTES, STDERR_BYTES = 1 << 20, 16 << 10
"""So much of what a hook prints is kept: the beginning of its output, the end of its errors."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the program `argv` of the request and waits for it; returns its exit `code` (negative: the signal), `stdout` and `stderr`.

    Instead of `code`: `late` where it ran beyond its time, `failure` (a sentence) where it could not be started.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(request, out_end, err_end)
    os.close(out_end)
    os.close(err_end)
    return _followed(pid, out, err, time.monotonic() + request["seconds"])


def _become(request: dict[str, Any], out: int, err: int) -> None:
    """Turns a fresh fork into the hook, with its output and errors in two pipes; never returns: it ends with 126 where the hook cannot be
    executed.
    """
    try:
        os.chdir("/")
        os.umask(0o022)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, 1 << 16)
        os.execve(request["argv"][0], request["argv"], request["environment"])  # noqa: S606 - this is what it is for
    except OSError as error:
        os.write(2, f"{os.path.basename(request['argv'][0])} cannot be executed: {error.strerror}\n".encode())
    finally:
        os._exit(126)


def _followed(pid: int, out: int, err: int, until: float) -> dict[str, Any]:
    """Reads the hook's output until the hook itself ends or its time is over; returns the answer of `run`. Kills nothing."""
    said = {out: bytearray(), err: bytearray()}
    for fd in said:
        os.set_blocking(fd, False)
    pidfd = os.pidfd_open(pid)
    reading = set(said)
    while True:
        ready, _, _ = select.select([*reading, pidfd], [], [], max(0.0, until - time.monotonic()))
        for fd in reading & set(ready):
            if not _read(fd, said[fd], first=fd == out):
                reading.discard(fd)
        if pidfd in ready:
            for fd in reading:
                _read(fd, said[fd], first=fd == out)
            return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])} | _texts(said[out], said[err])
        if time.monotonic() >= until:
            return {"late": True} | _texts(said[out], said[err])


def _texts(out: bytearray, err: bytearray) -> dict[str, Any]:
    """Returns what a hook has printed as the answer's texts; bytes that are no UTF-8 are replaced."""
    return {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}


def _read(fd: int, said: bytearray, *, first: bool) -> bool:
    """Appends the bytes waiting in a pipe to `said`; returns False once every writer has closed it."""
    with suppress(BlockingIOError):
        while data := os.read(fd, 65536):
            said += data
            if first:
                del said[STDOUT_BYTES:]
            else:
                del said[:-STDERR_BYTES]
        return False
    return True
