"""Measures Kubernetes' own scheduler beside ours: bindings a second, on the same kind of control plane in the same run.

The time runs from the start of a scheduler to the last decision that the API server has stored, with all work created before. There are no
kubelets and no controllers of pods: for kube-scheduler a bound pod is the end. Ours also keeps its ledger and writes the nodes' plans, and
its nodes report and start the work meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lattice.daemon.clock import SystemClock
from lattice.errors import Retry
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import Resource
from lattice.views.meta import Metadata, View
from lattice_dev import build
from lattice_dev.bench.auditlog import Writes, count_writes
from lattice_dev.bench.drive import CONNECTIONS, Driver
from lattice_dev.bench.figures import Baseline, Figure, percentile, shown
from lattice_dev.instance import Instance
from lattice_dev.processes import Launcher, ProcessId, alive, environment_for
from lattice_dev.progress import Progress, Quiet
from lattice_dev.site import DAEMONS
from lattice_dev.waiting import HostClock

NODES = Resource("", "v1", "nodes", "Node", namespaced=False, status=True)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True, status=True)
NAMESPACE = "default"
NAME = "kube-scheduler"
UNLIMITED = 5000
"""Requests a second that its client may make: as in Kubernetes' own scheduler_perf, far above what is reached."""
GRACE_SECONDS = 3.0
LOOK_SECONDS = 0.05
WIDE = 110
"""Pods that a node may take in the second round: the kubelet's default."""
COMPARED = (
    "compared: from the start of each scheduler to its last stored decision, all work created before, same etcd (fsync) and apiserver",
    "not compared: kube-scheduler's nodes are objects only; ours report, are ordered by plans and start the work meanwhile",
)


class PodSpec(View, frozen=True):
    """The node that a pod is bound to; empty while it waits."""

    node_name: str = ""


class Pod(View, frozen=True):
    """The fields of a pod that are read."""

    metadata: Metadata
    spec: PodSpec = PodSpec()


def prepare(progress: Progress) -> None:
    """Builds kube-scheduler where it is not in the cache."""
    build.find_or_build_peers(progress, HostClock(), os.environ)


async def bindings(driver: Driver, count: int) -> list[Figure]:
    """Returns how fast kube-scheduler binds as many pods as nodes: with room for one pod a node, and for `WIDE`.

    Stops Lattice's daemons, and leaves its nodes and pods.
    """
    for daemon in DAEMONS:
        await asyncio.to_thread(driver.instance.stop, daemon)
    _, patches = await driver.baseline()
    names = [f"fake-{number:05d}" for number in range(count)]
    await _make_nodes(driver, names)
    base = Baseline("/s PATCHes of ConfigMaps", patches)
    found = [await _bound(driver, "single", count, "1 pod a node", base)]
    room = {"status": {"capacity": {"pods": str(WIDE)}, "allocatable": {"pods": str(WIDE)}}}
    await driver.timed(CONNECTIONS, (partial(driver.admin.patch, NODES, name, room, subresource="status") for name in names))
    return [*found, await _bound(driver, "wide", count, f"{WIDE} pods a node", base)]


def beside(theirs: Sequence[Figure], ours: Sequence[Figure]) -> list[Figure]:
    """Returns all figures; our admissions are compared with the best of theirs, and keep their own baseline as a part."""
    best = Baseline(f"/s bound by {NAME}", max(figure.value for figure in theirs))
    return [*theirs, *(_compared(figure, best) if figure.name.startswith("admissions") else figure for figure in ours)]


def _compared(figure: Figure, best: Baseline) -> Figure:
    """Returns a figure beside this baseline, with the figure's own baseline, if it has one, as a part."""
    own = {f"{figure.baseline.what.removeprefix('/s ')} a second": figure.baseline.value} if figure.baseline else {}
    return replace(figure, baseline=best, parts={**figure.parts, **own})


def with_load(figure: Figure, load: float) -> Figure:
    """Returns the same figure, with the machine's load average of the last minute in its detail."""
    return replace(figure, detail="; ".join(part for part in (figure.detail, f"load {load:.1f}") if part))


