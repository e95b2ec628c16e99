"""The seeded fault run: everything is killed, paused and cut off under load, and nothing is lost, doubled or left behind.

    LATTICE_FAULTS_SEED=1 LATTICE_FAULTS_KILLS=1000 pytest tests/faults/test_fault_run.py

`LATTICE_FAULTS_NODES` is the number of nodes; `LATTICE_FAULTS_KEEP` a folder for the logs of the instance.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lattice.errors import LatticeError
from tests.e2e.waiting import PATIENCE
from tests.faults import kills, verdict, witness
from tests.faults.kills import Kill, Killer
from tests.faults.load import Load, wishes
from tests.faults.reading import Reader
from tests.faults.site import TENANT, Site, site
from tests.faults.transitions import Onlooker, Transitions
from tests.faults.verdict import Case

SEED = int(os.environ.get("LATTICE_FAULTS_SEED", "1"))
KILLS = int(os.environ.get("LATTICE_FAULTS_KILLS", "22"))
LONG = KILLS >= 100
NODES = int(os.environ.get("LATTICE_FAULTS_NODES", "40" if LONG else "12"))
POPULATION = NODES + 12
LONGEST_SECONDS = 40.0 if LONG else 4.0  # long enough to outlast a change of leader, which takes a Lease's 15 s
WANTED_IN_FLIGHT = 20
DRAIN_SECONDS = 60.0 * PATIENCE
LOGS_CHECKED = 60

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(0 if LONG else 600)]

Say = Callable[[str], None]


@dataclass
class Run:
    """What a run is made of."""

    here: Site
    transitions: Transitions
    onlooker: Onlooker
    load: Load
    reader: Reader
    killer: Killer


def test_after_all_kills_nothing_is_lost_doubled_or_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    def say(text: str) -> None:
        with capsys.disabled():
            print(text, file=sys.stderr, flush=True)

    say(f"\nfault run: LATTICE_FAULTS_SEED={SEED} LATTICE_FAULTS_KILLS={KILLS} LATTICE_FAULTS_NODES={NODES}")
    with site("run", nodes=NODES, nodes_config={"heartbeatInterval": "3s"}) as here:
        run = prepare(here, say)
        began = time.monotonic()
        carry_out(run)
        lasted = time.monotonic() - began
        found = judge(run, say)
        say(table(run, found, lasted))
        assert found == []


def prepare(here: Site, say: Say) -> Run:
    """The load and the onlookers, running."""
    transitions = Transitions()
    onlooker = Onlooker(here.admin, transitions, TENANT)
    onlooker.start()
    load = Load(
        here.alice, onlooker, transitions, wishes(random.Random(SEED), LONGEST_SECONDS),
        namespace=TENANT, script=here.script, directory=here.directory, population=POPULATION,
    )  # fmt: skip
    load.start()

    def printing() -> list[str]:
        seen = onlooker.allocations
        newest = list(load.submitted.items())[-2 * POPULATION :]
        return [name for name, wish in newest if wish.lines and name in seen and seen[name].status.start_time]

    reader = Reader(here.instance, TENANT, transitions, printing, SEED)
    reader.start()
    return Run(here, transitions, onlooker, load, reader, Killer(here.instance, transitions, say))


def carry_out(run: Run) -> None:
    """Every kill of the seed."""
    deadline = time.monotonic() + 60
    while len(run.load.open()) < POPULATION and time.monotonic() < deadline and run.load.failure is None:
        time.sleep(0.1)

    def goes_on() -> None:
        if run.load.failure is not None:
            raise run.load.failure

    run.killer.carry_out(kills.deck(random.Random(SEED + 1), KILLS), goes_on)


def judge(run: Run, say: Say) -> list[str]:
    """Lets everything come to its end, and everything that is wrong then, as sentences."""
    here = run.here
    say("every kill is done; waiting for the end of the work")
    found = [f"{name} is still not final {DRAIN_SECONDS:.0f} s after the last kill" for name in run.load.drain(DRAIN_SECONDS)]
    run.reader.stop()
    found += [f"left behind: {left}" for left in here.settle(60)]
    run.onlooker.stop()
    said = witness.read(here.directory)
    exits = witness.exits(said)
    found += witness.faults(said)
    found += here.ledger_faults()
    found += verdict.lost_records(
        exits, run.killer.shims | run.killer.paused, {node: here.instance.where.node(node) / "state" for node in here.instance.site().nodes}
    )
    found += _wrong_ends(run, exits)
    found += _lost_lines(run)
    found += _wrong_load(run)
    return found + run.killer.wrong


def _wrong_ends(run: Run, exits: dict[witness.Task, int]) -> list[str]:
    stands = run.here.allocations()
    by_uid: dict[str, dict[witness.Task, int]] = {}
    for task, code in exits.items():
        by_uid.setdefault(task[0], {})[task] = code
    found = []
    for name, wish in run.load.submitted.items():
        allocation = stands.get(name)
        told = by_uid.get(allocation.metadata.uid, {}) if allocation else {}
        found += verdict.faults(
            Case(wish, allocation, name in run.load.cancelled, told, frozenset(run.killer.shims), frozenset(run.killer.paused))
        )
    return found + [f"{name} stands there and nobody submitted it" for name in stands.keys() - run.load.submitted.keys()]


def _lost_lines(run: Run) -> list[str]:
    """Of work that ran to its end every line can be read, of each node."""
    stands, found = run.here.allocations(), []
    shims = {uid for uid, _ in run.killer.shims}
    whole = [
        (name, wish) for name, wish in run.load.submitted.items()
        if wish.lines and name in stands and stands[name].status.phase == "Completed" and stands[name].metadata.uid not in shims
    ]  # fmt: skip
    for name, wish in whole[-LOGS_CHECKED:]:
        try:
            printed = Counter(run.reader.lines(name))
        except LatticeError as error:
            found.append(f"the logs of {name} cannot be read: {error.message}")
            continue
        nodes = {node for node, _ in printed}
        wanted = Counter((node, f"line {number} of {wish.lines}") for node in nodes for number in range(1, wish.lines + 1))
        if printed != wanted or len(nodes) != wish.nodes:
            found.append(
                f"{name} printed {wish.lines} lines on {wish.nodes} nodes; {sum(printed.values())} of {len(nodes)} nodes can be read"
            )
    return found


def _wrong_load(run: Run) -> list[str]:
    """A long run that was no burden, or killed at idle moments, proves nothing; a short one shows its figures in the table."""
    if not LONG:
        return []
    found, sample = [], run.load.sample.in_flight
    average = sum(sample) / max(1, len(sample))
    if average < WANTED_IN_FLIGHT:
        found.append(f"only {average:.1f} allocations were in flight on average, {WANTED_IN_FLIGHT} are wanted")
    judged = run.killer.judged()
    near = sum(kill.near for kill in judged)
    if near * 2 < len(judged):
        found.append(f"only {near} of {len(judged)} kills were within {kills.NEAR_SECONDS:.0f} s of a transition of their victim")
    counted, wanted = Counter((kill.target, kill.how) for kill in judged), min(10, KILLS // len(kills.KINDS))
    return found + [
        f"{how} {target}: {counted[target, how]} times, {wanted} are wanted" for target, how in kills.KINDS if counted[target, how] < wanted
    ]


def table(run: Run, found: list[str], lasted: float) -> str:
    """The run in figures."""
    judged = run.killer.judged()
    sample = run.load.sample
    phases = Counter(allocation.status.phase for allocation in run.onlooker.allocations.values())
    attempts = sum(allocation.status.attempt > 1 for allocation in run.onlooker.allocations.values())
    lines = [
        f"seed {SEED}, {len(judged)} faults in {lasted:.0f} s on {NODES} nodes",
        *(_row(f"{how} {target}", [one for one in judged if (one.target, one.how) == (target, how)]) for target, how in kills.KINDS),
        _row("all", judged),
        f"{'allocations':22}{len(run.load.submitted):6}  " + ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())),
        f"{'second attempts':22}{attempts:6}",
        f"{'in flight':22}{_mean(sample.in_flight):6.1f}  on average (submitted and not final)",
        f"{'holding nodes':22}{_mean(sample.holding):6.1f}  on average",
        f"{'logs read':22}{run.reader.read:6}  and {run.reader.broken.total()} attempts that met a fault: {dict(run.reader.broken)}",
        f"{'ledger':22}{run.here.ledger().seq:6}  versions, each verified",
        f"{'violations':22}{len(found):6}",
        *found,
    ]
    return "\n".join(lines)


def _row(target: str, of: list[Kill]) -> str:
    return f"{target:22}{len(of):6}  {sum(kill.near for kill in of)} within {kills.NEAR_SECONDS:.0f} s of a transition of the victim"


def _mean(sample: list[int]) -> float:
    return sum(sample) / max(1, len(sample))
