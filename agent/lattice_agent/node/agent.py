"""Runs one node's state machine: events come in one at a time, instructions go out.

`post` is the only way in. It runs the machine, queues its instructions, tells the reporter, and sets the timers; everything that waits does
so in a queue of the `WorkQueues` or in a task of the process's group.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lattice.daemon import starts
from lattice.daemon.logs import event as log_event
from lattice.errors import LatticeError
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.ledger.plans import PlanRow
from lattice.ledger.reports import PULLING, UNSERVED
from lattice.models.conditions import CACHE_FULL, EPILOGUE_FAILED, LIMITS_MISSING, UNKILLABLE
from lattice.views.allocation import LaunchTotals
from lattice.views.cluster import ConfigSpec
from lattice_agent.attempts import ExitRecord, Key
from lattice_agent.cluster import reports
from lattice_agent.cluster.heartbeat import Heartbeat
from lattice_agent.cluster.history import HistoryWriter
from lattice_agent.cluster.registration import Flaw, Registration
from lattice_agent.cluster.work_source import WorkSource
from lattice_agent.condition import VersionedCondition
from lattice_agent.host.interface import Host
from lattice_agent.lifecycle.attempt import OVER, RUNS, Stage
from lattice_agent.lifecycle.events import Directed, Event, Exited, PlanAbsent, PlanRead, Refused, Started, Survived, TermsRead, Tick
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.lifecycle.stimulus_log import StimulusLog
from lattice_agent.members import FINAL, Direction, Member
from lattice_agent.metrics import AgentMetrics
from lattice_agent.node.effects import Effects
from lattice_agent.node.queues import WorkQueues
from lattice_agent.node.stimulus_files import StimulusFiles
from lattice_agent.peers.interface import Peers
from lattice_agent.reporter.reporter import Reporter

log = logging.getLogger(__name__)

AWAY_SECONDS = 3.0
"""Time after which a peer that calls do not reach is reported; an agent that only restarts is back by then."""
HISTORY_AGAIN_SECONDS = 2.0
LONGEST_SLEEP = 60.0
"""Longest sleep of a timer, so that after a suspension of the machine walltimes are found to be over."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything outside the process that an agent uses: the API server with the node's rights, clock, host, peers, and source of work."""

    cluster: Cluster
    clock: Clock
    host: Host
    peers: Peers
    works: WorkSource


@dataclass(slots=True)
class _MemberSide:
    """A node's part in the conversation with an attempt's reporter on another node (peers.interface.MemberSide).

    `target` is the reporter's node and its address; `away`: calls have not reached it for `AWAY_SECONDS`.
    """

    key: Key
    changed: VersionedCondition
    agent: Agent
    target: tuple[str, str] = ("", "")
    last: Member | None = None
    away: bool = False
    task: asyncio.Task[None] | None = field(default=None)

    def member(self) -> Member | None:
        """Returns the node's whole state of the attempt; None: the node has forgotten the attempt."""
        return self.agent.member(self.key)

    def directed(self, direction: Direction) -> None:
        """Posts the reporter's direction to the state machine."""
        self.away = False
        self.agent.post(Directed(self.key, direction))

    def unreached(self, seconds: float) -> None:
        """Notes that the reporter is unreachable and hastens the heartbeat that says so, once calls have failed for 3 s; does nothing
        before, or a second time.
        """
        if seconds >= AWAY_SECONDS and not self.away:
            self.away = True
            self.agent.beat_if_urgent()


