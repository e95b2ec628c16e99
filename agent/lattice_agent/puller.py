"""Pulls one image into the node's cache, or hashes one that stands there: a process of its own, which the agent may kill at any moment.

Started as `python -m lattice_agent.puller`; the request is the first line of its standard input, whose end ends it: it never outlives its
agent. The answer is the last line of its standard output, after lines that count bytes. What it pulls is a draft until its last byte is
hashed; a draft that stands there already is hashed, and only the rest is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import aiohttp
import msgspec

from lattice.clients.registry import ANSWER_SECONDS, Registry, parse_address, read_credentials
from lattice.errors import Corrupt, LatticeError, Rejected, Retry
from lattice.software.image_metadata import LARGEST_ARCHIVE, unpack_metadata
from lattice_agent.pull_messages import PullAnswer, PullRequest
from lattice_agent.standalone import durable
from lattice_agent.state.image_cache import CACHE_FULL, CacheLimits, ImageCache, ImageRecord, file_stem

P = ParamSpec("P")
T = TypeVar("T")

READ_BYTES: Final = 1 << 20
TOLD_SECONDS: Final = 0.5
MOST_TRIES: Final = 8
"""In a row without a byte more."""
LONGEST_PAUSE: Final = 30.0
NICE: Final = 10


class Draft:
    """The file of a pull under way, and the hash of its bytes."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size, self.length = path, size, 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._hash = hashlib.sha256()

    def read_again(self) -> None:
        """Hashes the bytes that an interrupted pull has left, which are not asked for again; empties a file larger than the image."""
        self.begin_anew()
        if os.fstat(self._fd).st_size > self.size:
            os.ftruncate(self._fd, 0)
        while chunk := os.read(self._fd, READ_BYTES):
            self._hash.update(chunk)
            self.length += len(chunk)

    def begin_anew(self) -> None:
        """Restarts the pull at the first byte; older bytes are overwritten, and cut off at the end."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        self._hash, self.length = hashlib.sha256(), 0

    def append(self, chunk: bytes) -> None:
        """Writes and hashes bytes; raises Corrupt beyond the size of the image, Rejected (CacheFull) where the disk is full or fails."""
        if self.length + len(chunk) > self.size:
            raise Corrupt(f"the registry sends more than the {self.size} bytes of the image", reason="DigestMismatch")
        try:
            durable.write_all(self._fd, chunk)
        except OSError as error:
            said = f"{self.path} takes no more than {self.length} of {self.size} bytes: {error.strerror}"
            raise Rejected(said, reason=CACHE_FULL) from error
        self._hash.update(chunk)
        self.length += len(chunk)

    @property
    def digest(self) -> str:
        """Returns the digest `sha256:HEX` of the bytes so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def become(self, path: Path) -> None:
        """Cuts off bytes beyond the image's size, makes the draft durable, closes it, and renames it to `path`."""
        os.ftruncate(self._fd, self.size)
        os.fsync(self._fd)
        os.close(self._fd)
        self.path.rename(path)
        durable.sync_directory(str(path.parent))


