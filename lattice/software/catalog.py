"""An image's place in a registry, `[prefix/]namespace/system/uarch/name/version` and a tag, and which images a label names."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.software.labels import ANY_SYSTEM, UenvLabel

PARTS = 5
"""Of a repository's path, behind the registry's prefix."""


@dataclass(frozen=True)
class SoftwareDefaults:
    """Holds the namespace and the system that the site puts into labels that leave them out; an empty system stands for any."""

    namespace: str = "deploy"
    system: str = ""


@dataclass(frozen=True)
class UenvRepository:
    """One repository of a registry: all tags of one version of one environment, built for one system and one architecture."""

    path: str
    """With the registry's prefix."""
    namespace: str
    system: str
    uarch: str
    name: str
    version: str


def filled_in(label: UenvLabel, defaults: SoftwareDefaults) -> UenvLabel:
    """Returns the label with the site's namespace and system in place of parts that it leaves out; `@*` becomes an empty system (any)."""
    system = "" if label.system == ANY_SYSTEM else label.system or defaults.system
    return UenvLabel(label.namespace or defaults.namespace, label.name, label.version, label.tag, system, label.uarch, label.digest)


def repository_of(label: UenvLabel, prefix: str) -> UenvRepository | None:
    """Returns the one repository that a label names; None: the label leaves out a part of the path, so several may match."""
    parts = (label.namespace, label.system, label.uarch, label.name, label.version)
    if not all(parts):
        return None
    return UenvRepository(_joined(prefix, "/".join(parts)), *parts)


def read_repository(path: str, prefix: str) -> UenvRepository | None:
    """Returns the repository at a path of the registry's catalog; None: the path is not below `prefix` or has another depth."""
    head = _joined(prefix, "")
    parts = path.removeprefix(head).split("/")
    if not path.startswith(head) or len(parts) != PARTS or not all(parts):
        return None
    namespace, system, uarch, name, version = parts
    return UenvRepository(path, namespace, system, uarch, name, version)


def names(label: UenvLabel, repository: UenvRepository) -> bool:
    """Tells whether a repository matches a filled-in label in every part that the label gives."""
    wanted = (label.namespace, label.system, label.uarch, label.name, label.version)
    given = (repository.namespace, repository.system, repository.uarch, repository.name, repository.version)
    return all(not want or want == has for want, has in zip(wanted, given, strict=True))


def _joined(prefix: str, path: str) -> str:
    """Returns a path below a prefix; the path alone for an empty prefix."""
    return f"{prefix}/{path}" if prefix else path
