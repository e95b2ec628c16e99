"""Brings the images of an attempt into the node's cache before they are mounted: pulls what is missing, each by a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Corrupt, LatticeError, NotFound, Rejected, Retry
from lattice.models.conditions import PROLOGUE_FAILED, SOFTWARE_REFUSED
from lattice.units import format_bytes
from lattice.views.allocation import SoftwareImage
from lattice.views.cluster import TrustedKey
from lattice_agent.attempts import BroughtBytes, Key, NodeWork
from lattice_agent.host.threads import Threads
from lattice_agent.metrics import AgentMetrics
from lattice_agent.pull_messages import PullAnswer, PullRequest
from lattice_agent.state.image_cache import CACHE_FULL, CachedImage, ImageCache, Room, to_evict
from lattice_agent.work.image_sources import ImageSources

log = logging.getLogger(__name__)

PULLER: Final = (sys.executable, "-m", "lattice_agent.puller")
IMAGE_REFUSED: Final = "ImageRefused"
FULL_SECONDS: Final = (30.0, 90.0, 180.0)
"""Pauses between tries while the cache is full: three more tries in five minutes."""
LOOK_SECONDS: Final = 1.0
"""How long a heartbeat waits for the disk of the cache."""
MOST_TOLD: Final = 256
"""Images that a node names while its cache is full."""
PACKED_QUARTERS: Final = 9
"""Room for an OCI image while it is packed, in quarters of its layers: these, and the file that they become."""


@dataclass
class PullProgress:
    """The pull of an image that is under way: its size, and the bytes of it that stand."""

    size: int
    bytes: int = 0
    room: int = 0
    """Bytes that it may take in the cache's file system meanwhile."""


@dataclass(frozen=True, slots=True)
class CacheContent:
    """The images of a cache, the digests of those that work on the node uses, and the room of its file system."""

    images: tuple[CachedImage, ...]
    in_use: frozenset[str]
    room: Room


