"""Pulls by real processes from a registry that does what registries do: it cuts off, is slow, lies, asks for logins, and is full."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import signal
import tarfile
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lattice.daemon.clock import Clock, ManualClock, SystemClock
from lattice.errors import Rejected, Retry
from lattice.views.allocation import OCI, SoftwareImage
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host.images import Images
from lattice_agent.host.threads import Threads
from lattice_agent.metrics import AgentMetrics
from lattice_agent.state.image_cache import CachedImage, CacheLimits, ImageCache
from lattice_agent.work.image_sources import ImageSources
from tests.build import uid
from tests.unit.agent.machine import until

CONTENT = bytes(range(256)) * 4096 * 3
"""3 MiB."""


class Registry:
    """One image of a registry, and its moods."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.layer = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
        layers = [{"digest": self.layer, "size": len(CONTENT), "mediaType": "application/x-squashfs"}]
        self.manifest = json.dumps({"artifactType": "application/x-squashfs", "layers": layers}).encode()
        self.digest = f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"
        self.ranges: list[str] = []
        self.cut = 0
        """Bytes after which the connection is cut, each time; 0: never."""
        self.serves_ranges = True
        self.answers: list[int] = []
        """Statuses that the next requests for the blob get."""
        self.hangs_after = 0
        self.archives: dict[tuple[str, str], bytes] = {}
        """What is attached, by repository and digest."""
        app = web.Application()
        app.router.add_get("/v2/uenv/{name}/manifests/{reference}", self._manifest)
        app.router.add_get("/v2/uenv/{name}/blobs/{digest}", self._blob)
        self.server = TestServer(app)

    @property
    def image(self) -> SoftwareImage:
        """As the operator pins it."""
        return SoftwareImage(source="a/1:v1", digest=self.digest, size=len(CONTENT), mount="/m", repository="uenv/a", layer=self.layer)

    def attached(self, repository: str, document: bytes) -> SoftwareImage:
        """The image of this repository, as the operator pins it with this metadata."""
        archive = packed(document)
        digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"
        self.archives[repository, digest] = archive
        return msgspec.structs.replace(self.image, repository=f"uenv/{repository}", metadata=digest)

    def work(self, *, attempt: int = 1) -> NodeWork:
        """Work that asks for the image."""
        return NodeWork(
            Key(uid(1), attempt), 1, "physics", "job", "alice", "physics", "job", ("n1",), "n1", 0, "n1", 1, 0, 1, entrypoint="true",
            software=(self.image,), registry=f"http://127.0.0.1:{self.server.port}/uenv",
        )  # fmt: skip

    async def _manifest(self, request: web.Request) -> web.Response:
        if request.match_info["reference"] != self.digest:
            return web.Response(status=404)
        return web.Response(body=self.manifest, content_type="application/vnd.oci.image.manifest.v1+json")

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["digest"] != self.layer:
            found = self.archives.get((request.match_info["name"], request.match_info["digest"]))
            return web.Response(body=found) if found is not None else web.Response(status=404)
        self.ranges.append(request.headers.get("Range", ""))
        if self.answers:
            return web.Response(status=self.answers.pop(0), headers={"Retry-After": "0"})
        start = int(self.ranges[-1].removeprefix("bytes=").rstrip("-")) if self.ranges[-1] and self.serves_ranges else 0
        body = self.content[start:]
        headers = {"Content-Range": f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"} if start else {}
        response = web.StreamResponse(status=206 if start else 200, headers={**headers, "Content-Length": str(len(body))})
        await response.prepare(request)
        if self.hangs_after:
            await response.write(body[: self.hangs_after])
            await asyncio.sleep(3600)
        if self.cut and len(body) > self.cut:
            await response.write(body[: self.cut])
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(body)
        return response


def packed(document: bytes) -> bytes:
    """A gzipped tar of meta/ with this env.json."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as files:
        member = tarfile.TarInfo("meta/env.json")
        member.size = len(document)
        files.addfile(member, io.BytesIO(document))
    return archive.getvalue()


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    made = Registry()
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return open_images(tmp_path)


def open_images(folder: Path, boot: str = "boot-1", limits: CacheLimits | None = None, clock: Clock | None = None) -> Images:
    """The cache as an agent opens it."""
    cache = ImageCache(folder / "cache", limits or CacheLimits(free=0))
    cache.open()
    return Images(cache, "", boot, clock or SystemClock(), Threads("the image cache", count=2, within=120.0), frozenset)


def pullers() -> list[int]:
    """The pullers of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if b"lattice_agent.puller" in (entry / "cmdline").read_bytes() and (entry / "stat").read_text().split()[3] == str(os.getpid()):
                found.append(int(entry.name))
    return found


async def test_an_image_is_pulled_once_and_found_by_the_next_attempt(registry: Registry, images: Images) -> None:
    await images.bring(registry.work())
    assert images.cache.squashfs_file(registry.digest).read_bytes() == CONTENT
    assert (images.cache.metadata(registry.digest, registry.layer), list(images.cache.drafts.iterdir()), images.waiting()) == (
        None,
        [],
        frozenset(),
    )
    await registry.server.close()
    await images.bring(registry.work(attempt=2))
    assert len(registry.ranges) == 1


async def test_each_work_has_the_metadata_that_it_has_pinned_whoever_brought_the_same_image_before(
    registry: Registry, images: Images
) -> None:
    evil, deploy = registry.attached("evil", b'{"evil": 1}'), registry.attached("deploy", b'{"deploy": 1}')
    changed, bare = registry.attached("deploy", b'{"deploy": 2}'), registry.image
    for number, image in enumerate((evil, deploy, evil, changed, bare, deploy)):
        await images.bring(replace(registry.work(attempt=number + 1), software=(image,)))
    said = {one.metadata: images.cache.metadata(one.digest, one.metadata) for one in (evil, deploy, changed)}
    assert list(said.values()) == [b'{"evil": 1}', b'{"deploy": 1}', b'{"deploy": 2}']
    assert len(registry.ranges) == 1, "the image itself is pulled once"
    images.cache.delete_image(registry.digest)
    assert list(images.cache.images.iterdir()) == []


async def test_metadata_with_other_bytes_than_those_that_are_pinned_is_refused(registry: Registry, images: Images) -> None:
    pinned = registry.attached("deploy", b'{"deploy": 1}')
    await images.bring(registry.work())
    for archive in (packed(b'{"evil": 1}'), packed(b'{"deploy": 1}') + b"more"):
        registry.archives["deploy", pinned.metadata] = archive
        with pytest.raises(Rejected, match="sent other bytes than"):
            await images.bring(replace(registry.work(attempt=2), software=(pinned,)))
        assert images.cache.metadata(registry.digest, pinned.metadata) is None
    assert images.cache.find(registry.digest) is not None, "the image may be in use"


async def test_a_connection_that_is_cut_is_resumed_where_it_was(registry: Registry, images: Images) -> None:
    registry.cut = 1 << 20
    await images.bring(registry.work())
    assert images.cache.squashfs_file(registry.digest).read_bytes() == CONTENT
    begins = [int(asked.removeprefix("bytes=").rstrip("-") or 0) for asked in registry.ranges]
    assert begins[0] == 0
    assert begins == sorted(begins)
    assert len(begins) >= 3


async def test_a_registry_without_ranges_sends_all_of_it_again(registry: Registry, images: Images) -> None:
    registry.cut, registry.serves_ranges = 2 << 20, False

    async def mend() -> None:
        while len(registry.ranges) < 2:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        registry.cut = 0

    async with asyncio.TaskGroup() as group:
        group.create_task(mend())
        await images.bring(registry.work())
    assert images.cache.squashfs_file(registry.digest).read_bytes() == CONTENT


async def test_a_pull_that_is_interrupted_ends_though_its_registry_hangs_and_the_next_one_goes_on_with_its_bytes(
    registry: Registry, images: Images
) -> None:
    registry.hangs_after = 1 << 20
    task = asyncio.ensure_future(images.bring(registry.work()))
    draft = images.cache.draft(registry.digest)
    await until(lambda: draft.exists() and draft.stat().st_size >= 1 << 20)
    assert images.waiting() == {registry.work().key}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (pullers(), images.pulling, images.waiting()) == ([], {}, frozenset())
    registry.hangs_after = 0
    await images.bring(registry.work(attempt=2))
    assert images.cache.squashfs_file(registry.digest).read_bytes() == CONTENT
    assert registry.ranges[-1] == f"bytes={1 << 20}-"


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_registry_that_is_busy_or_broken_for_moments_is_asked_again(registry: Registry, images: Images, status: int) -> None:
    registry.answers = [status, status]
    await images.bring(registry.work())
    assert images.cache.squashfs_file(registry.digest).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("mood", "reason", "said"),
    [
        ({"content": b"x" * len(CONTENT)}, "PrologueFailed", "sent other bytes than"),
        ({"content": CONTENT + b"more"}, "PrologueFailed", "sends more than the"),
        ({"answers": [404]}, "ImageNotFound", "has a/1:v1"),
        ({"answers": [403]}, "PrologueFailed", "answers 403"),
        ({"digest": "sha256:" + "0" * 64}, "PrologueFailed", "other bytes than sha256:0000"),
    ],
    ids=("other bytes", "more bytes", "gone", "denied", "other manifest"),
)
async def test_what_cannot_be_the_image_is_refused_and_nothing_is_kept(
    registry: Registry, images: Images, mood: dict[str, object], reason: str, said: str
) -> None:
    for name, value in mood.items():
        setattr(registry, name, value)
    with pytest.raises(Rejected, match=said) as refused:
        await images.bring(registry.work())
    assert refused.value.reason == reason
    assert refused.value.message.startswith("node n1: ")
    assert images.cache.listed() == []


