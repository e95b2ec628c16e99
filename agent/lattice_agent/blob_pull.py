"""Pulls one blob of a registry into a file, by range where an earlier pull was cut off, hashed while it is read.

A registry that fails is asked again for half a minute, and what it answers is told meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from lattice.clients.registry import Registry
from lattice.errors import Corrupt, Rejected, Retry
from lattice_agent.standalone import durable
from lattice_agent.state.image_cache import CACHE_FULL

P = ParamSpec("P")
T = TypeVar("T")

READ_BYTES: Final = 1 << 20
MOST_TRIES: Final = 8
"""In a row without a byte more."""
LONGEST_PAUSE: Final = 30.0
LONGEST_ASKED_PAUSE: Final = 60.0
"""Seconds that a registry may have the next try wait (`Retry-After`): nodes are held meanwhile."""


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
        """Writes and hashes bytes; raises Corrupt beyond the size of the blob, Rejected (CacheFull) where the disk is full or fails."""
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

    def close_at_size(self) -> None:
        """Cuts off bytes beyond the blob's size, and closes the file."""
        os.ftruncate(self._fd, self.size)
        os.close(self._fd)

    def throw_away(self) -> None:
        """Closes and removes the file."""
        os.close(self._fd)
        self.path.unlink()

    def become(self, path: Path) -> None:
        """Cuts off bytes beyond the image's size, makes the draft durable, closes it, and renames it to `path`."""
        os.fsync(self._fd)
        self.close_at_size()
        self.path.rename(path)
        durable.sync_directory(str(path.parent))


class Patience:
    """Asks a registry again that fails for a while.

    `tell` hears, before each pause, what the registry failed of, and an empty text once it has answered.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    async def patiently(self, ask: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Asks the registry until it answers, with growing pauses; raises its failure after the eighth try."""
        tries = 0
        while True:
            try:
                answer = await ask(*args, **kwargs)
            except Retry as error:
                tries += 1
                await self.pause(error, tries)
            else:
                if tries:
                    self._tell("")
                return answer

    async def pause(self, error: Retry, tries: int) -> None:
        """Tells of a failure and waits before the next try, at least as long as the registry asks for, up to a minute; raises `error`
        where this was the eighth try in a row.
        """
        if tries >= MOST_TRIES:
            raise error
        self._tell(error.message)
        asked = min(LONGEST_ASKED_PAUSE, error.after_seconds or 0.0)
        await asyncio.sleep(max(asked, min(LONGEST_PAUSE, 0.25 * 2.0 ** (tries - 1))))


class BlobPull:
    """Pulls blobs of one repository; `tell` hears how many bytes of the present one stand, `patience` of the registry's failures."""

    def __init__(self, registry: Registry, repository: str, tell: Callable[[int], None], patience: Patience) -> None:
        self._registry, self._repository, self._tell, self._patience = registry, repository, tell, patience

    async def whole_file(self, path: Path, digest: str, size: int) -> Draft:
        """Returns the draft with every byte of a blob; throws bytes of another digest away once, then raises Corrupt (DigestMismatch).

        After the eighth try in a row without a byte more it raises the error of the last.
        """
        draft = Draft(path, size)
        draft.read_again()
        for last in (False, True):
            await self._fill(draft, digest)
            if draft.digest == digest:
                return draft
            draft.begin_anew()
            if last:
                draft.throw_away()
        raise Corrupt(f"the registry sent other bytes than {digest}, twice", reason="DigestMismatch")

    async def _fill(self, draft: Draft, digest: str) -> None:
        """Pulls the bytes that a draft lacks, from where it stands, and begins anew where the registry sends the whole.

        Tries again after a pause; raises Retry when too many tries have brought nothing.
        """
        tries = 0
        while draft.length < draft.size:
            before = draft.length
            try:
                async with self._registry.stream(self._repository, digest, offset=before) as stream:
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
                await self._patience.pause(error, tries)
