"""The smallest launcher: starts ranks on made-up nodes of this machine and serves them PMI, without a keeper. For tests with real MPI programs."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lattice_agent.standalone import pmix_start
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.ranks import RankServer, Service
from lattice_agent.standalone.rank_start import CALLERS

HOST_VARIABLES: dict[str, str] = {}
"""Set beside those of a host, for sanitizers."""


@dataclass
class Outcome:
    """How a launch went: exit codes and output by rank, what the servers said, and the sentence of its failure."""

    codes: dict[int, int] = field(default_factory=dict)
    output: dict[int, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    failure: str = ""


class Driver:
    """All nodes of one launch in one process, each with its own server and the hub between them."""

    def __init__(self, nodes: Sequence[Sequence[int]], identity: str, pmix_host: Path | None = None) -> None:
        """`pmix_host`: the program that serves PMIx; None: none does."""
        self.nodes = [list(ranks) for ranks in nodes]
        self.names = [f"n{index}" for index in range(len(nodes))]
        self.poll = select.poll()
        name = f"{identity}-secret" if pmix_host else ""
        self.servers = [RankServer(Service(identity, self.nodes, index, self.names, pmix=name), self.poll) for index in range(len(nodes))]
        self.hub = Hub(self.nodes, self.names)
        self.processes: dict[int, tuple[int, subprocess.Popen[str]]] = {}
        self.hosts: list[subprocess.Popen[bytes]] = [self._begin_host(pmix_host, server) for server in self.servers if pmix_host]

    def run(self, argv: Sequence[str | Path], variables: Mapping[str, str], within: float = 240.0) -> Outcome:
        """Starts the command once a rank, serves until all have ended, and kills what is left when the launch fails or time is up."""
        began, outcome = time.monotonic(), Outcome()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(CALLERS)} | dict(variables)
        for index, ranks in enumerate(self.nodes):
            for rank in ranks:
                end = self.servers[index].connect(rank)
                mine = environment | self.servers[index].variables(rank, end)
                process = subprocess.Popen(
                    [str(word) for word in argv], env=mine, pass_fds=[end], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
                self.processes[rank] = (index, process)
                self.servers[index].disconnect_child(rank)
        for index in range(len(self.nodes)):
            self.servers[index].receive(self.hub.again())
        while len(outcome.codes) < len(self.processes):
            self._turn(outcome)
            if time.monotonic() - began > within and not outcome.failure:
                outcome.failure = f"still there after {within} s"
                self._kill()
        for server in self.servers:
            server.close()
        for host in self.hosts:
            host.wait(within)
        return outcome

    def _begin_host(self, program: Path, server: RankServer) -> subprocess.Popen[bytes]:
        mine, its = socket.socketpair()
        with its:
            process = subprocess.Popen[bytes]([str(program)], stdin=its.fileno(), env=pmix_start.ENVIRONMENT | HOST_VARIABLES)
        mine.setblocking(False)
        server.open_host(mine, os.getuid(), os.getgid(), pmix_start.PLACE)
        while not server.host_state[0]:
            assert not server.host_state[1], server.host_state[1]
            for fd, events in self.poll.poll(1000):
                if fd in server:
                    server.serve(fd, events, time.monotonic())
            assert process.poll() is None
        return process

    def _turn(self, outcome: Outcome) -> None:
        now = time.monotonic()
        for fd, events in self.poll.poll(10):
            for server in self.servers:
                if fd in server:
                    server.serve(fd, events, now)
        for rank, (index, process) in self.processes.items():
            if rank not in outcome.codes and process.poll() is not None:
                outcome.codes[rank] = process.returncode
                assert process.stdout is not None
                outcome.output[rank] = process.stdout.read()
                process.stdout.close()
                self.servers[index].ended(rank, max(0, process.returncode), max(0, -process.returncode), now)
        for index, host in enumerate(self.hosts):
            if host.poll() is not None and len(outcome.codes) < len(self.processes):
                self.servers[index].host_ended(max(0, host.returncode), max(0, -host.returncode))
        for index, server in enumerate(self.servers):
            server.tick(now)
            for payload in server.outgoing():
                for node, reply in self.hub.receive(index, payload):
                    self.servers[node].receive(reply)
            outcome.said += server.said()
        failure = self.hub.failure or next((server.failure for server in self.servers if server.failure), None)
        if failure and not outcome.failure:
            outcome.failure = failure.sentence
            self._kill()

    def _kill(self) -> None:
        for _, process in self.processes.values():
            if process.poll() is None:
                process.kill()
