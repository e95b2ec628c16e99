"""kopf watches the kinds of which there are few; its handlers only name what changed.

It runs in a thread and loop of its own, behind the operator's Lease (`standalone=True`). Only event handlers are
registered, on a registry of its own: they need no finalizer, no annotation and no progress in the object, so kopf
writes nothing at all. What is named is reconciled by our own queues, from the level.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import kopf

from lattice.errors import Retry
from lattice.kube.kubeconfig import ClusterConfig
from lattice.kube.resources import CONFIGS, TENANTS, VCLUSTERS, Resource

WATCHED = (TENANTS, VCLUSTERS, CONFIGS)

Named = Callable[[Resource, str], None]


class Kinds(Protocol):
    """Names each object of the watched kinds once at the start, and at each change."""

    async def run(self, named: Named) -> None:
        """Watches until cancelled."""


class KopfKinds:
    """`Kinds` by kopf, with the same server and identity as the rest of the process."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    async def run(self, named: Named) -> None:
        """Runs kopf in its thread until cancelled; raises Retry when it ends by itself."""
        loop, stop = asyncio.get_running_loop(), threading.Event()

        def forward(resource: Resource, name: str) -> None:
            if not stop.is_set():
                loop.call_soon_threadsafe(named, resource, name)

        with_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kopf")
        try:
            await loop.run_in_executor(with_thread, self._serve, forward, stop)
        finally:
            stop.set()
            with_thread.shutdown(wait=False)
        raise Retry("kopf has ended, although nobody asked it to", reason="WatchEnded")

    def _serve(self, forward: Named, stop: threading.Event) -> None:
        asyncio.run(
            kopf.operator(
                registry=registry_of(self._config, forward), settings=settings_of(), standalone=True, clusterwide=True, stop_flag=stop
            )
        )


def settings_of() -> kopf.OperatorSettings:
    """Returns kopf's settings: few workers, short-lived, no events of its own, no scanning for kinds that are served anyway."""
    settings = kopf.OperatorSettings()
    settings.queueing.worker_limit = 32
    settings.queueing.idle_timeout = 0.05
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.networking.request_timeout = 30
    return settings


def registry_of(config: ClusterConfig, forward: Named) -> kopf.OperatorRegistry:
    """Returns one event handler a kind, and the login."""
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection_of(config)

    kopf.on.login(registry=registry)(login)
    for resource in WATCHED:
        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)(_handler(resource, forward))
    return registry


def _handler(resource: Resource, forward: Named) -> Any:
    async def named(name: str | None, **_: Any) -> None:
        if name:
            forward(resource, name)

    return named


def connection_of(config: ClusterConfig) -> kopf.ConnectionInfo:
    """Returns our server and identity in kopf's terms."""
    token = config.token
    if config.token_file:
        with open(config.token_file, encoding="utf-8") as file:  # noqa: PTH123 - kopf asks again when the token has expired
            token = file.read().strip()
    return kopf.ConnectionInfo(
        server=config.server,
        ca_path=config.ca_file or None,
        ca_data=_text(config.ca_data),
        insecure=config.insecure or None,
        username=config.username or None,
        token=token or None,
        certificate_path=config.cert_file or None,
        certificate_data=_text(config.cert_data),
        private_key_path=config.key_file or None,
        private_key_data=_text(config.key_data),
    )


def _text(data: bytes) -> bytes | None:
    return data or None
