"""Every error Lattice raises, split by what the caller does about it.

LatticeError
├── Rejected            change the request
│   └── AlreadyExists   the name is taken; success only if what stands there is ours
├── NotFound            it is not there
├── Denied              ask for the right
├── Stale               read again, decide again
│   └── Expired         the watch or list position is gone; list again
├── UnknownOutcome      look before repeating
├── Retry               nothing happened; the same call may go through later
│   └── TooMany         ask less at a time
└── Corrupt             stop, touch nothing
"""

from __future__ import annotations


class LatticeError(Exception):
    """The root; `reason` is a CamelCase word from a documented list, the text a sentence for people."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).__name__

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.reason))


class Rejected(LatticeError):
    """The request is wrong; repeating it is useless. `fields` names what is wrong, where that is known."""

    def __init__(self, message: str, *, reason: str = "", fields: tuple[str, ...] = ()) -> None:
        super().__init__(message, reason=reason)
        self.fields = fields


class AlreadyExists(Rejected):
    """An object of that name stands there already."""


class NotFound(LatticeError):
    """The thing that was named is not there."""


class Denied(LatticeError):
    """The caller may not do this (not authenticated, or not allowed)."""


class Stale(LatticeError):
    """The decision was made from an older state: read again, decide again."""


class Expired(Stale):
    """The position that was named is gone (HTTP 410): list again."""


class UnknownOutcome(LatticeError):
    """The request may or may not have been carried out: look before repeating."""


class Retry(LatticeError):
    """Nothing happened; the same call may go through after `after_seconds`."""

    def __init__(self, message: str, *, reason: str = "", after_seconds: float | None = None) -> None:
        super().__init__(message, reason=reason)
        self.after_seconds = after_seconds


class TooMany(Retry):
    """The caller asks more than it may at a time (HTTP 429); the same call goes through after `after_seconds`."""


class Corrupt(LatticeError):
    """The stored data cannot be ours: stop, touch nothing."""


def _rebuild(kind: type[LatticeError], message: str, reason: str) -> LatticeError:
    """Returns an error of this kind, message and reason; used to unpickle one."""
    return kind(message, reason=reason)
