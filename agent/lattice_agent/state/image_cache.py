"""The node's cache of images: squashfs files named by the digest of their manifest, what stands beside them, and which of them go.

Where room is short, the least recently used go first.

    images/sha256-HEX.squashfs   the image; its file time is its last use
    images/sha256-HEX.META.env.json  metadata that was attached to it; META are the digits of the digest by which work has it pinned
    images/sha256-HEX.config.json  the configuration of an OCI image, as its registry has it
    images/sha256-HEX.signatures.json  what has been signed of it, and when its registry said so
    images/sha256-HEX.json       digest and size of the squashfs file, and the boot in which it was last checked; written last
    images/sha256-HEX.sticky     an operator keeps it
    drafts/sha256-HEX            a pull under way, gone after a restart of the agent; sha256-HEX.DIGITS a layer of an OCI image

All of it is synchronous file work. A file without its record is no image: a pull that was killed leaves nothing that is taken for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from lattice.errors import Rejected, Retry
from lattice.software.claims import SignedClaim
from lattice_agent.standalone import durable

CACHE_FULL: Final = "CacheFull"
FORMAT: Final = 1
"""Of a record; an image with another one is pulled again."""
_RECORD: Final = re.compile(r"sha256-([0-9a-f]{64})\.json", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
PARTS: Final = (".json", ".squashfs", ".config.json", ".signatures.json", ".sticky")
"""Of an image, in the order in which they are removed: without its record nothing of it counts."""
SIGNATURE_SECONDS: Final = 86400.0
"""How long a registry's signatures of an image are believed without it: one that is withdrawn there counts no longer than that."""
MOST_IMAGE_NAMES: Final = 8
MOST_METADATA: Final = 64
"""Documents that are kept of one image: each repository that has it may attach its own, and each may change."""


class ImageRecord(msgspec.Struct, frozen=True):
    """Holds what is known of a cached image: `layer` and `size` are those of its squashfs file.

    `boot` is that in which its bytes were last hashed; `manifest` empty: it is a uenv, else the manifest of the OCI image that was packed.
    `registry` is where it came from, as people know it, and `names` are those by which it was asked for, the first 8.
    """

    layer: str
    size: int
    repository: str = ""
    boot: str = ""
    format: int = FORMAT
    manifest: str = ""
    registry: str = ""
    names: tuple[str, ...] = ()


class KeptSignatures(msgspec.Struct, frozen=True):
    """Holds what a registry had signed of an image at `read`, seconds since the epoch."""

    read: float
    claims: list[SignedClaim]


@dataclass(frozen=True, slots=True)
class CachedImage:
    """One image of the cache; `used` is its last use, seconds since the epoch."""

    digest: str
    record: ImageRecord
    used: float
    sticky: bool = False


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Says how much the cache may hold: percent of its file system, the watermarks in percent of that, and bytes that stay free."""

    percent: int = 80
    high: int = 90
    low: int = 70
    free: int = 50 * 10**9

    def __post_init__(self) -> None:
        """Raises Rejected (SettingWrong) for limits that contradict each other."""
        if not 0 < self.percent <= 100 or not 0 < self.low <= self.high <= 100 or self.free < 0:
            said = f"--cache-percent {self.percent}, --cache-high {self.high}, --cache-low {self.low}, --cache-free {self.free}"
            raise Rejected(f"{said}: percentages are 1 to 100, low not above high", reason="SettingWrong")


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes of the cache's file system: all of it, and what is free."""

    total: int
    free: int


def to_evict(
    images: Sequence[CachedImage], need: int, room: Room, limits: CacheLimits, in_use: Collection[str]
) -> list[CachedImage] | None:
    """Returns the images that go so that `need` more bytes fit, the least recently used first, of equally old ones the larger.

    Where the high watermark would be exceeded, they go down to the low one if they can. Images in use, by digest, and sticky ones stay.
    Empty: there is room already. None: even without all that may go the bytes do not fit.
    """
    capacity = room.total * limits.percent // 100
    used, free = sum(image.record.size for image in images), room.free
    crowded = used + need > capacity * limits.high // 100
    goal = capacity * limits.low // 100 if crowded else capacity
    going: list[CachedImage] = []
    free_ones = [image for image in images if not image.sticky and image.digest not in in_use]
    for image in sorted(free_ones, key=lambda image: (int(image.used), -image.record.size, image.digest)):
        if used + need <= goal and free - need >= limits.free:
            break
        going.append(image)
        used, free = used - image.record.size, free + image.record.size
    return going if used + need <= capacity and free - need >= limits.free else None


