"""Programs that tests run as work."""

from __future__ import annotations

FORK_BOMB = """#!/usr/bin/env python3
import os, signal
made = 0
while True:
    try:
        pid = os.fork()
    except OSError:
        print(made, flush=True)
        signal.pause()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    made += 1
"""
"""Starts processes that ignore TERM until it may start no more, and prints how many it has made."""
