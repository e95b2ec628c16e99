"""Measures the cycle alone: score, order, place, explain; beside it a naive scan over nodes and a calibration loop, in one process.

Machines of three classes of hardware in groups of 128 nodes, half of them held by work of mixed size; pending work of 1 to 128 nodes and
five needs; all from a seed. Times are process times, the median of repeats. Decisions of the scan are compared with the cycle's by how many
allocations each places. The plain cycle goes by class, then by waiting, as the scan does, and knows its queue from the cycle before, as in
production; two more figures have a new queue each time, and the cost function.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from lattice import __version__
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Placed
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.priority.shares import Terms
from lattice.scheduling.recording.codec import CycleEncoder
from lattice.scheduling.recording.cycle_log import CHANGES, frame
from lattice.scheduling.recording.record import SnapshotTaker, completed
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from lattice_dev.bench.figures import Aim, Baseline, Figure

NOW: Final = 1_800_000_000.0
NODES_A_GROUP: Final = 128
BUSY: Final = 0.5
TENANTS, USERS = 20, 200
LOOPS: Final = 1_000_000
LOOP_SECONDS: Final = 0.052
"""Seconds of the calibration loop on the machine of the design's figures."""
SCAN_MILLISECONDS: Final = {(100, 1_000): 2.9, (500, 5_000): 36.0, (1_000, 10_000): 141.0, (10_000, 100_000): 15_000.0}
"""Milliseconds of the scan in the design's figures, by (pending, nodes)."""
AIMS: Final = {(1_000, 10_000): 5.0, (10_000, 100_000): 60.0}
SMALL_CHANGE: Final = Aim(10.0)
RECORDED: Final = Aim(10.0)
"""The longest time, in milliseconds, for which recording may hold the loop."""
SPEED_UP: Final = Aim(40.0, at_least=True)
HARDWARE: Final = (("GH200", 4, 96, 72), ("A100", 8, 80, 64), ("", 0, 0, 128))
NEEDS: Final = (Need(), Need(gpu_type="GH200", gpus=4), Need(gpu_type="A100", gpus=1), Need(gpus=1), Need(cpus=100))

Say = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class CoreScene:
    """A cluster state and the candidates that wait in it."""

    state: ClusterState
    candidates: list[Candidate]


