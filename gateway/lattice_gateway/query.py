"""Reads the query of a log request from its URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.units import expand_nodes, is_digits, parse_duration, parse_time

KNOWN: Final = ("follow", "node", "stream", "tail", "since", "attempt")
STREAMS: Final[dict[str, pb.Stream.ValueType]] = {"": pb.STREAM_UNSPECIFIED, "stdout": pb.STDOUT, "stderr": pb.STDERR}
ALL_LINES: Final = -1


@dataclass(frozen=True)
class Query:
    """The part of an allocation's output that a request asks for.

    `nodes` empty: all; `attempt` 0: the newest; `since` in seconds since the epoch; `tail` −1: all lines.
    """

    follow: bool = False
    nodes: tuple[str, ...] = ()
    stream: pb.Stream.ValueType = pb.STREAM_UNSPECIFIED
    tail: int = ALL_LINES
    since: float = 0.0
    attempt: int = 0


def read_query(values: Mapping[str, str], now: float) -> Query:
    """Returns the query of the URL's parameters (`now`: seconds since the epoch, for durations); Rejected for an unknown or wrong one."""
    unknown = sorted(set(values) - set(KNOWN))
    if unknown:
        raise _wrong(unknown[0], f"is not known; known are {', '.join(KNOWN)}")
    stream = values.get("stream", "")
    if stream not in STREAMS:
        raise _wrong("stream", f"is {stream!r}: stdout, stderr, or leave it out for both")
    return Query(
        follow=_flag(values.get("follow", "")),
        nodes=tuple(expand_nodes(values.get("node", ""))),
        stream=STREAMS[stream],
        tail=_count("tail", values.get("tail", ""), ALL_LINES, least=0),
        since=_since(values.get("since", ""), now),
        attempt=_count("attempt", values.get("attempt", ""), 0, least=1),
    )


def _wrong(name: str, what: str) -> Rejected:
    """Returns the error that says what is wrong with a parameter."""
    return Rejected(f"the parameter {name} {what}", reason="ParameterInvalid", fields=(name,))


def _flag(text: str) -> bool:
    """Returns the switch that a text means, whatever its case; False for empty text. Raises Rejected for any other."""
    if text.lower() in ("", "0", "false", "no"):
        return False
    if text.lower() in ("1", "true", "yes"):
        return True
    raise _wrong("follow", f"is {text!r}: true or false")


def _count(name: str, text: str, absent: int, *, least: int) -> int:
    """Returns a whole number from `least` on; `absent` for empty text. Raises Rejected for anything else."""
    if not text:
        return absent
    if not (is_digits(text, 9) and int(text) >= least):
        raise _wrong(name, f"is {text!r}: a whole number from {least} on")
    return int(text)


def _since(text: str, now: float) -> float:
    """Returns a time in seconds since the epoch, from RFC 3339, from seconds, or from how long before `now` as a duration; empty: 0."""
    if not text:
        return 0.0
    if text[-1] in "smhd":
        return now - parse_duration(text)
    if is_digits(text.replace(".", "", 1), 30):
        return float(text)
    return parse_time(text)