async def test_an_image_whose_layers_are_not_those_of_its_allocation_is_refused(registry: Registry, images: Images) -> None:
    work = registry.work()
    forged = replace(
        work, software=(SoftwareImage(source="a", digest=registry.digest, size=1, repository="uenv/a", layer="sha256:" + "1" * 64),)
    )
    with pytest.raises(Rejected, match="has other layers than its allocation says"):
        await images.bring(forged)


async def test_an_image_that_says_to_be_too_large_is_refused_at_once_and_makes_no_cache_full(registry: Registry, tmp_path: Path) -> None:
    images = open_images(tmp_path, clock=ManualClock())  # it stands still: who waits for room waits for ever
    lie = msgspec.structs.replace(registry.image, kind=OCI, size=1 << 60)
    with pytest.raises(Rejected, match=r"software\.largestImage") as refused:
        await images.bring(replace(registry.work(), software=(lie,), largest_image=100 << 30))
    assert refused.value.reason == "ImageRefused"
    assert await images.fullness() == ("", ())
    assert registry.ranges == []


async def test_two_attempts_share_one_pull(registry: Registry, images: Images) -> None:
    await asyncio.gather(images.bring(registry.work()), images.bring(registry.work(attempt=2)))
    assert len(registry.ranges) == 1


async def test_an_image_that_has_changed_on_the_disk_is_found_in_the_next_boot_and_pulled_again(registry: Registry, tmp_path: Path) -> None:
    images = open_images(tmp_path)
    await images.bring(registry.work())
    images.cache.squashfs_file(registry.digest).write_bytes(b"y" * len(CONTENT))
    await open_images(tmp_path, "boot-2").bring(registry.work())
    assert images.cache.squashfs_file(registry.digest).read_bytes() == CONTENT
    again = open_images(tmp_path, "boot-3")
    await again.bring(registry.work())
    found = again.cache.find(registry.digest)
    assert found is not None
    assert (found.record.boot, len(registry.ranges)) == ("boot-3", 2)


