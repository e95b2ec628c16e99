"""Who is killed, paused, cut off or deleted, when and for how long: a deck drawn from the seed, aimed at transitions of the victim."""

from __future__ import annotations

import heapq
import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lattice import errors
from lattice.kube.resources import NODES
from lattice_agent.standalone.shim import descendants
from lattice_dev import processes
from lattice_dev.instance import Instance
from lattice_dev.processes import ProcessId
from tests.e2e.waiting import PATIENCE
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
KILL, PAUSE, CUT, DELETE = "kill", "pause", "cut", "delete"
PAUSED = (*DAEMONS, "agent", "runner", "shim")
KINDS = (
    *((target, KILL) for target in TARGETS),
    *((target, PAUSE) for target in PAUSED),
    ("link", CUT),
    ("node", CUT),
    ("node", DELETE),
)
"""Every kind of fault: `link` is what two nodes of one attempt say to each other, a node's DELETE that of its object."""
NEAR_SECONDS = 1.0
AIMED_SHARE = 0.85
PATIENCE_SECONDS = 8.0
VICTIM_SECONDS = 60.0
"""Without a victim for so long on a quiet machine, the cluster stands still: that is wrong, and the run goes on to be judged."""
LONGEST_DOWN_SECONDS = 3.0


@dataclass(frozen=True)
class Plan:
    """One fault as the seed has it: `draw` chooses among the nodes that come into question."""

    target: str
    how: str
    pause: float
    aimed: bool
    delay: float
    down: float
    draw: float


@dataclass(frozen=True)
class Kill:
    """One fault as it happened."""

    number: int
    time: float
    target: str
    how: str
    victim: str
    near: bool = False


def deck(rng: random.Random, count: int) -> list[Plan]:
    """So many plans, every kind as often as any other but for one."""
    kinds = [KINDS[position % len(KINDS)] for position in range(count)]
    rng.shuffle(kinds)
    return [
        Plan(
            target, how, rng.uniform(0.3, 2.5), rng.random() < AIMED_SHARE, rng.uniform(0.0, 0.6),
            rng.uniform(0.0, LONGEST_DOWN_SECONDS), rng.random(),
        )
        for target, how in kinds
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
    paused: set[tuple[str, int]] = field(default_factory=set)
    """(uid, attempt) whose shim stood still for a while."""
    wrong: list[str] = field(default_factory=list)
    """Daemons that have ended by themselves, and faults without a victim, as sentences."""
    _due: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _down: set[str] = field(default_factory=set)
    _order: Iterator[int] = field(default_factory=itertools.count)

    def carry_out(self, plans: Sequence[Plan], check: Callable[[], None]) -> None:
        """All of them in order; `check` is asked before each whether to go on."""
        for plan in plans:
            check()
            self._wait(plan.pause)
            self._look_for_ended()
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
                heapq.heappop(self._due)[2]()
            if now >= deadline:
                return
            time.sleep(min(0.05, deadline - now))

    def _execute(self, plan: Plan) -> None:
        giving_up = time.monotonic() + VICTIM_SECONDS * PATIENCE
        while True:
            transition = self._aim(plan) if plan.aimed else None
            if transition is not None:
                self._wait(max(0.0, transition.time + plan.delay - time.monotonic()))
            if self._strike(plan, transition):
                return
            if time.monotonic() > giving_up:
                self.wrong.append(
                    f"there was no {plan.target} to {plan.how} for {VICTIM_SECONDS * PATIENCE:.0f} s{self._last_words(plan.target)}"
                )
                return
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

    def _look_for_ended(self) -> None:
        """A daemon that is gone and that nobody has killed is noted, and started again."""
        for name in DAEMONS:
            try:
                self.instance.pid(name)
            except errors.NotFound:
                if name not in self._down:
                    self.wrong.append(f"{name} has ended by itself{self._last_words(name)}")
                    self.instance.start(name, wait=False)

    def _strike(self, plan: Plan, transition: Transition | None) -> bool:
        """Does it to a victim of the kind; False when there is none just now."""
        nodes = self._candidates(plan, transition)
        match plan.target, plan.how:
            case "link", _:
                one, other = nodes[0], nodes[1]
                self.instance.cut_between(one, other)
                self._later(plan.down, lambda: self.instance.mend_between(one, other))
                return self._note(plan, f"{one},{other}")
            case "node", "cut":
                self.instance.cut(nodes[0])
                self._later(plan.down, lambda: self.instance.mend(nodes[0]))
                return self._note(plan, nodes[0])
            case "node", _:
                return self._delete_object(nodes[0]) and self._note(plan, nodes[0])
            case target, _ if target in DAEMONS:
                with suppress(errors.NotFound):
                    return self._send(plan, target, target, ProcessId(self.instance.pid(target), 0))
                return False
        for node in nodes:
            found = self._on_node(plan.target, node)
            if found is not None:
                return self._send(plan, f"agent-{node}" if plan.target == "agent" else "", node, found)
        return False

    def _candidates(self, plan: Plan, transition: Transition | None) -> list[str]:
        """Nodes that come into question, in the order of the draw; for a link those of the transition first."""
        every = list(self.instance.site().nodes)
        nodes = sorted(transition.nodes) if transition and transition.nodes else every
        first = int(plan.draw * len(nodes))
        chosen = [*nodes[first:], *nodes[:first]]
        return (
            chosen if len(chosen) > 1 else [*chosen, *(node for node in every if node not in chosen)] if plan.target == "link" else chosen
        )

    def _delete_object(self, node: str) -> bool:
        with suppress(errors.LatticeError), self.instance.cluster() as cluster:
            cluster.patch(NODES, node, {"metadata": {"annotations": {"lattice.dev/really-delete": "yes"}}})
            cluster.delete(NODES, node)
            return True
        return False

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), what))

    def _note(self, plan: Plan, victim: str) -> bool:
        self.kills.append(Kill(len(self.kills) + 1, time.monotonic(), plan.target, plan.how, victim))
        self.say(f"fault {len(self.kills):3d}: {plan.how} {plan.target} ({victim}), for {plan.down:.1f} s")
        return True

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
        """Kills or pauses a process, and sees to it that it runs again."""
        owners = {found.pid: key for key, found in self._shims(victim)} if plan.target == "shim" else {}
        number = signal.SIGKILL if plan.how == KILL else signal.SIGSTOP
        if component:
            self.instance.kill(component, number)
        elif not processes.send(process, number):
            return False
        if plan.how == PAUSE:
            self._later(plan.down, lambda: self._go_on(component, process))
        elif component:
            self._down.add(component)
            self._later(plan.down, lambda: self._start(component))
        if process.pid in owners:
            (self.shims if plan.how == KILL else self.paused).add(owners[process.pid])
        return self._note(plan, victim)

    def _start(self, component: str) -> None:
        self.instance.start(component, wait=False)
        self._down.discard(component)

    def _go_on(self, component: str, process: ProcessId) -> None:
        if not component:
            processes.send(process, signal.SIGCONT)
            return
        with suppress(errors.NotFound):  # it was killed meanwhile
            self.instance.kill(component, signal.SIGCONT)

    def judged(self) -> list[Kill]:
        """Every fault, with whether its victim was within a second of a transition."""
        return [
            Kill(kill.number, kill.time, kill.target, kill.how, kill.victim, self._was_near(kill)) for kill in self.kills
        ]  # fmt: skip

    def _was_near(self, kill: Kill) -> bool:
        victims = kill.victim.split(",")
        return any(self.transitions.near(kill.time, _of(kill.target, victim), NEAR_SECONDS) for victim in victims)


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
