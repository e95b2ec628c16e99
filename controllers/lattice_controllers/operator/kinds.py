"""Watches the few kinds that people declare, by kopf; its handlers only name the objects, whose reconcilers then read them.

kopf runs as tasks of the process's own loop, over the process's own connections, while this process leads. It writes nothing: handlers of
events alone need no finalizer, annotation or progress in the object. Retries and finalizers are the reconcilers'
(docs/decisions/0003-kopf.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

from lattice.daemon import process
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import LatticeError, Retry
from lattice.kube.aiohttp import AiohttpCluster
from lattice.kube.cluster import Cluster
from lattice.kube.resources import CONFIGS, DAGS, TENANTS, VCLUSTERS, Resource
from lattice.views import Metadata, View
from lattice_controllers.operator.framework import kopf

log = logging.getLogger(__name__)

DECLARED: Final = (TENANTS, VCLUSTERS, CONFIGS, DAGS)
"""The kinds that people declare and that this operator reconciles."""
BACK_OFF_SECONDS: Final = (0.5, 1.0, 2.0, 4.0)
"""Pauses between the requests of a watch that finds no API server; then the watch is started anew."""
RESYNC_SECONDS: Final = 60.0

Named = Callable[[Resource, str], None]
Login = Callable[[], Awaitable[kopf.AiohttpSession]]

_KOPF: Final = Path(kopf.__file__).parent


class Standing(View, frozen=True):
    """An object of which only the metadata is read."""

    metadata: Metadata


class Kinds(Protocol):
    """Calls back with each object of the declared kinds: all at the start, then those that change; `KopfKinds` is the implementation."""

    async def run(self, named: Named) -> None:
        """Watches until cancelled; calls `named` with resource and key of each object, at the start and when it changes."""


class Declared:
    """The work queues of the declared kinds; the watch fills them, and a list each minute enqueues what the watch missed.

    `known` holds, by kind, the keys (NAME, or NAMESPACE/NAME) of the objects that the reconciler of that kind has last seen to exist.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, queues: Mapping[Resource, KeyedQueue], known: Mapping[Resource, Collection[str]]
    ) -> None:
        self.queues = queues
        self._cluster = cluster
        self._clock = clock
        self._known = known

    def named(self, resource: Resource, name: str) -> None:
        """Enqueues an object, by key, that appeared, changed or vanished."""
        self.queues[resource].add(name)

    async def resync(self) -> None:
        """Enqueues each minute the objects that appeared or vanished without an event, until cancelled.

        kopf reports no deletion that happened while it was cut off, and does not list again after etcd was restored, when the server is
        silent about a version yet to come.
        """
        while True:
            await self._clock.sleep(RESYNC_SECONDS)
            for resource in self.queues:
                try:
                    await self._resync(resource)
                except LatticeError as error:
                    event(log, "ResyncFailed", logging.WARNING, kind=resource.kind, reason=error.reason, message=error.message)

    async def _resync(self, resource: Resource) -> None:
        """Lists one kind, and enqueues the objects that appeared or vanished unseen."""
        standing = {item.metadata.key for item in (await self._cluster.list(resource, type=Standing)).items}
        for name in standing.symmetric_difference(self._known[resource]):
            event(log, "EventMissed", logging.WARNING, kind=resource.kind, name=name)
            self.named(resource, name)


class KopfKinds:
    """Watches the declared kinds by kopf."""

    def __init__(self, cluster: AiohttpCluster) -> None:
        self._cluster = cluster

    async def run(self, named: Named) -> None:
        """Watches the declared kinds by kopf until cancelled, and calls `named` with resource and key of each object.

        Ends all tasks of kopf when it ends. Raises Retry when kopf ends by itself.
        """

        info = connection_of(self._cluster)  # the same at each login: one that the server refuses ends kopf

        async def login() -> kopf.AiohttpSession:
            """Returns the same login each time kopf asks."""
            return info

        try:
            tasks = await kopf.spawn_tasks(registry=registry_of(login, named), settings=settings_of(), standalone=True, clusterwide=True)
            process.listen_to_signals()  # kopf has taken them
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop()
        raise _ended(ended)


class SharedSession:
    """An aiohttp session as kopf wants it, which sends its requests over the connections and with the credentials of the process."""

    closed = False

    def __init__(self, cluster: AiohttpCluster) -> None:
        self.headers = {"User-Agent": "the session's own"}
        self.request = cluster.forward

    async def close(self) -> None:
        """Does nothing: the connections belong to the process."""


def connection_of(cluster: AiohttpCluster) -> kopf.AiohttpSession:
    """Returns the login that kopf asks for: the API server's address, and a session over the process's own connections."""
    return kopf.AiohttpSession(server=cluster.config.server, aiohttp_session=cast("Any", SharedSession(cluster)))


def settings_of() -> kopf.OperatorSettings:
    """Returns kopf's settings: few, short-lived workers, no Events of its own, no discovery of kinds."""
    settings = kopf.OperatorSettings()
    settings.queueing.worker_limit = 32
    settings.queueing.idle_timeout = 0.05
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = BACK_OFF_SECONDS
    settings.process.ultimate_exiting_timeout = None  # or it kills the process so long after a term has ended
    return settings


def registry_of(login: Login, named: Named) -> kopf.OperatorRegistry:
    """Returns a new registry for kopf with the login and, for each declared kind, one event handler, which calls `named`."""
    registry = kopf.OperatorRegistry()

    async def connection(**_: Any) -> kopf.AiohttpSession:
        """Returns the login, as kopf's handler of logins."""
        return await login()

    kopf.on.login(registry=registry)(connection)
    for resource in DECLARED:
        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)(_handler(resource, named))
    return registry


def _handler(resource: Resource, named: Named) -> Any:
    """Returns kopf's handler of events of one kind: it calls `named` with the object's key."""

    async def changed(name: str | None, namespace: str | None = None, **_: Any) -> None:
        """Calls `named`; an event without a name is ignored."""
        if name:
            named(resource, f"{namespace}/{name}" if namespace else name)

    return changed


async def _stop() -> None:
    """Cancels the tasks of kopf and no others of this process (the end of `kopf.operator` would cancel all younger tasks of the loop)."""
    while tasks := [task for task in asyncio.all_tasks() if _is_of_kopf(task)]:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _is_of_kopf(task: asyncio.Task[Any]) -> bool:
    """Tells whether a task runs a coroutine of kopf's own modules."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(code.co_filename).is_relative_to(_KOPF)


def _ended(tasks: Collection[asyncio.Task[Any]]) -> Retry:
    """Logs why kopf has ended, and returns the error for that, with the first failed task's exception as its cause."""
    cause = next((task.exception() for task in tasks if not task.cancelled() and task.exception() is not None), None)
    event(log, "KopfEnded", logging.WARNING, message=repr(cause))
    ended = Retry("kopf has ended, although nobody asked it to", reason="WatchEnded")
    ended.__cause__ = cause
    return ended
