"""Reads the key and the version of any object, plain or a view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

UNMANAGED: Final[Mapping[str, Any]] = {"managedFields": [{}]}
"""Metadata of a write of an object (not of its status) after which the API server no longer keeps who has set which of its fields: keeping
that costs each write, and matters only to server-side apply, which begins anew where nothing is kept."""


def key_of(obj: Any) -> str:
    """Returns `namespace/name`, or `name` for a cluster object."""
    if isinstance(obj, dict):
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", "")
        return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
    key: str = obj.metadata.key
    return key


def version_of(obj: Any) -> str:
    """Returns `metadata.resourceVersion`; empty where there is none."""
    if isinstance(obj, dict):
        return str(obj["metadata"].get("resourceVersion", ""))
    version: str = obj.metadata.resource_version
    return version