class Images:
    """Keeps the images of attempts in the cache; `in_use` gives the digests that attempts of this node hold, from the journal."""

    def __init__(self, cache: ImageCache, auth: str, boot: str, clock: Clock, disk: Threads, in_use: Callable[[], frozenset[str]]) -> None:
        self.cache = cache
        self.pulling: dict[str, PullProgress] = {}
        """Pulls under way, by digest."""
        self._waits: dict[str, tuple[float, str]] = {}
        """By digest, since when (seconds since the epoch) an image is kept, and by what: the failure of its registry, a full cache."""
        self._looks = Threads(f"the image cache {cache.directory}", count=1, within=LOOK_SECONDS)
        self._lacking: tuple[int, str] | None = None
        """The bytes of an image for which there was no room, and the sentence; None: there was."""
        self._auth, self._boot, self._clock, self._disk, self._in_use = auth, boot, clock, disk, in_use
        self._wanted: dict[Key, frozenset[str]] = {}
        """Digests that attempts are being prepared with: not in use yet, and not to be evicted."""
        self._warming: Counter[str] = Counter()
        self.metrics: AgentMetrics | None = None
        """Counts pulls, hits and evictions; None: nothing does."""
        self._locks: dict[str, asyncio.Lock] = {}
        """By digest; never removed, since one may be waited for."""

    def waiting(self) -> frozenset[Key]:
        """Returns the attempts whose images are being pulled or checked."""
        return frozenset(self._wanted)

    async def bring(self, work: NodeWork) -> None:
        """Pulls the images of an attempt that the cache lacks, hashes those not hashed in this boot, and notes their use.

        May be interrupted, which ends the pull. Raises Rejected: ImageNotFound where the registry has an image no more, ImageRefused for
        one that no node could run, else PrologueFailed with the node and the sentence.
        """
        self._wanted[work.key] = frozenset(image.digest for image in work.software)
        sources = ImageSources(work.registry, work.registries, work.largest_image)
        try:
            async with asyncio.timeout(work.pull_seconds):
                for image in work.software:
                    await self._bring_one(image, sources)
                    if work.require_signature:
                        await self._check_signature(image, sources, work.trusted_keys)
        except NotFound as error:
            raise Rejected(f"node {work.node}: {error.message}", reason="ImageNotFound") from error
        except LatticeError as error:
            reason = error.reason if error.reason in SOFTWARE_REFUSED else "PrologueFailed"
            raise Rejected(f"node {work.node}: {error.message}", reason=reason) from error
        except TimeoutError as error:
            said = f"its images were not pulled within {work.pull_seconds:g} s (software.pullTimeout)"
            raise Rejected(f"node {work.node}: {said}", reason="PrologueFailed") from error
        finally:
            del self._wanted[work.key]

    def progress(self, key: Key) -> BroughtBytes:
        """Returns how far the images being pulled for an attempt are, and what keeps the one that has waited longest."""
        under_way = [self.pulling[digest] for digest in self._wanted.get(key, ()) if digest in self.pulling]
        since, waits = min((self._waits[digest] for digest in self._wanted.get(key, ()) if digest in self._waits), default=(0.0, ""))
        return BroughtBytes(sum(pull.bytes for pull in under_way), sum(pull.size for pull in under_way), waits, since)

    async def content(self) -> CacheContent:
        """Returns the images in the node's cache, the digests of those in use, and the size and free space of the cache."""
        in_use = self._expected() | await self._disk.call(self._in_use)
        return CacheContent(tuple(await self._disk.call(self.cache.listed)), in_use, await self._disk.call(self.cache.room))

    async def warm(self, image: SoftwareImage, sources: ImageSources, *, sticky: bool) -> None:
        """Pulls an image for work to come unless the cache has it; `sticky`: it is never evicted for room.

        Raises NotFound, Rejected; Retry (CacheFull) at once where there is no room, Retry where the registry does not serve.
        """
        self._warming[image.digest] += 1
        try:
            await self._bring_one(image, sources, ())
            if sticky:
                await self._disk.call(self.cache.set_sticky, image.digest, sticky=True)
        finally:
            self._warming[image.digest] -= 1

    async def evict(self, digits: str) -> str:
        """Removes the image whose digest begins with these digits, with or without `sha256:`, a sticky one too; returns its whole digest.

        Raises NotFound (ImageNotCached), Rejected (ImageInUse, or LabelAmbiguous where several begin so).
        """
        content = await self.content()
        found = [one.digest for one in content.images if one.digest.removeprefix("sha256:").startswith(digits.removeprefix("sha256:"))]
        if not found:
            raise NotFound(f"the image {digits} is not in the cache", reason="ImageNotCached")
        if len(found) > 1:
            raise Rejected(f"{digits} names {len(found)} images", reason="LabelAmbiguous")
        async with self._locks.setdefault(found[0], asyncio.Lock()):
            if found[0] in self._expected() | await self._disk.call(self._in_use):
                raise Rejected(f"the image {digits} is in use by work on the node", reason="ImageInUse")
            await self._disk.call(self.cache.delete_image, found[0])
        event(log, "ImageEvicted", digest=found[0], by="operator")
        await self._note_evictions(1)
        return found[0]

    async def fullness(self) -> tuple[str, tuple[str, ...]]:
        """Returns a sentence on why an image that was wanted last has no room, and digests of the images in the cache, 256 at most.

        Both are empty where it had room, or would have it now. No digests: the disk has not answered within a second, which is all that a
        heartbeat waits for it.
        """
        if self._lacking is None:
            return "", ()
        need, said = self._lacking
        try:
            images, room, in_use = await self._looks.call(lambda: (self.cache.listed(), self.cache.room(), self._in_use()))
        except Retry as error:
            return error.message, ()
        if to_evict(images, need, room, self.cache.limits, in_use | self._expected()) is not None:
            self._lacking = None
            return "", ()
        return said, tuple(sorted(image.digest for image in images))[:MOST_TOLD]

    def pulled(self, digest: str) -> BroughtBytes:
        """Returns how far the pull of one image is, and what keeps it; zeros: it is not being pulled."""
        since, waits = self._waits.get(digest, (0.0, ""))
        pull = self.pulling.get(digest, PullProgress(0))
        return BroughtBytes(pull.bytes, pull.size, waits, since)

    def _note_wait(self, digest: str, waits: str) -> None:
        """Notes what keeps an image that is wanted, and since when; empty: nothing does."""
        if waits:
            since, _ = self._waits.get(digest, (self._clock.now(), ""))
            self._waits[digest] = since, waits
        else:
            self._waits.pop(digest, None)

    def _expected(self) -> frozenset[str]:
        """Returns the digests of the images that attempts under preparation, or requests to warm the cache, want; these are not evicted."""
        return frozenset().union(*self._wanted.values(), {digest for digest, count in self._warming.items() if count})

    async def _bring_one(self, image: SoftwareImage, sources: ImageSources, pauses: Sequence[float] = FULL_SECONDS) -> None:
        """Has one image in the cache with its metadata, checked in this boot, and notes its use; others that want the same image wait.

        A uenv whose layer is not the wanted one is deleted and pulled anew. `pauses`: between tries while the cache is full. Raises as
        `_pull_with_room` does.
        """
        lock = self._locks.setdefault(image.digest, asyncio.Lock())
        async with lock:
            found = await self._disk.call(self.cache.find, image.digest)
            if found is not None and bool(found.record.manifest) != image.is_container:
                kind = "an OCI image" if found.record.manifest else "a uenv"
                raise Rejected(f"{image.source}: the cache has {image.digest} as {kind}, in which it may run", reason="PrologueFailed")
            if found is not None and not image.is_container and found.record.layer != image.layer:
                await self._disk.call(self.cache.delete_image, image.digest)
                found = None
            if found is not None and found.record.boot != self._boot:
                found = await self._checked(image, found)
            if image.is_container and await self._disk.call(self.cache.image_config, image.digest) is None:
                found = None
            if found is not None and self.metrics is not None:
                self.metrics.cache_hits.inc()
            if found is None:
                await self._pull_with_room(image, sources, pauses)
            elif image.metadata and not await self._disk.call(self.cache.has_metadata, image.digest, image.metadata):
                await self._pull_metadata(image, sources.url(image))
            if found is not None and image.source not in found.record.names:
                await self._disk.call(self.cache.add_name, image.digest, image.source)
            await self._disk.call(self.cache.touch, image.digest, self._clock.now())

    async def _checked(self, image: SoftwareImage, found: CachedImage) -> CachedImage | None:
        """Hashes an image that an earlier boot has left, and returns it; None: its bytes differ from its digest, and it was deleted."""
        record = found.record
        request = PullRequest(str(self.cache.directory), image.digest, layer=record.layer, size=record.size, boot=self._boot)
        try:
            await self._run(request, image)
        except Corrupt as error:
            event(log, "ImageDamaged", logging.WARNING, digest=image.digest, message=error.message)
            await self._disk.call(self.cache.delete_image, image.digest)
            return None
        return found

    async def _check_signature(self, image: SoftwareImage, sources: ImageSources, keys: tuple[TrustedKey, ...]) -> None:
        """Has a process check that one of the keys has signed an image; raises Rejected (ImageRefused) where none has, Retry where its
        registry does not say.
        """
        request = PullRequest(
            str(self.cache.directory), image.digest, repository=image.repository, registry=sources.url(image), auth=self._auth,
            source=image.source, keys=keys,
        )  # fmt: skip
        await self._run(request, msgspec.structs.replace(image, size=0))
        event(log, "SignatureChecked", digest=image.digest, source=image.source)

    async def _pull_with_room(self, image: SoftwareImage, sources: ImageSources, pauses: Sequence[float]) -> None:
        """Makes room for an image and pulls it; while nothing may go, tries again after each of the pauses.

        Raises Retry (CacheFull) after the last of them, Rejected for an OCI image larger than one may be, and as `_pull` does.
        """
        check_size(image, sources)
        for pause in (*pauses, None):
            try:
                await self._make_room(image)
                await self._pull(image, sources)
            except Retry as error:
                if error.reason != CACHE_FULL:
                    raise
                if pause is None:
                    self._lacking = room_for(image), error.message
                    raise
                event(log, "CacheFull", logging.WARNING, digest=image.digest, message=error.message, retry_seconds=pause)
                self._note_wait(image.digest, error.message)
                try:
                    await self._clock.sleep(pause)
                finally:
                    self._note_wait(image.digest, "")
            else:
                self._lacking = None
                return

    async def _make_room(self, image: SoftwareImage) -> None:
        """Evicts images until the missing bytes of this image, and of all others that are being pulled, fit into the cache."""
        drafts = await self._disk.call(self.cache.drop_drafts, {*self.pulling, image.digest})
        sizes = {digest: one.room for digest, one in self.pulling.items()} | {image.digest: room_for(image)}
        need = sum(max(0, size - drafts.get(digest, 0)) for digest, size in sizes.items())
        kept = self._expected() | await self._disk.call(self._in_use)
        evicted = await self._disk.call(self.cache.make_room, need, kept)
        for gone in evicted:
            event(log, "ImageEvicted", digest=gone.digest, bytes=gone.record.size, used=gone.used)
        await self._note_evictions(len(evicted))

    async def _pull(self, image: SoftwareImage, sources: ImageSources) -> None:
        """Pulls an image by a process of its own, and logs begin and end.

        Raises NotFound, Rejected, Corrupt, or Retry where registry or process fail.
        """
        begun, registry = time.monotonic(), sources.url(image)
        request = PullRequest(
            str(self.cache.directory), image.digest, layer=image.layer, size=image.size, metadata=image.metadata,
            repository=image.repository, registry=registry, auth=self._auth, boot=self._boot, container=image.is_container,
            most_bytes=sources.largest, free=self.cache.limits.free, name=image.source, place=sources.place(image),
        )  # fmt: skip
        event(log, "PullBegun", digest=image.digest, bytes=image.size, registry=registry)
        try:
            await self._run(request, image)
        except LatticeError as error:
            self._note_failure(error.reason)
            raise
        except asyncio.CancelledError:
            self._note_failure("Interrupted")
            raise
        seconds = time.monotonic() - begun
        event(log, "Pulled", digest=image.digest, bytes=image.size, seconds=round(seconds, 3))
        if self.metrics is not None:
            self.metrics.pull_seconds.observe(seconds)
            self.metrics.pulled_bytes.inc(image.size)
            await self.measure_cache()

    def _note_failure(self, reason: str) -> None:
        """Counts a failed pull by its reason, where there are metrics."""
        if self.metrics is not None:
            self.metrics.pull_failed(reason)

    async def _note_evictions(self, count: int) -> None:
        """Counts evicted images and measures the cache again, where there are metrics; nothing for 0."""
        if self.metrics is not None and count:
            self.metrics.cache_evictions.inc(count)
            await self.measure_cache()

    async def measure_cache(self) -> None:
        """Counts the images of the cache and their bytes for the metrics; changes nothing where the disk does not answer."""
        if self.metrics is None:
            return
        with suppress(Retry):
            found = await self._disk.call(self.cache.listed)
            self.metrics.cache_files.set(len(found))
            self.metrics.cache_bytes.set(sum(image.record.size for image in found))

    async def _pull_metadata(self, image: SoftwareImage, registry: str) -> None:
        """Pulls what work has pinned as the metadata of an image that is in the cache: another repository's image may be the same bytes."""
        request = PullRequest(
            str(self.cache.directory), image.digest, metadata=image.metadata, repository=image.repository, registry=registry,
            auth=self._auth, boot=self._boot,
        )  # fmt: skip
        await self._run(request, msgspec.structs.replace(image, size=0))
        event(log, "MetadataPulled", digest=image.digest, metadata=image.metadata, repository=image.repository)

    async def _run(self, request: PullRequest, image: SoftwareImage) -> None:
        """Has a puller process carry a request out and raises the error that it reports; kills it first where the caller is interrupted."""
        progress = self.pulling[image.digest] = PullProgress(image.size, room=room_for(image))
        last = b""
        try:
            async with _puller(msgspec.json.encode(request) + b"\n") as printed:
                async for line in printed:
                    last = line
                    with suppress(msgspec.MsgspecError):
                        answer = msgspec.json.decode(line, type=PullAnswer)
                        progress.bytes = answer.bytes or progress.bytes
                        if answer.waits:
                            event(log, "RegistryAwaited", logging.WARNING, digest=image.digest, source=image.source, message=answer.waits)
                        self._note_wait(image.digest, answer.waits)
        except OSError as error:
            raise Retry(f"{image.source}: no process is to be had to pull it: {error}", reason="PullerKilled") from error
        finally:
            self.pulling.pop(image.digest, None)
            self._note_wait(image.digest, "")
        _judge(last, image)


