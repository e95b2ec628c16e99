"""The runner that all attempts share: no request ends it."""

from __future__ import annotations

import errno
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.standalone import runner
from tests.unit.agent.host.test_scopes import REFUSE_CLONE3

LENGTH = struct.Struct(">I")
SAID = "MiB to describe, the limit is 64 MiB: give fewer or shorter arguments, variables and programs"


@contextmanager
def running() -> Iterator[socket.socket]:
    """A runner, and the agent's end of its socket."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", str(Path(runner.__file__).resolve()), str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        ours.settimeout(90.0)
        yield ours
        ours.close()
        assert process.wait(90) == 0


def send(agent: socket.socket, request: dict[str, Any]) -> None:
    body = json.dumps(request).encode()
    agent.sendall(LENGTH.pack(len(body)) + body)


def answer(agent: socket.socket) -> dict[str, Any]:
    (length,) = LENGTH.unpack(agent.recv(LENGTH.size, socket.MSG_WAITALL))
    found: dict[str, Any] = json.loads(agent.recv(length, socket.MSG_WAITALL))
    return found


def test_a_request_above_the_limit_is_answered_and_passed_over() -> None:
    with running() as agent:
        for number in (1, 3):
            send(agent, {"id": number, "op": "keep", "launch": {"argv": ["x" * runner.MAX_FRAME]}})
            send(agent, {"id": number + 1, "op": "none"})
            refused = answer(agent)
            assert (refused["id"], refused["failure"].endswith(SAID)) == (number, True)
            assert answer(agent) == {"id": number + 1, "failure": "the runner knows no request 'none'"}


async def test_a_request_above_the_limit_is_not_sent_and_the_runner_lives_on() -> None:
    client = RunnerClient()
    try:
        client.open()
        pid = client.pid
        refused = await client.request({"op": "keep", "launch": {"argv": ["x" * runner.MAX_FRAME]}})
        assert refused["failure"].endswith(SAID)
        assert await client.request({"op": "none"}) == {"failure": "the runner knows no request 'none'"}
        assert client.pid == pid
    finally:
        client.close()


BEGIN = """
import json, os, socket
from lattice_agent.standalone import runner, shim
ours, theirs = socket.socketpair()
runner.Runner(theirs.fileno(), shim)._begin(json.loads(sys.argv[3]))
print(ours.recv(4096)[4:].decode())
"""


def test_a_cgroup_of_keepers_at_its_limit_is_no_fault_of_the_node(tmp_path: Path) -> None:
    request = {"id": 7, "op": "keep", "launch": {"keep_procs": str(tmp_path / "cgroup.procs")}}
    command = [sys.executable, "-c", REFUSE_CLONE3 + BEGIN, "", str(errno.EAGAIN), json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    said = json.loads(done.stdout)
    assert (said["id"], said["unfit"]) == (7, False)
    assert "start fewer" in said["failure"]
