"""Decodes the server's answers: objects and lists into types, watch lines into events, statuses into errors."""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from lattice.errors import AlreadyExists, Corrupt, Denied, Expired, LatticeError, NotFound, Rejected, Retry, Stale, UnknownOutcome
from lattice.kube.cluster import EventKind, Listing, WatchEvent
from lattice.kube.requests import Request
from lattice.units import is_digits

T = TypeVar("T")

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_NOT_READY = ("not yet synced to use for admission", "failed to find resource referenced by paramKind")
"""Parts of messages of a server that has just started, and knows its policies before the kinds of their parameters."""


class _Cause(msgspec.Struct, gc=False):
    field: str | None = None
    message: str | None = None


class _Details(msgspec.Struct, rename="camel", gc=False):
    causes: list[_Cause] | None = None
    retry_after_seconds: int = 0


class _Status(msgspec.Struct, gc=False):
    message: str | None = None
    reason: str | None = None
    code: int = 0
    details: _Details | None = None


class _ListMeta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _List(msgspec.Struct, gc=False):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Envelope(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _Head(msgspec.Struct, gc=False):
    metadata: _ListMeta


_status_decoder = msgspec.json.Decoder(_Status)
_list_decoder = msgspec.json.Decoder(_List)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_head_decoder = msgspec.json.Decoder(_Head)


@functools.lru_cache(maxsize=256)
def _decoder(type: Hashable) -> msgspec.json.Decoder[Any]:
    """Returns the decoder of a type, one for each type, the 256 used last."""
    return msgspec.json.Decoder(type)


def _decoder_of(type: Any) -> msgspec.json.Decoder[Any]:
    """Returns the decoder of a type that the type checker does not know to be hashable."""
    return _decoder(type)


def decode(request: Request, body: bytes, type: type[T]) -> T:
    """Returns the object of an answer, decoded into `type`; raises Corrupt where it is not of that type."""
    try:
        result: T = _decoder_of(type).decode(body)
    except msgspec.MsgspecError as error:
        _undecodable(request.what, error)
    return result


def decode_list(request: Request, body: bytes, type: type[T]) -> Listing[T]:
    """Returns the objects of a list, decoded, with its version; raises Corrupt naming the place of an item that is not of `type`."""
    one = _decoder_of(type).decode
    items: list[T] = []
    try:
        listing = _list_decoder.decode(body)
        items.extend(map(one, listing.items or ()))
    except msgspec.MsgspecError as error:
        _undecodable(f"{request.what}, item {len(items)}", error)
    return Listing(items, listing.metadata.resource_version)


def decode_event(request: Request, line: bytes, type: type[T]) -> WatchEvent[T]:
    """Returns the event of one line of a watch, a bookmark without an object; raises the error of an ERROR event, and Corrupt for a line
    that does not decode.
    """
    try:
        envelope = _envelope_decoder.decode(line)
        if envelope.type == "ERROR":
            raise error_of(request, Failure.from_answer(0, bytes(envelope.object)))
        metadata = _head_decoder.decode(envelope.object).metadata
        if envelope.type == "BOOKMARK":
            ends = (metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"
            return WatchEvent(EventKind.BOOKMARK, None, metadata.resource_version, ends)
        obj: T = _decoder_of(type).decode(envelope.object)
        return WatchEvent(EventKind(envelope.type), obj, metadata.resource_version)
    except (msgspec.MsgspecError, ValueError) as error:
        _undecodable(request.what, error)


class Lines:
    """Cuts a stream of bytes into lines; a line may be as long as an object."""

    def __init__(self) -> None:
        self._open: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yields the lines that the chunk completes, empty ones left out; the rest is kept for the next one. Must be read to its end."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._open.append(chunk[start:end])
            line = b"".join(self._open) if len(self._open) > 1 else self._open[0]
            self._open = []
            start = end + 1
            if line:
                yield line
        if start < len(chunk):
            self._open.append(chunk[start:])


@dataclass(frozen=True, slots=True)
class Failure:
    """The parts of an answer that is no success; `after_seconds` as in Retry-After, None: absent."""

    code: int
    message: str
    reason: str = ""
    fields: tuple[str, ...] = ()
    after_seconds: float | None = None

    @classmethod
    def from_answer(cls, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> Failure:
        """Returns the failure that status code (0: the one in the body), body (a Status, or any text) and headers of an answer tell."""
        after = _seconds((headers or {}).get("Retry-After"))
        try:
            status = _status_decoder.decode(body)
        except msgspec.MsgspecError:
            return cls(code, body[:500].decode("utf-8", "replace").strip() or f"HTTP {code}", after_seconds=after)
        details = status.details or _Details()
        fields = tuple(dict.fromkeys(cause.field for cause in details.causes or () if cause.field))
        if after is None and details.retry_after_seconds:
            after = float(details.retry_after_seconds)
        return cls(code or status.code, status.message or f"HTTP {code}", status.reason or "", fields, after)


def warning_of(header: str) -> str:
    """Returns the sentence of a `Warning` header (`299 - "text"`), without quotes and escapes."""
    _, quote, text = header.partition('"')
    return re.sub(r"\\(.)", r"\1", text.rpartition('"')[0]) if quote else header


def error_of(request: Request, failure: Failure) -> LatticeError:
    """Returns the error for an answer that is no success, by what the caller can do about it: for a 5xx Retry if the request is `safe`,
    else UnknownOutcome; Retry also where the server says that nothing happened (429, Retry-After, storage full, policies not ready).
    """
    code, reason = failure.code, failure.reason or f"Http{failure.code}"
    text = f"{request.what}: {failure.message}"
    if any(said in failure.message for said in _NOT_READY):
        return Retry(text, reason="PolicyNotReady")  # a server that has just started refuses what it cannot judge yet
    if code == 404:
        return NotFound(text, reason=reason)
    if code == 409:
        return AlreadyExists(text, reason=reason) if reason == "AlreadyExists" else Stale(text, reason=reason)
    if code == 410:
        return Expired(text, reason=reason)
    if code in (401, 403):
        return Denied(text, reason=reason)
    if code == 429 or (code == 503 and failure.after_seconds is not None):
        return Retry(text, reason=reason, after_seconds=failure.after_seconds)
    if "database space exceeded" in failure.message:
        return Retry(text, reason="StorageFull")  # etcd refuses every write, so this one did not happen either
    if code >= 500:
        return Retry(text, reason=reason, after_seconds=failure.after_seconds) if request.safe else UnknownOutcome(text, reason=reason)
    return Rejected(text, reason=reason, fields=failure.fields)


def not_sent(request: Request, cause: BaseException | str) -> LatticeError:
    """Returns the error (Retry) for a request of which no connection was made, so that nothing can have happened."""
    return Retry(f"{request.what}: no connection to the API server: {cause}", reason="NoConnection")


def no_answer(request: Request, cause: BaseException | str) -> LatticeError:
    """Returns the error for a request without an answer after bytes may have gone out: Retry for a read, else UnknownOutcome."""
    if request.safe:
        return Retry(f"{request.what}: no answer: {cause}", reason="NoAnswer")
    return UnknownOutcome(f"{request.what}: sent, and no answer came: {cause}", reason="NoAnswer")


def _seconds(text: str | None) -> float | None:
    """Returns a header's whole number of seconds; None where it is absent or no such number."""
    return float(text) if text and is_digits(text) else None


def _undecodable(what: str, error: Exception) -> NoReturn:
    """Raises Corrupt, which says that an answer (`what`: to what) does not decode, and why."""
    raise Corrupt(f"{what}: the answer does not decode: {error}", reason="AnswerUndecodable") from error
