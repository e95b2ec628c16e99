"""Reads names of software environments: a label `[namespace::]name[/version][:tag][@system][%uarch]`, an id or a digest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected

ANY_SYSTEM: Final = "*"
"""`@*`: images of every system."""
ID_LENGTH: Final = 16
"""Hexadecimal digits of a digest that are an image's id."""
DIGEST_LENGTH: Final = 64
LONGEST_LABEL: Final = 256

_WORD: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_LABEL: Final = re.compile(
    rf"(?:(?P<namespace>{_WORD})::)?(?P<name>{_WORD})?(?:/(?P<version>{_WORD}))?(?::(?P<tag>{_WORD}))?"
    rf"(?P<place>(?:@(?:\*|{_WORD})|%{_WORD}){{0,2}})",
    re.ASCII,
)
_PLACE: Final = re.compile(rf"@(?P<system>\*|{_WORD})|%(?P<uarch>{_WORD})", re.ASCII)
_HEX: Final = re.compile(rf"(?:sha256:)?([0-9a-f]{{{ID_LENGTH}}}|[0-9a-f]{{{DIGEST_LENGTH}}})", re.ASCII)


@dataclass(frozen=True)
class UenvLabel:
    """A parsed label of an image; parts that were not given are empty, and a `digest` (16 or 64 hexadecimal digits) stands alone."""

    namespace: str = ""
    name: str = ""
    version: str = ""
    tag: str = ""
    system: str = ""
    uarch: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """Returns the label as people write it."""
        if self.digest:
            return self.digest
        head = f"{self.namespace}::" if self.namespace else ""
        parts = (("/", self.version), (":", self.tag), ("@", self.system), ("%", self.uarch))
        return head + self.name + "".join(sign + part for sign, part in parts if part)


def parse_label(text: str) -> UenvLabel:
    """Returns the parts of a label; raises Rejected (LabelInvalid), naming the expected form and the wrong place, where the text is none.

    16 or 64 hexadecimal digits, also behind `sha256:`, are an id or a digest, never a name.
    """
    written = text.strip()
    if len(written) > LONGEST_LABEL:
        raise _invalid(text[:40] + "…", f"it has {len(written)} characters (limit: {LONGEST_LABEL})")
    if found := _HEX.fullmatch(written):
        return UenvLabel(digest=found[1])
    label = _LABEL.match(written)
    end = label.end() if label else 0
    if label is None or end < len(written):
        raise _invalid(text, f"unexpected {written[end]!r} at character {end + 1}")
    places = [found.groupdict() for found in _PLACE.finditer(label["place"])]
    systems, uarchs = [place["system"] for place in places if place["system"]], [place["uarch"] for place in places if place["uarch"]]
    if len(systems) > 1 or len(uarchs) > 1:
        raise _invalid(text, "it names two systems or two architectures")
    return UenvLabel(
        label["namespace"] or "", label["name"] or "", label["version"] or "", label["tag"] or "", "".join(systems), "".join(uarchs)
    )


def digits_of(text: str) -> str:
    """Returns the hexadecimal digits of an id or a digest; empty for another text."""
    found = _HEX.fullmatch(text.strip())
    return found[1] if found else ""


def _invalid(text: str, why: str) -> Rejected:
    """Returns the error that says why a text is no label, and how a label is written."""
    form = "[namespace::]name[/version][:tag][@system][%uarch], such as prgenv-gnu/24.11:v1@daint%gh200"
    return Rejected(f"{text!r} is no label: {why}. A label is {form}", reason="LabelInvalid")