class Pull:
    """One pull: the metadata that the work has pinned, the image's manifest, and its squashfs file."""

    def __init__(self, request: PullRequest, registry: Registry) -> None:
        self._request, self._registry = request, registry
        self._cache = ImageCache(Path(request.cache), CacheLimits())
        self._told = 0.0

    async def run(self) -> None:
        """Pulls the image into the cache: its squashfs file and the metadata attached to it, and last the record that makes it count.

        Raises Corrupt (DigestMismatch) where the registry has other layers or bytes than asked for, else the error of registry or disk that
        ended the pull; after the eighth try in a row without success for one that passes by itself (Retry).
        """
        asked = self._request
        document = await self._patiently(self._document) if asked.metadata else None
        if asked.layer:
            await self._pull_image()
        if document is not None:
            self._cache.keep_metadata(asked.digest, asked.metadata, document)
        if asked.layer:
            record = ImageRecord(asked.layer, asked.size, asked.repository, asked.boot)
            durable.write_durably(str(self._cache.images), f"{file_stem(asked.digest)}.json", msgspec.json.encode(record))

    async def _pull_image(self) -> None:
        """Pulls the squashfs file of the image into the cache; raises Corrupt (DigestMismatch) where the manifest has other layers than
        asked for.
        """
        asked = self._request
        _, manifest = await self._patiently(self._registry.manifest, asked.repository, asked.digest)
        layers = [(layer.digest, layer.size) for layer in manifest.layers]
        if layers != [(asked.layer, asked.size)]:
            raise Corrupt(f"the image {asked.digest} has other layers than its allocation says: {layers[:2]}", reason="DigestMismatch")
        draft = await self._whole_file()
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

    async def _whole_file(self) -> Draft:
        """Returns the draft with every byte of the image; throws bytes of another digest away once, then raises Corrupt."""
        path = self._cache.draft(self._request.digest)
        draft = Draft(path, self._request.size)
        draft.read_again()
        for last in (False, True):
            await self._fill(draft)
            if draft.digest == self._request.layer:
                return draft
            draft.begin_anew()
            if last:
                path.unlink()
        raise Corrupt(f"the registry sent other bytes than {self._request.layer}, twice", reason="DigestMismatch")

    async def _fill(self, draft: Draft) -> None:
        """Pulls the bytes that a draft lacks, from where it stands, until it has them all; raises Retry after the eighth try in a row
        without a byte more, Corrupt for too many bytes.
        """
        tries = 0
        while draft.length < draft.size:
            before = draft.length
            try:
                async with self._registry.stream(self._request.repository, self._request.layer, offset=before) as stream:
                    if stream.start != before:
                        draft.begin_anew()
                    if stream.start not in (0, before):
                        raise Retry(f"the registry sends bytes from {stream.start} on, not from {before}", reason="RegistryBroken")
                    async for chunk in stream.chunks:
                        draft.append(chunk)
                        self._tell(draft.length)
                if draft.length < draft.size:
                    raise Retry(f"the registry ended after {draft.length} of {draft.size} bytes", reason="RegistryBroken")
            except Retry as error:
                tries = 1 if draft.length > before else tries + 1
                await self._pause(error, tries)

    def _tell(self, length: int) -> None:
        """Tells the agent how many bytes are on the disk, twice a second at most; notes when it did."""
        if time.monotonic() - self._told > TOLD_SECONDS:
            self._told = time.monotonic()
            say(PullAnswer(bytes=length))

    async def _patiently(self, ask: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Asks the registry again and again while it fails for a reason that passes (Retry), and returns the answer; raises that error at
        the eighth try.
        """
        tries = 0
        while True:
            try:
                return await ask(*args, **kwargs)
            except Retry as error:
                tries += 1
                await self._pause(error, tries)

    async def _pause(self, error: Retry, tries: int) -> None:
        """Waits before the next try; raises `error` where this was the eighth try in a row."""
        if tries >= MOST_TRIES:
            raise error
        await asyncio.sleep(min(LONGEST_PAUSE, error.after_seconds or 0.25 * 2.0 ** (tries - 1)))


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


async def carry_out(request: PullRequest) -> None:
    """Pulls the requested image, or hashes the one in the cache where the request names no registry; raises the error that ended this."""
    if not request.registry:
        await check(request)
        return
    address = parse_address(request.registry)
    credentials = read_credentials(request.auth, address.host)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        await Pull(request, Registry(session, address, credentials)).run()


def say(answer: PullAnswer) -> None:
    """Writes an answer to standard output, as a line of JSON that the agent reads."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


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
    else:
        say(PullAnswer(done=True))


def main() -> None:
    """Lowers this process's priority and serves the one request on its standard input."""
    os.nice(NICE)
    asyncio.run(serve())


if __name__ == "__main__":
    main()
