"""Concludes, from what the nodes of one attempt report, what they are to do and which status is due; pure.

The first reporter is the head's agent. A new one starts from nothing and rebuilds the same view, since each node sends its whole state.
Attempts of one node use it too, without any message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from lattice.ledger.ends import describe_unknown_exit
from lattice.ledger.plans import RUN, STOP, PlanRow
from lattice.models.conditions import PROLOGUE_FAILED, UNKILLABLE
from lattice.units import fold_nodes, format_duration
from lattice.views.allocation import FailedLaunch, LaunchTotals
from lattice_agent.attempts import NO_USE, Key, ResourceUse
from lattice_agent.members import FINAL, Direction, Member, Order, Phase, TaskEnd, first_failure

OUT_OF_MEMORY = "OutOfMemory"
NEAR_LIMIT = 0.95
"""Work that held so much of its limit was killed by it; else the whole node was short of memory."""


@dataclass(frozen=True, slots=True)
class NothingYet:
    """The verdict that no status is due: nodes prepare, or some have not reported yet."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The verdict that every node has started, at the earliest at `start` (seconds since the epoch): condition Started is due."""

    start: float
    nodes: int


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The task that failed first, and its node."""

    node: str
    task: TaskEnd


@dataclass(frozen=True, slots=True)
class Over:
    """The verdict that no process is left on any node: condition Finished is due, with a reason of END_REASONS.

    `start` and `end` in seconds since the epoch, 0: unknown. `begun`: every node had started. `exit_known`: an exit code can be named.
    """

    reason: str
    message: str
    begun: bool
    start: float
    end: float
    failure: FirstFailure | None = None
    exit_known: bool = True
    use: ResourceUse = NO_USE
    launches: LaunchTotals | None = None
    node: str = ""
    """Whose prologue failed."""


@dataclass(frozen=True, slots=True)
class Surviving:
    """The verdict that processes survive KILL: condition Finished stays False and names the nodes. `start`: 0 when unknown."""

    message: str
    begun: bool
    start: float


Verdict = NothingYet | Begun | Surviving | Over


class AttemptView:
    """The reporter's view of one attempt: collects what its nodes report, and concludes their direction and the verdict for the status."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.nodes: tuple[str, ...] = ()
        self.head = ""
        self.on_head_only = False
        self.is_launched = False
        self.walltime_seconds: float | None = None
        self.members: dict[str, Member] = {}
        self.awaited: frozenset[str] | None = None
        """Nodes that the attempt's stop row still names, so that their end is still waited for; None: no stop row was seen."""
        self.started = False
        self.settled = False

    # ── what goes in ────────────────────────────────────────────────────────────────────────────────────────────

    def follow_row(self, row: PlanRow) -> None:
        """Notes the attempt's newest plan row: a run row names all nodes, a stop row those that have not confirmed their end, and all where
        no row came before it.
        """
        self.head = row.head or self.head
        if row.order == STOP:
            self.awaited = frozenset(row.nodes)
        if row.order == RUN or not self.nodes:
            self.nodes = row.nodes

    def describe(self, *, on_head_only: bool, walltime_seconds: float | None, is_launched: bool = False) -> None:
        """Notes what the Allocation says: whether tasks run on the head only, whether that one is the client of the launch that starts the
        entrypoint, and the walltime in seconds; None: none.
        """
        self.on_head_only, self.is_launched = on_head_only, is_launched
        self.walltime_seconds = walltime_seconds

    def hear(self, member: Member) -> bool:
        """Notes a node's whole state; a final one stays, whatever comes later. Once all are ready, or one has started, the tasks may start
        for good.

        Returns False, and notes nothing, when the node is not of this attempt.
        """
        if member.key != self.key or member.node not in self.nodes:
            return False
        before = self.members.get(member.node)
        if before is None or before.phase not in FINAL:
            self.members[member.node] = member
        self.started = self.started or self._may_start(member)
        return True

    # ── what comes out ──────────────────────────────────────────────────────────────────────────────────────────

    def direction(self) -> Direction:
        """Returns the order to all nodes: END with its cause where one failed, or the head has ended and alone has tasks; else START once
        all were ready; else WAIT.
        """
        cause = self._cause()
        if cause:
            return Direction(Order.END, cause, self.settled)
        return Direction(Order.START if self.started else Order.WAIT, "", self.settled)

    def verdict(self) -> Verdict:
        """Returns the status that the states of all nodes together call for: begun, surviving KILL, over, or nothing yet."""
        members = self._present()
        begun = len(members) == len(self.nodes) and all(_has_started(member) for member in members)
        starts = [member.started for member in members if member.started]
        start = min(starts, default=0.0)
        if self._all_over():
            ends = [end.ended for member in members for end in member.exits if end.ended]
            used = sum((member.use for member in members), NO_USE)
            head = self.members.get(self.head)
            launches = head.launches if head is not None else None
            return dataclasses.replace(self._over(begun, start, max(ends, default=0.0)), use=used, launches=launches)
        surviving = [member for member in members if member.phase is Phase.ENDING and member.reason == UNKILLABLE]
        if surviving:
            return Surviving("; ".join(f"{member.node}: {member.message}" for member in surviving), begun, start)
        if begun:
            return Begun(start, len(self.nodes))
        return NothingYet()

    def missing(self) -> list[str]:
        """Returns the nodes that have not reported yet."""
        return [node for node in self.nodes if node not in self.members]

    # ── decisions ───────────────────────────────────────────────────────────────────────────────────────────────

    def _present(self) -> list[Member]:
        """Returns the states of the nodes that have reported, in the order of the attempt's nodes."""
        return [self.members[node] for node in self.nodes if node in self.members]

    def _may_start(self, member: Member) -> bool:
        """Tells whether the tasks may start: every node is ready, or `member` has started already, told by an earlier reporter."""
        if member.phase is Phase.RUNNING or member.started:
            return True
        return len(self.members) == len(self.nodes) and all(each.phase is Phase.READY for each in self.members.values())

    def _all_over(self) -> bool:
        """Tells whether no process is left on any node: each has reported a final state, or was confirmed by the stop row without one.

        False before a row names the nodes.
        """
        if not self.nodes:
            return False
        return all(
            self.members[node].phase in FINAL if node in self.members else self.awaited is not None and node not in self.awaited
            for node in self.nodes
        )

    def _cause(self) -> str:
        """Returns the reason to end the attempt on nodes that still run it; empty: there is none.

        It is StartFailed, NodeLost or TaskFailed by the first node of which that is so, unless its own walltime or stop row has ended it
        there, else HeadEnded where tasks run on the head only and that has ended.
        """
        for member in self._present():
            match member.phase:
                case Phase.START_FAILED:
                    return "StartFailed"
                case Phase.ENDING if member.message and member.reason != UNKILLABLE:
                    return "StartFailed"  # it could not be started, or is lost, and its epilogue runs
                case Phase.LOST:
                    return "NodeLost"
                case Phase.GONE | Phase.ENDING if member.walltime or member.ordered:
                    pass  # its own walltime or stop row has ended it; each of the others has its own
                case Phase.GONE | Phase.ENDING if first_failure(member.exits):
                    return "TaskFailed"
                case _:
                    pass  # it works, or all its tasks ended with 0
        head = self.members.get(self.head)
        if self.on_head_only and head is not None and (head.phase is Phase.GONE or (head.phase is Phase.ENDING and head.exits)):
            return "HeadEnded"
        return ""

    def _over(self, begun: bool, start: float, end: float) -> Over:
        """Returns the verdict on an attempt of which no process is left; in this order: stopped, refused, lost, else how its tasks
        ended.
        """
        members = self._present()
        failure = _first(members)
        stopped = self.awaited is not None and (any(member.ordered for member in members) or len(members) < len(self.nodes))
        if stopped or any(member.ordered for member in members):
            message = f"ended as ordered, no process is left on {_count(self.nodes)}"
            return Over("Stopped", message, begun, start, end, failure, exit_known=self._knows_exit(failure))
        refused = next((member for member in members if member.phase is Phase.START_FAILED), None)
        if refused is not None:
            message = refused.message if refused.node in refused.message else f"node {refused.node}: {refused.message}"
            reason, node = refused.reason or "StartFailed", refused.node if refused.reason == PROLOGUE_FAILED else ""
            return Over(reason, message, begun, start, end, failure, exit_known=self._knows_exit(failure), node=node)
        lost = [member for member in members if member.phase is Phase.LOST]
        if lost:
            message = f"{fold_nodes([member.node for member in lost])} lost it: {lost[0].message}"
            return Over("Lost", message, begun, start, end, failure, exit_known=self._knows_exit(failure))
        return self._ended(begun, start, end, failure)

    def _ended(self, begun: bool, start: float, end: float, failure: FirstFailure | None) -> Over:
        """Returns the verdict on work that was neither stopped, nor refused, nor lost: its walltime was over, all tasks ended with 0, the
        exit code is unknown, memory was short, or a task failed.
        """
        by_walltime = [member for member in self._present() if member.walltime and member.node in self._with_tasks]
        if by_walltime and (failure is None or failure.node in {member.node for member in by_walltime}):
            limit = f" of {format_duration(self.walltime_seconds)}" if self.walltime_seconds is not None else ""
            message = f"its walltime{limit} was over on {fold_nodes([member.node for member in by_walltime])}: TERM, grace period, KILL"
            return Over("WalltimeExceeded", message, begun, start, end, failure, exit_known=self._knows_exit(failure))
        if failure is None:
            return Over("Completed", f"every task on {_count(self.nodes)} ended with 0", begun, start, end)
        task = failure.task
        if task.unknown:
            return Over("ExitUnknown", describe_unknown_exit(failure.node), begun, start, end, failure, exit_known=False)
        how = f"by signal {task.signal}" if task.signal else f"with exit code {task.code}"
        node, said = failure.node, f"task {task.rank} on {failure.node} ended {how}"
        if (launch := self._failed_launch()) is not None:
            node = launch.node if launch.node in self.members else node
            said = launch.reason if any(name in launch.reason for name in self.nodes) else f"{node}: {launch.reason}"
        if short := _memory_sentence(node, self.members[node].use):
            return Over(OUT_OF_MEMORY, f"{short}; {said if launch else f'task {task.rank} ended {how}'}", begun, start, end, failure)
        return Over("TaskFailed", said, begun, start, end, failure)

    def _failed_launch(self) -> FailedLaunch | None:
        """Returns the failed launch of the entrypoint, as the head's step log has it; None: no launch starts it, or its end is not told."""
        head = self.members.get(self.head)
        failures = head.launches.failures if self.is_launched and head is not None and head.launches is not None else ()
        return next((one for one in failures if one.step.endswith(".0") and one.reason), None)

    def _knows_exit(self, failure: FirstFailure | None) -> bool:
        """Tells whether an exit code can be named: the first failure's, or 0 once every node with tasks has reported all their ends."""
        if failure is not None:
            return not failure.task.unknown
        return all(node in self.members and self.members[node].exits for node in self._with_tasks)

    @property
    def _with_tasks(self) -> tuple[str, ...]:
        """Returns the nodes on which tasks of the work itself begin, whose ends decide."""
        return (self.head,) if self.on_head_only else tuple(self.nodes)


