"""The results of admission: accepted with warnings, or refused with a reason, a sentence and a next step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from lattice.errors import Rejected

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as parsed JSON."""


@dataclass(frozen=True)
class Accepted:
    """The verdict that an object may enter as `obj`, with defaults filled in; `warnings` are shown to the person."""

    obj: Object
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """The verdict, or the finding of one check, that an object may not enter.

    `reason` is a word of `reasons.REFUSALS`, `sentence` has the numbers, `hint` says the next step.
    """

    reason: str
    sentence: str
    field: str = ""
    hint: str = ""

    @property
    def message(self) -> str:
        """Returns sentence and next step as one text, the sentence alone without one; after several lines the step has its own line."""
        if not self.hint:
            return self.sentence
        return f"{self.sentence}\n  Hint: {self.hint}" if "\n" in self.sentence else f"{self.sentence}. Hint: {self.hint}"


@dataclass(frozen=True)
class Caution:
    """The finding of one check that an object may enter, with a warning for the person."""

    sentence: str


Text = TypeVar("Text")
Read = TypeVar("Read")

Verdict = Accepted | Refused
Finding = Refused | Caution


def conclude(obj: Object, findings: Iterable[Finding]) -> Verdict:
    """Returns the first refusal of these findings, else acceptance of `obj` with every warning; findings after a refusal are not computed,
    and warnings before it are lost.
    """
    warnings: list[str] = []
    for finding in findings:
        match finding:
            case Refused():
                return finding
            case Caution(sentence):
                warnings.append(sentence)
    return Accepted(obj, tuple(warnings))


def reading(parse: Callable[[Text], Read], value: Text, *, field: str, reason: str) -> Read | Refused:
    """Returns the result of `parse`; where it raises Rejected, the refusal with this reason (not the error's own) that names the field."""
    try:
        return parse(value)
    except Rejected as error:
        return Refused(reason, f"{field}: {error.message}", field)