def check_size(image: SoftwareImage, sources: ImageSources) -> None:
    """Raises Rejected (ImageRefused) for an OCI image that says to be larger than one may be.

    Whoever pushes an image chooses what it says: such a one evicts nothing, and leaves no node with a full cache.
    """
    if image.is_container and 0 < sources.largest < image.size:
        said = f"its layers take {format_bytes(image.size)}, more than {format_bytes(sources.largest)} (software.largestImage)"
        raise Rejected(f"{image.source}: {said}; make it smaller, or ask the operators for more", reason=IMAGE_REFUSED)


def room_for(image: SoftwareImage) -> int:
    """Returns the bytes that an image takes in the cache's file system while it is brought."""
    return image.size * PACKED_QUARTERS // 4 if image.is_container else image.size


def _judge(last: bytes, image: SoftwareImage) -> None:
    """Raises the error that the last line of a puller's output names; returns where it names success."""
    try:
        answer = msgspec.json.decode(last, type=PullAnswer)
    except msgspec.MsgspecError:
        answer = PullAnswer()
    if answer.done:
        return
    if answer.reason == "NotInRegistry":
        raise NotFound(f"the registry has {image.source} ({image.digest}) no more: {answer.message}", reason="ImageNotFound")
    if answer.reason == "DigestMismatch":
        raise Corrupt(answer.message, reason=answer.reason)
    if answer.reason in (IMAGE_REFUSED, PROLOGUE_FAILED):
        said = answer.message if image.source in answer.message else f"{image.source}: {answer.message}"
        raise Rejected(said, reason=answer.reason)
    raise Retry(f"{image.source}: {answer.message or 'the process that pulls it was killed'}", reason=answer.reason or "PullerKilled")


def _begun() -> subprocess.Popen[bytes]:
    """Starts a puller process in a session of its own, with few variables of the environment; it waits for its request. Raises OSError."""
    return subprocess.Popen(
        PULLER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True,
        env={**{name: os.environ[name] for name in _PASSED if name in os.environ}, "LANG": "C.UTF-8"},
    )  # fmt: skip


@asynccontextmanager
async def _puller(request: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Starts a puller with its request, and yields what it prints; at the end of the block it is killed and gone. Raises OSError.

    `request`: one line with its newline, shorter than a pipe holds; the puller's input stays open, since it ends when that closes. The
    loop's own subprocesses are not used: uvloop now and then closes the standard input of a child that has just begun.
    """
    child = _begun()
    assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018 - they are pipes
    printed = asyncio.StreamReader()
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(printed), child.stdout)
        child.stdin.write(request)  # far less than a pipe holds
        child.stdin.flush()
        yield printed
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # it is not reaped yet: the number is still its own
        with suppress(OSError):
            child.stdin.close()
        await asyncio.shield(asyncio.to_thread(child.wait))


_PASSED: Final = (
    "PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONPATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
