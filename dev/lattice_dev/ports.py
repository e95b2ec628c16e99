"""Free ports of loopback: chosen once, kept, and chosen again only when a stranger took one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from lattice import errors

FIRST, LAST = 21000, 29999


@dataclass(frozen=True)
class Moved:
    """A port that had to change because another program listens on it."""

    role: str
    old: int
    new: int


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
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
    """A port for each role, and what moved.

    A kept port stays where its role's own process runs (`ours`) or where it is free. No port is given twice, none of
    `avoid` (other instances' ports) is given anew. Raises Rejected when none is left.
    """
    assigned: dict[str, int] = {}
    moved: list[Moved] = []
    wanted = list(roles)
    stay = {role: kept[role] for role in wanted if role in kept and (role in ours or free(kept[role]))}
    used = {*stay.values(), *avoid}
    candidates = (port for port in range(FIRST, LAST + 1) if port not in used and free(port))
    for role in wanted:
        if role not in stay:
            stay[role] = _next(candidates)
            if role in kept:
                moved.append(Moved(role, kept[role], stay[role]))
        assigned[role] = stay[role]
    return assigned, moved


def _next(candidates: Iterable[int]) -> int:
    for port in candidates:
        return port
    raise errors.Rejected(f"no port between {FIRST} and {LAST} is free on 127.0.0.1", reason="NoPort")
