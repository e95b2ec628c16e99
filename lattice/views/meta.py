"""The metadata that every cached object has, as far as reconcilers need it."""

from __future__ import annotations

import msgspec


class View(msgspec.Struct, gc=False, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The base of every view: camelCase in JSON, unknown fields skipped, immutable."""


class Owner(View, frozen=True):
    """One owner reference."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(View, frozen=True):
    """The fields of `metadata` that daemons read; times are RFC 3339 texts."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[Owner, ...] = ()

    @property
    def key(self) -> str:
        """Returns `namespace/name`, or `name` for a cluster object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Written(View, frozen=True):
    """The API server's answer to a write of which only the metadata was asked for."""

    metadata: Metadata