async def test_a_puller_that_is_killed_is_a_failure_of_the_node_and_none_outlives_its_agent(registry: Registry, images: Images) -> None:
    registry.hangs_after = 1 << 20
    task = asyncio.ensure_future(images.bring(registry.work()))
    await until(pullers)
    os.kill(pullers()[0], signal.SIGKILL)
    with pytest.raises(Rejected, match="was killed") as refused:
        await task
    assert refused.value.reason == "PrologueFailed"


async def test_a_pull_that_outruns_its_time_fails(registry: Registry, images: Images) -> None:
    registry.hangs_after = 1 << 20
    with pytest.raises(Rejected, match=r"not pulled within 1 s \(software.pullTimeout\)"):
        await images.bring(replace(registry.work(), pull_seconds=1.0))
    assert pullers() == []


async def test_pulls_hits_evictions_and_the_cache_are_counted(registry: Registry, images: Images) -> None:
    metrics = images.metrics = AgentMetrics("n1")

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"lattice_agent_{name}", {"node_id": "n1", **labels})

    registry.cut = 1 << 20
    await images.bring(registry.work())
    await images.bring(registry.work(attempt=2))
    assert (value("pulled_bytes_total"), value("pull_seconds_count"), value("cache_hits_total")) == (len(CONTENT), 1, 1)
    assert (value("cache_files"), value("cache_bytes")) == (1, len(CONTENT))
    await images.evict(registry.digest)
    assert (value("cache_files"), value("cache_bytes"), value("cache_evictions_total")) == (0, 0, 1)
    registry.content = bytes(len(CONTENT))
    with pytest.raises(Rejected):
        await images.bring(registry.work(attempt=3))
    assert value("pull_failures_total", reason="DigestMismatch") == 1


async def test_a_pull_that_is_given_up_and_a_reason_of_no_list_are_counted_under_words_of_the_list(
    registry: Registry, images: Images
) -> None:
    metrics = images.metrics = AgentMetrics("n1")
    registry.hangs_after = 1000
    task = asyncio.ensure_future(images.bring(registry.work()))
    await until(pullers)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    metrics.pull_failed("whatever a registry says")
    reasons = {
        sample.labels["reason"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "lattice_agent_pull_failures_total"
    }
    assert reasons == {"Interrupted", "Other"}


async def test_a_heartbeat_waits_a_second_for_the_silent_disk_of_a_full_cache(registry: Registry, tmp_path: Path) -> None:
    silent, answers = asyncio.Event(), threading.Event()

    class SilentCache(ImageCache):
        def listed(self) -> list[CachedImage]:
            if silent.is_set():
                answers.wait()
            return super().listed()

    cache = SilentCache(tmp_path / "cache", CacheLimits(percent=1, free=1 << 60))
    cache.open()
    images = Images(cache, "", "boot-1", SystemClock(), Threads("the image cache", count=2, within=120.0), frozenset)
    with pytest.raises(Retry):
        await images.warm(registry.image, ImageSources(registry.work().registry), sticky=False)
    images._lacking = 1, "full"
    silent.set()
    try:
        said, held = await images.fullness()
    finally:
        answers.set()
    assert (held, "has not answered for 1 s" in said) == ((), True)
