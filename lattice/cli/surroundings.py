"""The real surroundings of a run: streams of the process, its environment, the clock, the network."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lattice.cli.console import Outside
from lattice.units import whole_number

if TYPE_CHECKING:
    from lattice.cli.cluster import Blocking
    from lattice.cli.stream import GatewayStream
    from lattice.kube.kubeconfig import ClusterConfig

MOST_COLUMNS = 100_000
"""Widest terminal that COLUMNS may name."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
"""The form `host` of `lattice.models.forms`, which costs a second to load."""
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' alphabet for generated names, without vowels so that no words arise."""


def outside() -> Outside:
    """Returns the real surroundings; characters that the terminal's encoding lacks are printed as question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return Outside(
        stdin=sys.stdin.buffer,
        stdout=sys.stdout,
        stderr=sys.stderr,
        environ=os.environ,
        directory=_directory(),
        columns=_columns(),
        now=time.time,
        sleep=time.sleep,
        configure=_configure,
        connect=_connect,
        stream=_stream,
        random=_random,
        host=_host(),
    )


def _columns() -> int:
    """Returns the width of the terminal; 0 where there is none."""
    if not sys.stdout.isatty():
        return 0
    return asked_columns() or os.get_terminal_size(sys.stdout.fileno()).columns or 80


def asked_columns() -> int:
    """Returns the width that the variable COLUMNS asks for; 0: it asks for none."""
    return whole_number(os.environ.get("COLUMNS", ""), 1, MOST_COLUMNS) or 0


def _random() -> str:
    """Returns five random characters for a name."""
    import secrets

    return "".join(secrets.choice(_LETTERS) for _ in range(5))


def _host() -> str:
    """Returns the name of this machine; empty where it is none that an Allocation takes."""
    name = os.uname().nodename
    return name if _HOST.fullmatch(name) else ""


def _directory() -> str:
    """Returns the working directory as the shell names it, links and all; empty when it is gone."""
    named = os.environ.get("PWD", "")
    try:
        return named if named and Path(named).samefile(".") else str(Path.cwd())
    except OSError:
        return ""


def _configure(path: str | None, context: str | None) -> ClusterConfig:
    """Returns the connection's configuration from a kubeconfig and context; None: the usual ones. Raises what reading it raises."""
    from lattice.kube.kubeconfig import load

    return load(path, context)


def _connect(config: ClusterConfig, warn: Callable[[str], None]) -> Blocking:
    """Returns a connection to the cluster; the server's warnings are passed to `warn`."""
    from lattice.kube.blocking import BlockingCluster

    return BlockingCluster(config, warn=warn)


def _stream(config: ClusterConfig, url: str, ca: str, path: str, body: bytes | None, seconds: float) -> GatewayStream:
    """Opens an answer of the gateway. Raises Retry where it cannot be reached."""
    from lattice.cli.stream import open_stream

    return open_stream(config, url, ca, path, body, seconds)
