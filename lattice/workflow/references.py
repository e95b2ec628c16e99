"""Parses references to other work, as `spec.dependsOn[].ref` holds them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.models.forms import FORMS
from lattice.units import is_digits, shown

_ELEMENT: Final = re.compile(r"[0-9]+_[0-9]+")
MOST_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class WorkReference:
    """Names one allocation: by `number` (above 0; of its tenant, in any namespace), or by namespace and name (`number` is 0)."""

    number: int = 0
    namespace: str = ""
    name: str = ""


def parse_reference(text: str, namespace: str) -> WorkReference:
    """Returns what a reference names, as work of this namespace reads it; digits alone are a number.

    Raises Rejected for a text that is no reference, and for elements of task groups, which are not served yet.
    """
    if not FORMS["reference"].matches(text):
        raise Rejected(FORMS["reference"].words(text), reason="DependencyInvalid")
    if _ELEMENT.fullmatch(text):
        raise Rejected(f"{shown(text)} names an element of a task group: they are not served by this release", reason="NotServed")
    if is_digits(text):
        number = int(text) if len(text) <= MOST_DIGITS else 0
        if not number:
            raise Rejected(f"{shown(text)} is no number that is ever given", reason="DependencyInvalid")
        return WorkReference(number=number)
    home, slash, name = text.partition("/")
    return WorkReference(0, home, name) if slash else WorkReference(0, namespace, text)
