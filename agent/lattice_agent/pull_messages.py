"""Defines the messages between the agent and a puller, lines of JSON: one request, then answers, of which the last one counts."""

from __future__ import annotations

import msgspec

from lattice.views.cluster import TrustedKey


class PullRequest(msgspec.Struct, frozen=True):
    """Names an image by its digests; `registry` empty: the bytes that stand in the cache are hashed, and nothing is pulled.

    `metadata`: the digest of the archive with its metadata, empty: none is pulled; `layer` empty: nothing else is. `container`: it is an
    OCI image, whose layers may unpack to `most_bytes`, while `free` bytes of the cache's file system stay free. `name` and `place`
    are noted with it: how it was asked for, and its registry as people know it. `source` not empty: nothing
    is pulled, and the image, which its work calls so, must be signed by one of the `keys`.
    """

    cache: str
    digest: str
    layer: str = ""
    size: int = 0
    metadata: str = ""
    repository: str = ""
    registry: str = ""
    auth: str = ""
    boot: str = ""
    container: bool = False
    most_bytes: int = 0
    free: int = 0
    name: str = ""
    place: str = ""
    source: str = ""
    keys: tuple[TrustedKey, ...] = ()


class PullAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts the bytes that stand in the draft; the last one says `done`, or why not."""

    bytes: int = 0
    done: bool = False
    reason: str = ""
    message: str = ""
    waits: str = ""
    """What the registry failed of last, while it is waited for."""
