"""Follows the shims of a machine by pidfd until nothing is left of their work; sends KILL, and names what survives it.

It uses only the kernel's state: no file can delay an order to end work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Retry
from lattice_agent.attempts import ExitRecord, Key, Running
from lattice_agent.host import processes
from lattice_agent.host.scopes import Scopes
from lattice_agent.host.threads import Threads

log = logging.getLogger(__name__)

KILL_AGAIN_SECONDS = 0.1
SHIM_SECONDS = 5.0
"""Time for a shim to end after KILL has left nothing of its work."""
KEEPER_SECONDS = 3.0
"""Time for the keepers of launches to tell the ends of their ranks after KILL to those; it is longer than they wait for a listener."""
SURVIVAL_SECONDS = 5.0
"""Time after KILL to the whole scope until its remaining processes are called unkillable."""
NAMED = 3
"""How many of the surviving processes are named."""


class ShimWatch:
    """Follows the shims of one node, and ends attempts; `survivors` names, by attempt, the processes that survived KILL."""

    def __init__(
        self,
        clock: Clock,
        scopes: Scopes,
        kernel: Threads,
        find_record: Callable[[Key], Awaitable[ExitRecord | None]],
        close_launches: Callable[[Key], Awaitable[None]],
        note_ends: Callable[[Key], Awaitable[None]],
        deliver: Callable[[Key, ExitRecord | None], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Calls `note_ends` before a shim that hangs is killed: the ends of its tasks are known until then."""
        self.survivors: dict[Key, str] = {}
        self.scopes = scopes
        self._clock, self._kernel = clock, kernel
        self._find_record, self._close_launches, self._note_ends = find_record, close_launches, note_ends
        self._deliver, self._spawn = deliver, spawn
        self._shims: dict[Key, int] = {}
        self._settling: set[Key] = set()
        self._emptying: set[Key] = set()
        self._killing: set[Key] = set()

    @property
    def busy(self) -> bool:
        """Tells whether any attempt runs or is being ended."""
        return bool(self._shims or self._settling or self._emptying)

    def follows(self, key: Key) -> bool:
        """Tells whether the attempt's shim lives and is followed."""
        return key in self._shims

    def is_settling(self, key: Key) -> bool:
        """Tells whether the attempt's end is delivered as soon as none of its processes is left."""
        return key in self._settling or key in self._emptying

    def follow_shim(self, key: Key, running: Running) -> Running:
        """Follows a shim by pidfd; its attempt's end is delivered after that of the shim, at once where that is past. Returns `running`."""
        if key in self._shims or key in self._settling:
            return running
        fd = processes.open_live(running.pid, running.start_ticks)
        if fd is None:
            self.settle(key)
        else:
            self._shims[key] = fd
            asyncio.get_running_loop().add_reader(fd, self._shim_ended, key)
        return running

    def _shim_ended(self, key: Key) -> None:
        """Stops following a shim whose pidfd says that it has ended, and settles its attempt."""
        fd = self._shims.pop(key)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self.settle(key)

    async def kill(self, key: Key) -> None:
        """Sends KILL to every process of the work, and repeats that in the background while its shim lives.

        Does nothing where that goes on already.
        """
        if key not in self._killing:
            self._killing.add(key)
            await self._kill(key)
            self._spawn(self._keep_killing(key))

    async def _keep_killing(self, key: Key) -> None:
        """Repeats KILL while the shim lives: one sent before the shim forked would have missed its tasks.

        A shim that does not end although its work is gone is stopped or hangs; it is killed too, after what the kernel keeps of its tasks'
        ends was noted.
        """
        begun = idle = self._clock.monotonic()
        while key in self._shims:
            await self._clock.sleep(KILL_AGAIN_SECONDS)
            await self._kill(key)
            if pids := await self._pids(key):
                idle = self._clock.monotonic()
                if idle - begun >= SURVIVAL_SECONDS:
                    await self._name_survivors(key, pids)
            elif self._clock.monotonic() - idle >= SHIM_SECONDS and key in self._shims:
                await self._note_ends(key)
                if key not in self._shims:
                    break
                event(log, "ShimKilled", logging.WARNING, allocation=key.uid, attempt=key.attempt, message="it did not end with its work")
                signal.pidfd_send_signal(self._shims[key], signal.SIGKILL)
                self.settle(key)
                break
        self._killing.discard(key)

    def settle(self, key: Key) -> None:
        """Begins to kill the processes that a dead shim left, in the background; delivers the attempt's end once none is left.

        Does nothing where that goes on already.
        """
        if key not in self._settling:
            self._settling.add(key)
            self._spawn(self._settle(key))

    def settle_when_empty(self, key: Key) -> None:
        """Waits in the background until no process of an attempt without a shim is left, killing none, and delivers its end then.

        Does nothing where that goes on already, or the attempt is being settled.
        """
        if key not in self._emptying and key not in self._settling:
            self._emptying.add(key)
            self._spawn(self._await_empty(key))

    async def _await_empty(self, key: Key) -> None:
        """Settles an attempt once no process of it is left; leaves that to whoever settles it meanwhile."""
        delay = 0.01
        while key not in self._settling and await self._is_populated(key):
            await self._clock.sleep(delay)
            delay = min(2 * delay, KILL_AGAIN_SECONDS)
        self._emptying.discard(key)
        self.settle(key)

    async def _settle(self, key: Key) -> None:
        """Sends KILL until no process is left, then delivers the end; an attempt that survives is named in `survivors`.

        No launch begins from now on, and keepers of launches have a while to tell the ends of their ranks.
        """
        await self._close_launches(key)
        begun, delay = self._clock.monotonic(), 0.002
        while key in self._shims or await self._is_populated(key):
            await self._kill(key, whole=self._clock.monotonic() - begun >= KEEPER_SECONDS)
            await self._clock.sleep(delay)
            delay = min(2 * delay, 0.25)
            if self._clock.monotonic() - begun >= SURVIVAL_SECONDS:
                await self._name_survivors(key, await self._pids(key, whole=True))
        self.survivors.pop(key, None)
        self._settling.discard(key)
        self._deliver(key, await self._find_record(key))

    async def _name_survivors(self, key: Key, pids: list[int]) -> None:
        """Names in `survivors` up to three of the processes that survived KILL, with how many there are; logs an attempt's first."""
        with suppress(Retry):
            names = ", ".join([await self._kernel.call(processes.describe, pid) for pid in pids[:NAMED]])
            more = f" and {len(pids) - NAMED} more" if len(pids) > NAMED else ""
            if key not in self.survivors:
                event(log, "Unkillable", logging.ERROR, allocation=key.uid, attempt=key.attempt, message=names + more)
            self.survivors[key] = f"{'a process has' if len(pids) == 1 else f'{len(pids)} processes have'} survived KILL: {names}{more}"

    # the kernel, whose silence changes nothing

    async def _kill(self, key: Key, *, whole: bool = False) -> None:
        """Sends KILL to the work, with `whole` to the shim too; passes over a kernel that does not answer."""
        with suppress(Retry):
            await self._kernel.call(self.scopes.kill, key, whole=whole)

    async def _is_populated(self, key: Key) -> bool:
        """Tells whether processes of an attempt are left; True where the kernel does not answer."""
        try:
            return await self._kernel.call(self.scopes.populated, key)
        except Retry:
            return True

    async def _pids(self, key: Key, *, whole: bool = False) -> list[int]:
        """Returns the pids of the work, with `whole` the shim's too; empty where the kernel does not answer."""
        try:
            return await self._kernel.call(self.scopes.whole if whole else self.scopes.work, key)
        except Retry:
            return []

    def close(self) -> None:
        """Stops following all shims; shims and work go on."""
        for fd in self._shims.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._shims.clear()
