"""Answers of the gateway about software environments, as `lattice uenv` prints them."""

from __future__ import annotations

import msgspec

from lattice.views.allocation import SoftwareImage


class UenvRow(msgspec.Struct, rename="camel", frozen=True):
    """One image of a registry as answers show it: its complete label, its digest, the size of its squashfs file in bytes, and its build
    time.
    """

    namespace: str
    name: str
    version: str
    tag: str
    system: str
    uarch: str
    digest: str
    size: int
    created: str = ""
    """RFC 3339, as the image's annotation says; empty: it says nothing."""


class UenvRows(msgspec.Struct, rename="camel", frozen=True):
    """The images that a question found, in order of their labels; `left_out`: how many more there are beyond the limit of one answer."""

    rows: list[UenvRow]
    left_out: int = 0


class ViewRow(msgspec.Struct, rename="camel", frozen=True):
    """One view of an image as answers show it: its name, its description, and its changes of variables in order (`set PATH a:b`)."""

    name: str
    description: str
    changes: list[str]


class UenvDetails(msgspec.Struct, rename="camel", frozen=True):
    """One image with its mount point and its views; an image without attached metadata has an empty `mount` and no known views."""

    row: UenvRow
    attached: bool
    """Whether metadata is attached to the image."""
    description: str = ""
    mount: str = ""
    views: list[ViewRow] = []


class CacheOrder(msgspec.Struct, rename="camel", frozen=True):
    """An operator's order about image caches: `action` is status, warm or evict; `nodes` a node set, or all nodes of `group`."""

    action: str
    nodes: str = ""
    group: str = ""
    image: str = ""
    sticky: bool = False


class CacheRow(msgspec.Struct, rename="camel", frozen=True):
    """An image of a node's cache; `used` is its last use, seconds since the epoch."""

    digest: str
    size: int
    repository: str
    used: float
    sticky: bool = False
    in_use: bool = False
    kind: str = ""
    """Oci: an OCI image; empty: a uenv."""
    registry: str = ""
    """Where it came from; empty: an older agent brought it."""
    names: list[str] = []
    """Labels and names by which it was asked for, at most 8."""


class CacheRecord(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """One line of the gateway's answer about a node's cache; of a warming, more than one, the last of a node `done` or with a `reason`."""

    node: str
    done: bool = False
    reason: str = ""
    message: str = ""
    image: str = ""
    pulled: int = 0
    size: int = 0
    images: list[CacheRow] = []
    total: int = 0
    free: int = 0


class PlannedImages(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """Holds the registries' answer about the images of planned work: the entries that its status would have, or a reason why not."""

    images: tuple[SoftwareImage, ...] = ()
    reason: str = ""
    message: str = ""
