"""Reads and answers AdmissionReview (admission.k8s.io/v1)."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lattice.admission import Accepted, Refused, Request, Requester, Verdict
from lattice.admission.chain import Operation
from lattice.admission.patches import difference
from lattice.admission.quotas import KOORDINATORS, PROFILE
from lattice.admission.verdicts import Object
from lattice.errors import Rejected

API_VERSION = "admission.k8s.io/v1"
MOST_BYTES: Final = 512 * 1024
"""Most bytes read of an object: of an Allocation its spec (script and variables have 192 KiB at most), of others the whole."""
MOST_BYTES_OF_DAG: Final = 1024 * 1024 + 128 * 1024
"""The same of a DAG, which holds a thousand specs: admission limits its spec to 1 MiB."""
MOST_CREATED: Final = 2 * 1024 * 1024
"""Most bytes of the review of a new object; etcd stores none of more than 1.5 MiB."""
MOST_PARTS: Final = 32_768
"""Most fields, elements and lists of an object: building them takes time in which nobody else is answered."""
MOST_PARTS_OF_DAG: Final = 131_072
"""The same of a DAG; it is judged beside the loop that answers others."""
MOST_PARTS_OF_ALL: Final = MOST_PARTS_OF_DAG
"""The same for a whole review: the object, what `kubectl apply` keeps of it, and the object before."""
HEAD_BYTES: Final = 64 * 1024
"""Bytes kept of a review that is not read; the API server writes operation and requester before the objects."""
JUDGED: Final = "judged"
"""A field that marks a new Allocation as judged, between the mutating webhook and the store. `webhooks.yaml` names it."""
FORBIDDEN_REASONS = frozenset({"UserMismatch", "WalltimeExtension", "QuotaNotAllowed"})
"""Reasons of refusals that a right would lift, answered with 403; all others with 422."""


class _GroupKind(msgspec.Struct):
    group: str = ""
    kind: str = ""


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


_NOTHING: Final = msgspec.Raw(b"null")


class _ReviewRequest(msgspec.Struct, rename="camel"):
    uid: str
    operation: str
    kind: _GroupKind = msgspec.field(default_factory=_GroupKind)
    sub_resource: str = ""
    namespace: str = ""
    user_info: _UserInfo = msgspec.field(default_factory=_UserInfo)
    object: msgspec.Raw = _NOTHING
    old_object: msgspec.Raw = _NOTHING
    dry_run: bool = False


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    request: _ReviewRequest


@dataclass(frozen=True)
class Authenticated:
    """The identity of the requester, with everything that an authoriser may read."""

    user: str
    uid: str
    groups: tuple[str, ...]
    extra: dict[str, list[str]]

    @property
    def requester(self) -> Requester:
        """Returns the part of the identity that admission reads: user and groups."""
        return Requester(self.user, frozenset(self.groups))


@dataclass(frozen=True)
class Review:
    """One review: its uid, the request (None: of a kind that is not judged here), the requester, and whether it is a dry run."""

    uid: str
    request: Request | None
    identity: Authenticated
    too_large: Refused | None = None
    """The refusal of an object that is too large to be read; None: it was read."""
    dry_run: bool = False
    judged: bool = False
    """True where the object carries the mark `JUDGED`: this webhook is asked again because another one has changed the object."""
    managed: bool = False
    """True where a new Allocation says who has set its fields, and nobody has by server-side apply: what it says is taken out."""


_KINDS: Final[dict[tuple[str, str], str]] = {
    ("scheduling.sigs.k8s.io", "ElasticQuota"): KOORDINATORS,
    ("quota.koordinator.sh", "ElasticQuotaProfile"): PROFILE,
}
"""Koordinator's kinds by group and kind, with the names that admission has for them."""
_AS_PEOPLE_WRITE: Final = {name: kind for (_, kind), name in _KINDS.items()}
_decoder = msgspec.json.Decoder(_Review)
_OPERATIONS: dict[str, Operation] = {"CREATE": "CREATE", "UPDATE": "UPDATE", "DELETE": "DELETE"}


def read_review(body: bytes) -> Review:
    """Returns the review in an HTTP body; raises Rejected where it is none.

    Its `request` is None for kinds, operations and subresources that are not judged, and where the body is too large to be parsed (then
    with `too_large`).
    """
    unread = _unread(body)
    if unread is not None:
        return unread
    try:
        review = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"this is no AdmissionReview: {error}", reason="ReviewMalformed") from error
    if review.api_version != API_VERSION:
        raise Rejected(f"AdmissionReview {review.api_version!r} is not served: {API_VERSION} is", reason="ReviewVersion")
    asked, user = review.request, review.request.user_info
    identity = Authenticated(user.username, user.uid, user.groups, user.extra)
    operation = _OPERATIONS.get(asked.operation)
    kind = asked.kind.kind if asked.kind.group == "lattice.dev" else _KINDS.get((asked.kind.group, asked.kind.kind), "")
    if operation is None or asked.sub_resource or not kind:
        return Review(asked.uid, None, identity)
    try:
        obj, old, too_large = _objects(kind, operation, asked)
        new = _read(asked.object) if (kind, operation) == ("Allocation", "CREATE") else _Parts()
        marked, managed = bytes(new.judged) != b"null", _is_managed_needlessly(new)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"this is no object: {error}", reason="ReviewMalformed") from error
    request = Request(kind, operation, obj, old, asked.namespace)
    return Review(asked.uid, request, identity, too_large, asked.dry_run, marked, managed)


