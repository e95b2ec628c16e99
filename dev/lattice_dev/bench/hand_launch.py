"""Starts ranks on made-up nodes by hand, and serves them PMI: what a program takes by itself, without a launcher."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lattice.errors import Corrupt
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.ranks import RankServer, Service

SECONDS: Final = 60.0
TURN_MILLISECONDS: Final = 2


def run(program: Path, nodes: Sequence[Sequence[int]], prefixes: Sequence[Sequence[str]]) -> str:
    """Runs a program as the ranks of each node, behind the node's prefix (a command that becomes it), and returns what all have said.

    Raises Corrupt where a rank fails, or they take too long.
    """
    return _HandLaunch(nodes).run(program, prefixes)


class _HandLaunch:
    """One launch by hand: a PMI server for each node, and the hub between them, in this process."""

    def __init__(self, nodes: Sequence[Sequence[int]]) -> None:
        self._nodes = [list(ranks) for ranks in nodes]
        names = [f"hand{index}" for index in range(len(nodes))]
        identity = f"lattice-bench-{os.getpid()}-{time.monotonic_ns()}"
        self._poll = select.poll()
        self._servers = [RankServer(Service(identity, self._nodes, index, names), self._poll) for index in range(len(nodes))]
        self._hub = Hub(self._nodes, names)
        self._ranks: dict[int, tuple[int, subprocess.Popen[str]]] = {}
        self._said: dict[int, str] = {}

    def run(self, program: Path, prefixes: Sequence[Sequence[str]]) -> str:
        """Starts all ranks, serves them until they have ended, and returns what they have said."""
        try:
            self._start(program, prefixes)
            until = time.monotonic() + SECONDS
            while len(self._said) < len(self._ranks):
                self._turn()
                if time.monotonic() > until or self._hub.failure is not None:
                    raise Corrupt(f"ranks by hand have failed: {self._hub.failure or 'they take too long'}", reason="LaunchFailed")
        finally:
            for _, process in self._ranks.values():
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            for server in self._servers:
                server.close()
        return "".join(self._said.values())

    def _start(self, program: Path, prefixes: Sequence[Sequence[str]]) -> None:
        """Starts all ranks."""
        for index, ranks in enumerate(self._nodes):
            for rank in ranks:
                end = self._servers[index].connect(rank)
                environment = {**os.environ, **self._servers[index].variables(rank, end)}
                process = subprocess.Popen(
                    [*prefixes[index], str(program)], env=environment, pass_fds=[end], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                    text=True,
                )  # fmt: skip
                self._ranks[rank] = index, process
                self._servers[index].disconnect_child(rank)
        for server in self._servers:
            server.receive(self._hub.again())

    def _turn(self) -> None:
        """Serves what ranks ask, carries what servers tell each other, and notes ranks that have ended; raises Corrupt where one failed."""
        now = time.monotonic()
        for fd, events in self._poll.poll(TURN_MILLISECONDS):
            for server in self._servers:
                if fd in server:
                    server.serve(fd, events, now)
        for rank, (index, process) in self._ranks.items():
            if rank not in self._said and process.poll() is not None:
                assert process.stdout is not None  # noqa: S101 - a pipe was asked for
                self._said[rank] = process.stdout.read()
                process.stdout.close()
                if process.returncode:
                    raise Corrupt(f"rank {rank} by hand has ended with {process.returncode}: {self._said[rank]}", reason="LaunchFailed")
                self._servers[index].ended(rank, 0, 0, now)
        for index, server in enumerate(self._servers):
            server.tick(now)
            for payload in server.outgoing():
                for node, reply in self._hub.receive(index, payload):
                    self._servers[node].receive(reply)
