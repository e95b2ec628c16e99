"""How long work waits though it fits: within every hard limit, on nodes that are free."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field

from lattice.errors import LatticeError
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS, LEDGERS
from lattice.ledger.format import rows_of
from lattice.units import parse_node_count
from lattice.views import Allocation, Ledger, LedgerStatus
from tests.faults.transitions import Onlooker

LOOK_SECONDS = 0.1
ASKED_SECONDS = 0.5
"""Who seems to wait longer is asked for itself: what an onlooker sees is late where the machine is starved."""


@dataclass
class Waits:
    """Fed with what stands at one moment after the other; `longest` is in seconds, `who` waited so long."""

    longest: float = 0.0
    who: str = ""
    slowest: float = 0.0
    """The longest that the API server took for one answer meanwhile, in seconds."""
    _since: dict[str, float] = field(default_factory=dict)

    def look(
        self, now: float, status: LedgerStatus, pending: Iterable[Allocation], waits: Callable[[Allocation], bool] = lambda _one: True
    ) -> None:  # fmt: skip
        """What stands now; work that is not pending any more, or does not fit, begins anew when it does again.

        `waits` says of one that seems to have waited long whether it still does.
        """
        rows = list(rows_of(status))
        nodes, running = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for row in rows:
            nodes[row.tenant, row.user] += len(row.nodes)
            running[row.tenant, row.user] += 1
        placed = {row.uid for row in rows}
        free = status.total_nodes - nodes.total()
        fitting = [one for one in pending if one.metadata.uid not in placed and fits(one, status, nodes, running, free)]
        self._since = {one.metadata.uid: self._since.get(one.metadata.uid, now) for one in fitting}
        for one in fitting:
            waited = now - self._since[one.metadata.uid]
            if waited > max(ASKED_SECONDS, self.longest) and not waits(one):
                del self._since[one.metadata.uid]
            elif waited > self.longest:
                self.longest, self.who = waited, one.metadata.name


def fits(one: Allocation, status: LedgerStatus, nodes: Counter[tuple[str, str]], running: Counter[tuple[str, str]], free: int) -> bool:
    """Whether this allocation alone is within every limit and there are nodes for it."""
    account = status.tenants.get(one.spec.tenant)
    if account is None:
        return False
    least, who = parse_node_count(one.spec.resources.nodes)[0], (one.spec.tenant, one.spec.user)
    within = (
        (free, least, 0),
        (account.max_nodes, account.used_nodes + least, 0),
        (account.max_allocations, account.used_allocations, 1),
        (account.user_max_nodes, nodes[who] + least, 0),
        (account.user_max_allocations, running[who], 1),
    )
    return all(limit is None or used + more <= limit for limit, used, more in within)


class Watch:
    """Looks several times a second, until it is stopped."""

    def __init__(self, connect: Callable[[], BlockingCluster], onlooker: Onlooker) -> None:
        self.waits = Waits()
        self._connect = connect
        self._onlooker = onlooker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def anew(self) -> Waits:
        """Forget what was seen; gives what it was."""
        before, self.waits = self.waits, Waits()
        return before

    def stop(self) -> Waits:
        """Looks no more; gives what was seen."""
        self._ended.set()
        self._thread.join(timeout=30)
        return self.waits

    def _run(self) -> None:
        with closing(self._connect()) as cluster:
            while not self._ended.wait(LOOK_SECONDS):
                began, waits = time.monotonic(), self.waits
                with suppress(LatticeError):
                    status = cluster.get(LEDGERS, "lattice", type=Ledger).status
                    waits.slowest = max(waits.slowest, time.monotonic() - began)
                    if status is not None:
                        waiting = [one for one in list(self._onlooker.allocations.values()) if _pending(one)]
                        waits.look(time.monotonic(), status, waiting, lambda one: _still_waits(cluster, one))


def _pending(one: Allocation) -> bool:
    return one.status.phase in ("", "Pending")


def _still_waits(cluster: BlockingCluster, one: Allocation) -> bool:
    """Whether the object, read after the ledger, says that it had not started when the ledger was read."""
    return _pending(cluster.get(ALLOCATIONS, one.metadata.name, one.metadata.namespace, type=Allocation))
