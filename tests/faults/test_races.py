"""Races for a hard limit: clients submit, schedulers rob each other of the Lease; no version of the ledger is above a limit.

LATTICE_FAULTS_ROUNDS=1000 pytest tests/faults/test_races.py
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lattice.kube.resources import TENANTS
from lattice.ledger.format import rows_of
from lattice.views import LedgerStatus
from lattice_dev import processes
from lattice_dev.processes import ProcessId
from tests.e2e.waiting import Seen, until
from tests.faults import history
from tests.faults.crowd import Crowd
from tests.faults.headroom import Waits, Watch
from tests.faults.rivals import Thief, another, leader
from tests.faults.scene import LONG
from tests.faults.site import TENANT, Site, site
from tests.faults.transitions import Onlooker, Transitions

SEED = int(os.environ.get("LATTICE_FAULTS_SEED", "1"))
ROUNDS = int(os.environ.get("LATTICE_FAULTS_ROUNDS", "1000" if LONG else "100"))
CLIENTS, SCHEDULERS = 20, 3
USERS = tuple(f"user{number}" for number in range(7))
NODES, MAX_NODES, MAX_ALLOCATIONS, USER_NODES, USER_ALLOCATIONS = 24, 10, 6, 4, 2
MOST_NODES = 4
QUIET_ROUNDS = 100 if ROUNDS >= 500 else 15
FULL_WITHIN_SECONDS, ANSWERS = 2.0, 3
"""How long work that fits may wait, and how many of the API server's slowest answers are granted on top: a machine that is
starved makes each commit slow."""
SECONDS_A_ROUND = 10.0
"""Before the run is given up; a machine that is free takes half a second."""

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(0 if ROUNDS > 200 else 1500)]


@dataclass(frozen=True)
class Told:
    """What a run has shown."""

    versions: int
    epochs: int
    most_nodes: int
    most_allocations: int
    most_of_a_user: int
    faults: list[str]


@pytest.fixture
def here() -> Iterator[Site]:
    """Nodes that only wait, and a tenant with limits that are far below what there is."""
    with site("races", nodes=0, hollow=NODES) as made:
        quota = {
            "maxNodes": MAX_NODES, "maxConcurrentAllocations": MAX_ALLOCATIONS, "onExceeded": "Queue",
            "perUser": {"maxNodes": USER_NODES, "maxRunning": USER_ALLOCATIONS},
        }  # fmt: skip
        with made.admin() as cluster:
            cluster.patch(TENANTS, TENANT, {"spec": {"quota": quota}})
        until(lambda: made.ledger().tenants[TENANT].user_max_nodes == USER_NODES, within=20, what="the limits in the ledger")
        yield made


@contextlib.contextmanager
def rivals(here: Site) -> Iterator[list[ProcessId]]:
    """Three schedulers, of which one leads."""
    first = processes.identify(here.instance.pid("scheduler"))
    assert first is not None
    with contextlib.ExitStack() as stack:
        yield [first, *(stack.enter_context(another(here.instance, f"scheduler-{number}")) for number in range(2, SCHEDULERS + 1))]


def test_no_race_of_clients_and_schedulers_exceeds_a_limit_and_what_fits_does_not_wait(
    here: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    onlooker = Onlooker(here.admin, Transitions(), TENANT)
    onlooker.start()
    crowd = Crowd(here.admin, onlooker, tenant=TENANT, users=USERS, clients=CLIENTS, most=MOST_NODES, seed=SEED)
    watch = Watch(here.admin, onlooker)
    watch.start()
    with rivals(here) as schedulers:
        thief = Thief(here.admin, schedulers, random.Random(SEED))
        began = time.monotonic()
        crowd.start()
        thief.start()
        try:
            crowd.work(rounds=ROUNDS, within=60 + SECONDS_A_ROUND * ROUNDS)
        finally:
            thief.stop()
        lasted, contended = time.monotonic() - began, crowd.rounds
        calm(here, crowd)
        robbed = watch.anew()
        crowd.work(rounds=crowd.rounds + QUIET_ROUNDS, within=60 + SECONDS_A_ROUND * QUIET_ROUNDS)
        left = crowd.stop(within=60)
        quiet = watch.stop()
        onlooker.stop()
    told = judge(here)
    with capsys.disabled():
        print(report(told, thief, crowd, lasted, contended, robbed, quiet), file=sys.stderr, flush=True)
    assert left == []
    assert told.faults == []
    assert told.epochs > thief.steals // 2, "the Lease went from hand to hand"
    assert (told.most_nodes, told.most_of_a_user) == (MAX_NODES, USER_NODES), "the limits were reached"
    limit = FULL_WITHIN_SECONDS + ANSWERS * quiet.slowest
    assert quiet.longest <= limit, f"{quiet.who} waited {quiet.longest:.1f} s of {limit:.1f} though it fitted"
    assert set(crowd.ends) == {"Completed"}


def calm(here: Site, crowd: Crowd) -> None:
    """One leader works undisturbed."""
    with here.admin() as cluster:
        until(Seen(lambda: leader(cluster), bool), within=60, every=0.2, what="a leader")
    crowd.work(rounds=crowd.rounds + 5, within=120)


def judge(here: Site) -> Told:
    """Every version of the ledger that etcd has kept."""
    every = history.read(here.instance.site())
    stands = [one.status for one in every if one.status is not None]
    accounts = [status.tenants[TENANT] for status in stands if TENANT in status.tenants]
    return Told(
        versions=len(every),
        epochs=stands[-1].epoch,
        most_nodes=max(account.used_nodes for account in accounts),
        most_allocations=max(account.used_allocations for account in accounts),
        most_of_a_user=max(map(most_of_a_user, stands)),
        faults=history.faults(every, here.names()),
    )


def most_of_a_user(status: LedgerStatus) -> int:
    """The nodes of the user who holds the most."""
    nodes: dict[str, int] = {}
    for row in rows_of(status):
        nodes[row.user] = nodes.get(row.user, 0) + len(row.nodes)
    return max(nodes.values(), default=0)


def report(told: Told, thief: Thief, crowd: Crowd, lasted: float, contended: int, robbed: Waits, quiet: Waits) -> str:
    """The run in figures."""
    return "\n".join(
        [
            f"\nraces: LATTICE_FAULTS_SEED={SEED} LATTICE_FAULTS_ROUNDS={ROUNDS}, {CLIENTS} clients, {SCHEDULERS} schedulers",
            f"{'rounds':14}{contended:6}  in {lasted:.0f} s while the Lease was stolen, {crowd.rounds} in all: {dict(crowd.ends)}",
            f"{'steals':14}{thief.steals:6}  of which {thief.pauses} from a scheduler that was paused; {told.epochs} terms of leadership",
            f"{'versions':14}{told.versions:6}  of the ledger, each verified",
            (
                f"{'most held':14}{told.most_nodes:6}  nodes of {MAX_NODES}; {told.most_allocations} allocations of {MAX_ALLOCATIONS}; "
                f"{told.most_of_a_user} nodes of one user of {USER_NODES}"
            ),
            f"{'longest wait':14}{quiet.longest:6.2f}  s of work that fitted, with one leader; {robbed.longest:.2f} s while it was stolen",
            f"{'slowest answer':14}{quiet.slowest:6.2f}  s of the API server, with one leader",
            f"{'violations':14}{len(told.faults):6}",
            *told.faults,
        ]
    )
