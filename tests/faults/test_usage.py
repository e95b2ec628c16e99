"""Some hundreds of allocations with requeues and cancels, while scheduler and operator are killed: every hour counted once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from lattice import errors
from lattice.accounting.charges import Charge
from lattice.accounting.records import Records
from lattice.kube.resources import ALLOCATIONS, CONFIGS, USAGE_RECORDS
from lattice.lifecycle.settle import is_final
from lattice.units import parse_time
from lattice.views import Allocation
from lattice.views.usage import UsageRecord
from lattice_dev.instance import Instance
from tests.e2e.waiting import until
from tests.faults.site import TENANT, Site, site

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(420)]

ALLOCATIONS_RUN, KILLS, SEED = 300, 4, 17


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    """One real node and 32 hollow ones."""
    with site("usage", nodes=1, hollow=32) as made:
        with closing(made.admin()) as cluster:
            cluster.patch(CONFIGS, "lattice", {"spec": {"scheduling": {"retryBackOff": "1s"}}})
        yield made


@dataclass
class Reaper:
    """Deletes what is final, and keeps what its object said: attempts and node-seconds, added up apart from the code that is tested."""

    instance: Instance
    sums: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: int = 0

    def sweep(self) -> int:
        """How many objects are left."""
        with closing(self.instance.cluster("alice")) as cluster:
            items = cluster.list(ALLOCATIONS, TENANT, type=Allocation).items
            for one in items:
                if is_final(one.status) and not one.metadata.deletion_timestamp:
                    self.sums[one.metadata.uid] = by_hand(one)
                    with suppress(errors.LatticeError):
                        cluster.delete(ALLOCATIONS, one.metadata.name, TENANT)
        self.seen = len(items)
        return len(items)


def by_hand(one: Allocation) -> tuple[int, int]:
    """(attempts that had nodes, node-seconds) of a final object."""
    status = one.status
    told = [(entry.node_count, entry.scheduled_time, entry.end_time) for entry in status.attempts]
    told.append((status.node_count, status.scheduled_time, status.end_time))
    held = [(nodes, parse_time(end) - parse_time(begin)) for nodes, begin, end in told if begin and end]
    return len(held), int(sum(nodes * max(0.0, seconds) for nodes, seconds in held))


def submit(here: Site, number: int, roll: random.Random) -> None:
    """One of the allocations: quick, of one to three hollow nodes; a third fails and is requeued."""
    fails = number % 3 == 0
    variables = {"HOLLOW_SECONDS": str(roll.choice((0, 1, 2))), "HOLLOW_EXIT": "3" if fails else "0"}
    body: dict[str, Any] = {
        "apiVersion": "lattice.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": f"work-{number}"},
        "spec": {
            "tenant": TENANT, "entrypoint": "true", "environment": {"variables": variables},
            "resources": {"nodes": roll.randint(1, 3), "constraints": {"features": ["hollow"]}},
            "lifecycle": {"walltime": "5m", "gracePeriod": "1s", "requeue": {"policy": "Always" if fails else "Never", "max": 2}},
        },
    }  # fmt: skip
    with closing(here.alice()) as cluster:
        until(lambda: _created(cluster, body), within=60, what=f"the submission of {number}")
        if number % 10 == 5:
            with suppress(errors.LatticeError):
                cluster.patch(ALLOCATIONS, f"work-{number}", {"spec": {"cancel": {"reason": "no longer wanted"}}}, TENANT)


def _created(cluster: Any, body: dict[str, Any]) -> bool:
    try:
        cluster.create(ALLOCATIONS, body, TENANT)
    except errors.AlreadyExists:
        return True
    except (errors.Retry, errors.UnknownOutcome, errors.Rejected):
        return False
    return True


def kill(here: Site, roll: random.Random, done: threading.Event) -> None:
    """Scheduler and operator, each killed and started again, several times."""
    for _ in range(KILLS):
        for program in ("operator", "scheduler"):
            if done.wait(roll.uniform(2.0, 5.0)):
                return
            here.instance.kill(program)
            time.sleep(roll.uniform(0.1, 1.0))
            here.instance.start(program, wait=False)


def recorded(here: Site) -> list[Charge]:
    """Every row that stands on the server; no attempt twice."""
    records = Records()
    with closing(here.admin()) as cluster:
        for record in cluster.list(USAGE_RECORDS, type=UsageRecord).items:
            records.put(record)
    records.validate()
    return list(records.all_rows())


def test_hours_equal_what_the_objects_said_and_no_attempt_is_lost_or_counted_twice(here: Site) -> None:
    roll, done, reaper = random.Random(SEED), threading.Event(), Reaper(here.instance)
    killer = threading.Thread(target=kill, args=(here, random.Random(SEED), done))
    killer.start()
    try:
        for number in range(ALLOCATIONS_RUN):
            submit(here, number, roll)
            if number % 25 == 24:
                reaper.sweep()
    finally:
        killer.join(timeout=120)
        done.set()
    until(lambda: reaper.sweep() == 0, within=180, every=1.0, what="all objects to go")
    rows = recorded(here)
    found: dict[str, tuple[int, int]] = dict.fromkeys(reaper.sums, (0, 0))
    for row in rows:
        attempts, seconds = found[row.uid]
        found[row.uid] = (attempts + (row.attempt - row.first + 1 if row.committed or row.summed else 0), seconds + row.node_seconds)
    assert len(reaper.sums) == ALLOCATIONS_RUN
    assert found == reaper.sums
    assert sum(row.state == "Requeued" for row in rows) >= ALLOCATIONS_RUN / 3
