"""Carries out what operators ask of the node's image cache, and reports it as the protobuf has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from lattice.errors import LatticeError
from lattice.kube.clock import Clock
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.views.allocation import OCI, SoftwareImage
from lattice_agent.peers.interface import ImageShelf
from lattice_agent.work.image_sources import ImageSources

TOLD_SECONDS: Final = 0.5
LONGEST_WAIT: Final = 1024
"""Characters of what keeps a pull."""


async def carry_out(request: pb.CacheRequest, images: ImageShelf, sources: ImageSources, clock: Clock) -> AsyncIterator[pb.CacheReport]:
    """Lists, warms or evicts images, as the request asks, and yields reports on that; the last one says `done`, or a reason why not.

    A warm reports every half a second how many bytes stand; closing the iterator ends the pull.
    """
    try:
        if request.action == pb.LIST_IMAGES:
            yield await _listed(images)
        elif request.action == pb.WARM_IMAGE:
            async for report in _warmed(request.image, images, sources, clock):
                yield report
        elif request.action == pb.EVICT_IMAGE:
            yield pb.CacheReport(done=True, images=[pb.CacheImage(digest=await images.evict(request.image.digest))])
        else:
            yield pb.CacheReport(reason="QuestionInvalid", message="this agent does not know what is asked of its cache")
    except LatticeError as error:
        yield pb.CacheReport(reason=error.reason, message=error.message)


async def _listed(images: ImageShelf) -> pb.CacheReport:
    """Returns the report on all images of the cache, with its size and free bytes."""
    content = await images.content()
    found = [
        pb.CacheImage(
            digest=one.digest, size=one.record.size, repository=one.record.repository, layer=one.record.layer, used=one.used,
            sticky=one.sticky, in_use=one.digest in content.in_use, registry=one.record.registry, names=one.record.names,
            kind=OCI if one.record.manifest else "",
        )
        for one in content.images
    ]  # fmt: skip
    return pb.CacheReport(images=found, total_bytes=content.room.total, free_bytes=content.room.free, done=True)


async def _warmed(asked: pb.CacheImage, images: ImageShelf, sources: ImageSources, clock: Clock) -> AsyncIterator[pb.CacheReport]:
    """Pulls an image, and yields every half a second how many bytes stand and what keeps it, `done` last; closing the iterator ends it.

    Raises the error that ended it; where the site has no registry, one report says so.
    """
    if not asked.kind and not sources.registry:
        yield pb.CacheReport(reason="NoRegistry", message="the site has no registry of software environments (software.registry)")
        return
    image = SoftwareImage(
        source=asked.source, digest=asked.digest, size=asked.size, repository=asked.repository, layer=asked.layer, metadata=asked.metadata,
        kind=asked.kind, registry=asked.registry,
    )  # fmt: skip
    async with asyncio.TaskGroup() as group:
        pull = group.create_task(_tried(images, image, sources, sticky=asked.sticky))
        try:
            while not pull.done():
                far = images.pulled(image.digest)
                yield pb.CacheReport(pulled_bytes=far.bytes, message=far.waits[:LONGEST_WAIT])
                ended = group.create_task(clock.sleep(TOLD_SECONDS))
                await asyncio.wait((pull, ended), return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
        finally:
            pull.cancel()
    failure = pull.result()
    if failure is not None:
        raise failure
    yield pb.CacheReport(pulled_bytes=image.size, done=True)


async def _tried(images: ImageShelf, image: SoftwareImage, sources: ImageSources, *, sticky: bool) -> LatticeError | None:
    """Pulls an image; returns the error that ended the pull, None: it is in the cache."""
    try:
        await images.warm(image, sources, sticky=sticky)
    except LatticeError as error:
        return error
    return None
