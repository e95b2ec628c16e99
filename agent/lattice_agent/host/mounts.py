"""Mounts the software of an attempt before its tasks begin, in a process of its own (`standalone/hold.py`), which it ends after them.

The process is found by its cgroup in the attempt's scope, and its mounts by nothing else: an agent that is started again may stand in
another mount namespace.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from lattice.daemon.clock import Clock
from lattice.errors import Rejected, Retry, UnknownOutcome
from lattice.software.chosen_views import MountedSoftware, PlacedImage, choose_views, names_of
from lattice.software.image_metadata import ImageMetadata, read_metadata
from lattice.software.references import UenvReference, ViewName, parse_references, parse_views
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.host.scopes import Scopes
from lattice_agent.host.threads import Threads
from lattice_agent.standalone.mount_targets import MADE
from lattice_agent.state.image_cache import ImageCache
from lattice_agent.work import environment
from lattice_agent.work.environment import Account

ANSWER_SECONDS = 60.0
TRIES = 20
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.005
LONGEST_NOTE = 300
IMAGE_REFUSED, VIEW_UNKNOWN = "ImageRefused", "ViewUnknown"
USER_TOOLS = MADE[1]


@dataclass(frozen=True)
class _AskedImage:
    """An image before it is mounted: its file on the node, the mount point that is given (empty: none), and the one that it has else.

    `attached` is the metadata that came from the registry beside the file; None: there is none, and what the image itself says counts.
    """

    reference: UenvReference
    file: str
    mount: str
    fallback: str = ""
    attached: bytes | None = None

    def asked(self, *, inspect: bool) -> dict[str, Any]:
        """Returns the image as an entry of the request to mount it; `inspect`: asks for the metadata in the image too."""
        own = self.reference.label is None
        return {
            "source": self.reference.text, "path": self.file, "own": own, "mount": self.mount, "fallback": self.fallback,
            "inspect": self.attached is None and (inspect or not self.mount),
        }  # fmt: skip


class Mounts:
    """Makes and removes the mount namespaces of the attempts of one node."""

    def __init__(self, scopes: Scopes, runner: RunnerClient, kernel: Threads, clock: Clock, cache: ImageCache | None = None) -> None:
        """Takes images of the site's registry from `cache`; None: this node keeps none."""
        self._scopes, self._runner, self._kernel, self._clock, self._cache = scopes, runner, kernel, clock, cache

    async def mount(self, work: NodeWork, account: Account, workdir: str) -> tuple[MountedSoftware, str]:
        """Mounts the images that the work asks for; returns them with the chosen views, and a note for its user (empty: none).

        What an earlier call has made is made anew. Raises Rejected: ImageNotFound, ImageRefused, MountInvalid or ViewUnknown for what
        would fail on every node, PrologueFailed for what this node cannot do.
        """
        try:
            sources = await self._kernel.call(_sources, work, account, workdir, self._cache)
            wanted = parse_views(work.view)
        except Rejected as error:
            raise _refused(work, error.message, _REASONS.get(error.reason, error.reason)) from error
        inspect = bool(wanted) or work.default_views
        answer = await self._ask(work, account, [source.asked(inspect=inspect) for source in sources])
        if "mounts" not in answer:
            raise _refused(work, str(answer["failure"]), str(answer.get("reason") or "PrologueFailed"))
        documents = [_document(source, entry["metadata"]) for source, entry in zip(sources, answer["mounts"], strict=True)]
        metadata, notes = await asyncio.to_thread(_described, documents, sources)  # a user wrote them: they may be large
        names = names_of([source.reference for source in sources], metadata)
        images = tuple(
            PlacedImage(source.file, entry["mount"], known, described)
            for source, entry, known, described in zip(sources, answer["mounts"], names, metadata, strict=True)
        )
        try:
            software, flaw = await asyncio.to_thread(_with_views, images, wanted, defaults=work.default_views)
        except Rejected as error:
            raise _refused(work, error.message, error.reason) from error
        if flaw:
            raise _refused(work, f"a view of its images cannot be set: {flaw}", IMAGE_REFUSED)
        return software, "; ".join(notes)

    async def _ask(self, work: NodeWork, account: Account, images: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Has a fresh process mount the images and returns its answer; starts another where it or the runner is killed, 20 at most.

        The answer holds `mounts`, or `failure` (a sentence) with a `reason` where the work is at fault. Raises Rejected where this node has
        no right to mount.
        """
        if os.geteuid() != 0 or not self._scopes.complete:
            raise _refused(work, "it cannot mount software: its agent is not root, or may not make cgroups", "PrologueFailed")
        request: dict[str, Any] = {
            "op": "hold", "user": account.uid, "group": account.gid, "groups": list(account.groups), "images": list(images),
        }  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for _ in range(TRIES):
                    await self.unmount(work.key)
                    request["procs"] = await self._kernel.call(self._scopes.make_hold, work.key)
                    with suppress(UnknownOutcome):
                        answer = await self._runner.request(request)
                        if "lost" not in answer:
                            return answer
                    await self._clock.sleep(LOOK_SECONDS)
                return {"failure": f"the process that mounts its software was killed {TRIES} times"}
        except TimeoutError:
            return {"failure": f"its images are not mounted after {ANSWER_SECONDS:.0f} s: a file system does not answer"}

    async def unmount(self, key: Key) -> None:
        """Ends the process that keeps an attempt's mounts, if there is one; the mounts go with the last process that sees them.

        Raises Retry where the process survives KILL for 10 s.
        """
        until = self._clock.monotonic() + KILL_SECONDS
        while not await self._kernel.call(self._scopes.remove_hold, key):
            if self._clock.monotonic() > until:
                raise Retry("the process that keeps the software of the work has survived KILL", reason="EpilogueFailed")
            await self._clock.sleep(LOOK_SECONDS)


_REASONS: Mapping[str, str] = {"ViewInvalid": VIEW_UNKNOWN, "LabelInvalid": IMAGE_REFUSED, "TooManyImages": IMAGE_REFUSED}
"""Words of what does not read, which admission refuses, as ends of attempts."""


def _refused(work: NodeWork, why: str, reason: str) -> Rejected:
    """Returns the error for work whose software is refused, with the node's name before the sentence."""
    return Rejected(f"node {work.node}: {why}", reason=reason)


def _sources(work: NodeWork, account: Account, workdir: str, cache: ImageCache | None) -> list[_AskedImage]:
    """Returns the images that the work names, its tools last; reads the cache and mounts nothing. Raises Rejected for one not to be had."""
    return [
        _own_file(work, reference, account, workdir, fallback) if reference.label is None else _cached(work, reference, cache, fallback)
        for text, fallback in ((work.uenv, ""), (work.tools_uenv, USER_TOOLS))
        for reference in parse_references(text)
    ]


def _own_file(work: NodeWork, reference: UenvReference, account: Account, workdir: str, fallback: str) -> _AskedImage:
    """Returns the image in a file of the user's own, which is not opened; raises Rejected (ImageRefused) where the site takes none."""
    if work.require_signature:
        said = f"{reference.text} is a file of the user's own, and this work runs images alone that the site's keys have signed"
        raise Rejected(f"{said} (require.signature, software.requireSignature); name a signed image", reason=IMAGE_REFUSED)
    if not work.user_files:
        said = f"{reference.text} is a file, and this site mounts images of its registry alone (software.userFiles)"
        raise Rejected(said, reason=IMAGE_REFUSED)
    return _AskedImage(reference, _file_of(reference.text, account, workdir), reference.mount, fallback)


def _cached(work: NodeWork, reference: UenvReference, cache: ImageCache | None, fallback: str) -> _AskedImage:
    """Returns an image of the site's registry by its file in the cache, as the operator pinned it.

    Raises Rejected for one that is not pinned, whose metadata is missing, or where the cache cannot be read.
    """
    image = next((image for image in work.software if image.source == reference.text), None)
    if image is None or cache is None:
        raise Rejected(f"{reference.text} is not resolved to an image, or this node keeps none", reason="PrologueFailed")
    try:
        attached = cache.metadata(image.digest, image.metadata) if image.metadata else None
    except OSError as error:
        raise Rejected(f"the image cache cannot be read: {error}", reason="PrologueFailed") from error
    if image.metadata and attached is None:
        raise Rejected(f"{reference.text}: its metadata {image.metadata} is not in the image cache", reason="PrologueFailed")
    file = str(cache.squashfs_file(image.digest))
    return _AskedImage(reference, file, reference.mount or image.mount, fallback, attached)


def _document(source: _AskedImage, inside: str | None) -> bytes | None:
    """Returns an image's metadata: what is attached to it, else `inside`, what stands in it; None: neither."""
    if source.attached is not None:
        return source.attached
    return inside.encode() if inside is not None else None


def _file_of(text: str, account: Account, workdir: str) -> str:
    """Returns the absolute path of a user's file; `~/` is his home on the node, and other paths are seen from the working directory."""
    if text.startswith("~"):
        return str(PurePosixPath(account.home) / text.removeprefix("~").lstrip("/"))
    return str(PurePosixPath(workdir) / text)


def _described(documents: Sequence[bytes | None], sources: Sequence[_AskedImage]) -> tuple[list[ImageMetadata | None], list[str]]:
    """Returns each image's metadata, None for one without, and a note on each image whose metadata cannot be parsed (it has no views)."""
    found: list[ImageMetadata | None] = []
    notes: list[str] = []
    for document, source in zip(documents, sources, strict=True):
        try:
            found.append(read_metadata(document) if document is not None else None)
        except Rejected as error:
            found.append(None)
            note = f"{source.reference.text}: {error.message}"[:LONGEST_NOTE]
            notes.append("".join(letter if letter.isprintable() else "?" for letter in note))  # it quotes what a user wrote
    return found, notes


def _with_views(images: tuple[PlacedImage, ...], wanted: Sequence[ViewName], *, defaults: bool) -> tuple[MountedSoftware, str]:
    """Returns the images with their chosen views, and a clause on a variable that cannot be set (empty: all can). Raises Rejected."""
    software = MountedSoftware(images, choose_views(images, wanted, defaults=defaults))
    return software, environment.flaw(software.applied_to({}) | software.variables)
