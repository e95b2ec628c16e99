"""Runs a program on a cluster from its command line: settings, logs, connection, signals, exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lattice import __version__
from lattice.daemon import logs, process, settings, starts
from lattice.kube.aiohttp import AiohttpCluster, connect

Given = TypeVar("Given", bound=settings.CommonSettings)


def run(program: str, kind: type[Given], work: Callable[[Given, AiohttpCluster], Awaitable[None]]) -> int:
    """Runs `work` on the cluster that the program's settings name until it ends or a signal comes; returns the exit code.

    Reads the settings from command line and environment (SystemExit where they are wrong), and sets up the log.
    """
    given = settings.load(kind, program=program, argv=sys.argv[1:], environ=os.environ)
    logs.setup(given.log_format, given.log_level)
    starts.trace(on=isinstance(given, settings.StartSettings) and given.trace_starts)

    async def connected() -> None:
        """Runs the work with a connection to the cluster."""
        async with connect(given.kubeconfig, user_agent=f"{program}/{__version__}") as cluster:
            await work(given, cluster)

    return process.run(connected, program)
