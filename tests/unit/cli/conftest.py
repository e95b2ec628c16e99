"""One run of `lattice` against an in-memory cluster: argument list in; exit code, output and objects out."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lattice.cli.__main__ import run
from lattice.cli.console import Outside
from lattice.cli.registry import split_verb
from lattice.cli.slurm.__main__ import run as run_slurm
from lattice.daemon.clock import ManualClock
from lattice.errors import LatticeError
from lattice.kube.fake import FakeCluster
from lattice.kube.kubeconfig import ClusterConfig
from lattice.kube.resources import ALLOCATIONS, NODES, Resource
from lattice.units import format_time, parse_time

NOW = parse_time("2026-09-21T14:13:20Z")


class BlockingFake:
    """The synchronous verbs on the in-memory cluster; a watch ends at once, so that followers look again."""

    def __init__(self, fake: FakeCluster, loop: asyncio.AbstractEventLoop) -> None:
        self.fake = fake
        self.rules: list[dict[str, Any]] = []
        """What the server says of the rights of who asks."""
        self.before_create: Callable[[], None] = lambda: None
        """What happens when an object is about to be created."""
        self.warnings: list[str] = []
        """What the server warns of when an object is created."""
        self.lists = 0
        """How often objects were listed."""
        self._warn: Callable[[str], None] = lambda _sentence: None
        self._loop = loop

    def connect(self, warn: Callable[[str], None]) -> BlockingFake:
        """The server itself, which warns whoever has connected last."""
        self._warn = warn
        return self

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._loop.run_until_complete(self.fake.get(*args, **kwargs))

    def list(self, *args: Any, **kwargs: Any) -> Any:
        self.lists += 1
        return self._loop.run_until_complete(self.fake.list(*args, **kwargs))

    def ask_list(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: the fake answers at once."""

    def create(self, resource: Resource, obj: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if resource.kind == "SelfSubjectReview":
            return {"status": {"userInfo": {"username": "alice"}}}
        if resource.kind == "SelfSubjectRulesReview":
            return {"status": {"resourceRules": self.rules}}
        self.before_create()
        for sentence in self.warnings:
            self._warn(sentence)
        return self._loop.run_until_complete(self.fake.create(resource, obj, *args, **kwargs))

    def patch(self, *args: Any, **kwargs: Any) -> Any:
        return self._loop.run_until_complete(self.fake.patch(*args, **kwargs))

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        return self._loop.run_until_complete(self.fake.delete(*args, **kwargs))

    def watch(self, *_args: Any, **_kwargs: Any) -> Generator[Any, None, None]:
        yield from ()

    def version(self) -> dict[str, str]:
        return {"gitVersion": "v1.36.3"}


@dataclass
class FakeStream:
    """What the gateway would stream."""

    records: list[bytes]

    def lines(self) -> Iterator[bytes]:
        yield from self.records

    def close(self) -> None:
        pass


@dataclass
class Result:
    """What one run left."""

    code: int
    out: str
    err: str


def is_search(path: str) -> bool:
    """Whether the gateway is asked which allocation has a number, or for a list."""
    return path.startswith("/v1/status?")


@dataclass
class Bench:
    """A cluster, a clock, and the program in front of them."""

    cluster: BlockingFake
    time: float = NOW
    columns: int = 0
    environ: dict[str, str] = field(default_factory=lambda: {"HOME": "/nowhere", "USER": "alice"})
    records: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    silences: list[float] = field(default_factory=list)
    """How long the gateway may have been silent, by question."""
    stream: FakeStream | None = None
    """What the gateway streams in place of `records`."""
    gateway_fails: LatticeError | None = None
    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """What happens in the cluster while the program sleeps: at which time, and what."""
    random: str = "x7k2p"
    tick: Callable[[], float] = lambda: 0.0
    """So much later it is at each look at the clock."""

    @property
    def questions(self) -> list[str]:
        """What the gateway was asked, without the search for an allocation by its number."""
        return [path for path in self.paths if not is_search(path)]

    def run(self, *argv: str, stdin: str = "") -> Result:
        out, err = io.StringIO(), io.StringIO()
        verb, rest = split_verb(list(argv))
        assert verb is not None
        try:
            code = run(verb, rest, self._outside(out, err, stdin))
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Result(code, out.getvalue(), err.getvalue())

    def slurm(self, program: str, *argv: str, stdin: str = "") -> Result:
        """One run of a program of Slurm."""
        out, err = io.StringIO(), io.StringIO()
        code = run_slurm(program, argv, self._outside(out, err, stdin))
        return Result(code, out.getvalue(), err.getvalue())

    def _outside(self, out: io.StringIO, err: io.StringIO, stdin: str) -> Outside:
        def stream(_config: ClusterConfig, _url: str, _ca: str, path: str, body: bytes | None, seconds: float) -> FakeStream:
            self.paths.append(path)
            self.silences.append(seconds)
            self.bodies.append(body)
            if self.gateway_fails is not None:
                raise self.gateway_fails
            return self.stream if self.stream is not None and not is_search(path) else FakeStream(self.records)

        return Outside(
            stdin=io.BytesIO(stdin.encode()),
            stdout=out,
            stderr=err,
            environ=self.environ,
            directory="/home/alice/run",
            columns=self.columns,
            now=lambda: self.time + self.tick(),
            sleep=self._sleep,
            configure=lambda _path, _context: ClusterConfig(server="https://127.0.0.1:6443", namespace="physics"),
            connect=lambda _config, warn: self.cluster.connect(warn),
            stream=stream,
            random=lambda: self.random,
        )

    def _sleep(self, seconds: float) -> None:
        self.time += seconds
        due = [act for at, act in self.later if at <= self.time]
        self.later = [(at, act) for at, act in self.later if at > self.time]
        for act in due:
            act()

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        """Have something happen this long from now."""
        self.later.append((self.time + seconds, act))

    def allocation(
        self, name: str, *, number: int | None = None, user: str = "alice", status: Mapping[str, Any] | None = None, **spec: Any
    ) -> str:
        """An Allocation in the namespace physics; its uid."""
        base = {
            "tenant": "physics", "user": user, "vcluster": "hpc-batch", "entrypoint": "hostname", "resources": {"nodes": 1},
            "lifecycle": {"walltime": "1h"},
        }  # fmt: skip
        made = self.cluster.create(ALLOCATIONS, {"metadata": {"name": name}, "spec": {**base, **spec}}, "physics", type=dict[str, Any])
        self.report(name, {"number": number, "submitTime": ago(600), **(status or {})})
        return str(made["metadata"]["uid"])

    def report(self, name: str, status: Mapping[str, Any]) -> None:
        """What the daemons write."""
        self.cluster.patch(ALLOCATIONS, name, {"status": status}, "physics", subresource="status", type=dict[str, Any])

    def read(self, name: str) -> dict[str, Any]:
        """The Allocation as it is."""
        found: dict[str, Any] = self.cluster.get(ALLOCATIONS, name, "physics", type=dict[str, Any])
        return found


def ago(seconds: float) -> str:
    """A time before now."""
    return format_time(NOW - seconds)


def said(kind: str, status: str, reason: str, message: str = "", before: float = 60) -> dict[str, Any]:
    """A condition."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": ago(before),
        "observedGeneration": 1,
    }


RUNNING = {
    "phase": "Running", "startTime": ago(120), "nodes": "nid001", "nodeCount": 1, "head": "nid001", "attempt": 1,
    "conditions": [said("Scheduled", "True", "Placed"), said("Started", "True", "Started", before=120)],
}  # fmt: skip
WAITING = {"phase": "Pending", "conditions": [said("Scheduled", "False", "WaitingForNodes", "4 nodes fit, 2 are free", before=300)]}
FAILED = {
    "phase": "Failed", "startTime": ago(500), "endTime": ago(200), "nodes": "nid001", "nodeCount": 1, "exit": {"code": 3, "node": "nid001"},
    "conditions": [said("Finished", "True", "TaskFailed", "rank 0 on nid001 ended with 3", before=200)],
}  # fmt: skip
COMPLETED = {
    "phase": "Completed", "startTime": ago(500), "endTime": ago(100), "nodes": "nid001", "nodeCount": 1, "exit": {"code": 0},
    "conditions": [said("Finished", "True", "Completed", before=100)],
}  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    yield Bench(BlockingFake(FakeCluster(ManualClock(NOW)), loop), environ={"HOME": str(tmp_path), "USER": "alice"})
    loop.close()


def three_nodes(bench: Bench) -> None:
    """Makes the Ready nodes n1 to n3 of the group g0."""
    for index in (1, 2, 3):
        node = {"metadata": {"name": f"n{index}"}, "spec": {"group": "g0"}}
        bench.cluster.create(NODES, node, type=dict[str, Any])
        bench.cluster.patch(NODES, f"n{index}", {"status": {"state": "Ready", "index": index}}, subresource="status", type=dict[str, Any])
