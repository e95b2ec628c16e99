"""Schedulers of one cluster that rob each other of the Lease: some are paused first, and wake to find it stolen."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import LEASES, LEDGERS
from lattice.views import Lease, Ledger
from lattice_dev import ports, processes
from lattice_dev.instance import Instance
from lattice_dev.processes import ProcessId
from tests.faults.load import PASSING

LEASE, NAMESPACE = "lattice-scheduler", "lattice-system"
STEAL_SECONDS = (1.0, 5.0)
PAUSE_SECONDS = (0.2, 4.0)
PAUSED_SHARE = 0.6
"""How often the one that is robbed is paused first; else it works on until it notices."""
HASTY_SHARE = 0.2
"""How often the next one is robbed as soon as it has taken the ledger, at the earliest."""
RELEASED = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}


@contextlib.contextmanager
def another(instance: Instance, name: str = "scheduler-2", flags: Sequence[str] = ()) -> Iterator[ProcessId]:
    """One more scheduler of the same cluster, with a log of this name and these flags behind the usual ones."""
    first = next(component for component in instance.components() if component.name == "scheduler")
    argv = [*first.argv, *flags]
    environment = processes.environment_for(os.environ, instance.where.mark, name)
    with ports.claimed(2) as free, instance.where.log(name).open("ab") as log:
        for flag, port in zip(("--metrics-address", "--answers-listen"), free, strict=True):
            argv[argv.index(flag) + 1] = f"127.0.0.1:{port}"
        with subprocess.Popen(argv, env=environment, stdout=log, stderr=log) as started:
            found = processes.identify(started.pid)
            assert found is not None
            try:
                yield found
            finally:
                started.kill()


def release(cluster: BlockingCluster, program: str = "scheduler") -> None:
    """Releases the Lease of a leader that was killed, so that the next one need not wait until it has run out."""
    cluster.patch(LEASES, f"lattice-{program}", RELEASED, NAMESPACE)


def leader(cluster: BlockingCluster) -> int:
    """The pid in the identity of who holds the Lease; 0 for nobody."""
    holder = cluster.get(LEASES, LEASE, NAMESPACE, type=Lease).spec.holder_identity
    return int(holder.split("-")[-2]) if holder else 0


class Thief:
    """Takes the Lease from whoever has it every few seconds, so that another of the schedulers gets it; never pauses all of them.

    Who gets it takes the ledger before it is robbed in turn, and mostly works with it as well.
    """

    def __init__(self, connect: Callable[[], BlockingCluster], schedulers: Sequence[ProcessId], rng: random.Random) -> None:
        self.steals = self.pauses = 0
        self._connect = connect
        self._schedulers = {process.pid: process for process in schedulers}
        self._rng = rng
        self._paused: dict[ProcessId, float] = {}
        self._seen = (0, 0)
        """Epoch and seq of the ledger when this epoch was first seen."""
        self._hasty = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to steal."""
        self._thread.start()

    def stop(self) -> None:
        """Steals no more, and lets everybody go on."""
        self._ended.set()
        self._thread.join(timeout=60)
        for process in self._paused:
            processes.send(process, signal.SIGCONT)
        self._paused.clear()

    def _run(self) -> None:
        with contextlib.closing(self._connect()) as cluster:
            next_steal = time.monotonic() + self._rng.uniform(*STEAL_SECONDS)
            while not self._ended.wait(0.05):
                now = time.monotonic()
                for process in [one for one, until in self._paused.items() if until <= now]:
                    processes.send(process, signal.SIGCONT)
                    del self._paused[process]
                if now < next_steal:
                    continue
                with contextlib.suppress(*PASSING):
                    if self._is_worth_it(cluster) and self._steal(cluster, now):
                        self._hasty = self._rng.random() < HASTY_SHARE
                        next_steal = now + self._rng.uniform(*STEAL_SECONDS)

    def _is_worth_it(self, cluster: BlockingCluster) -> bool:
        """Whether who has the Lease has written the ledger since taking it, or this time at least taken it."""
        status = cluster.get(LEDGERS, "lattice", type=Ledger).status
        if status is None:
            return False
        if status.epoch != self._seen[0]:
            self._seen = (status.epoch, status.seq)
            return self._hasty
        return status.seq > self._seen[1]

    def _steal(self, cluster: BlockingCluster, now: float) -> bool:
        robbed = self._schedulers.get(leader(cluster))
        if robbed is None or robbed in self._paused:
            return False  # nobody has it, or who has it is paused already and keeps it until then
        if len(self._paused) < len(self._schedulers) - 1 and self._rng.random() < PAUSED_SHARE:
            processes.send(robbed, signal.SIGSTOP)
            self._paused[robbed] = now + self._rng.uniform(*PAUSE_SECONDS)
            self.pauses += 1
        cluster.patch(LEASES, LEASE, RELEASED, NAMESPACE)
        self.steals += 1
        return True
