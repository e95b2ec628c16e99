"""An instance to be hurt: its own, with compaction off, a tenant for alice, and witnesses laid down."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lattice import errors
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS, CONFIGS, LEDGERS, NODE_INDEXES, PLANS, TENANTS
from lattice.views import Allocation, Ledger, LedgerStatus, NodeIndex, Plan
from lattice_dev import install, network
from lattice_dev.instance import Instance
from lattice_dev.progress import terminal
from lattice_dev.state import Options
from lattice_dev.waiting import HostClock
from tests.e2e.waiting import Seen, until
from tests.faults import history, leftovers, witness
from tests.faults.history import Revision
from tests.killed_runs import instance_name

TENANT = "faults"


@dataclass(frozen=True)
class Site:
    """The instance and where the witnesses write."""

    instance: Instance
    script: Path
    directory: Path
    known: list[Revision] = field(default_factory=list, compare=False)
    """Versions of the ledger that were looked at; etcd keeps them, unless its data are replaced."""

    def admin(self) -> BlockingCluster:
        """The API as the administrator, on a connection of its own."""
        return self.instance.cluster()

    def alice(self) -> BlockingCluster:
        """The API as alice, likewise."""
        return self.instance.cluster("alice")

    def names(self) -> dict[int, str]:
        """Node names by index."""
        with self.admin() as cluster:
            index = cluster.get(NODE_INDEXES, "lattice", type=NodeIndex)
        return {int(number): name for number, name in index.spec.names.items()}

    def ledger(self) -> LedgerStatus:
        """The ledger as it stands."""
        with self.admin() as cluster:
            status = cluster.get(LEDGERS, "lattice", type=Ledger).status
        assert status is not None
        return status

    def allocations(self) -> dict[str, Allocation]:
        """Every allocation of the tenant, by name."""
        with self.admin() as cluster:
            return {item.metadata.name: item for item in cluster.list(ALLOCATIONS, TENANT, type=Allocation).items}

    def configure(self, spec: dict[str, Any]) -> None:
        """Changes the LatticeConfig."""
        with self.admin() as cluster:
            until(lambda: cluster.patch(CONFIGS, "lattice", {"spec": spec}), within=20, what="the LatticeConfig")

    def ledger_faults(self) -> list[str]:
        """What the ledger's whole history must not show; versions that were looked at before are not judged again."""
        seen, read = len(self.known), history.read(self.instance.site(), self.known)
        fresh = read[max(0, seen - 1) :] if read[:seen] == self.known else read
        self.known[:] = read
        return history.faults(fresh, self.names())

    def witness_faults(self) -> list[str]:
        """What the witnesses must not have seen."""
        return witness.faults(witness.read(self.directory))

    def settle(self, within: float) -> list[str]:
        """Waits until nothing is left of any work: no ledger row, plan row, scope, process; answers what is."""
        left: list[str] = []

        def settled() -> bool:
            left[:] = self._unsettled()
            return not left

        with contextlib.suppress(AssertionError):
            until(settled, within=within, every=0.5)
        return left

    def _unsettled(self) -> list[str]:
        with self.admin() as cluster:
            plans = cluster.list(PLANS, type=Plan).items
        rows = [f"plan {plan.metadata.name}: {line}" for plan in plans for line in plan.spec.text.splitlines()[1:]]
        held = [f"ledger: {row}" for shard in self.ledger().shards for row in shard.split("|")[2].split(";") if row]
        return [*held, *rows, *leftovers.of_work(self.instance.where)]


@contextlib.contextmanager
def site(purpose: str, *, nodes: int, hollow: int = 0, fsync: bool = True, nodes_config: dict[str, str] | None = None) -> Iterator[Site]:
    """An instance of its own, taken down at the end; its logs are kept where LATTICE_FAULTS_KEEP says."""
    if why := network.can_make():
        pytest.skip(f"nodes cannot be cut, nor their work counted: {why}")
    instance = Instance(
        instance_name(f"faults-{purpose}"), Options(nodes=nodes, hollow=hollow, fsync=fsync, compaction=False),
        progress=terminal(HostClock()),
    )  # fmt: skip
    try:
        instance.up()
        script, directory = witness.install(instance.where.user_home("alice"), instance.user("alice").uid)
        made = Site(instance, script, directory)
        with made.admin() as cluster:
            install.grant(cluster, TENANT, "alice", admin=False)
            until(Seen(lambda: cluster.get(TENANTS, TENANT), _is_ready), within=20, what="the tenant")
        with made.alice() as cluster:
            until(lambda: _may_list(cluster), within=20, what="alice's rights")
        if nodes_config:
            made.configure({"nodes": nodes_config})
        yield made
    finally:
        _keep(instance)
        instance.down()
    assert leftovers.of_instance(instance.where) == []


def _keep(instance: Instance) -> None:
    """After a failure the logs are what is needed; the rest of the instance goes."""
    if kept := os.environ.get("LATTICE_FAULTS_KEEP"):
        with contextlib.suppress(OSError, errors.LatticeError):
            goal = Path(kept) / instance.where.name
            shutil.copytree(instance.where.logs, goal / "logs", dirs_exist_ok=True)
            shutil.copy(instance.where.audit_log, goal / "audit.log")
            print(f"logs are kept in {goal}", file=sys.stderr)


def _may_list(cluster: BlockingCluster) -> bool:
    """Whether the API server has read the bindings that the operator made."""
    with contextlib.suppress(errors.Denied):
        cluster.list(ALLOCATIONS, TENANT)
        return True
    return False


def _is_ready(item: dict[str, Any]) -> bool:
    conditions = item.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