def _unread(body: bytes) -> Review | None:
    """Returns a review with its refusal where the body is too large to be parsed; None: it is to be parsed, as every deletion is, and a
    body that does not name its request at its beginning.
    """
    uid, asked = _UID.search(body, 0, HEAD_BYTES), _OPERATION.search(body, 0, HEAD_BYTES)
    if uid is None or asked is None or asked[1] == b"DELETE":
        return None
    refused = None
    if asked[1] == b"CREATE" and len(body) > MOST_CREATED:
        refused = _oversize(f"the object has {len(body)} bytes as JSON", MOST_CREATED)
    elif (parts := _parts_of(body)) > MOST_PARTS_OF_ALL:
        refused = _crowded("the object, with what it was before,", parts, MOST_PARTS_OF_ALL)
    return Review(uid[1].decode(), None, Authenticated("", "", (), {}), refused) if refused is not None else None


def beyond(head: bytes, size: int, most: int) -> bytes | None:
    """Returns the HTTP body that answers a review too large to be read, by its first bytes: a deletion is allowed, all else refused.

    `size` is the review's size, `most` the limit, in bytes. None where `head` does not name the request.
    """
    uid, operation = _UID.search(head), _OPERATION.search(head)
    if uid is None or operation is None:
        return None
    review = Review(uid[1].decode(), None, Authenticated("", "", (), {}))
    if operation[1] == b"DELETE":
        return allowed(review)
    return judged(review, _oversize(f"the object has {size} bytes as JSON, with what it was before", most))


