"""Reads the YAML that kubectl and most tools write for a kubeconfig, without the library, which takes longer to load than a list to show.

Whatever is not plainly this subset is left to the library: `read` says so by None. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

_KEY: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(?: +(.*))?")
_WORD: Final = re.compile(r"[A-Za-z/][A-Za-z0-9+/=_.@:~-]*")
_QUOTED: Final = re.compile(r"\"([^\"\\]*)\"|'([^']*)'")
_TRUTH: Final = {"true": True, "false": False}
_READ_OTHERWISE: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words, in any case, that YAML takes for something else than text."""
_EMPTY: Final[dict[str, type]] = {"{}": dict, "[]": list}
_Lines = list[tuple[int, str]]
"""Each line's indentation, and what follows it."""


class _NotPlain(Exception):
    """The text is more than this module reads."""


def read(text: str) -> Any:
    """Returns the document of maps and lists in blocks with one-line scalars, as YAML 1.1 means it.

    None: the text is more than that, or no YAML; ask the library.
    """
    if not text.isascii() or any(not line.isprintable() for line in text.split("\n")):
        return None
    kept = [line.rstrip(" ") for line in text.split("\n")]
    lines = [(len(line) - len(line.lstrip(" ")), line.lstrip(" ")) for line in kept if line and not line.lstrip(" ").startswith("#")]
    try:
        value, at = _block(lines, 0)
    except _NotPlain:
        return None
    return value if at == len(lines) else None


def _block(lines: _Lines, at: int) -> tuple[Any, int]:
    """Returns the list or map that begins at a line, and the line behind it.

    Raises _NotPlain where there is no line, or for anything that this reader does not know.
    """
    if at >= len(lines):
        raise _NotPlain
    return _list(lines, at) if lines[at][1].startswith("- ") else _map(lines, at)


def _list(lines: _Lines, at: int) -> tuple[list[Any], int]:
    """Returns the list that begins at line `at`, and the number of the first line after it.

    Raises _NotPlain for anything that this reader does not know.
    """
    indent, found = lines[at][0], []
    while at < len(lines) and lines[at][0] == indent and lines[at][1].startswith("- "):
        rest = lines[at][1][2:].lstrip(" ")
        if _KEY.fullmatch(rest):
            lines[at] = (indent + len(lines[at][1]) - len(rest), rest)
            value, at = _map(lines, at)
        else:
            value, at = _scalar(rest), at + 1
        found.append(value)
    _check_end(lines, at, indent)
    return found, at


def _map(lines: _Lines, at: int) -> tuple[dict[str, Any], int]:
    """Returns the map that begins at line `at`, and the number of the first line after it; a key without a value has None.

    Raises _NotPlain for anything that this reader does not know, and for a key given twice.
    """
    indent, found = lines[at][0], dict[str, Any]()
    while at < len(lines) and lines[at][0] == indent and not lines[at][1].startswith("- "):
        match = _KEY.fullmatch(lines[at][1])
        if match is None or match[1] in found or match[1].lower() in _READ_OTHERWISE:
            raise _NotPlain
        at += 1
        if match[2]:
            found[match[1]] = _scalar(match[2])
        elif at < len(lines) and (lines[at][0] > indent or (lines[at][0] == indent and lines[at][1].startswith("- "))):
            found[match[1]], at = _block(lines, at)
        else:
            found[match[1]] = None
    _check_end(lines, at, indent)
    return found, at


def _check_end(lines: _Lines, at: int, indent: int) -> None:
    """Raises `_NotPlain` for a line that stands deeper than the block it follows: a text of several lines, or a mistake."""
    if at < len(lines) and lines[at][0] > indent:
        raise _NotPlain


def _scalar(text: str) -> Any:
    """Returns the value of a plain or quoted scalar, true, false, or an empty list or map.

    Raises _NotPlain for what YAML might read otherwise than as text.
    """
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        return quoted[1] if quoted[1] is not None else quoted[2]
    if text in _TRUTH:
        return _TRUTH[text]
    if text in _EMPTY:
        return _EMPTY[text]()
    if not _WORD.fullmatch(text) or text.endswith(":") or text.lower() in _READ_OTHERWISE:
        raise _NotPlain
    return text