class ImageCache:
    """Reads and changes the files of the cache."""

    def __init__(self, directory: Path, limits: CacheLimits) -> None:
        self.directory, self.limits = directory, limits
        self.images, self.drafts = directory / "images", directory / "drafts"

    def open(self) -> None:
        """Makes the directories, and removes drafts and parts of images that an agent or a puller left which was killed."""
        for made in (self.directory, self.images, self.drafts):
            made.mkdir(parents=True, exist_ok=True)
            made.chmod(0o700)
        for draft in self.drafts.iterdir():
            draft.unlink()
        whole = {file_stem(image.digest) for image in self.listed()}
        for path in self.images.iterdir():
            if path.name.partition(".")[0] not in whole and not path.name.endswith(".sticky"):
                path.unlink()

    def squashfs_file(self, digest: str) -> Path:
        """Returns the squashfs file of an image, whether it stands there or not; raises Rejected for what is no digest."""
        return self.images / f"{file_stem(digest)}.squashfs"

    def draft(self, digest: str, layer: str = "") -> Path:
        """Returns the path of the file into which an image, or a `layer` of it, is pulled, whether it stands there or not.

        Raises Rejected for what is no digest.
        """
        return self.drafts / (f"{file_stem(digest)}.{file_stem(layer).removeprefix('sha256-')}" if layer else file_stem(digest))

    def image_config(self, digest: str) -> bytes | None:
        """Returns the configuration of an OCI image, as its registry has it; None: the image is not in the cache."""
        try:
            return (self.images / f"{file_stem(digest)}.config.json").read_bytes()
        except FileNotFoundError:
            return None

    def signatures(self, digest: str, now: float) -> list[SignedClaim] | None:
        """Returns what was kept of an image's signatures within the last day; None: nothing, or it is older, or damaged."""
        try:
            kept = msgspec.json.decode((self.images / f"{file_stem(digest)}.signatures.json").read_bytes(), type=KeptSignatures)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return kept.claims if 0 <= now - kept.read < SIGNATURE_SECONDS else None

    def keep_signatures(self, digest: str, claims: list[SignedClaim], now: float) -> None:
        """Keeps what a registry has signed of an image."""
        document = msgspec.json.encode(KeptSignatures(now, claims))
        durable.write_durably(str(self.images), f"{file_stem(digest)}.signatures.json", document)

    def keep_config(self, digest: str, document: bytes) -> None:
        """Keeps the configuration of an OCI image."""
        durable.write_durably(str(self.images), f"{file_stem(digest)}.config.json", document)

    def metadata(self, digest: str, metadata: str) -> bytes | None:
        """Returns the bytes of the `env.json` in the archive of this digest (`metadata`), for an image; None: they are not here."""
        try:
            return self._metadata_file(digest, metadata).read_bytes()
        except FileNotFoundError:
            return None

    def keep_metadata(self, digest: str, metadata: str, document: bytes) -> None:
        """Keeps an `env.json` for an image by the digest of the archive that it was in; of too many the oldest goes."""
        durable.write_durably(str(self.images), self._metadata_file(digest, metadata).name, document)
        kept = sorted(self.images.glob(f"{file_stem(digest)}.*.env.json"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-MOST_METADATA]:
            path.unlink(missing_ok=True)

    def has_metadata(self, digest: str, metadata: str) -> bool:
        """Tells whether the `env.json` of this digest is here for an image, and makes it the youngest."""
        try:
            os.utime(self._metadata_file(digest, metadata))
        except FileNotFoundError:
            return False
        return True

    def _metadata_file(self, digest: str, metadata: str) -> Path:
        """Returns the path of an image's `env.json` by the digest of its archive, whether it exists or not; raises Rejected for what is no
        digest.
        """
        return self.images / f"{file_stem(digest)}.{file_stem(metadata).removeprefix('sha256-')}.env.json"

    def find(self, digest: str) -> CachedImage | None:
        """Returns an image that is complete in the cache by its record and its size; None: it is absent or incomplete."""
        stem = self.images / file_stem(digest)
        try:
            record = msgspec.json.decode(stem.with_suffix(".json").read_bytes(), type=ImageRecord)
            status = stem.with_suffix(".squashfs").stat()
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        if status.st_size != record.size or record.format != FORMAT:
            return None
        return CachedImage(digest, record, status.st_mtime, stem.with_suffix(".sticky").exists())

    def listed(self) -> list[CachedImage]:
        """Returns all images that are complete in the cache, sorted by digest."""
        return list(self._found())

    def _found(self) -> Iterator[CachedImage]:
        """Yields the images that are complete in the cache, by digest."""
        for path in sorted(self.images.iterdir()):
            name = _RECORD.fullmatch(path.name)
            image = self.find(f"sha256:{name[1]}") if name else None
            if image is not None:
                yield image

    def touch(self, digest: str, now: float) -> None:
        """Notes that an image was used at `now` (seconds since the epoch); raises FileNotFoundError where it is not in the cache."""
        os.utime(self.squashfs_file(digest), (now, now))

    def checked(self, image: CachedImage, boot: str) -> None:
        """Notes durably, in an image's record, that its bytes were hashed in this boot."""
        record = msgspec.structs.replace(image.record, boot=boot)
        durable.write_durably(str(self.images), f"{file_stem(image.digest)}.json", msgspec.json.encode(record))

    def add_name(self, digest: str, name: str) -> None:
        """Notes durably a name by which an image of the cache is asked for; the ninth and later ones are left out."""
        image = self.find(digest)
        if image is not None and name not in image.record.names and len(image.record.names) < MOST_IMAGE_NAMES:
            record = msgspec.structs.replace(image.record, names=(*image.record.names, name))
            durable.write_durably(str(self.images), f"{file_stem(digest)}.json", msgspec.json.encode(record))

    def room(self) -> Room:
        """Returns the size and the free bytes of the cache's file system."""
        found = os.statvfs(self.directory)
        return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def make_room(self, need: int, in_use: Collection[str]) -> list[CachedImage]:
        """Removes the least recently used images until `need` bytes fit, but none `in_use` (digests) and none that is sticky; returns them.

        Empty: there was room. Raises Retry (CacheFull), and removes none, where the bytes do not fit whatever goes.
        """
        room, images = self.room(), self.listed()
        going = to_evict(images, need, room, self.limits, in_use)
        if going is None:
            held, kept = sum(image.record.size for image in images), sum(image.sticky or image.digest in in_use for image in images)
            said = f"{held} bytes in {len(images)} images, {kept} of them in use or sticky, {room.free} of {room.total} bytes free"
            raise Retry(f"the image cache {self.directory} has no room for {need} bytes: {said}", reason=CACHE_FULL)
        for image in going:
            self.delete_image(image.digest)
        return going

    def drop_drafts(self, but: Collection[str]) -> dict[str, int]:
        """Removes every draft but those of the pulls of these digests; returns, by digest, the bytes that stand in each of the latter."""
        kept = {file_stem(digest): digest for digest in but}
        sizes: dict[str, int] = {}
        for path in self.drafts.iterdir():
            digest = kept.get(path.name.partition(".")[0])
            if digest is not None:
                sizes[digest] = sizes.get(digest, 0) + path.stat().st_size
            else:
                path.unlink()
        return sizes

    def delete_image(self, digest: str) -> None:
        """Removes an image with all files beside it; may be repeated."""
        for suffix in PARTS:
            with suppress(FileNotFoundError):
                (self.images / f"{file_stem(digest)}{suffix}").unlink()
        for path in self.images.glob(f"{file_stem(digest)}.*env.json"):
            path.unlink(missing_ok=True)

    def set_sticky(self, digest: str, *, sticky: bool) -> None:
        """Marks an image as never evicted for room (`sticky`), or removes that mark."""
        path = self.images / f"{file_stem(digest)}.sticky"
        if sticky:
            path.touch()
        else:
            path.unlink(missing_ok=True)


def file_stem(digest: str) -> str:
    """Returns the name of an image's files without their endings, `sha256-HEX`; raises Rejected (DigestInvalid) for what is no digest."""
    if not _DIGEST.fullmatch(digest):
        raise Rejected(f"{digest!r} is no digest of an image", reason="DigestInvalid")
    return digest.replace(":", "-")