class Agent:
    """One node: passes events to its state machine, and the instructions to effects, reporter, peers and heartbeat."""

    def __init__(
        self,
        node: str,
        outside: Outside,
        *,
        queues: WorkQueues,
        group: asyncio.TaskGroup,
        metrics: AgentMetrics,
        config: Callable[[], ConfigSpec],
        registration: Registration,
        heartbeat_seconds: Callable[[], float],
        hollow: bool,
        stimulus_events: int,
        stimulus_files: StimulusFiles,
    ) -> None:
        """Keeps the last `stimulus_events` events of the machine (0: none), and writes them to `stimulus_files` when it finds a defect."""
        self.node = node
        self.index: int | None = None
        self.planned = False
        self._called = 0
        self._outside = outside
        self._queues = queues
        self._group = group
        self._metrics = metrics
        self._registration = registration
        self._stimulus_events = stimulus_events
        self._stimulus_files = stimulus_files
        self._flaw = ""
        self._plan_readable = True
        cluster, clock, host = outside.cluster, outside.clock, outside.host
        self.options = config
        """Returns the options of the site in force."""
        self.launch_totals: Callable[[Key], LaunchTotals | None] = lambda _: None
        """Returns the launches of an attempt that this node heads, for the report of its end; None: there were none."""
        self.work_cpus: Callable[[], int] = lambda: 0
        """Returns how many processors work has on this node; 0: it is not known."""
        self.machine = Lifecycle(node, seen=host.seen(), known=())
        self.heartbeat = Heartbeat(
            node, cluster, clock, reports.NodeIdentity(host.facts().boot_id, host.instance()), metrics, seconds=heartbeat_seconds
        )
        self.reporter = Reporter(
            node,
            cluster=cluster,
            works=outside.works,
            clock=clock,
            hollow=hollow,
            on_direction=lambda key, direction: self.post(Directed(key, direction)),
            queue_report=lambda key, after: queues.queue_report(node, key, after),
            on_away=self.beat_if_urgent,
        )
        self._effects = Effects(
            node,
            host=host,
            config=config,
            works=outside.works,
            row_of=self._row_of,
            awaits=self._awaits_start,
            post=self.post,
            on_read=self.reporter.describe,
            node_cpus=self.reporter.node_cpus,
        )
        self.history = HistoryWriter(node, cluster=cluster, host=host, attempts=self.machine.attempts)
        self._events: deque[Event] = deque()
        self._draining = False
        self._sides: dict[Key, _MemberSide] = {}
        self._known: set[Key] = set()
        self._met: dict[Key, float] = {}
        self._starting: dict[Key, float] = {}
        """When the start was ordered, by attempt, until it is known."""

    async def restore(self) -> None:
        """Rebuilds the attempts that disk and scopes of this node show, and takes the node's turns in the queues and the ends of its work.

        Nothing is decided before the first plan.
        """
        known = await self._outside.host.attempts()
        stimuli = StimulusLog(self._stimulus_events) if self._stimulus_events else None
        self.machine = Lifecycle(self.node, seen=self._outside.host.seen(), known=known, stimuli=stimuli)
        self._known = set(self.machine.attempts)
        self.history = HistoryWriter(self.node, cluster=self._outside.cluster, host=self._outside.host, attempts=self.machine.attempts)
        self._queues.workers[self.node] = self
        self._outside.host.on_exit(self._on_exit)
        for key, attempt in self.machine.attempts.items():
            log_event(log, "Found", allocation=key.uid, attempt=key.attempt, node=self.node, stage=attempt.stage.name)

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def plan(self, read: PlanRead, *, call: int = 0) -> None:
        """Posts the node's plan to the state machine, and begins heartbeats with the first one.

        A higher `call` than before renews the Lease at once, because a new leader asks who is alive.
        """
        self._plan_readable = True
        self.post(read)
        if call > self._called:
            self._called = call
            self.beat_now()
        self._begin_beating()

    def no_plan(self) -> None:
        """Posts to the state machine that the cluster has no plan for this node, and begins heartbeats."""
        self.post(PlanAbsent())
        self._begin_beating()

    def unreadable_plan(self) -> None:
        """Counts a plan that cannot be parsed, and writes the stimulus log at the first in a row; the last plan goes on being followed."""
        self._metrics.plans_ignored.inc()
        if self._plan_readable:
            self._plan_readable = False
            self._write_stimuli("PlanUnreadable")

    def beat_now(self) -> None:
        """Queues a heartbeat at once, unless this node has not begun to send any."""
        if self.planned:
            self._queues.queue_heartbeat(self.node)

    def beat_if_urgent(self) -> None:
        """Queues a heartbeat at once where the report holds something that the scheduler waits for, unless this node has not begun to send
        any.
        """
        if self.planned and self.heartbeat.wants(self._report()):
            self._queues.queue_heartbeat(self.node)

    def _report(self) -> reports.ReportContent:
        """Returns the content of the next heartbeat's report."""
        away = {side.target[0] for side in self._sides.values() if side.away}
        rows = reports.with_detail(self.machine.report(), self._effects.unserved, UNSERVED)
        rows = reports.with_detail(rows, self._outside.host.pulling(), PULLING)
        return reports.ReportContent(rows, tuple(sorted(away | self.reporter.away() | set(self.machine.silent_reporters()))))

    def _begin_beating(self) -> None:
        """Queues the first heartbeat, after the first plan, so that nothing is claimed here before that was read; later does nothing."""
        if not self.planned:
            self.planned = True
            self._queues.queue_heartbeat(self.node)

    def _on_exit(self, key: Key, record: ExitRecord | None) -> None:
        """Posts to the state machine that an attempt's last process has ended; `record` None: it left no record."""
        if record is not None:
            self._metrics.oom_kills.inc(record.use.oom_kills)
        self.post(Exited(key, record))

    def post(self, event: Event) -> None:
        """Handles one event in the state machine, queues its instructions, tells reporters, then handles the events that came meanwhile.

        Called while an event is handled, it only appends this one.
        """
        self._events.append(event)
        if self._draining:
            return
        self._draining = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._draining = False

    def _handle(self, event: Event) -> None:
        """Handles one event: the machine decides, then instructions, reporters, heartbeat and timer follow from its new state."""
        ignored = self.machine.ignored_plans
        before = {key: attempt.stage for key, attempt in self.machine.attempts.items()}
        instructions = self.machine.handle(event, self._outside.clock.monotonic())
        if isinstance(event, TermsRead):
            self._reached("read", event.key)
        self._log_stages(before)
        self._validate()
        if isinstance(event, PlanRead):
            if self.machine.ignored_plans != ignored:
                self._metrics.plans_ignored.inc()
                log_event(
                    log, "PlanIgnored", logging.WARNING, node=self.node, seq=event.seq, epoch=event.epoch or None,
                    seen=self.machine.seq, seen_epoch=self.machine.seen.epoch or None,
                )  # fmt: skip
            else:
                self.reporter.follow_plan({Key(*row.key): row for row in event.rows})
        for instruction in instructions:
            self._queues.queue_effects(self.node, self._effects.put(instruction))
        self._note_startup(event)
        if isinstance(event, Refused) and event.reason == "NodeUnfit":
            self.beat_now()
        self._tell_reporters()
        self.beat_if_urgent()
        self._queue_deadline()

    def _validate(self) -> None:
        """Logs a broken invariant of the machine once, and writes the stimulus log; work goes on."""
        flaw = self.machine.flaw()
        if flaw and flaw != self._flaw:
            log_event(log, "StateInconsistent", logging.ERROR, node=self.node, message=flaw)
            self._write_stimuli("StateInconsistent")
        self._flaw = flaw

    def _write_stimuli(self, why: str) -> None:
        """Begins a task that writes the machine's stimulus log to its file, with the reason `why` in the process's log."""
        self._group.create_task(self._stimulus_files.write_log(self.node, self.machine, why))

    def _log_stages(self, before: dict[Key, Stage]) -> None:
        """Logs the attempts whose stage has changed since `before`, and notes the time of those whose start is ordered."""
        for key, attempt in self.machine.attempts.items():
            if before.get(key) is not attempt.stage:
                if attempt.stage is Stage.STARTING:
                    self._starting[key] = self._outside.clock.monotonic()
                    self._reached("ready", key)
                log_event(
                    log, attempt.stage.name.capitalize(), allocation=key.uid, attempt=key.attempt, node=self.node,
                    reason=attempt.reason or attempt.ended_by or None, message=attempt.message or None,
                )  # fmt: skip

    def _note_startup(self, event: Event) -> None:
        """Notes when this node first met each attempt, and observes in the metric the time from then to a start."""
        now = self._outside.clock.monotonic()
        for key in self.machine.attempts.keys() - self._met.keys():
            self._met[key] = now
            self._reached("watch", key)
        if isinstance(event, Started) and event.key in self._met:
            self._metrics.startup.observe(now - self._met[event.key])
            self._metrics.first_process.observe(now - self._starting.pop(event.key, now))
            self._reached("fork", event.key, at=event.running.started_boottime)
            self._reached("exec", event.key)

    def _reached(self, step: str, key: Key, *, at: float | None = None) -> None:
        """Logs, where starts are traced, that an attempt has reached a step of its start, now or at `at` (monotonic)."""
        starts.reached(self._outside.clock, step, key.uid, node=self.node, at=at)

    def _queue_deadline(self) -> None:
        """Queues the next check of walltimes and grace periods, in a minute at most; none where nothing is due."""
        deadline = self.machine.deadline()
        if deadline is not None:
            self._queues.queue_deadline(self.node, min(LONGEST_SLEEP, max(0.0, deadline - self._outside.clock.monotonic())))

    # ── the reporters of the attempts ───────────────────────────────────────────────────────────────────────────

    def _tell_reporters(self) -> None:
        """Gives each attempt's state to its reporter, in this process or by a conversation, and drops what is kept of forgotten
        attempts.
        """
        for key, attempt in self.machine.attempts.items():
            if self.reporter.reports(key):
                self._stop_talking(key)
                member = self.member(key)
                if member is not None:
                    self.reporter.hear(member)
            elif attempt.row is not None and attempt.row.reporter:
                self._talk_to(key, (attempt.row.reporter, attempt.row.address))
            elif key in self._sides:
                self._talk_to(key, self._sides[key].target)
        for key in self._known - self.machine.attempts.keys():
            self._effects.drop_attempt(key)
            self._met.pop(key, None)
            self._starting.pop(key, None)
            side = self._sides.pop(key, None)
            if side is not None:
                side.changed.notify()  # it is forgotten: the conversation ends by itself
        self._known = set(self.machine.attempts)

    def member(self, key: Key) -> Member | None:
        """Returns the node's whole state of an attempt, with its launches once it is over here; None: the node has forgotten it."""
        found = self.machine.member(key)
        if found is None:
            return None
        found = replace(found, cpus=self.work_cpus())
        if found.phase not in FINAL or (launches := self.launch_totals(key)) is None:
            return found
        return replace(found, launches=launches)

    def _talk_to(self, key: Key, target: tuple[str, str]) -> None:
        """Begins or continues the conversation with an attempt's reporter, and notifies it where the node's state of the attempt has
        changed.

        `target` is the reporter's node and address; a conversation with another reporter is ended first.
        """
        side = self._sides.get(key)
        if side is not None and side.target != target:
            self._stop_talking(key)
            side = None
        if side is None:
            side = self._sides[key] = _MemberSide(key, VersionedCondition(), self, target)
            side.task = self._group.create_task(self._outside.peers.converse(*target, side))
        member = side.member()
        if member != side.last:
            side.last = member
            side.changed.notify()

    def _stop_talking(self, key: Key) -> None:
        """Ends the conversation with an attempt's reporter, if there is one."""
        side = self._sides.pop(key, None)
        if side is not None and side.task is not None:
            side.task.cancel()

    # ── turns of the queues (queues.NodeWorker) ─────────────────────────────────────────────────────────────────

    async def carry_out(self, key: Key) -> float | None:
        """Carries out the queued instructions of an attempt in order; returns the seconds until another try, None: done."""
        return await self._effects.carry_out(key)

    async def persist(self, key: Key) -> float | None:
        """Writes the status that this node, as its reporter, concludes for an attempt.

        Returns the seconds until another try; None: done.
        """
        return await self.reporter.persist(key)

    async def beat(self) -> float | None:
        """Checks the host, its cache and its limits, renews the node's Lease with the newest report, and returns the seconds until the next
        heartbeat, fewer after an error.
        """
        await self._check_host()
        await self._check_cache()
        await self._check_limits()
        return await self.heartbeat.beat(self.machine.seen, self._report())

    async def _check_host(self) -> None:
        """Posts the attempts whose processes survive KILL, and shows what is wrong in the LatticeNode: an attempt that is not cleaned up,
        else such processes, else the host's flaw.

        Queues a registration and logs only where the reason changes or goes.
        """
        survivors = self._outside.host.survivors()
        for key, message in survivors.items():
            self.post(Survived(key, message))
        said = await self._outside.host.flaw()
        found = Flaw("EndsInMemory" if self._outside.host.ends_in_memory() else "StateUnwritable", said)
        if survivors:
            found = Flaw(UNKILLABLE, "; ".join(f"attempt {key.attempt} of {key.uid}: {said}" for key, said in survivors.items()))
        if unclean := self.machine.unclean():
            whys = {key: self._effects.unclean.get(key, "its epilogue has not come to its end") for key in unclean}
            found = Flaw(EPILOGUE_FAILED, "; ".join(f"attempt {key.attempt} of {key.uid}: {why}" for key, why in whys.items()))
        before = self._registration.flaw
        if bool(found.message) != bool(before.message) or (found.message and found.reason != before.reason):
            word, level = ("Unhealthy", logging.WARNING) if found.message else ("Healthy", logging.INFO)
            log_event(log, word, level, node=self.node, reason=found.reason if found.message else None, message=found.message or None)
            self._registration.flaw = found
            self._queues.queue_registration(self.node)

    async def _check_cache(self) -> None:
        """Shows in the LatticeNode that the image cache is full, with the images that it has, or that it is no longer."""
        said, held = await self._outside.host.cache_full()
        found = Flaw(CACHE_FULL if said else "", said)
        before = self._registration.full
        if bool(said) != bool(before.message) or (said and held != self._registration.cached_images):
            self._registration.full, self._registration.cached_images = found, held
            self._queues.queue_registration(self.node)

    async def _check_limits(self) -> None:
        """Shows in the LatticeNode which limits of work do not hold on it, or that all do again."""
        said = await self._outside.host.unenforced()
        if said != self._registration.unlimited.message:
            self._registration.unlimited = Flaw(LIMITS_MISSING if said else "", said)
            self._queues.queue_registration(self.node)

    def expiring(self, found: Flaw) -> None:
        """Has the LatticeNode show that a certificate is near its end and cannot be renewed; an empty flaw: that is over."""
        if found != self._registration.expiring:
            self._registration.expiring = found
            self._queues.queue_registration(self.node)

    async def tick(self) -> float | None:
        """Posts to the state machine that time has passed, since a walltime or a grace period may be over; returns None: nothing to
        retry.
        """
        self.post(Tick())
        return None

    async def register(self) -> float | None:
        """Writes changed facts into the LatticeNode, and answers a recovery that asks for the journal.

        Returns the seconds until a retry; None: done.
        """
        again = await self._registration.keep_true()
        try:
            await self.history.write_owed()
        except LatticeError as error:
            log_event(log, "HistoryNotTold", logging.WARNING, node=self.node, reason=error.reason, message=error.message)
            return HISTORY_AGAIN_SECONDS
        return again

    # ── what others ask ─────────────────────────────────────────────────────────────────────────────────────────

    def _row_of(self, key: Key) -> PlanRow | None:
        """Returns an attempt's row in the newest plan; None where the attempt is unknown, or that plan does not name it."""
        attempt = self.machine.attempts.get(key)
        return attempt.row if attempt else None

    def _awaits_start(self, key: Key) -> bool:
        """Tells whether an attempt still waits for its terms or for the node, so that its Secrets will be needed."""
        attempt = self.machine.attempts.get(key)
        return attempt is not None and attempt.stage is Stage.WAITING

    def ended(self, key: Key) -> bool:
        """Tells whether an attempt has ended on this node, or is unknown to it, so that its output is complete."""
        attempt = self.machine.attempts.get(key)
        return attempt is None or attempt.stage in OVER

    def runs(self, key: Key) -> bool:
        """Tells whether an attempt has begun on this node and not ended, so that its processes may launch others."""
        attempt = self.machine.attempts.get(key)
        return attempt is not None and attempt.stage in RUNS

    def ready(self) -> tuple[bool, str]:
        """Returns whether the node has read a plan and renewed its Lease, and a sentence on that for people."""
        if not self.planned:
            return False, f"node {self.node} has no index yet, or its plan has not been read"
        if not self.heartbeat.acknowledged:
            return False, f"node {self.node} has not renewed its Lease yet"
        return True, f"node {self.node} reports"