def _has_started(member: Member) -> bool:
    """Tells whether the attempt has started on a node."""
    return bool(member.started) or member.phase is Phase.RUNNING


def _first(members: Iterable[Member]) -> FirstFailure | None:
    """Returns the first failure; one that came by itself counts before one that an END, a stop or a walltime brought about. None: none."""
    found = []
    for member in members:
        failed = first_failure(member.exits)
        if failed is not None:
            found.append((bool(member.reason or member.ordered or member.walltime), failed.ended, member.node, failed))
    if not found:
        return None
    _, _, node, task = min(found, key=lambda entry: entry[:3])
    return FirstFailure(node, task)


def _memory_sentence(node: str, use: ResourceUse) -> str:
    """Returns a clause on processes of the work that the kernel has killed for want of memory, with limit and peak; empty: none was."""
    if not use.oom_kills:
        return ""
    killed = "a process" if use.oom_kills == 1 else f"{use.oom_kills} processes"
    peak = f", and it held {_mebibytes(use.peak_memory)} at the most" if use.peak_memory else ""
    if use.memory_limit and use.peak_memory >= use.memory_limit * NEAR_LIMIT:
        return f"the kernel killed {killed} on {node}: its memory is limited to {_mebibytes(use.memory_limit)}{peak}"
    limit = f", below its limit of {_mebibytes(use.memory_limit)}" if use.memory_limit else ""
    return f"the kernel killed {killed} on {node}, which was short of memory itself{peak}{limit}"


def _mebibytes(count: int) -> str:
    """Returns bytes as whole MiB with their unit, rounded down."""
    return f"{count >> 20} MiB"


def _count(nodes: tuple[str, ...]) -> str:
    """Returns `node NAME` for a single node, else `N nodes`, for use in a sentence."""
    return f"{len(nodes)} nodes" if len(nodes) != 1 else f"node {nodes[0]}"
