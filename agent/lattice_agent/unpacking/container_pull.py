"""Pulls an OCI image into the node's cache: the manifest of the node's architecture, its configuration, its layers, packed as one file."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from lattice.clients.registry import LARGEST_DOCUMENT, Registry
from lattice.errors import Rejected
from lattice.software.container_documents import (
    ARCHITECTURES,
    DOCUMENT_TYPES,
    BlobReference,
    ContainerConfig,
    ContainerIndex,
    ContainerManifest,
    read_config,
    read_image,
)  # fmt: skip
from lattice_agent.blob_pull import READ_BYTES, BlobPull, Patience
from lattice_agent.pull_messages import PullRequest
from lattice_agent.standalone import durable
from lattice_agent.state.image_cache import CACHE_FULL, ImageCache, ImageRecord, file_stem
from lattice_agent.unpacking.layer_stream import refused
from lattice_agent.unpacking.packing import PackedLayer, merge_layers, pack

LEAST_FILE: Final = 1 << 20
"""Bytes that must be free for the packed file before it is begun."""


class ContainerPull:
    """One pull of an OCI image; `tell` hears how many bytes of its layers stand, `patience` of the registry's failures."""

    def __init__(
        self, request: PullRequest, registry: Registry, cache: ImageCache, tell: Callable[[int], None], patience: Patience
    ) -> None:
        self._request, self._registry, self._cache, self._report, self._patience = request, registry, cache, tell, patience
        self._before = 0
        """Bytes of the layers that are whole."""

    async def run(self) -> None:
        """Pulls and packs the image, and writes last the record that makes it count.

        Raises Rejected (ImageRefused) for an image that no node could run, (PrologueFailed) for one that is not made for this node's
        architecture, (CacheFull); the error of the registry that ended the pull.
        """
        digest, manifest = await self._manifest()
        if manifest.size > self._request.size:
            raise refused(f"its layers have {manifest.size} bytes, where the allocation says {self._request.size}")
        document = await self._patience.patiently(
            self._registry.blob, self._request.repository, manifest.config.digest, most=LARGEST_DOCUMENT
        )
        config = read_config(document)
        _check_config(config, manifest)
        paths = await self._pull_layers(manifest.layers)
        layers = [PackedLayer(paths[layer.digest], diff_id) for layer, diff_id in zip(manifest.layers, config.diff_ids, strict=True)]
        await asyncio.to_thread(self._pack, layers, digest, document)

    async def _manifest(self) -> tuple[str, ContainerManifest]:
        """Returns the manifest of this node's architecture and its digest; an index is read first."""
        asked, digest = self._request, self._request.digest
        for _ in range(2):
            _, document = await self._patience.patiently(self._registry.manifest_document, asked.repository, digest, DOCUMENT_TYPES)
            found = read_image(document)
            if isinstance(found, ContainerManifest):
                return digest, found
            digest = _manifest_for(found).digest
        raise refused("its index names an index")

    async def _pull_layers(self, layers: list[BlobReference]) -> dict[str, Path]:
        """Pulls every layer once and returns their files by digest."""
        blobs = BlobPull(self._registry, self._request.repository, lambda length: self._report(self._before + length), self._patience)
        paths: dict[str, Path] = {}
        for layer in {layer.digest: layer for layer in layers}.values():
            path = self._cache.draft(self._request.digest, layer.digest)
            (await blobs.whole_file(path, layer.digest, layer.size)).close_at_size()
            paths[layer.digest] = path
            self._before += layer.size
        return paths

    def _pack(self, layers: list[PackedLayer], manifest: str, config: bytes) -> None:
        """Packs the layers, and moves the file into the cache: with its configuration first, and its record last."""
        asked, draft = self._request, self._cache.draft(self._request.digest)
        pack(merge_layers(layers, asked.most_bytes), layers, draft, self._room())
        digest, size = _hashed(draft)
        target = self._cache.squashfs_file(asked.digest)
        draft.rename(target)
        durable.sync_directory(str(target.parent))
        for path in {layer.path for layer in layers}:
            path.unlink()
        self._cache.keep_config(asked.digest, config)
        record = ImageRecord(
            digest, size, asked.repository, asked.boot, manifest=manifest, registry=asked.place, names=(asked.name,)
        )  # fmt: skip
        durable.write_durably(str(self._cache.images), f"{file_stem(asked.digest)}.json", msgspec.json.encode(record))

    def _room(self) -> int:
        """Returns the bytes that the packed file may take; raises Rejected (CacheFull) where there are none."""
        free = self._cache.room().free - self._request.free
        if free < LEAST_FILE:
            raise Rejected(f"the cache {self._request.cache} has no room to pack {self._request.digest}", reason=CACHE_FULL)
        return free


def _manifest_for(index: ContainerIndex) -> BlobReference:
    """Returns the manifest for this node; raises Rejected (PrologueFailed): another node may have the architecture."""
    try:
        return index.manifest_for(os.uname().machine)
    except Rejected as error:
        raise Rejected(error.message, reason="PrologueFailed") from error


def _check_config(config: ContainerConfig, manifest: ContainerManifest) -> None:
    """Raises Rejected where the configuration has other layers than the manifest, or another architecture than this node."""
    if len(config.diff_ids) != len(manifest.layers):
        raise refused(f"its configuration has {len(config.diff_ids)} layers, its manifest {len(manifest.layers)}")
    machine = os.uname().machine
    if config.architecture != ARCHITECTURES.get(machine, machine):
        raise Rejected(f"the image is made for {config.architecture[:40]!r}, and this node is {machine}", reason="PrologueFailed")


def _hashed(path: Path) -> tuple[str, int]:
    """Returns digest and size of a file."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            found.update(chunk)
            size += len(chunk)
    return f"sha256:{found.hexdigest()}", size
