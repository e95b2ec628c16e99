"""Resolves the images of allocations in the site's registries, each once: digests, sizes, mount points (`status.software`).

What no wait can mend (no such image, several of a label, no such view) makes the condition SoftwareResolved False, by which the
scheduler ends the allocation; what the registry may answer later is asked again until `software.resolveTimeout`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from lattice.clients.containers import FoundContainer
from lattice.clients.resolution import ImageFinder, ResolvedLabel, reason_of, resolve_images, resolve_label
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import Corrupt, LatticeError, NotFound, Rejected, Retry
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS, CONFIGS
from lattice.lifecycle.conditions import FALSE, condition, encode, with_condition, without_conditions
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import SOFTWARE_RESOLVED
from lattice.software.containers import ContainerReference
from lattice.software.labels import UenvLabel
from lattice.software.pinning import names_registry
from lattice.software.site_rules import check_devices, wants_signature
from lattice.units import format_time, parse_duration, parse_time
from lattice.views import Allocation
from lattice.views.cluster import Config, SoftwareOptions

log = logging.getLogger(__name__)
T = TypeVar("T")

WORKERS: Final = 8
NAMESPACE_WORKERS: Final = 3
"""That serve one namespace at a time: no tenant's labels keep those of others."""
ASK_SECONDS: Final = 60.0
"""Within which the registry must have answered all questions about one label."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 60.0
KNOWN_SECONDS: Final = 2.0
"""How long an answer of the registry serves other allocations with the same label."""
MOST_KNOWN: Final = 1024
UNRESOLVED: Final = "ImagesUnresolved"
WAITS: Final = "RegistryAwaited"


OpenImages = Callable[[SoftwareOptions], AbstractAsyncContextManager[ImageFinder]]


class FindContainer(Protocol):
    """Finds an OCI image by its name in the site's registries; `signed`: only one that a trusted key has signed."""

    async def __call__(self, options: SoftwareOptions, reference: ContainerReference, *, signed: bool) -> FoundContainer:
        """Returns what the name stands for now."""
        ...


@dataclass
class _KnownAnswer(Generic[T]):
    """The registry's answer for one name, until when it serves other allocations, and the lock under which it is asked."""

    found: T | LatticeError | None = None
    until: float = 0.0
    asked: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


AnswerKey = tuple[SoftwareOptions, str, bool]
"""The site's options, a name, and whether its image must be signed."""
KnownAnswers = OrderedDict[AnswerKey, _KnownAnswer[T]]


