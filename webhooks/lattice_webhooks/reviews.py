"""AdmissionReview (admission.k8s.io/v1): what the API server asks, and how it is answered."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lattice.admission import Accepted, Refused, Request, Requester, Verdict
from lattice.admission.chain import Operation
from lattice.admission.patches import difference
from lattice.admission.quotas import KOORDINATORS, PROFILE
from lattice.errors import Rejected

API_VERSION = "admission.k8s.io/v1"
FORBIDDEN_REASONS = frozenset({"UserMismatch", "WalltimeExtension", "QuotaNotAllowed"})
"""Refusals that a right would lift; they are answered with 403, all others with 422."""


class _GroupKind(msgspec.Struct):
    group: str = ""
    kind: str = ""


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    operation: str
    kind: _GroupKind = msgspec.field(default_factory=_GroupKind)
    sub_resource: str = ""
    namespace: str = ""
    user_info: _UserInfo = msgspec.field(default_factory=_UserInfo)
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    request: _Request


@dataclass(frozen=True)
class Identity:
    """Who asks, with all that an authoriser may look at."""

    user: str
    uid: str
    groups: tuple[str, ...]
    extra: dict[str, list[str]]

    @property
    def requester(self) -> Requester:
        """The part that admission looks at."""
        return Requester(self.user, frozenset(self.groups))


@dataclass(frozen=True)
class Review:
    """One review: its uid, what is asked (None: nothing that is judged here), and who asks."""

    uid: str
    request: Request | None
    identity: Identity


_KINDS: Final[dict[tuple[str, str], str]] = {
    ("scheduling.sigs.k8s.io", "ElasticQuota"): KOORDINATORS,
    ("quota.koordinator.sh", "ElasticQuotaProfile"): PROFILE,
}
"""Koordinator's kinds by the names that admission has for them."""
_AS_PEOPLE_WRITE: Final = {name: kind for (_, kind), name in _KINDS.items()}
_decoder = msgspec.json.Decoder(_Review)
_OPERATIONS: dict[str, Operation] = {"CREATE": "CREATE", "UPDATE": "UPDATE", "DELETE": "DELETE"}


def read_review(body: bytes) -> Review:
    """The review of an HTTP body; Rejected when it is none."""
    try:
        review = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"this is no AdmissionReview: {error}", reason="ReviewMalformed") from error
    if review.api_version != API_VERSION:
        raise Rejected(f"AdmissionReview {review.api_version!r} is not served: {API_VERSION} is", reason="ReviewVersion")
    asked, user = review.request, review.request.user_info
    identity = Identity(user.username, user.uid, user.groups, user.extra)
    operation = _OPERATIONS.get(asked.operation)
    kind = asked.kind.kind if asked.kind.group == "lattice.dev" else _KINDS.get((asked.kind.group, asked.kind.kind), "")
    if operation is None or asked.sub_resource or not kind:
        return Review(asked.uid, None, identity)
    return Review(asked.uid, Request(kind, operation, asked.object or {}, asked.old_object or {}, asked.namespace), identity)


def allowed(review: Review) -> bytes:
    """The answer to what is not judged here."""
    return _encoded({"uid": review.uid, "allowed": True})


def filled(review: Review, accepted: Accepted) -> bytes:
    """The mutating answer: the difference as a JSON patch, if there is one."""
    answer: dict[str, Any] = {"uid": review.uid, "allowed": True}
    patch = difference(review.request.obj, accepted.obj) if review.request is not None else []
    if patch:
        answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    return _encoded(answer)


def judged(review: Review, verdict: Verdict) -> bytes:
    """The validating answer: yes with warnings, or no with the sentence, and reason and field among the causes."""
    match verdict:
        case Accepted(_, warnings):
            answer: dict[str, Any] = {"uid": review.uid, "allowed": True}
            if warnings:
                answer["warnings"] = list(warnings)
            return _encoded(answer)
        case Refused():
            return _encoded({"uid": review.uid, "allowed": False, "status": _status(verdict, _named(review.request))})


def _named(request: Request | None) -> str:
    """The object as a refusal names it, so that one of many in a file is found: `Allocation "job": `."""
    if request is None:
        return ""
    metadata = (request.obj or request.old).get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName")
    return f'{_AS_PEOPLE_WRITE.get(request.kind, request.kind)} "{name}": ' if name else ""


def _status(refused: Refused, named: str) -> dict[str, Any]:
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
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
