"""Asks the gateway for answers from caches instead of the API server: quick, and no older than the person's own last write.

Nothing depends on them: where no gateway answers in time, denies, does not know the question, or cannot tell how old its cache is, the
caller reads the API server, which also decides what the person may read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from lattice.cli.gateway import gateway_at, read_public
from lattice.cli.own_files import cache_folder
from lattice.errors import LatticeError, Rejected
from lattice.units import whole_number

if TYPE_CHECKING:
    from lattice.cli.console import Console

ANSWER_SECONDS: Final = 4.0
"""How long the gateway may be silent, unless LATTICE_ANSWER_SECONDS says otherwise; the connection must be made within a fourth of that."""
MOST_ANSWER_SECONDS: Final = 3600
KNOWN_SECONDS: Final = 3600.0
"""How long the address of a cluster's gateway is remembered."""
AWAY_SECONDS: Final = 30.0
"""How long a gateway that did not answer in time is not asked again."""
_WAITED_SECONDS: Final = 0.5


def ask_memory(console: Console, path: str, versions: Mapping[str, str], query: Mapping[str, str]) -> bytes | None:
    """Returns the gateway's answer; None: the API server must be asked instead, after any failure, without files of the person's own, or
    for an identity that the gateway does not know. Notes a gateway that failed.

    `versions` maps a parameter to the kind whose last write by this person the answer must contain.
    """
    config, writes = console.cluster_config, console.own_writes
    if writes is None or config.headers or config.username:
        return None  # the gateway knows nobody by impersonation or password
    newest = {name: writes.newest(kind) for name, kind in versions.items()}
    place = None if None in newest.values() else _KnownGateway.recall(console)
    if place is None:
        return None
    seconds = _answer_seconds(console.outside.environ)
    asked = urlencode({key: value for key, value in {**query, **newest}.items() if value})
    began = console.outside.now()
    try:
        stream = console.outside.stream(config, place.url, place.ca, f"{path}?{asked}", None, seconds)
        try:
            return b"".join(stream.lines())
        finally:
            stream.close()
    except LatticeError as error:
        place.failed(error, console.outside.now(), waited=console.outside.now() - began > _WAITED_SECONDS)
        return None


def _answer_seconds(environ: Mapping[str, str]) -> float:
    """Returns how long the gateway may be silent: for slow links and machines, what LATTICE_ANSWER_SECONDS says.

    Raises Rejected where that is no number of seconds.
    """
    text = environ.get("LATTICE_ANSWER_SECONDS", "")
    seconds = whole_number(text, 1, MOST_ANSWER_SECONDS)
    if text and seconds is None:
        raise Rejected(f"LATTICE_ANSWER_SECONDS is {text!r}: give whole seconds from 1 to {MOST_ANSWER_SECONDS}", reason="BadInput")
    return float(seconds or ANSWER_SECONDS)


class _KnownGateway:
    """The address of a cluster's gateway, remembered in a cache file of the person's own."""

    def __init__(self, file: Path, data: Mapping[str, Any], url: str) -> None:
        self._file = file
        self._data = data
        self.url = url
        self.ca = str(data.get("ca") or "")

    @classmethod
    def recall(cls, console: Console) -> _KnownGateway | None:
        """Returns the address remembered less than an hour ago, or asks the cluster for it and remembers that; None: there is none that may
        be asked, or it kept somebody waiting in the last half minute.
        """
        folder, now = cache_folder(console.outside.environ, console.cluster_config), console.outside.now()
        if folder is None:
            return None
        file = folder / "gateway.json"
        data = _read(file)
        if not 0 <= now - float(data.get("at") or 0) < KNOWN_SECONDS:
            try:
                data = {**read_public(console), "at": now}
            except LatticeError:
                return None
            _write(file, data)
        if now < float(data.get("awayUntil") or 0) <= now + AWAY_SECONDS:
            return None
        try:
            return cls(file, data, gateway_at(console, data))
        except LatticeError:
            return None

    def failed(self, error: LatticeError, now: float, *, waited: bool) -> None:
        """Notes that the gateway failed: forgets an unreachable address, so that the cluster is asked for it again.

        A gateway that kept the person waiting (`waited`) is not asked for half a minute.
        """
        if waited:
            _write(self._file, {**self._data, "awayUntil": now + AWAY_SECONDS})
        elif error.reason == "GatewayUnreachable":
            with suppress(OSError):
                self._file.unlink()


def _read(file: Path) -> dict[str, Any]:
    """Returns what a file remembers; empty where it is absent, does not parse, or has no time."""
    try:
        data = json.loads(file.read_bytes())
        return data if isinstance(data, dict) and isinstance(data.get("at"), int | float) else {}
    except (OSError, ValueError):
        return {}


def _write(file: Path, data: Mapping[str, Any]) -> None:
    """Writes the file in one step; where that fails, nothing is remembered."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(json.dumps(data))
        fresh.replace(file)
