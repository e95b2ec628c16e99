"""Answers of the gateway about software environments, as `lattice uenv` prints them."""

from __future__ import annotations

import msgspec


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