class SoftwareResolver:
    """Resolves the images of pending allocations; `objects` are the allocations by key."""

    def __init__(
        self, cluster: Cluster, clock: Clock, objects: Mapping[str, Allocation], images: OpenImages, containers: FindContainer,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:  # fmt: skip
        self.queue = KeyedQueue(
            self.reconcile, clock, workers=WORKERS, name="software",
            group=lambda key: key.partition("/")[0], group_workers=NAMESPACE_WORKERS,
        )  # fmt: skip
        self._ask_seconds = ask_seconds
        self._cluster = cluster
        self._clock = clock
        self._objects = objects
        self._images, self._containers = images, containers
        self._tries: dict[str, tuple[int, float]] = {}
        """How many times in a row an allocation, by uid, found no answer, and when it asks again (monotonic)."""
        self._seen: dict[str, float] = {}
        """When this process first saw an allocation that awaits its images, by uid (monotonic)."""
        self._known_labels: KnownAnswers[ResolvedLabel] = OrderedDict()
        self._known_containers: KnownAnswers[FoundContainer] = OrderedDict()

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Enqueues an allocation that awaits its images; drops what is kept of one that is gone, or awaits them no more."""
        if change.new is not None and awaits(change.new):
            self._seen.setdefault(change.new.metadata.uid, self._clock.monotonic())
            self.queue.add(change.key)
            return
        gone = change.new or change.old
        if gone is not None and self._seen.pop(gone.metadata.uid, None) is not None:
            self._tries.pop(gone.metadata.uid, None)
            self.queue.forget(change.key)

    async def reconcile(self, key: str) -> float | None:
        """Resolves the images of one allocation and writes them into its status, or the refusal, or why the registry is awaited.

        Returns the seconds until the registry is asked again (before then a call asks nothing); None: nothing is left to do.
        """
        allocation = self._objects.get(key)
        if allocation is None or not awaits(allocation):
            return None
        uid = allocation.metadata.uid
        tries, due = self._tries.get(uid, (0, 0.0))
        if (early := due - self._clock.monotonic()) > 0:
            return early  # it has changed in between, and the registry has not
        options = await self._options()
        try:
            images = await self._resolve(allocation, options)
        except (NotFound, Rejected) as refusal:
            await self._refuse(allocation, reason_of(refusal), refusal.message)
            return None
        except Exception as failure:  # of the registry, of the file with its login, or what nobody has thought of in an image
            return await self._wait(allocation, known_failure(failure), tries + 1, options.resolve_timeout)
        try:
            await self._pin(allocation, images)
        except Rejected as failure:  # it would be refused again: a user must not wait for ever
            return await self._wait(allocation, failure, tries + 1, options.resolve_timeout)
        return None

    async def _pin(self, allocation: Allocation, images: list[dict[str, Any]]) -> None:
        """Writes the resolved images into an allocation's status, and removes the condition on the way to them.

        Raises Rejected where the API server refuses an entry.
        """
        conditions = without_conditions(allocation.status.conditions, (SOFTWARE_RESOLVED,))
        gone = {"conditions": encode(conditions)} if len(conditions) < len(allocation.status.conditions) else {}
        await self._write(allocation, {"software": images, **gone})
        self._tries.pop(allocation.metadata.uid, None)
        event(log, "SoftwareResolved", allocation=allocation.metadata.key, images=",".join(image["digest"] for image in images))

    async def _options(self) -> SoftwareOptions:
        """Returns the software options of the LatticeConfig; the defaults where there is none."""
        try:
            return (await self._cluster.get(CONFIGS, "lattice", type=Config)).spec.software
        except NotFound:
            return SoftwareOptions()

    async def _resolve(self, allocation: Allocation, options: SoftwareOptions) -> list[dict[str, Any]]:
        """Returns the entries of `status.software` for an allocation's OCI image, or for the uenv images that it names by label, after the
        registry was asked and all images and views were checked together.

        Raises NotFound or Rejected for a refusal, other errors where the registry does not answer.
        """
        asked, since = allocation.spec.environment, self._seen.get(allocation.metadata.uid, self._clock.monotonic())
        signed = wants_signature(asked.require, allocation.spec.tenant, allocation.spec.vcluster, options.require_signature)
        if asked.image:
            check_devices(asked.devices, options.container_devices)
        found = await resolve_images(
            asked,
            lambda label: self._label(label, options, since, signed=signed),
            lambda reference: self._container(reference, options, since, signed=signed),
        )
        return [msgspec.to_builtins(image) for image in found]

    async def _label(self, label: UenvLabel, options: SoftwareOptions, since: float, *, signed: bool) -> ResolvedLabel:
        """Returns what the registry says of a uenv label, an answer that others share for 2 s; raises the error of the question, likewise
        shared.
        """
        key = options, str(label), signed
        return await self._shared(self._known_labels, key, lambda: self._ask(label, options, signed=signed), since)

    async def _container(self, reference: ContainerReference, options: SoftwareOptions, since: float, *, signed: bool) -> FoundContainer:
        """Returns what the registry says of an OCI image, an answer that others share for 2 s; raises the error of the question, likewise
        shared.
        """
        key = options, reference.text, signed
        return await self._shared(self._known_containers, key, lambda: self._containers(options, reference, signed=signed), since)

    async def _shared(self, known: KnownAnswers[T], key: AnswerKey, ask: Callable[[], Awaitable[T]], since: float) -> T:
        """Returns what a name stands for; allocations that were there when the registry was asked share its answer for 2 s.

        One that came later (`since`, monotonic) has the registry asked again: its submitter may have pushed the image in between. A
        failure is shared and raised likewise: Retry after a minute without an answer, Corrupt for an error that is not Lattice's own.
        """
        answer = known.setdefault(key, _KnownAnswer())
        while len(known) > MOST_KNOWN:
            known.popitem(last=False)
        async with answer.lock:
            if answer.found is None or answer.until <= self._clock.monotonic() or answer.asked < since:
                answer.asked = self._clock.monotonic()
                try:
                    async with asyncio.timeout(self._ask_seconds):
                        answer.found = await ask()
                except TimeoutError:
                    said = f"the registry has not answered all questions about {key[1]} within {self._ask_seconds:g} s"
                    answer.found = Retry(said, reason="RegistryUnreachable")
                except Exception as error:
                    answer.found = known_failure(error)
                answer.until = self._clock.monotonic() + KNOWN_SECONDS
            found = answer.found
        if isinstance(found, LatticeError):
            raise found.with_traceback(None)
        assert found is not None  # noqa: S101 - it was asked
        return found

    async def _ask(self, label: UenvLabel, options: SoftwareOptions, *, signed: bool) -> ResolvedLabel:
        """Asks the registry which image a label names, and for the metadata attached to it; raises as `resolve_label` does."""
        async with self._images(options) as images:
            return await resolve_label(images, label, options, signed=signed)

    async def _refuse(self, allocation: Allocation, reason: str, message: str) -> None:
        """Writes the condition SoftwareResolved False with this reason and sentence, by which the scheduler ends the allocation."""
        self._tries.pop(allocation.metadata.uid, None)
        event(log, "SoftwareRefused", logging.WARNING, allocation=allocation.metadata.key, reason=reason, message=message)
        await self._condition(allocation, FALSE, reason, message)

    async def _wait(self, allocation: Allocation, failure: LatticeError, tries: int, timeout: str) -> float | None:
        """Shows the registry's failure in the allocation's status, or refuses the allocation `timeout` after its creation.

        Returns the seconds until the next try, longer with each of the `tries`; None: it is refused.
        """
        left = parse_time(allocation.metadata.creation_timestamp) + parse_duration(timeout) - self._clock.now()
        if left <= 0:
            said = f"not resolved within {timeout} (software.resolveTimeout): {failure.message}"
            await self._refuse(allocation, UNRESOLVED, said)
            return None
        await self._condition(allocation, "Unknown", WAITS, failure.message)
        delay = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(tries - 1, 10))
        if isinstance(failure, Retry) and failure.after_seconds:
            delay = max(delay, min(failure.after_seconds, 5 * LONGEST_WAIT_SECONDS))
        delay = min(delay, left + 0.1)
        self._tries[allocation.metadata.uid] = tries, self._clock.monotonic() + delay
        return delay

    async def _condition(self, allocation: Allocation, status: str, reason: str, message: str) -> None:
        """Writes the condition SoftwareResolved into an allocation's status where it differs from what stands there."""
        shown = condition(allocation.status.conditions, SOFTWARE_RESOLVED)
        said = message.encode(errors="replace").decode()  # parts of it may come from an image
        made = with_condition(
            allocation.status.conditions, SOFTWARE_RESOLVED, status, reason, said,
            generation=allocation.metadata.generation, now=format_time(self._clock.now()),
        )  # fmt: skip
        if shown != condition(made, SOFTWARE_RESOLVED):
            await self._write(allocation, {"conditions": encode(made)})

    async def _write(self, allocation: Allocation, change: dict[str, Any]) -> None:
        """Writes a part of the status at the version that was judged; raises Stale, upon which the queue reads again. An object that is
        gone is ignored.
        """
        meta = allocation.metadata
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": change}
        with contextlib.suppress(NotFound):  # it is gone: nobody waits for its images
            await self._cluster.patch(ALLOCATIONS, meta.name, patch, meta.namespace, subresource="status", type=Allocation)


def awaits(allocation: Allocation) -> bool:
    """Tells whether an allocation names images that the operator must still resolve: not refused, ended, cancelled or being deleted."""
    status = allocation.status
    if status.software or not names_registry(allocation.spec.environment) or is_final(status):
        return False
    if allocation.metadata.deletion_timestamp or allocation.spec.cancel is not None:
        return False
    said = condition(status.conditions, SOFTWARE_RESOLVED)
    return said is None or said.status != FALSE


def known_failure(failure: Exception) -> LatticeError:
    """Returns an error of Lattice as it is, and Corrupt, which is logged, for any other, so that work which awaits its images waits no
    longer than it may.
    """
    if isinstance(failure, LatticeError):
        return failure
    event(log, "ImageUnreadable", logging.ERROR, error=failure)
    return Corrupt(f"what the registry says cannot be read: {type(failure).__name__}: {failure}", reason="RegistryBroken")
