"""Elects a leader by a Lease: one holder at a time as far as clocks allow; what must hold needs a fence of its own.

Whether another holder lives is judged by this process's own monotonic clock since it last saw the Lease change; `renewTime` is written for
people and never compared with a clock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lattice.errors import AlreadyExists, LatticeError, NotFound, Stale
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEASES
from lattice.views import Lease

log = logging.getLogger(__name__)

RENEW_AFTER = 1 / 3
GIVE_UP_AFTER = 2 / 3
REPEAT_AFTER = 1 / 15
LONGEST_POLL_SECONDS = 1.0
RELEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Write:
    """A write of ours: `stamp` tells it from any other, `asked` is the monotonic time before it was sent."""

    stamp: str
    asked: float


class Elector:
    """Waits for a Lease, runs work while it holds it, and cancels the work in time when it loses it.

    `identity` must differ between any two processes that ever live at the same time. A Lease is taken when it is released, when it names
    this very process, or when it has not changed for its duration while this process watched.
    """

    def __init__(self, cluster: Cluster, clock: Clock, *, name: str, namespace: str, identity: str, lease_seconds: float = 15.0) -> None:
        self.name = name
        self.namespace = namespace
        self.identity = identity
        self.leading = False
        self.holder = ""
        """Who holds the Lease, as last seen."""
        self.annotations: dict[str, str] = {}
        """What the holder says of itself: written with each renewal."""
        self._cluster = cluster
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._version = ""
        self._renewed = 0.0
        self._unanswered: _Write | None = None
        self._unchanged: tuple[str, float] = ("", 0.0)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits for the Lease, runs `work` while renewing it, and releases it when the work ends, also by an error, which is raised.

        Raises Stale, the work being cancelled and nothing released, when the Lease is lost or was not renewed for two thirds of its
        duration.
        """
        await self._acquire()
        self.leading = True
        log.info("Leading lease=%s/%s identity=%s", self.namespace, self.name, self.identity)
        lost = False
        try:
            lost = await self._work_while_held(work)
        finally:
            self.leading = False
            if not lost:
                await self._release()
        if lost:
            text = f"the Lease {self.namespace}/{self.name} was lost by {self.identity}; last seen holder: {self.holder or 'nobody'}"
            raise Stale(text, reason="LeaseLost")

    async def _work_while_held(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Runs the work while the Lease is held, and returns whether the Lease was lost before it ended.

        Raises the work's error, except one that comes after the loss, which is logged.
        """

        async def working() -> None:
            """Awaits the work, as a coroutine of which a task can be made."""
            await work()

        lost = False
        try:
            async with asyncio.TaskGroup() as group:
                main = group.create_task(working())
                keeping = {group.create_task(self._keep_renewing()), group.create_task(self._watch_deadline())}
                await asyncio.wait({main, *keeping}, return_when=asyncio.FIRST_COMPLETED)
                lost = not main.done()
                for task in (main, *keeping):
                    task.cancel()
        except ExceptionGroup as failed:
            if not lost:
                raise failed.exceptions[0] from None
            log.warning("WorkFailedWhenStopped lease=%s/%s error=%r", self.namespace, self.name, failed.exceptions[0])
        return lost

    # Acquiring

    async def _acquire(self) -> None:
        """Returns once the Lease is taken; until then it tries again at least once a second, logs errors, and asks at once where somebody
        wrote at the same time.
        """
        while True:
            seconds = min(LONGEST_POLL_SECONDS, self._lease_seconds / 10)
            try:
                if await self._try_to_take():
                    return
            except (Stale, AlreadyExists):
                seconds = 0.0  # somebody wrote it meanwhile: look again
            except LatticeError as error:
                log.warning("LeaseNotTaken lease=%s/%s reason=%s message=%s", self.namespace, self.name, error.reason, error.message)
            await self._clock.sleep(seconds)

    async def _try_to_take(self) -> bool:
        """Takes the Lease if it is absent, free, expired or our own; returns whether it was taken.

        Raises Stale or AlreadyExists where somebody else was faster.
        """
        try:
            lease = await self._read()
        except NotFound:
            await self._create()
            return True
        if self._is_answer(lease):
            await self._write(self._version)
            return True
        ours = self.holder == self.identity  # renewed too late for us, and taken by nobody: our work has stopped
        if self.holder and not ours and not self._has_expired(lease):
            return False
        await self._write(lease.metadata.resource_version, lease.spec.lease_transitions + 1)
        return True

    async def _read(self) -> Lease:
        """Returns the Lease as the server has it, and notes its holder. Raises NotFound where there is none."""
        lease = await self._cluster.get(LEASES, self.name, self.namespace, type=Lease)
        self.holder = lease.spec.holder_identity
        return lease

    def _is_answer(self, lease: Lease) -> bool:
        """Tells whether the Lease shows our write whose answer never came; the Lease is then held since that was sent."""
        sent = self._unanswered
        if sent is None or self.holder != self.identity or lease.spec.renew_time != sent.stamp:
            return False
        self._hold(lease, sent)
        return True

    def _has_expired(self, lease: Lease) -> bool:
        """Tells whether the Lease has not changed for its duration (its own or ours, the longer) while this process watched; the watch
        begins at the first call for a version.
        """
        now = self._clock.monotonic()
        mark = f"{lease.metadata.uid} {lease.metadata.resource_version}"
        if self._unchanged[0] != mark:
            self._unchanged = (mark, now)
        return now - self._unchanged[1] >= max(self._lease_seconds, float(lease.spec.lease_duration_seconds))

    # Writing

    async def _create(self) -> None:
        """Creates the Lease with ourselves as its holder. Raises AlreadyExists where somebody was faster."""
        sent = self._sending()
        spec = {**self._spec(sent.stamp), "acquireTime": sent.stamp, "leaseTransitions": 0}
        body = {"metadata": {"name": self.name, "namespace": self.namespace, **self._noted()}, "spec": spec}
        lease = await self._cluster.create(LEASES, body, self.namespace, type=Lease)
        self._hold(lease, sent)

    async def _write(self, version: str, transitions: int | None = None) -> None:
        """Takes the Lease (`transitions` given) or renews it, at the version given; raises Stale when it has changed since."""
        sent = self._sending()
        spec = self._spec(sent.stamp)
        if transitions is not None:
            spec |= {"acquireTime": sent.stamp, "leaseTransitions": transitions}
        change = {"metadata": {"resourceVersion": version, **self._noted()}, "spec": spec}
        lease = await self._cluster.patch(LEASES, self.name, change, self.namespace, type=Lease)
        self._hold(lease, sent)

    def _noted(self) -> dict[str, Any]:
        """Returns the metadata with our annotations; empty where there are none."""
        return {"annotations": dict(self.annotations)} if self.annotations else {}

    def _sending(self) -> _Write:
        """Returns a write with the present time as its stamp and as the time of asking, and notes it as unanswered."""
        moment = dt.datetime.fromtimestamp(self._clock.now(), dt.UTC)
        self._unanswered = _Write(moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), self._clock.monotonic())
        return self._unanswered

    def _spec(self, stamp: str) -> dict[str, Any]:
        """Returns the Lease's spec with ourselves as holder, its duration in whole seconds, and this renewal time."""
        return {"holderIdentity": self.identity, "leaseDurationSeconds": max(1, math.ceil(self._lease_seconds)), "renewTime": stamp}

    def _hold(self, lease: Lease, sent: _Write) -> None:
        """Notes from the answer to a write that we hold the Lease: its version, its holder, and that it counts from the time of asking."""
        self._version = lease.metadata.resource_version
        self._renewed = sent.asked
        self._unanswered = None
        self.holder = lease.spec.holder_identity

    # Keeping

    async def _keep_renewing(self) -> None:
        """Renews the Lease each third of its duration, and sooner after a failure, which is logged; returns when another holds it, or it is
        gone.
        """
        while True:
            late = self._clock.monotonic() - self._renewed
            await self._clock.sleep(max(self._lease_seconds * REPEAT_AFTER, self._lease_seconds * RENEW_AFTER - late))
            try:
                await self._write(self._version)
            except (Stale, NotFound):
                if not await self._still_ours():
                    return
            except LatticeError as error:
                log.warning("LeaseNotRenewed lease=%s/%s reason=%s message=%s", self.namespace, self.name, error.reason, error.message)

    async def _still_ours(self) -> bool:
        """Tells, after a refused renewal, whether the Lease still names us, True also where the server does not tell; the next renewal then
        starts from its version.
        """
        try:
            lease = await self._read()
        except NotFound:
            self.holder = ""
            return False
        except LatticeError:
            return True  # not known: the deadline decides
        if self.holder != self.identity:
            return False
        if not self._is_answer(lease):
            self._version = lease.metadata.resource_version
        return True

    async def _watch_deadline(self) -> None:
        """Returns when the Lease was not renewed for two thirds of its duration, also after a pause of the process."""
        while (left := self._renewed + self._lease_seconds * GIVE_UP_AFTER - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)

    async def _release(self) -> None:
        """Releases the Lease so that the next process takes it at once; a failure costs only time, and is logged."""
        change = {"metadata": {"resourceVersion": self._version}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._cluster.patch(LEASES, self.name, change, self.namespace, type=Lease)
        except (LatticeError, TimeoutError) as error:
            log.warning("LeaseNotReleased lease=%s/%s message=%s", self.namespace, self.name, error)
        else:
            self.holder = ""
            log.info("Released lease=%s/%s identity=%s", self.namespace, self.name, self.identity)