def node_manifest(name: str, pods: int) -> dict[str, Any]:
    """Returns a Ready node of scheduler_perf's size with room for so many pods; no kubelet stands behind it."""
    room = {"cpu": "4", "memory": "32Gi", "pods": str(pods)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "made for a benchmark"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def pod_manifest(name: str) -> dict[str, Any]:
    """Returns a pod of scheduler_perf's size."""
    container = {
        "name": "pause",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}},
    }
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def configuration(kubeconfig: Path) -> dict[str, Any]:
    """Returns kube-scheduler's default configuration without leader election and without limits of its client."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": UNLIMITED, "burst": UNLIMITED},
    }


async def _make_nodes(driver: Driver, names: Sequence[str]) -> None:
    """Creates the nodes, and removes the taint that admission gives new ones, since no controller does."""
    admin = driver.admin
    await driver.timed(CONNECTIONS, (partial(admin.create, NODES, node_manifest(name, 1)) for name in names))
    await driver.timed(CONNECTIONS, (partial(admin.patch, NODES, name, {"spec": {"taints": None}}) for name in names))


async def _bound(driver: Driver, prefix: str, count: int, room: str, base: Baseline) -> Figure:
    """Measures one round: creates the pods, then starts the scheduler; counts from its start until each pod is bound."""
    names = [f"{prefix}-{number:05d}" for number in range(count)]
    took = await driver.timed(CONNECTIONS, (partial(driver.admin.create, PODS, pod_manifest(name), NAMESPACE) for name in names))
    log = driver.instance.where.audit_log
    async with _watching(driver.admin, driver.clock, names) as moments:
        offset = log.stat().st_size
        began = driver.clock.monotonic()
        async with _running(driver.instance) as process:
            await _until_all(moments, count, process, driver.instance, within=120 + count / 10)
            await driver.clock.sleep(1.0)  # its events follow the last binding
    with log.open("rb") as file:
        file.seek(offset)
        writes = count_writes(file)
    figure = _figure(room, [moment - began for moment in moments.values()], writes, base)
    return replace(figure, detail=f"{figure.detail}; pods created at {shown(count / took)} /s")


def _figure(room: str, moments: Sequence[float], writes: Writes, base: Baseline) -> Figure:
    """Returns the figure of bindings a second, from when each pod was bound."""
    count, first, last = len(moments), min(moments), max(moments)
    refused = f"; refused {dict(writes.refused)}" if writes.refused else ""
    detail = (
        f"{count} pods on {count} nodes; first after {shown(first)} s, p50 {shown(percentile(moments, 0.5))} s, last {shown(last)} s; "
        f"Events {writes.events} in all{refused}"
    )
    parts = {"a second between first and last": (count - 1) / max(last - first, 1e-9), **writes.each(count)}
    return Figure(f"bindings by {NAME}, {room}", count / last, "/s", None, base, detail, parts)


@asynccontextmanager
async def _watching(cluster: Cluster, clock: SystemClock, names: Sequence[str]) -> AsyncIterator[Mapping[str, float]]:
    """Yields when each of these pods was first seen bound, filled while the block lasts; all pods are known when it begins."""
    moments: dict[str, float] = {}
    wanted = frozenset(names)

    def note(change: Change[Pod]) -> None:
        """Notes when a wanted pod was first seen bound."""
        if change.new is not None and change.new.spec.node_name and change.new.metadata.name in wanted:
            moments.setdefault(change.new.metadata.name, clock.monotonic())

    informer = Informer(cluster, PODS, type=Pod, clock=clock, namespace=NAMESPACE, on_change=note)
    async with asyncio.TaskGroup() as group:
        follower = group.create_task(informer.run())
        await informer.synced.wait()
        yield moments
        follower.cancel()


async def _until_all(moments: Mapping[str, float], count: int, process: ProcessId, instance: Instance, *, within: float) -> None:
    """Waits until all are bound; raises Retry when time runs out or the scheduler ends, with the end of its log."""
    try:
        async with asyncio.timeout(within):
            while len(moments) < count:
                if not alive(process):
                    raise Retry(f"{NAME} ended with {len(moments)} of {count} pods bound; {_tail(instance)}", reason="Ended")
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise Retry(f"{len(moments)} of {count} pods bound within {within:.0f} s; {_tail(instance)}", reason="NotInTime") from None


@asynccontextmanager
async def _running(instance: Instance) -> AsyncIterator[ProcessId]:
    """Runs kube-scheduler as a process of the instance for the block; what an interrupted run left is ended too."""
    programs = await asyncio.to_thread(build.find_or_build_peers, Quiet(), HostClock(), os.environ)
    where = instance.where
    config = where.directory / f"{NAME}.yaml"
    config.write_text(yaml.safe_dump(configuration(instance.kubeconfig())))
    launcher = Launcher(HostClock())
    argv = [programs.path(NAME), f"--config={config}", "--secure-port=0"]
    environment = environment_for(os.environ, where.mark, NAME)
    process = launcher.start(argv, log=where.log(NAME), directory=where.directory, environment=environment)
    try:
        yield process
    finally:
        await asyncio.to_thread(launcher.stop, [process], GRACE_SECONDS)


def _tail(instance: Instance) -> str:
    """Returns the end of the peer's log."""
    return "the end of its log:\n" + instance.where.log(NAME).read_text(errors="replace")[-2000:]
