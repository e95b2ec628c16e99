"""Starts work for the agent: a small, single-threaded process that forks shims and checks files as the user.

The agent starts it as `python -I -S runner.py FD` with one end of a socketpair. Frames are a length of four bytes (big endian) and JSON;
each request has an `id`, and its one answer the same. It keeps no state: when it is killed the agent starts another one, and when the agent
goes (end of file) it ends. Shims outlive both.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import struct
import sys
from types import ModuleType

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

LENGTH = struct.Struct(">I")
MAX_FRAME = 64 << 20
ID_BYTES = 32
"""Bytes of a request that hold its id, which stands first."""


def load_shim() -> ModuleType:
    """Returns the shim's module, loaded from the folder of this file; the package `lattice_agent` is importable in no other way."""
    package = ModuleType("lattice_agent")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["lattice_agent"] = package
    from lattice_agent.standalone import shim

    return shim


class Runner:
    """Reads requests, forks a child for each, and passes the child's answer on."""

    def __init__(self, socket: int, shim: ModuleType) -> None:
        """Speaks with the agent through the descriptor `socket`."""
        self._socket, self._shim = socket, shim
        self._buffer = bytearray()
        self._passed_over = 0
        """Bytes of a request above the limit that are still to come."""
        self._said: dict[int, tuple[int, bytearray]] = {}
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)

    def serve(self) -> None:
        """Serves requests, each in a child of its own, until the agent has closed its end of the socket."""
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._socket:
                    self._hear(fd)
                elif not self._receive():
                    return

    def _receive(self) -> bool:
        """Reads from the agent, and begins each whole request; returns False once the agent has closed its end.

        A request above 64 MiB is answered with its failure, and passed over.
        """
        data = os.read(self._socket, 1 << 20)
        self._buffer += data
        while self._cut() >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME:
                if len(self._buffer) < LENGTH.size + ID_BYTES:
                    break
                self._refuse(length)
                continue
            if len(self._buffer) < LENGTH.size + length:
                break
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + length])
            del self._buffer[: LENGTH.size + length]
            self._begin(json.loads(frame))
        return bool(data)

    def _cut(self) -> int:
        """Drops what has come of a request above the limit; returns the bytes that are kept."""
        cut = min(self._passed_over, len(self._buffer))
        del self._buffer[:cut]
        self._passed_over -= cut
        return len(self._buffer)

    def _refuse(self, length: int) -> None:
        """Answers a request of so many bytes, which has begun to come, with its failure."""
        begin = bytes(self._buffer[LENGTH.size : LENGTH.size + ID_BYTES])
        number = begin.partition(b'"id": ')[2].partition(b",")[0]
        self._passed_over = LENGTH.size + length
        self._answer(int(number) if number.isdigit() else 0, {"failure": too_long(length)})

    def _begin(self, request: dict[str, Any]) -> None:
        """Forks a child that carries out one request and sends its answer through a pipe."""
        try:
            read_end, write_end = os.pipe()
            launch = request.get("launch", {})
            load_needed(request)
            procs = launch.get("shim_procs") or launch.get("keep_procs") or request.get("procs", "")
            pid, inside = self._shim.forks.fork_into(procs)
        except OSError as error:
            unfit = not isinstance(error, self._shim.forks.CgroupFull)  # a cgroup at its limit is its own work's affair
            self._answer(request["id"], {"failure": f"no process could be made: {error.strerror}", "unfit": unfit})
            return
        if pid == 0:
            if inside:
                forget_cgroup(launch, request)
            self._child(request, write_end)
        os.close(write_end)
        self._said[read_end] = (request["id"], bytearray())
        self._poll.register(read_end, select.POLLIN)

    def _child(self, request: dict[str, Any], report: int) -> None:
        """Carries out one request in a fresh fork and answers through `report`; never returns.

        A crash is noted in a file, and gives no answer.
        """
        code = 1
        try:
            os.close(self._socket)
            match request["op"]:
                case "start":
                    self._shim.run(self._shim.Launch(**request["launch"]), report)
                case "probe":
                    self._shim.send(report, probe(self._shim.streams, request))
                case "hook":
                    self._shim.send(report, run_hook(request))
                case "hold":
                    keep_mounts(request, report)
                case "keep":
                    keep_launch(request, report)
                case "container":
                    make_container(request, report)
                case unknown:
                    self._shim.send(report, {"failure": f"the runner knows no request {unknown!r}"})
            code = 0
        except BaseException:
            note_crash(request)
        finally:
            os._exit(code)

    def _hear(self, fd: int) -> None:
        """Reads what a child answers; once it has closed its pipe, sends the answer to the agent, `lost` where there is none."""
        number, said = self._said[fd]
        if data := os.read(fd, 65536):
            said += data
            return
        self._poll.unregister(fd)
        os.close(fd)
        del self._said[fd]
        self._answer(number, json.loads(said) if said else {"lost": True})

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        """Sends one framed answer to the agent; raises ConnectionError where that is gone."""
        body = json.dumps({"id": number} | answer).encode()
        rest = memoryview(LENGTH.pack(len(body)) + body)
        while rest:
            rest = rest[os.write(self._socket, rest) :]


