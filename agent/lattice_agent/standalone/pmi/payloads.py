"""Encodes the messages between the nodes of a launch and its hub: JSON, with bytes as text; no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

PAIR_BYTES = 128
"""Counted for each pair beside its bytes, so that many small ones are bounded too."""
PART_BYTES = 1 << 20
"""The size of one message's pairs; more are sent in several."""
_SHORT = {code: code + 256 for code in range(32)}
"""Control characters as others, since JSON has six bytes for most of them."""
_LONG = {short: code for code, short in _SHORT.items()}

Payload = bytes


class MalformedPayload(ValueError):
    """Tells that bytes are no message between node and hub."""


def split(items: Sequence[Any], most: int) -> Iterator[list[Any]]:
    """Yields the items in groups of at most so many bytes, one group where there are none."""
    group: list[Any] = []
    size = 0
    for item in items:
        added = weight(item)
        if group and size + added > most:
            yield group
            group, size = [], 0
        group.append(item)
        size += added
    yield group


def pack(message: Mapping[str, Any]) -> Payload:
    """Returns the bytes of a message between node and hub."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def unpack(payload: Payload) -> dict[str, Any]:
    """Returns a message between node and hub; raises MalformedPayload."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedPayload(str(error)) from error
    if not isinstance(message, dict):
        raise MalformedPayload("no object")
    return message


def weight(item: Sequence[Any]) -> int:
    """Returns the bytes that a pair, or a ring's value, counts."""
    return len(item[-2]) + len(item[-1]) + PAIR_BYTES


def text_of(data: bytes) -> str:
    """Returns bytes as JSON carries them, each as one character, of two bytes at most."""
    return data.decode("latin-1").translate(_SHORT)


def bytes_of(text: str) -> bytes:
    """Returns the bytes that `text_of` wrote; raises ValueError."""
    return text.translate(_LONG).encode("latin-1")
