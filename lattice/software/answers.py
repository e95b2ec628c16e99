"""Answers of the gateway about software environments, as `lattice uenv` prints them."""

from __future__ import annotations

import msgspec


class UenvRow(msgspec.Struct, rename="camel", frozen=True):
    """An image of a registry: a label without anything left out, its digest, the bytes of its squashfs file, when it was built."""

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
    """Images by label; `left_out` are those beyond the limit of one answer."""

    rows: list[UenvRow]
    left_out: int = 0


class ViewRow(msgspec.Struct, rename="camel", frozen=True):
    """A view: what it is for, and what it does to variables, in order (`set PATH a:b`, `unset X`)."""

    name: str
    description: str
    changes: list[str]


class UenvDetails(msgspec.Struct, rename="camel", frozen=True):
    """One image; without attached metadata `mount` is empty, and `views` are unknown until it is mounted."""

    row: UenvRow
    attached: bool
    """Whether metadata is attached to the image."""
    description: str = ""
    mount: str = ""
    views: list[ViewRow] = []
