"""Who is killed, when and for how long: a deck drawn from the seed, aimed at transitions of the victim."""

from __future__ import annotations

import heapq
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lattice import errors
from lattice_agent.shim import descendants
from lattice_dev import processes
from lattice_dev.instance import Instance
from lattice_dev.processes import ProcessId
from tests.faults.transitions import Transition, Transitions

DAEMONS = {
    "scheduler": ("ledger",),
    "operator": ("tenant", "node"),
    "webhook": ("submission",),
    "gateway": ("log",),
    "etcd": ("allocation", "ledger"),
    "kube-apiserver": ("allocation", "ledger"),
}
"""Components of the control plane, and the changes that are transitions of theirs."""
ON_NODES = ("agent", "runner", "shim's parent", "shim")
"""Victims of a node; a shim's parent is the runner of a node that has a shim just then."""
TARGETS = (*DAEMONS, *ON_NODES)
NEAR_SECONDS = 1.0
AIMED_SHARE = 0.85
PATIENCE_SECONDS = 8.0
LONGEST_DOWN_SECONDS = 3.0


@dataclass(frozen=True)
class Plan:
    """One kill as the seed has it: `draw` chooses among the nodes that come into question."""

    target: str
    pause: float
    aimed: bool
    delay: float
    down: float
    draw: float


@dataclass(frozen=True)
class Kill:
    """One kill as it happened."""

    number: int
    time: float
    target: str
    victim: str
    pid: int
    near: bool = False


def deck(rng: random.Random, count: int) -> list[Plan]:
    """So many plans, every target as often as any other but for one."""
    targets = [TARGETS[position % len(TARGETS)] for position in range(count)]
    rng.shuffle(targets)
    return [
        Plan(
            target, rng.uniform(0.3, 2.5), rng.random() < AIMED_SHARE, rng.uniform(0.0, 0.6),
            rng.uniform(0.0, LONGEST_DOWN_SECONDS), rng.random(),
        )
        for target in targets
    ]  # fmt: skip


@dataclass
class Killer:
    """Carries a deck out on an instance, and starts again what it killed."""

    instance: Instance
    transitions: Transitions
    say: Callable[[str], None]
    kills: list[Kill] = field(default_factory=list)
    shims: set[tuple[str, int]] = field(default_factory=set)
    """(uid, attempt) whose shim was killed."""
    _due: list[tuple[float, str]] = field(default_factory=list)

    def carry_out(self, plans: Sequence[Plan], check: Callable[[], None]) -> None:
        """All of them in order; `check` is asked before each whether to go on."""
        for plan in plans:
            check()
            self._wait(plan.pause)
            self._execute(plan)
        self.recover()

    def recover(self) -> None:
        """Everything runs again, and is ready."""
        while self._due:
            self._wait(max(0.0, self._due[0][0] - time.monotonic()))
        self.instance.wait_ready()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                self.instance.start(heapq.heappop(self._due)[1], wait=False)
            if now >= deadline:
                return
            time.sleep(min(0.05, deadline - now))

    def _execute(self, plan: Plan) -> None:
        giving_up = time.monotonic() + 60
        while True:
            transition = self._aim(plan) if plan.aimed else None
            if transition is not None:
                self._wait(max(0.0, transition.time + plan.delay - time.monotonic()))
            if self._kill(plan, transition):
                return
            if time.monotonic() > giving_up:
                raise AssertionError(f"there was no {plan.target} to kill for 60 s{self._last_words(plan.target)}")
            self._wait(0.1)

    def _last_words(self, target: str) -> str:
        """The end of the log of a daemon that has ended by itself."""
        if target not in DAEMONS:
            return ""
        (log,) = self.instance.log_files(target)
        return "; its log ends with:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-12:])

    def _aim(self, plan: Plan) -> Transition | None:
        """The next transition of such a victim; meanwhile what was killed before is started again."""
        wanted = _of(plan.target, "")
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_SECONDS:
            self._wait(0.0)
            found = self.transitions.after(began, wanted, 0.05)
            if found is not None:
                return found
        return None

    def _kill(self, plan: Plan, transition: Transition | None) -> bool:
        """Kills a victim of the kind; False when none lives just now."""
        if plan.target in DAEMONS:
            with suppress(errors.NotFound):
                pid = self.instance.pid(plan.target)
                return self._send(plan, plan.target, plan.target, ProcessId(pid, 0))
            return False
        nodes = sorted(transition.nodes) if transition and transition.nodes else list(self.instance.site().nodes)
        first = int(plan.draw * len(nodes))
        for node in [*nodes[first:], *nodes[:first]]:
            found = self._on_node(plan.target, node)
            if found is not None:
                return self._send(plan, f"agent-{node}" if plan.target == "agent" else "", node, found)
        return False

    def _on_node(self, target: str, node: str) -> ProcessId | None:
        try:
            agent = self.instance.pid(f"agent-{node}")
        except errors.NotFound:
            return None
        scopes = self._shims(node)
        match target:
            case "agent":
                return ProcessId(agent, 0)
            case "runner":
                return runner_of(agent)
            case "shim's parent":
                return runner_of(agent) if scopes else None
        return scopes[0][1] if scopes else None

    def _shims(self, node: str) -> list[tuple[tuple[str, int], ProcessId]]:
        root = self.instance.where.scope_root()
        return shims_below(root / node) if root else []

    def _send(self, plan: Plan, component: str, victim: str, process: ProcessId) -> bool:
        owners = {found.pid: key for key, found in self._shims(victim)} if plan.target == "shim" else {}
        now = time.monotonic()
        if component:
            self.instance.kill(component)
            heapq.heappush(self._due, (now + plan.down, component))
        elif not processes.send(process, signal.SIGKILL):
            return False
        if plan.target == "shim" and process.pid in owners:
            self.shims.add(owners[process.pid])
        self.kills.append(Kill(len(self.kills) + 1, now, plan.target, victim, process.pid))
        self.say(f"kill {len(self.kills):3d}: {plan.target} ({victim}, pid {process.pid}), away for {plan.down:.1f} s")
        return True

    def judged(self) -> list[Kill]:
        """Every kill, with whether its victim was within a second of a transition."""
        return [
            Kill(kill.number, kill.time, kill.target, kill.victim, kill.pid, self._was_near(kill)) for kill in self.kills
        ]  # fmt: skip

    def _was_near(self, kill: Kill) -> bool:
        return self.transitions.near(kill.time, _of(kill.target, kill.victim), NEAR_SECONDS)


def _of(target: str, node: str) -> Callable[[Transition], bool]:
    """Whether a transition is one of this victim: of the daemon, or of work on the node (any node when it is empty)."""
    if target in DAEMONS:
        return lambda one: one.what in DAEMONS[target]
    return lambda one: one.what == "allocation" and (node in one.nodes if node else bool(one.nodes))


def runner_of(agent: int) -> ProcessId | None:
    """The agent's runner."""
    for child in descendants(agent):
        if b"runner.py" in _read(Path(f"/proc/{child}/cmdline")):
            return processes.identify(child)
    return None


def shims_below(root: Path) -> list[tuple[tuple[str, int], ProcessId]]:
    """The shims that live in the scopes of a node, each with its uid and attempt."""
    found: list[tuple[tuple[str, int], ProcessId]] = []
    for scope in sorted(root.glob("alloc-*.scope")):
        uid, _, attempt = scope.name.removeprefix("alloc-").removesuffix(".scope").rpartition("-")
        living = map(processes.identify, map(int, _read(scope / "shim" / "cgroup.procs").split()))
        found += [((uid, int(attempt)), process) for process in living if process]
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