def too_long(length: int) -> str:
    """Returns why a request of so many bytes is refused, as a sentence."""
    found, limit = f"{length / (1 << 20):.1f} MiB", f"{MAX_FRAME >> 20} MiB"
    return f"what is to start takes {found} to describe, the limit is {limit}: give fewer or shorter arguments, variables and programs"


def run_hook(request: dict[str, Any]) -> dict[str, Any]:
    """Joins the cgroup that the request names, runs its hook there, and returns the answer of `hook.run`.

    The code of hooks is loaded by this child alone, so that shims do not carry it.
    """
    if procs := request["procs"]:
        fd = os.open(procs, os.O_WRONLY)
        os.write(fd, b"0")
        os.close(fd)
    from lattice_agent.standalone import hook

    return hook.run(request)


def keep_mounts(request: dict[str, Any], report: int) -> None:
    """Mounts images and keeps them until it is killed, as `hold.run` does, which answers through the descriptor `report`.

    The code for that is loaded by this child alone, so that shims do not carry it.
    """
    from lattice_agent.standalone import hold

    hold.run(request, report)


def make_container(request: dict[str, Any], report: int) -> None:
    """Makes and starts a container, as `container.run` does, which answers through the descriptor `report`."""
    from lattice_agent.standalone import container

    container.run(request, report)


def load_needed(request: dict[str, Any]) -> None:
    """Loads the code of keepers, of PMI where the launch asks for it, and of containers before the fork: thousands of children need not
    load it each, and a node where nobody asks for them has none of it.

    Whatever fails fails again in the child, which says so.
    """
    with contextlib.suppress(Exception):
        if request["op"] == "container":
            importlib.import_module("lattice_agent.standalone.container")
        elif request["op"] == "keep":
            importlib.import_module("lattice_agent.standalone.keeper")
            if request.get("launch", {}).get("pmi"):
                importlib.import_module("lattice_agent.standalone.pmi.ranks")


def keep_launch(request: dict[str, Any], report: int) -> None:
    """Keeps a launch until its end, as `keeper.run` does, which answers through the descriptor `report`."""
    from lattice_agent.standalone import keeper, rank_start

    keeper.run(rank_start.LaunchDescription(**request["launch"]), report)


def forget_cgroup(*parts: dict[str, Any]) -> None:
    """Empties the names of the cgroup file by which the child was to join: it stands there already."""
    for fields in parts:
        for name in ("shim_procs", "keep_procs", "procs"):
            if name in fields:
                fields[name] = ""


def note_crash(request: dict[str, Any]) -> None:
    """Appends the traceback of the present exception to the file `crash` in the attempt's directory, for people.

    That of a request that names no such directory goes to the standard error, which is the agent's. A failure to write is passed over.
    """
    directory = request.get("launch", {}).get("directory", "")
    with contextlib.suppress(OSError):
        fd = os.open(os.path.join(directory, "crash"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if directory else 2
        os.write(fd, told_of(sys.exception()).encode(errors="replace"))


def told_of(error: BaseException | None) -> str:
    """Returns an exception as lines of text with the places it came through; `traceback`, which formats it for others, is not loaded."""
    lines, trace = [], error.__traceback__ if error is not None else None
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f"  File {code.co_filename}, line {trace.tb_lineno}, in {code.co_name}\n")
        trace = trace.tb_next
    return f"{''.join(lines)}{type(error).__name__}: {error}\n"


def probe(streams: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """Becomes the user for good, enters the first directory that admits him, and opens the output files, made or truncated as asked.

    Returns `workdir` and, for people, the directories `passed_over`; else `failure`, a sentence.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams.UserIdentity(request["user"], request["group"], tuple(request["groups"])).become()
    os.umask(0o022)
    reasons = []
    for directory in request["directories"]:
        try:
            os.chdir(directory)
        except OSError as error:
            reasons.append(f"{directory!r} cannot be entered: {error.strerror}")
            continue
        break
    else:
        return {"failure": f"the working directory {'; '.join(reasons)}"}
    try:
        for path in request["files"]:
            if not streams.check_output(path):
                os.close(streams.open_output(path, truncate=request["truncate"]))
    except streams.StartFailure as failure:
        return {"failure": str(failure)}
    return {"workdir": directory, "passed_over": reasons}


def main() -> None:
    """Serves requests on the socket whose descriptor is the only argument."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children vanish by themselves; pidfds tell the agent
    socket = int(sys.argv[1])
    os.set_inheritable(socket, False)
    with contextlib.suppress(ConnectionError):  # the agent was killed while it was told something
        Runner(socket, load_shim()).serve()


if __name__ == "__main__":
    main()
