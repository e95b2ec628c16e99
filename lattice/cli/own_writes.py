"""Remembers the versions of this person's last writes, so that no answer from a cache is older: one empty file a write.

A file's name holds kind, resourceVersion and time. The newest counts, so that runs side by side never lose it, and no lock is needed. Where
no file can be kept, answers come from the API server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lattice.errors import LatticeError, UnknownOutcome
from lattice.kube.objects import version_of
from lattice.units import is_digits

if TYPE_CHECKING:
    from lattice.cli.cluster import Blocking
    from lattice.kube.cluster import Listing, WatchEvent
    from lattice.kube.resources import Resource

T = TypeVar("T")
Versions = list[str]
"""Receives the resourceVersion of a write, once it is known; empty until then."""
KEPT_SECONDS: Final = 600.0
"""Time after which every live cache has a write, so that its file no longer counts.

A longer wait would be in vain for a cluster that was restored since.
"""
VERSION_DIGITS: Final = 20
"""Most digits of a resourceVersion."""
NOTED: Final = frozenset({"allocations", "latticenodes", "vclusters"})
"""The kinds whose lists are answered from caches."""
_UNDER_WAY: Final = "x"
"""Replaces the version in the name of a write that is under way or whose answer was lost; the process id follows."""


class OwnWrites:
    """The versions of one person's last writes to one cluster, by kind, in files of `directory`, which is made when needed."""

    def __init__(self, directory: Path, now: Callable[[], float]) -> None:
        self._directory = directory
        self._now = now

    @contextmanager
    def noting(self, kind: str) -> Generator[Versions, None, None]:
        """Notes a write of a kind before it is sent; the block puts its version into the yielded list, which then replaces the note.

        The note of a refused write is dropped. That of a write whose answer was lost, or whose process has ended, stays: it may
        have happened. Files that cannot be written are passed over.
        """
        under_way = f"{kind}.{_UNDER_WAY}{os.getpid()}.{int(self._now())}"
        self._keep(under_way)
        versions: Versions = []
        try:
            yield versions
        except LatticeError as error:
            if not isinstance(error, UnknownOutcome):
                self._drop(under_way)
            raise
        if versions and self._keep(f"{kind}.{versions[-1]}.{int(self._now())}"):
            self._drop(under_way)
            self._drop_superseded(kind)

    def newest(self, kind: str) -> str | None:
        """Returns the resourceVersion that an answer for this kind must not be older than (empty: none, there was no write in the last 10
        minutes).

        None: some write's version is unknown, or no files can be kept, so that only the API server is sure to show it.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self._directory, os.W_OK | os.X_OK):
                return None
            kept = self._kept(kind)
        except OSError:
            return None
        if not all(is_digits(version, VERSION_DIGITS) for version, _ in kept):
            return None
        return str(max(int(version) for version, _ in kept)) if kept else ""

    def _keep(self, name: str) -> bool:
        """Makes an empty file of this name in the folder of the person's writes, and the folder; returns False where it cannot.

        An existing file is left as it is.
        """
        with suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._directory / name, os.O_CREAT | os.O_WRONLY, 0o600))
            return True
        return False

    def _drop(self, name: str) -> None:
        """Deletes one note; an error is ignored."""
        with suppress(OSError):
            (self._directory / name).unlink()

    def _kept(self, kind: str) -> list[tuple[str, str]]:
        """Returns version and file name of each write of this kind that still counts (10 minutes), those of unknown version too.

        Raises OSError where the folder cannot be read.
        """
        found = []
        for name in os.listdir(self._directory):  # noqa: PTH208 - the names alone are wanted, quickly
            parts = name.split(".")
            if len(parts) == 3 and parts[0] == kind and is_digits(parts[2]) and self._now() - int(parts[2]) < KEPT_SECONDS:
                found.append((parts[1], name))
        return found

    def _drop_superseded(self, kind: str) -> None:
        """Deletes the files of writes of this kind whose version is lower than the highest, or that no longer count; a write of unknown
        version (under way, answer lost) keeps its file.

        Errors are ignored.
        """
        with suppress(OSError):
            kept = self._kept(kind)
            newest = max((int(version) for version, _ in kept if is_digits(version, VERSION_DIGITS)), default=0)
            stay = {name for version, name in kept if not is_digits(version, VERSION_DIGITS) or int(version) >= newest}
            for name in os.listdir(self._directory):  # noqa: PTH208 - the names alone are wanted, quickly
                if name.startswith(f"{kind}.") and name not in stay:
                    self._drop(name)


class NotingCluster:
    """A connection to the API server that notes in `OwnWrites` the version of each object of `NOTED` kinds that is written over it.

    `Console.cluster` wraps every connection in it, so that the gateway can be asked for answers no older than that.
    """

    def __init__(self, cluster: Blocking, writes: OwnWrites) -> None:
        self._cluster = cluster
        self._writes = writes

    def get(self, resource: Resource, name: str, namespace: str = "", *, type: type[T]) -> T:  # noqa: A002 - as the verbs name it
        """Returns one object of this kind and name, decoded as `type`; raises NotFound where there is none."""
        return self._cluster.get(resource, name, namespace, type=type)

    def list(
        self, resource: Resource, namespace: str = "", *, type: type[T], labels: str = "", fields: str = ""  # noqa: A002
    ) -> Listing[T]:  # fmt: skip
        """Returns all objects of a namespace (empty: of all) that match the selectors, decoded as `type`, with the list's version."""
        return self._cluster.list(resource, namespace, type=type, labels=labels, fields=fields)

    def ask_list(self, resource: Resource, namespace: str = "", *, fields: str = "") -> None:
        """Sends the request of the next `list` with these arguments ahead, so that the server works on it meanwhile."""
        self._cluster.ask_list(resource, namespace, fields=fields)

    def create(
        self, resource: Resource, obj: Mapping[str, Any], namespace: str = "", *, type: type[T], dry_run: bool = False  # noqa: A002
    ) -> T:  # fmt: skip
        """Creates an object and returns it as stored; notes its version where its kind is one of `NOTED`, not with `dry_run`."""
        with self._noting(resource, dry_run=dry_run) as versions:
            made = self._cluster.create(resource, obj, namespace, type=type, dry_run=dry_run)
            versions.append(version_of(made) if resource.plural in NOTED else "")
        return made

    def patch(
        self, resource: Resource, name: str, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]], namespace: str = "", *,
        type: type[T], **options: Any,  # noqa: A002
    ) -> T:  # fmt: skip
        """Changes a part of an object and returns it as stored; notes its version where its kind is one of `NOTED`."""
        with self._noting(resource) as versions:
            made = self._cluster.patch(resource, name, patch, namespace, type=type, **options)
            versions.append(version_of(made) if resource.plural in NOTED else "")
        return made

    def delete(self, resource: Resource, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Asks for the deletion of an object; notes a write of unknown version where its kind is one of `NOTED`.

        With `uid` it deletes exactly that one, else raises Stale.
        """
        with self._noting(resource):
            self._cluster.delete(resource, name, namespace, uid=uid)

    def watch(self, resource: Resource, namespace: str = "", *, type: type[T], **options: Any) -> Generator[WatchEvent[T], None, None]:  # noqa: A002
        """Yields changes of the objects that match until the server ends the stream."""
        return self._cluster.watch(resource, namespace, type=type, **options)

    def version(self) -> dict[str, str]:
        """Returns the server's version as it tells it, such as `gitVersion`."""
        return self._cluster.version()

    @contextmanager
    def _noting(self, resource: Resource, *, dry_run: bool = False) -> Generator[Versions, None, None]:
        """Yields a list for the versions of the writes within, which are noted at its end; for kinds that are not noted and for trials,
        nothing is.
        """
        if dry_run or resource.plural not in NOTED:
            yield []
            return
        with self._writes.noting(resource.plural) as versions:
            yield versions