class _Metadata(msgspec.Struct, rename="camel"):
    """The metadata of an Allocation that admission reads."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: msgspec.Raw = _NOTHING
    finalizers: msgspec.Raw = _NOTHING
    managed_fields: msgspec.Raw = _NOTHING


class _Parts(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING
    judged: msgspec.Raw = _NOTHING


class _Manager(msgspec.Struct):
    """One who has set fields of an object; Apply: by server-side apply."""

    operation: str = ""


_parts = msgspec.json.Decoder(_Parts)
_managers = msgspec.json.Decoder(list[_Manager] | None)
_any = msgspec.json.Decoder()
_UID: Final = re.compile(rb'"request":\s*\{\s*"uid":\s*"([0-9A-Za-z-]{1,64})"')
_OPERATION: Final = re.compile(rb'"operation":\s*"([A-Z]+)"')


def _objects(kind: str, operation: Operation, asked: _ReviewRequest) -> tuple[Object, Object, Refused | None]:
    """Returns the object, the object before, and the refusal where one of them is too large to be read (None: neither is).

    Of an Allocation whose spec is not judged, names alone are read.
    """
    if kind != "Allocation":
        limits = (MOST_BYTES_OF_DAG, MOST_PARTS_OF_DAG) if kind == "DAG" else (MOST_BYTES, MOST_PARTS)
        too_large = _too_large(asked.object, "the object", *limits) if operation != "DELETE" else None
        return ({}, {}, too_large) if too_large else (_any.decode(asked.object) or {}, _any.decode(asked.old_object) or {}, None)
    new, old = _read(asked.object), _read(asked.old_object)
    if operation == "DELETE":
        return {}, _named_only(old), None  # nothing else of it is asked
    if operation == "UPDATE" and bytes(new.spec) == bytes(old.spec):
        return _named_only(new), _named_only(old), None  # nothing of it is judged
    for what, raw in (("metadata.labels", new.metadata.labels), ("spec", new.spec), ("status", new.status)):
        too_large = _too_large(raw, what)
        if too_large is not None:
            return _named_only(new), _named_only(old), too_large
    return _built(new), _built(old), None


def _read(raw: msgspec.Raw) -> _Parts:
    """Returns the parts of an object that are read first; empty ones for null."""
    return _Parts() if bytes(raw) == b"null" else _parts.decode(raw)


def _is_managed_needlessly(parts: _Parts) -> bool:
    """Tells whether an object says who has set its fields, and nobody has by server-side apply; only apply would need that."""
    managers = _managers.decode(parts.metadata.managed_fields)
    return bool(managers) and all(one.operation != "Apply" for one in managers)


def _named_only(parts: _Parts) -> Object:
    """Returns an object with name and namespace only, without empty ones."""
    meta = parts.metadata
    named = {"name": meta.name, "generateName": meta.generate_name, "namespace": meta.namespace}
    return {"metadata": {key: value for key, value in named.items() if value}}


def _built(parts: _Parts) -> Object:
    """Returns an Allocation as plain JSON, with the parts that admission reads."""
    obj, meta = _named_only(parts), parts.metadata
    for at, key, raw in (
        (obj["metadata"], "labels", meta.labels), (obj["metadata"], "finalizers", meta.finalizers),
        (obj, "spec", parts.spec), (obj, "status", parts.status),
    ):  # fmt: skip
        value = _any.decode(raw)
        if value is not None:
            at[key] = value
    return obj


def _too_large(raw: msgspec.Raw, what: str, most_bytes: int = MOST_BYTES, most_parts: int = MOST_PARTS) -> Refused | None:
    """Returns the refusal of an object (`what`: which one) of too many bytes or parts; None: it is small enough."""
    text = bytes(raw)
    if len(text) > most_bytes:
        return _oversize(f"{what} has {len(text)} bytes as JSON", most_bytes)
    parts = _parts_of(text)
    return _crowded(what, parts, most_parts) if parts > most_parts else None


def _parts_of(text: bytes) -> int:
    """Returns about how many fields, elements and lists a JSON text has, or more, since such signs in strings count too."""
    return text.count(b'":') + text.count(b",") + text.count(b"[") + text.count(b"{")


def _crowded(what: str, parts: int, most: int) -> Refused:
    """Returns the refusal of an object with too many fields and elements."""
    return Refused(
        "TooLarge", f"{what} has about {parts} fields and elements (limit: {most})", "", "put long lists into files on the nodes"
    )


def _oversize(sentence: str, most: int) -> Refused:
    """Returns the refusal of an object that is too large; `sentence`: how large it is."""
    return Refused("TooLarge", f"{sentence} (limit: {most})", "", "put long scripts and values into files on the nodes")


def allowed(review: Review) -> bytes:
    """Returns the HTTP body that allows a request which is not judged here."""
    return _encoded({"uid": review.uid, "allowed": True})


def filled(review: Review, accepted: Accepted, *, judged: bool = False) -> bytes:
    """Returns the HTTP body of the mutating answer: allowed, with the difference to `accepted` as a JSON patch, if there is one.

    `judged`: it was accepted, too, with these warnings, which the field `JUDGED` beside `spec` says: the API server then does not ask the
    validating webhook, and stores no such field. managedFields that nobody needs until an apply (`review.managed`) are taken out.
    """
    answer: dict[str, Any] = {"uid": review.uid, "allowed": True}
    patch = difference(review.request.obj, accepted.obj) if review.request is not None else []
    if judged:
        patch.append({"op": "add", "path": f"/{JUDGED}", "value": True})
        if accepted.warnings:
            answer["warnings"] = list(accepted.warnings)
    elif review.judged:
        patch.append({"op": "remove", "path": f"/{JUDGED}"})
    if review.managed:
        patch.append({"op": "remove", "path": "/metadata/managedFields"})
    if patch:
        answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    return _encoded(answer)


def judged(review: Review, verdict: Verdict) -> bytes:
    """Returns the HTTP body of the validating answer: allowed with warnings, or refused with the sentence, its reason and field."""
    match verdict:
        case Accepted(_, warnings):
            answer: dict[str, Any] = {"uid": review.uid, "allowed": True}
            if warnings:
                answer["warnings"] = list(warnings)
            return _encoded(answer)
        case Refused():
            return _encoded({"uid": review.uid, "allowed": False, "status": _status(verdict, _named(review.request))})


def _named(request: Request | None) -> str:
    """Returns the prefix of a refusal that names the object, so that one of many in a file is found: `Allocation "job": `; may be empty."""
    if request is None:
        return ""
    metadata = (request.obj or request.old).get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName")
    return f'{_AS_PEOPLE_WRITE.get(request.kind, request.kind)} "{name}": ' if name else ""


def _status(refused: Refused, named: str) -> dict[str, Any]:
    """Returns the status of a refusal, Forbidden or Invalid by its reason; `named`: the object, before the sentence."""
    forbidden = refused.reason in FORBIDDEN_REASONS
    cause = {"reason": refused.reason, "message": refused.message.removeprefix(f"{refused.field}: "), "field": refused.field}
    return {
        "status": "Failure",
        "code": 403 if forbidden else 422,
        "reason": "Forbidden" if forbidden else "Invalid",
        "message": named + refused.message,
        "details": {"group": "lattice.dev", "causes": [cause]},
    }


def _encoded(response: dict[str, Any]) -> bytes:
    """Returns an AdmissionReview with this response as JSON."""
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
