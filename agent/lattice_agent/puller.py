"""Pulls one image into the node's cache, or hashes one that stands there: a process of its own, which the agent may kill at any moment.

Started as `python -m lattice_agent.puller`; the request is the first line of its standard input, whose end ends it: it never outlives its
agent. The answer is the last line of its standard output, after lines that count bytes. What it pulls is a draft until its last byte is
hashed; a draft that stands there already is hashed, and only the rest is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lattice.clients.registry import Registry, opened_registry
from lattice.clients.signatures import read_claims
from lattice.errors import Corrupt, LatticeError, Rejected
from lattice.software.image_metadata import LARGEST_ARCHIVE, unpack_metadata
from lattice.software.signatures import check_signed
from lattice_agent.blob_pull import READ_BYTES, BlobPull, Patience
from lattice_agent.pull_messages import PullAnswer, PullRequest
from lattice_agent.standalone import durable
from lattice_agent.state.image_cache import CacheLimits, ImageCache, ImageRecord, file_stem

TOLD_SECONDS: Final = 0.5
NICE: Final = 10
MOST_MEMORY: Final = 4 << 30
"""Bytes of address space for this process, and for the one that packs an image: what merging its layers takes is the image's choice."""
FIRST_TO_GO: Final = "1000"
"""The score by which the kernel chooses whom it kills for want of memory: before any work, and before the agent."""


class Pull:
    """One pull of a uenv: the metadata that the work has pinned, the image's manifest, and its squashfs file."""

    def __init__(self, request: PullRequest, registry: Registry, cache: ImageCache, patience: Patience) -> None:
        self._request, self._registry, self._cache, self._patience = request, registry, cache, patience

    async def run(self) -> None:
        """Pulls the image into the cache: its squashfs file and the metadata attached to it, and last the record that makes it count.

        Raises Corrupt (DigestMismatch) where the registry has other layers or bytes than asked for, else the error of registry or disk that
        ended the pull; after the eighth try in a row without success for one that passes by itself (Retry).
        """
        asked = self._request
        document = await self._patience.patiently(self._document) if asked.metadata else None
        if asked.layer:
            await self._pull_image()
        if document is not None:
            self._cache.keep_metadata(asked.digest, asked.metadata, document)
        if asked.layer:
            record = ImageRecord(asked.layer, asked.size, asked.repository, asked.boot, registry=asked.place, names=(asked.name,))
            durable.write_durably(str(self._cache.images), f"{file_stem(asked.digest)}.json", msgspec.json.encode(record))

    async def _pull_image(self) -> None:
        """Pulls the squashfs file of the image into the cache; raises Corrupt (DigestMismatch) where the manifest has other layers than
        asked for.
        """
        asked = self._request
        _, manifest = await self._patience.patiently(self._registry.manifest, asked.repository, asked.digest)
        layers = [(layer.digest, layer.size) for layer in manifest.layers]
        if layers != [(asked.layer, asked.size)]:
            raise Corrupt(f"the image {asked.digest} has other layers than its allocation says: {layers[:2]}", reason="DigestMismatch")
        blobs = BlobPull(self._registry, asked.repository, PulledBytes().tell, self._patience)
        draft = await blobs.whole_file(self._cache.draft(asked.digest), asked.layer, asked.size)
        draft.become(self._cache.squashfs_file(asked.digest))

    async def _document(self) -> bytes:
        """Returns the `env.json` in the archive that the work has pinned, of whose bytes the registry's client checks the digest.

        Raises Corrupt where the archive has none.
        """
        repository, digest = self._request.repository, self._request.metadata
        document = unpack_metadata(await self._registry.blob(repository, digest, most=LARGEST_ARCHIVE))
        if document is None:
            raise Corrupt(f"the archive {digest} of metadata has no env.json", reason="DigestMismatch")
        return document


class PulledBytes:
    """Tells the agent now and then how many bytes stand."""

    def __init__(self) -> None:
        self._told = 0.0

    def tell(self, length: int) -> None:
        """Prints the number of bytes, twice a second at most."""
        if time.monotonic() - self._told > TOLD_SECONDS:
            self._told = time.monotonic()
            say(PullAnswer(bytes=length))


async def check(request: PullRequest) -> None:
    """Hashes an image in the cache and notes the boot in its record; raises Corrupt where its bytes have another digest."""
    cache = ImageCache(Path(request.cache), CacheLimits())
    image, found = cache.find(request.digest), hashlib.sha256()
    with cache.squashfs_file(request.digest).open("rb") as file:
        while chunk := file.read(READ_BYTES):
            found.update(chunk)
    if image is None or f"sha256:{found.hexdigest()}" != request.layer:
        raise Corrupt(f"the bytes of {request.digest} in the cache have changed", reason="DigestMismatch")
    cache.checked(image, request.boot)


async def check_signature(request: PullRequest, cache: ImageCache, patience: Patience) -> None:
    """Checks that a trusted key has signed an image, by what was kept of its signatures for a day, else by what its registry has now.

    Raises Rejected (ImageRefused) where none has, Corrupt (KeyInvalid) for a key that is none, the registry's failure after the eighth try.
    """
    kept = cache.signatures(request.digest, time.time())
    if kept is not None:
        with suppress(Rejected):
            check_signed(request.source, request.digest, kept, request.keys)
            return
    async with opened_registry(request.registry, request.auth) as registry:
        claims = await patience.patiently(read_claims, registry, request.repository, request.digest)
    check_signed(request.source, request.digest, claims, request.keys)
    cache.keep_signatures(request.digest, claims, time.time())


async def carry_out(request: PullRequest) -> None:
    """Pulls the requested image, or hashes the one in the cache where the request names no registry; raises the error that ended this."""
    if not request.registry:
        await check(request)
        return
    cache, patience = ImageCache(Path(request.cache), CacheLimits()), Patience(say_waits)
    if request.source:
        await check_signature(request, cache, patience)
        return
    async with opened_registry(request.registry, request.auth) as registry:
        if request.container:
            from lattice_agent.unpacking.container_pull import ContainerPull

            await ContainerPull(request, registry, cache, PulledBytes().tell, patience).run()
        else:
            await Pull(request, registry, cache, patience).run()


def say(answer: PullAnswer) -> None:
    """Writes an answer to standard output, as a line of JSON that the agent reads."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def say_waits(failure: str) -> None:
    """Tells the agent what the registry has failed of, before the next try; empty: it serves again."""
    say(PullAnswer(waits=failure))


async def serve() -> None:
    """Reads the request from standard input, carries it out, and prints its success or its error; ends at once with the agent."""
    request = msgspec.json.decode(await asyncio.to_thread(sys.stdin.buffer.readline), type=PullRequest)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 1)
    try:
        await carry_out(request)
    except LatticeError as error:
        say(PullAnswer(reason=error.reason, message=error.message))
    except OSError as error:
        say(PullAnswer(reason="CacheBroken", message=f"the image cache {request.cache} does not serve: {error}"))
    except MemoryError:
        said = f"unpacking it takes more than {MOST_MEMORY >> 30} GiB of memory: it has too many files"
        say(PullAnswer(reason="ImageRefused", message=said))
    else:
        say(PullAnswer(done=True))


def main() -> None:
    """Limits this process's memory, lowers its priority, and serves the one request on its standard input."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO, encoding="ascii")
    asyncio.run(serve())


if __name__ == "__main__":
    main()
