"""An API server in memory, for tests: the same verbs and errors as the real one, and faults on demand.

It has compare-and-set, watches with bookmarks and initial events, 410 after `compact`, finalizers, generation, the `/status` split and
selectors, and passes the contract suite of the real server. It has no CEL, admission, schemas or field ownership: those are tested end to
end.
"""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import itertools
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.errors import AlreadyExists, Corrupt, Expired, LatticeError, NotFound, Rejected, Retry, Stale, UnknownOutcome
from lattice.kube import patches, selectors
from lattice.kube.clock import Clock
from lattice.kube.cluster import OBJECT, EventKind, Listing, PatchKind, T, WatchEvent
from lattice.kube.resources import CERTIFICATE_REQUESTS, Resource

Plain = dict[str, Any]
_SERVER_FIELDS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "namespace", "name")


@dataclass(frozen=True, slots=True)
class Sent:
    """One request that arrived."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    subresource: str = ""


@dataclass(slots=True)
class Fault:
    """A fault that the next matching requests meet; an empty field matches any request."""

    error: LatticeError
    verb: str = ""
    plural: str = ""
    name: str = ""
    times: int = 1
    after: bool = False
    """True: the request is carried out, and only its answer is lost."""

    def matches(self, verb: str, resource: Resource, name: str) -> bool:
        """Tells whether the request meets this fault: the fault has times left, and each of its verb, plural and name is empty or the
        request's.
        """
        return self.times > 0 and self.verb in ("", verb) and self.plural in ("", resource.plural) and self.name in ("", name)


@dataclass(frozen=True, slots=True)
class _Record:
    """One entry of the history: an object before (None: it is new) and after (None: it is gone)."""

    version: int
    resource: Resource
    old: Plain | None
    new: Plain | None


@dataclass(eq=False, slots=True)
class _Watcher:
    """One open watch, with the records that it has not sent yet."""

    resource: Resource
    matches: Callable[[Plain], bool]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    pending: list[_Record | int] = field(default_factory=list)  # an int is a bookmark
    ended: bool = False
    error: LatticeError | None = None


class FakeCluster:
    """Implements `Cluster` in memory; objects that it stores or returns never share memory with the caller's."""

    def __init__(self, clock: Clock, *, seed: int = 0) -> None:
        self.sent: list[Sent] = []
        """Every request, in order."""
        self.written: list[Sent] = []
        """The requests that changed something, in the order in which they did."""
        self.serves_initial_events = True
        self.silent = False
        """New and open watches tell nothing, as after a restore."""
        self._clock = clock
        self._seed = seed
        self._serial = itertools.count(1)
        self._version = 1
        self._compacted = 0
        self._objects: dict[Resource, dict[tuple[str, str], Plain]] = {}
        self._history: list[_Record] = []
        self._watchers: list[_Watcher] = []
        self._faults: list[Fault] = []

    # Faults and levers of tests

    def fail(
        self, error: LatticeError, *, verb: str = "", resource: Resource | None = None, name: str = "", times: int = 1, after: bool = False
    ) -> Fault:
        """Makes the next matching requests fail with `error`, `times` of them; `after`: once they are carried out.

        Empty fields match any request; of several matching faults the oldest is met. Returns the fault, which `times = 0` ends.
        """
        fault = Fault(error, verb, resource.plural if resource else "", name, times, after)
        self._faults.append(fault)
        return fault

    def lose_answer(self, verb: str, resource: Resource | None = None, name: str = "") -> Fault:
        """Makes the next matching request be carried out, and its answer be lost."""
        return self.fail(UnknownOutcome("no answer came", reason="NoAnswer"), verb=verb, resource=resource, name=name, after=True)

    def heal(self) -> None:
        """Ends every fault."""
        self._faults.clear()

    def end_watches(self, error: LatticeError | None = None) -> None:
        """Ends every open watch at once: cleanly, or with an error; what it has not yielded yet is lost."""
        for watcher in self._watchers:
            watcher.ended, watcher.error = True, error
            watcher.wake.set()

    def compact(self) -> None:
        """Drops the history: a new watch from an older version gets Expired; open watches go on."""
        self._compacted = self._version
        self._history.clear()

    def bookmark(self) -> None:
        """Sends a bookmark to every open watch."""
        for watcher in self._watchers:
            watcher.pending.append(self._version)
            watcher.wake.set()

    def restore(self, resource: Resource, objects: Mapping[str, Plain]) -> None:
        """Replaces all objects of a resource by a `snapshot`, with their old versions, as a restore of etcd with `--bump-revision` does;
        other resources stay.

        Open watches of all resources end with Retry, and a watch from any version of before gets Expired.
        """
        self._objects[resource] = {
            (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): copy.deepcopy(obj) for obj in objects.values()
        }
        self._version += 1_000_000
        self.compact()
        self.end_watches(Retry("connection refused", reason="Unreachable"))

    @property
    def watches(self) -> int:
        """Returns how many watches are open."""
        return len(self._watchers)

    @property
    def version(self) -> str:
        """Returns the newest resourceVersion."""
        return str(self._version)

    def writes(self, *resources: Resource) -> Sequence[Sent]:
        """Returns the requests that changed something, of these resources (none given: of all)."""
        return [sent for sent in self.written if not resources or sent.resource in resources]

    def snapshot(self, resource: Resource) -> dict[str, Plain]:
        """Returns every object of a resource by key, without counting as a request."""
        stored = self._objects.get(resource, {})
        return {f"{ns}/{name}" if ns else name: copy.deepcopy(obj) for (ns, name), obj in sorted(stored.items())}

    # The verbs

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        type: type[T] = OBJECT,
        metadata_only: bool = False,
        cached: bool = False,
    ) -> T:
        """Returns a stored object, decoded as `type`; raises NotFound where there is none. `cached` answers are never behind."""
        del cached
        fault = await self._begin("get", resource, namespace, name)
        found = self._find(resource, namespace, name)
        _finish(fault)
        return _decoded({"metadata": found["metadata"]} if metadata_only else found, type)

    async def list(
        self, resource: Resource, namespace: str = "", *, type: type[T] = OBJECT, labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """Returns all objects that match, ordered by namespace and name."""
        fault = await self._begin("list", resource, namespace, "")
        matches = _scoped(namespace, labels, fields)
        items = [_decoded(obj, type) for _, obj in sorted(self._objects.get(resource, {}).items()) if matches(obj)]
        _finish(fault)
        return Listing(items, str(self._version))

    async def create(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str = "",
        *,
        type: type[T] = OBJECT,
        dry_run: bool = False,
        strict: bool = False,
    ) -> T:
        """Stores a new object, with name, uid and version as the server gives them, and returns it; the status of a custom kind is dropped.

        Raises AlreadyExists when its name is taken, Rejected where it has none or another namespace than the request; `dry_run`: stores
        nothing. There is no schema for `strict` to keep to.
        """
        del strict
        new: Plain = _plain({"apiVersion": resource.api_version, "kind": resource.kind, **obj})
        metadata = new.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{self._suffix()}"
        name = str(metadata.get("name", ""))
        fault = await self._begin("create", resource, namespace, name)
        if not name:
            raise Rejected(f"create {resource.name}: name or generateName is required", reason="Invalid", fields=("metadata.name",))
        _check_namespace(resource, namespace, metadata)
        if resource.namespaced:
            metadata["namespace"] = namespace
        if (namespace, name) in self._objects.get(resource, {}):
            raise AlreadyExists(f'{resource.name} "{name}" already exists', reason="AlreadyExists")
        self._fill_in(resource, new)
        if not dry_run:
            self._store(resource, namespace, name, new, "create")
        _finish(fault)
        return _decoded(new, type)

    async def replace(
        self,
        resource: Resource,
        name: str,
        obj: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        type: type[T] = OBJECT,
        metadata_only: bool = False,
    ) -> T:
        """Replaces a stored object without its status, or with `status` as subresource its status alone, and returns it; an equal one is
        not written.

        Raises NotFound where there is none, Stale for an old version, Rejected for none at a kind of an API group, or another uid.
        """
        fault = await self._begin("replace", resource, namespace, name, subresource)
        old = self._find(resource, namespace, name)
        new: Plain = _plain({"apiVersion": resource.api_version, "kind": resource.kind, **obj})
        result = self._change(resource, old, new, subresource, "replace")
        _finish(fault)
        return _decoded({"metadata": result["metadata"]} if metadata_only else result, type)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str = "",
        *,
        subresource: str = "",
        type: type[T] = OBJECT,
        kind: PatchKind = PatchKind.MERGE,
        manager: str = "",
        force: bool = False,
    ) -> T:
        """Changes a part of a stored object and returns it: a mapping is merged, a sequence is a JSON patch; the status only as
        subresource. Raises NotFound where there is none, Stale for an old version.

        APPLY merges, and creates what is missing, without field ownership.
        """
        if kind is PatchKind.APPLY and isinstance(patch, Mapping) and not self._exists(resource, namespace, name):
            metadata = {**patch.get("metadata", {}), "name": name}
            return await self.create(resource, {**patch, "metadata": metadata}, namespace, type=type)
        fault = await self._begin("patch", resource, namespace, name, subresource)
        old = self._find(resource, namespace, name)
        new = patches.merge(old, _plain(patch)) if isinstance(patch, Mapping) else patches.apply(old, patch)
        result = self._change(resource, old, new, subresource, "patch")
        _finish(fault)
        return _decoded(result, type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> None:
        """Deletes an object, or marks it as being deleted while it has finalizers; raises NotFound where there is none.

        Raises Stale where it has another `uid` or `resource_version` than the given one.
        """
        fault = await self._begin("delete", resource, namespace, name)
        old = self._find(resource, namespace, name)
        metadata = old["metadata"]
        for wanted, key in ((uid, "uid"), (resource_version, "resourceVersion")):
            if wanted and metadata[key] != wanted:
                raise Stale(f"delete {resource.name} {name}: {key} is {metadata[key]}, not {wanted}", reason="Conflict")
        if not metadata.get("finalizers"):
            self._remove(resource, old, "delete")
        elif "deletionTimestamp" not in metadata:
            new = copy.deepcopy(old)
            new["metadata"] |= {"deletionTimestamp": self._stamp(), "deletionGracePeriodSeconds": 0}
            if "generation" in metadata:
                new["metadata"]["generation"] += 1
            self._store(resource, namespace, name, new, "delete")
        _finish(fault)

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        type: type[T] = OBJECT,
        resource_version: str = "",
        labels: str = "",
        fields: str = "",
        initial_events: bool = False,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yields the existing objects for `initial_events` or without a version, then changes until `end_watches`, which may give an error
        to raise; nothing while `silent`.

        Raises Expired where the version is forgotten, Rejected where initial events are not served.
        """
        await self._begin("watch", resource, namespace, "")
        watcher = _Watcher(resource, _scoped(namespace, labels, fields))
        begins = self._first_objects(watcher, resource_version, initial_events)
        self._watchers.append(watcher)
        try:
            for obj in begins:
                yield WatchEvent(EventKind.ADDED, _decoded(obj, type), obj["metadata"]["resourceVersion"])
            if initial_events:
                yield WatchEvent(EventKind.BOOKMARK, None, str(self._version), initial_end=True)
            while not watcher.ended:
                if self.silent or not watcher.pending:
                    watcher.wake.clear()
                    await watcher.wake.wait()
                    continue
                record = watcher.pending.pop(0)
                if isinstance(record, int):
                    yield WatchEvent(EventKind.BOOKMARK, None, str(record))
                elif event := _event(record, watcher.matches):
                    kind, obj = event
                    yield WatchEvent(kind, _decoded(obj, type), str(record.version))
            if watcher.error is not None:
                raise watcher.error
        finally:
            self._watchers.remove(watcher)

    # The store

    async def _begin(self, verb: str, resource: Resource, namespace: str, name: str, subresource: str = "") -> Fault | None:
        """Notes the request, lets other tasks run, and meets the first fault that matches, which counts down: raises one due before it,
        returns one due after it.

        None: there is none.
        """
        self.sent.append(Sent(verb, resource, namespace, name, subresource))
        await asyncio.sleep(0)
        for fault in self._faults:
            if fault.matches(verb, resource, name):
                fault.times -= 1
                if fault.after:
                    return fault
                raise fault.error
        return None

    def _first_objects(self, watcher: _Watcher, version: str, initial_events: bool) -> tuple[Plain, ...]:
        """Returns the existing objects for initial events or an empty version; else queues the history since its version, and returns none.

        Raises Expired for a version that is forgotten, Rejected where initial events are not served.
        """
        if initial_events and not self.serves_initial_events:
            raise Rejected("sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled", reason="Invalid")
        if initial_events or version in ("", "0"):
            stored = sorted(self._objects.get(watcher.resource, {}).items())
            return tuple(obj for _, obj in stored if watcher.matches(obj))
        since = int(version)
        if since < self._compacted:
            raise Expired(f"too old resource version: {version} ({self._compacted})", reason="Expired")
        watcher.pending.extend(record for record in self._history if record.version > since and record.resource == watcher.resource)
        return ()

    def _exists(self, resource: Resource, namespace: str, name: str) -> bool:
        """Tells whether an object of this kind, namespace and name exists."""
        return (namespace, name) in self._objects.get(resource, {})

    def _find(self, resource: Resource, namespace: str, name: str) -> Plain:
        """Returns an object itself, not a copy. Raises NotFound where there is none."""
        try:
            return self._objects[resource][namespace, name]
        except KeyError:
            raise NotFound(f'{resource.name} "{name}" not found', reason="NotFound") from None

    def _fill_in(self, resource: Resource, new: Plain) -> None:
        """Sets the metadata that the server gives a new object: uid, creation time and, for custom kinds, generation 1; removes the status
        of a custom kind with a status subresource.
        """
        metadata = new["metadata"]
        for key in ("resourceVersion", "deletionTimestamp", "generation"):
            metadata.pop(key, None)
        metadata["uid"] = str(uuid.UUID(int=(self._seed << 64) + next(self._serial), version=4))
        metadata["creationTimestamp"] = self._stamp()
        if _counts_generations(resource):
            metadata["generation"] = 1
        if resource.status and _is_custom(resource):
            new.pop("status", None)

    def _change(self, resource: Resource, old: Plain, new: Plain, subresource: str, verb: str) -> Plain:
        """Stores a changed object, as the server does: spec and status apart, with its generation counted; an equal one is not written, a
        deleted one without finalizers is removed.

        Raises Stale, Rejected or NotFound for a wrong version, a wrong uid, or an unknown subresource.
        """
        if (resource, subresource) == (CERTIFICATE_REQUESTS, "approval"):
            subresource = "status"  # of the status it takes the conditions alone
            new = {**new, "status": {**old.get("status", {}), "conditions": new.get("status", {}).get("conditions", [])}}
        if subresource and not (subresource == "status" and resource.status):
            raise NotFound(f"{resource.name} has no subresource {subresource} here", reason="NotFound")
        before, after = old["metadata"], new.setdefault("metadata", {})
        asked = after.get("resourceVersion")
        if asked and asked != before["resourceVersion"]:
            text = f'{resource.name} "{before["name"]}": the object has been modified; please apply your changes to the latest version'
            raise Stale(text, reason="Conflict")
        if verb == "replace" and not asked and resource.group:
            text = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise Rejected(f"{resource.name} {before['name']}: {text}", reason="Invalid", fields=("metadata.resourceVersion",))
        if after.get("uid") and after["uid"] != before["uid"]:
            text = f'metadata.uid: Invalid value: "{after["uid"]}": field is immutable'
            raise Rejected(f"{resource.name} {before['name']}: {text}", reason="Invalid", fields=("metadata.uid",))
        result = _split(resource, old, new, subresource)
        metadata = result["metadata"]
        for key in (*_SERVER_FIELDS, "deletionGracePeriodSeconds"):
            metadata.pop(key, None)
            if key in before:
                metadata[key] = before[key]
        metadata["resourceVersion"] = before["resourceVersion"]
        if result == old:
            return old
        if _counts_generations(resource) and subresource != "status" and _desired(resource, result) != _desired(resource, old):
            metadata["generation"] = before["generation"] + 1
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._remove(resource, old, verb, last=result)
            return result
        self._store(resource, before.get("namespace", ""), before["name"], result, verb)
        return result

    def _store(self, resource: Resource, namespace: str, name: str, new: Plain, verb: str) -> None:
        """Stores an object under the next resource version, and records the change for watches and for `written`, as made by this verb."""
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        old = self._objects.setdefault(resource, {}).get((namespace, name))
        self._objects[resource][namespace, name] = new
        self._record(_Record(self._version, resource, old, new), verb)

    def _remove(self, resource: Resource, old: Plain, verb: str, last: Plain | None = None) -> None:
        """Deletes an object and records that under the next resource version, with `last`, or else the object itself, as its last state."""
        metadata = old["metadata"]
        del self._objects[resource][metadata.get("namespace", ""), metadata["name"]]
        self._version += 1
        gone = copy.deepcopy(last or old)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._record(_Record(self._version, resource, gone, None), verb)

    def _record(self, record: _Record, verb: str) -> None:
        """Adds a change to the history, to `written` as made by this verb, and to the watches of its kind, which are woken."""
        obj = record.new or record.old or {}
        metadata = obj["metadata"]
        self.written.append(Sent(verb, record.resource, metadata.get("namespace", ""), metadata["name"]))
        self._history.append(record)
        for watcher in self._watchers:
            if watcher.resource == record.resource:
                watcher.pending.append(record)
                watcher.wake.set()

    def _stamp(self) -> str:
        """Returns the clock's time as the server writes it, in whole seconds."""
        return dt.datetime.fromtimestamp(self._clock.now(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _suffix(self) -> str:
        """Returns five hexadecimal digits that differ at each call, for generated names."""
        return f"{next(self._serial):05x}"


def _finish(fault: Fault | None) -> None:
    """Raises a fault that is due after the request was carried out."""
    if fault is not None:
        raise fault.error


def _plain(obj: Mapping[str, Any]) -> Plain:
    """Returns a copy as the server would have it after JSON."""
    copied: Plain = msgspec.json.decode(msgspec.json.encode(obj))
    return copied


def _decoded(obj: Plain, type: type[T]) -> T:
    """Returns a plain object as a new instance of a type. Raises Corrupt where it does not decode."""
    try:
        result: T = msgspec.json.decode(msgspec.json.encode(obj), type=type)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the answer does not decode: {error}", reason="AnswerUndecodable") from error
    return result


def _scoped(namespace: str, labels: str, fields: str) -> Callable[[Plain], bool]:
    """Returns the test whether an object is in a namespace (empty: any) and matches both selectors.

    Raises Rejected where one does not parse.
    """
    selected = selectors.parse(labels, fields)
    return lambda obj: (not namespace or obj["metadata"].get("namespace") == namespace) and selected(obj)


def _event(record: _Record, matches: Callable[[Plain], bool]) -> tuple[EventKind, Plain] | None:
    """Returns the event for a watch with a selector: an object that begins to match is ADDED, one that no longer does is DELETED.

    None: it matched neither before nor after.
    """
    was = record.old is not None and matches(record.old)
    if record.new is not None and matches(record.new):
        return (EventKind.MODIFIED if was else EventKind.ADDED), record.new
    return (EventKind.DELETED, record.new or record.old or {}) if was else None


def _check_namespace(resource: Resource, namespace: str, metadata: Plain) -> None:
    """Raises Rejected where a new object of a namespaced kind has no namespace, or names another one than the request."""
    given = metadata.get("namespace", "")
    if resource.namespaced and not namespace:
        raise Rejected(f"{resource.name}: an empty namespace may not be set during creation", reason="BadRequest")
    if given and given != namespace:
        text = f"the namespace of the provided object does not match the namespace sent on the request: {given!r}, {namespace!r}"
        raise Rejected(text, reason="BadRequest", fields=("metadata.namespace",))


def _is_custom(resource: Resource) -> bool:
    """Tells whether a kind is a custom resource, by its API group."""
    return "." in resource.group and not resource.group.endswith(".k8s.io")


def _counts_generations(resource: Resource) -> bool:
    """Tells whether a kind counts generations, which only custom resources do here."""
    return _is_custom(resource)


def _desired(resource: Resource, obj: Plain) -> Plain:
    """Returns the part of an object whose change raises the generation: all but its metadata, and its status where the kind has a status
    subresource.
    """
    apart = ("metadata", "status") if resource.status else ("metadata",)
    return {key: value for key, value in obj.items() if key not in apart}


def _split(resource: Resource, old: Plain, new: Plain, subresource: str) -> Plain:
    """Returns the object to store: for `/status` the old one with the new status, else the new one with the old status; a kind without a
    status subresource is taken whole.
    """
    result = copy.deepcopy(new)
    if subresource == "status":
        result = copy.deepcopy(old)
        result["metadata"] |= {key: value for key, value in new["metadata"].items() if key == "resourceVersion"}
        result.pop("status", None)
        if "status" in new:
            result["status"] = copy.deepcopy(new["status"])
    elif resource.status:
        result.pop("status", None)
        if "status" in old:
            result["status"] = copy.deepcopy(old["status"])
    return result