def instance(pending: int, nodes: int, depth: int, seed: int = 1) -> CoreScene:
    """Returns the published instance of this size and seed: half of the nodes are held, and so many candidates wait.

    `depth`: how many blocked candidates may hold a reservation.
    """
    roll = random.Random(seed)  # noqa: S311 - a published instance, no secret
    node_cache = NodeCache()
    for index in range(nodes):
        group = index // NODES_A_GROUP
        gpu_type, gpus, gpu_memory, cpus = HARDWARE[group % len(HARDWARE)]
        node_cache.put(
            NodeFacts(
                index=index, name=f"nid{index:06d}", group=f"g{group}", cpus=cpus, memory=512, gpus=gpus, features=frozenset(),
                hollow=False, usable=True, state="Ready", switch=f"s{index // 32}", gpu_type=gpu_type, gpu_memory=gpu_memory,
                fingerprint="ab"[index // 64 % 7 == 0],
            )
        )  # fmt: skip
    accounts = {f"t{number}": TenantAccount() for number in range(TENANTS)}
    state = ClusterState(node_cache, accounts, {"hpc": Policy("hpc", depth=depth)})
    order = list(range(nodes))
    roll.shuffle(order)
    while len(order) > nodes * (1 - BUSY):
        taken = [order.pop() for _ in range(min(len(order), 1 << roll.randint(0, 6)))]
        uid = f"h{len(state.holders)}"
        state.put_holder(NodeHolder(uid, uid, "t0", "u", "hpc", 5, tuple(sorted(taken)), NOW, NOW, end=NOW + roll.random() * 86400))
    return CoreScene(state, [_candidate(roll, number) for number in range(pending)])


def scan(state: ClusterState, candidates: Sequence[Candidate]) -> int:
    """Returns how many candidates a plain scan places; the cluster state is unchanged.

    For each candidate in order, all nodes that admit it are examined and the fewest groups taken.
    """
    node_cache = state.node_cache
    free = bytearray(max(node_cache.nodes) + 1)
    for index, facts in node_cache.nodes.items():
        free[index] = facts.usable and index not in node_cache.taken
    group = [node_cache.nodes[index].group for index in range(len(free))]
    eligible: dict[Need, list[int]] = {}
    placed = 0
    for candidate in sorted(candidates, key=lambda one: (-one.preemption_class, one.submitted, one.key)):
        nodes = eligible.get(candidate.need)
        if nodes is None:
            nodes = eligible[candidate.need] = [index for index, facts in node_cache.nodes.items() if candidate.need.admits_node(facts)]
        fitting = [index for index in nodes if free[index]]
        if len(fitting) < candidate.minimum:
            continue
        groups: dict[str, list[int]] = {}
        for index in fitting:
            groups.setdefault(group[index], []).append(index)
        placed += 1
        left = candidate.minimum
        for members in sorted(groups.values(), key=len, reverse=True):
            for index in members[:left]:
                free[index] = 0
            left -= min(left, len(members))
    return placed


def calibration() -> float:
    """Returns the seconds of a loop that shows how fast this machine runs Python."""
    began, total = time.process_time(), 0
    for number in range(LOOPS):
        total += number * 2
    return time.process_time() - began if total else 0.0


def measure(*, quick: bool, say: Say) -> list[Figure]:
    """Returns all figures of the cycle; `quick` leaves the largest size out.

    The first is how much slower this machine is than the design's.
    """
    sizes = [(100, 1_000), (500, 5_000), (1_000, 10_000), *([] if quick else [(10_000, 100_000)])]
    factor = min(calibration() for _ in range(3)) / LOOP_SECONDS
    found: list[Figure] = [Figure("calibration loop", factor, "of the design's machine", detail="above 1: this machine is slower")]
    for step, (pending, nodes) in enumerate(sizes):
        found += _of_size(pending, nodes, factor, repeats=3 if nodes > 10_000 else 9)
        say((step + 1) / len(sizes))
    return found


def _of_size(pending: int, nodes: int, factor: float, repeats: int) -> list[Figure]:
    """Returns the figures of cycles of one size; `factor`: how much slower this machine is than the design's."""
    label = f"{pending:,} pending x {nodes:,} nodes"
    made = instance(pending, nodes, depth=0)
    gc.collect()
    gc.freeze()
    try:
        took, placed = _cycles(made, repeats)
        naive, scanned = _scans(made, repeats=1 if nodes > 10_000 else 3)
        aim = AIMS.get((pending, nodes))
        figures = [
            Figure(f"cycle, {label}", took, "ms", Aim(aim) if aim else None, Baseline("naive scan", naive),
                   f"places {placed}, the scan {scanned}; scaled by the calibration {took / factor:.2f} ms"),
            Figure(f"speed-up, {label}", naive / took, "times", SPEED_UP if (pending, nodes) == (1_000, 10_000) else None,
                   detail=f"the scan, scaled, is {naive / factor / SCAN_MILLISECONDS[pending, nodes]:.2f} of the design's figure"),
        ]  # fmt: skip
        unseen, _ = _cycles(made, repeats, before=made.state.pending_queues.clear)
        figures.append(Figure(f"cycle of a queue never seen, {label}", unseen, "ms", None, Baseline("naive scan", naive)))
        made.state.scorings["hpc"] = cost_function(made.state)
        scored, placed = _cycles(made, repeats)
        made.state.scorings.clear()
        figures.append(
            Figure(f"cycle with the cost function, {label}", scored, "ms", None, Baseline("naive scan", naive), f"places {placed}")
        )
        made.state.policies["hpc"] = replace(made.state.policies["hpc"], depth=10)
        reserved, placed = _cycles(made, repeats)
        figures.append(
            Figure(f"cycle with 10 reservations, {label}", reserved, "ms", None, Baseline("naive scan", naive), f"places {placed}")
        )
        looked, written = _recorded(made)
        figures.append(Figure(f"recording a cycle, {label}", looked, "ms", RECORDED, Baseline("naive scan", naive),
                              f"on the loop; in a thread {written:.1f} ms"))  # fmt: skip
        if nodes > 10_000:
            figures.append(Figure(f"cycle after a small change, {label}", _after_a_change(made), "ms", SMALL_CHANGE))
        return figures
    finally:
        gc.unfreeze()


def cost_function(state: ClusterState) -> Scoring:
    """Returns the production cost function, for tenants that have used nothing."""
    scoring = Scoring(policies=state.policies)
    scoring.shares.agree({tenant: Terms() for tenant in state.accounts})
    return scoring


def _cycles(made: CoreScene, repeats: int, before: Callable[[], object] = lambda: None) -> tuple[float, int]:
    """Returns the median milliseconds of a cycle from the same state, and how many it places; a first one is not counted. What a cycle
    places is taken back.

    `before` is called before each cycle, outside of its time.
    """
    times: list[float] = []
    placed = 0
    for _ in range(repeats + 1):
        made.state.backfill_reservations.clear()
        before()
        began = time.process_time()
        outcomes = list(decide(made.state, "hpc", made.candidates, NOW))
        times.append((time.process_time() - began) * 1e3)
        started = [outcome.candidate.uid for outcome in outcomes if isinstance(outcome, Placed)]
        placed = len(started)
        for uid in started:
            made.state.drop_holder(uid)
    return median(times[1:]), placed


def _scans(made: CoreScene, repeats: int) -> tuple[float, int]:
    """Returns the median milliseconds of the scan, and how many it places."""
    times: list[float] = []
    placed = 0
    for _ in range(repeats):
        began = time.process_time()
        placed = scan(made.state, made.candidates)
        times.append((time.process_time() - began) * 1e3)
    return median(times), placed


def _after_a_change(made: CoreScene) -> float:
    """Returns the median milliseconds of a cycle for one new allocation after another has ended, with everything else unchanged; the state
    keeps these changes.
    """
    times: list[float] = []
    newcomers = [replace(made.candidates[number], uid=f"new{number}", key=f"t/new{number}", minimum=1, maximum=1) for number in range(9)]
    list(decide(made.state, "hpc", newcomers[:1], NOW))
    made.state.drop_holder(newcomers[0].uid)
    for uid, newcomer in zip(list(made.state.holders), newcomers, strict=False):
        began = time.process_time()
        made.state.drop_holder(uid)
        list(decide(made.state, "hpc", [newcomer], NOW))
        times.append((time.process_time() - began) * 1e3)
    return median(times)


def _recorded(made: CoreScene) -> tuple[float, float]:
    """Returns the milliseconds that recording adds to a cycle, and that its thread takes to encode and compress one; medians."""
    looks: list[float] = []
    writes: list[float] = []
    chronicler, looker = CycleEncoder(__version__), SnapshotTaker(made.state)
    for cycle in range(10):
        began = time.process_time()
        seen = looker.take_snapshot("hpc", made.candidates, NOW, cycle)
        looks.append((time.process_time() - began) * 1e3)
        outcomes = list(decide(made.state, "hpc", made.candidates, NOW))
        began = time.process_time()
        seen = completed(seen, made.state)
        looks[-1] += (time.process_time() - began) * 1e3
        began = time.process_time()
        frame(CHANGES, cycle, NOW, chronicler.payload(seen, outcomes, whole=not cycle))
        writes.append((time.process_time() - began) * 1e3)
        for outcome in outcomes:
            if isinstance(outcome, Placed):
                made.state.drop_holder(outcome.candidate.uid)
    return median(looks), median(writes[1:])


def _candidate(roll: random.Random, number: int) -> Candidate:
    """Returns a candidate of random size, class, need and walltime."""
    nodes = 1 << roll.randint(0, 7)
    return Candidate(
        key=f"t/j{number:06d}", uid=f"u{number}", tenant=f"t{number % TENANTS}", vcluster="hpc", preemption_class=roll.randint(0, 10),
        submitted=NOW - roll.randint(0, 90_000), minimum=nodes, maximum=nodes, need=roll.choice(NEEDS), user=f"u{number % USERS}",
        walltime=roll.choice((600.0, 3600.0, 14400.0, 86400.0)),
    )  # fmt: skip
