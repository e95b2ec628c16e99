"""Chooses free ports of loopback once and keeps them, unless another program takes one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lattice import errors

FIRST, LAST = 21000, 29999
PASSING = range(30000, 32768)
"""Ports for programs outside of any instance: neither an instance's, whose program may be down now, nor the kernel's own range."""


@dataclass(frozen=True)
class Moved:
    """A port that had to change because another program listens on it."""

    role: str
    old: int
    new: int


class Claims:
    """Ports and names that this process has chosen and nobody uses yet; no other process of the network namespace can choose them.

    Each is an abstract socket, whose name the kernel gives to one holder in a network namespace, as it does ports: so instances of
    different homes and containers see each other, and nothing is left when a process is killed.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()

    def claim(self, what: str) -> bool:
        """Claims a name on this machine until `close`; returns False when anybody holds it, this process too."""
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0lattice-dev/{what}")
        except OSError:
            claim.close()
            return False
        self._held.enter_context(claim)
        return True

    def claim_port(self, port: int) -> bool:
        """Claims a port until `close`; returns False when it is claimed or in use. A port that is in use stays claimed."""
        return self.claim(f"port/{port}") and is_free(port)

    def close(self) -> None:
        """Releases all claims; the caller has started by then what shall hold them."""
        self._held.close()


@contextlib.contextmanager
def claimed(count: int) -> Iterator[list[int]]:
    """Yields so many free ports of `PASSING`, which no other process of lattice-dev chooses during the block; raises Rejected when there
    are fewer.
    """
    with contextlib.closing(Claims()) as claims:
        candidates = filter(claims.claim_port, PASSING)
        yield [_next(candidates, PASSING) for _ in range(count)]


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Tells whether a server could listen on the port of `host` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def assign(
    roles: Iterable[str], kept: Mapping[str, int], *, ours: Collection[str], avoid: Collection[int], free: Callable[[int], bool] = is_free
) -> tuple[dict[str, int], list[Moved]]:
    """Returns a port for each role, and the ports that had to change.

    A kept port stays where its role's own process runs (`ours`) or where it is free. No port is given twice, and none of `avoid` (other
    instances' ports) is given anew. Raises Rejected when none is left.
    """
    assigned: dict[str, int] = {}
    moved: list[Moved] = []
    wanted = list(roles)
    stay = {role: kept[role] for role in wanted if role in kept and (role in ours or free(kept[role]))}
    used = {*stay.values(), *avoid}
    candidates = (port for port in range(FIRST, LAST + 1) if port not in used and free(port))
    for role in wanted:
        if role not in stay:
            stay[role] = _next(candidates, range(FIRST, LAST + 1))
            if role in kept:
                moved.append(Moved(role, kept[role], stay[role]))
        assigned[role] = stay[role]
    return assigned, moved


def _next(candidates: Iterable[int], among: range) -> int:
    """Returns the next free port. Raises Rejected where none is left."""
    for port in candidates:
        return port
    raise errors.Rejected(f"no port between {among[0]} and {among[-1]} is free on 127.0.0.1", reason="NoPort")
