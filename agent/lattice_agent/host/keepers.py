"""Starts, finds and ends the keepers of launches: one for each launch and node, forked by the runner, which outlives runner and agent.

A launch is started at most once on a node: its keeper makes a socket in the attempt's run directory, and what it could tell nobody stands
there in a file. What it tells goes through that socket, which others read.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lattice.daemon.clock import Clock
from lattice.errors import NotFound, Rejected, Retry, UnknownOutcome
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host import users
from lattice_agent.host.launch_cgroups import LaunchCgroups
from lattice_agent.host.launcher import Launcher
from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.host.threads import Threads
from lattice_agent.standalone.keeper_link import end_name, socket_name
from lattice_agent.standalone.task_start import start_ticks
from lattice_agent.state.journal import Journal
from lattice_agent.work.environment import on_this_node
from lattice_agent.work.launch import RunContext

ANSWER_SECONDS = PLACE_SECONDS = 60.0
END_SECONDS, LOOK_SECONDS = 5.0, 0.002
OF_LAUNCH = frozenset({
    "argv", "workdir", "umask", "soft_limits", "label", "unbuffered", "append", "stdin", "ranks", "go", "pmi", "lingers",
})  # fmt: skip
"""The fields of `LaunchDescription` that a launch brings as they are, perhaps from another node's agent; the place is this node's alone."""


class Keepers:
    """Keeps the launches of one node's attempts going: their keepers, their cgroups, and what is left of both."""

    def __init__(
        self, cgroups: LaunchCgroups, journal: Journal, launcher: Launcher, runner: RunnerClient, kernel: Threads, clock: Clock
    ) -> None:  # fmt: skip
        self.cgroups = cgroups
        self.starter = ""
        """The program that forks ranks (`standalone/starter.c`); where there is none, their keepers fork them, which takes longer."""
        self.pmix_host = ""
        """The program that serves PMIx here (`pmix/host.c`); empty: none does."""
        self._journal, self._launcher, self._runner, self._kernel, self._clock = journal, launcher, runner, kernel, clock
        self._launches = Threads("a launch's place", count=4, within=PLACE_SECONDS)  # a disk, LDAP: no order to end work waits for them

    async def start(self, key: Key, launch: Mapping[str, Any]) -> tuple[int, int]:
        """Starts a launch's ranks on this node, all or none, and returns pid and start ticks of their keeper; may be repeated.

        `launch`: `number` and `environment`, and the fields `OF_LAUNCH`; others are passed over. Raises Rejected, with the failure's
        sentence: NodeUnfit where this node is at fault, else StartFailed; Retry where the kernel does not answer.
        """
        number, own = _read(launch)
        described = await self._launches.call(self._describe, key, number, own)
        try:
            answer = await self._ask({"op": "keep", "launch": described})
            if answer.get("taken") and (pid := await self._kernel.call(self.cgroups.keeper_pid, key, number)):
                with suppress(OSError):
                    answer = {"pid": pid, "ticks": await asyncio.to_thread(start_ticks, pid)}
            if "pid" not in answer:
                raise _refused(answer)
        except Rejected:
            with suppress(Retry):
                await self.end_launch(key, number)
            raise
        return int(answer["pid"]), int(answer["ticks"])

    def _describe(self, key: Key, number: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the cgroups of a launch, and returns its whole description: what is its own, and what only this node says.

        Raises Rejected where the attempt has no place here.
        """
        place = self._place(key)
        try:
            entrances = self.cgroups.make_launch(key, number)
        except FileNotFoundError as error:
            raise Rejected("its allocation is over on this node", reason="StartFailed") from error
        variables = on_this_node(own["environment"], self._launcher.programs)
        here: dict[str, Any] = {"number": number, "environment": variables, "starter": self.starter}
        if own.get("pmi") and own["pmi"].get("pmix"):
            if not self.pmix_host:
                raise Rejected("this node serves no PMIx", reason="NodeUnfit")
            here["pmix_host"] = self.pmix_host
        return place | dict(own) | dataclasses.asdict(entrances) | here

    def _place(self, key: Key) -> dict[str, Any]:
        """Returns where the work of an attempt runs on this node; raises Rejected where nobody knows, or launches cannot run there."""
        entry = self._journal.entry(key)
        if entry is None:
            raise Rejected(f"this node has no journal of attempt {key.attempt} of {key.uid}", reason="StartFailed")
        kept = self._journal.place(key)
        place = kept if kept is not None else self._launcher.place_fields(entry.work, _bare_place(entry.work))
        if entry.work.image and not place["container"]:
            why = f"node {entry.work.node} has no container of {entry.work.image}: an agent of an earlier release made none there"
            raise Rejected(f"{why}; name nodes that have one (srun --nodelist)", reason="StartFailed")
        return place | {"node": entry.work.node}

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request to the runner and returns its answer; repeats it where the runner dies, since a launch starts only once."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    try:
                        return await self._runner.request(request)
                    except UnknownOutcome:
                        await self._clock.sleep(LOOK_SECONDS)
        except TimeoutError:
            return {"failure": f"its ranks do not begin: no answer within {ANSWER_SECONDS:.0f} s", "unfit": True}

    async def connect(self, key: Key, number: int) -> socket.socket:
        """Returns a connected socket to a launch's keeper, which does not block; raises NotFound where none listens."""
        return await self._launches.call(self._connected, key, number)

    def _connected(self, key: Key, number: int) -> socket.socket:
        """Connects to a keeper, by a path that may be longer than a socket's address."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            place = os.open(self._journal.run_directory(key), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.connect(f"/proc/self/fd/{place}/{socket_name(number)}")
            finally:
                os.close(place)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            connection.close()
            raise NotFound(f"launch {number} has no keeper on this node") from error
        connection.setblocking(False)
        return connection

    async def end_launch(self, key: Key, number: int) -> dict[str, Any] | None:
        """Kills what is left of a launch here, and removes its cgroups and files; returns what its keeper had to tell and nobody heard.

        None: there is nothing of that. Raises Retry where a process survives for 5 s.
        """
        until = self._clock.monotonic() + END_SECONDS
        while not await self._kernel.call(self.cgroups.remove_launch, key, number):
            if self._clock.monotonic() > until:
                raise Retry(f"a process of launch {number} has survived KILL", reason="Populated")
            await self._clock.sleep(LOOK_SECONDS)
        return await self._launches.call(self._collect, key, number)

    def _collect(self, key: Key, number: int) -> dict[str, Any] | None:
        """Removes a launch's files, and returns what its keeper wrote before it had to end unheard; None: it wrote nothing."""
        directory, told = self._journal.run_directory(key), None
        with suppress(OSError, ValueError):
            told = json.loads((directory / end_name(number)).read_bytes())
        for name in (end_name(number), socket_name(number)):
            (directory / name).unlink(missing_ok=True)
        return told


def _bare_place(work: NodeWork) -> RunContext:
    """Returns where work runs on a node on which nothing is mounted for it, and none of its own tasks begins. May block (LDAP)."""
    account = users.account(work.account or work.user, min_uid=work.min_uid, node=work.node)
    return RunContext(account, "/")


def _read(launch: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Returns a launch's number, and the fields that are its own; raises Rejected for a description of another form."""
    number, variables = launch.get("number"), launch.get("environment")
    if type(number) is not int or number < 0 or not isinstance(variables, Mapping):
        raise Rejected(f"the launch is not described: its number is {number!r}", reason="StartFailed")
    if not all(isinstance(text, str) for pair in variables.items() for text in pair):
        raise Rejected("the launch is not described: a variable is no text", reason="StartFailed")
    return number, {name: launch[name] for name in OF_LAUNCH & launch.keys()} | {"environment": variables}


def _refused(answer: Mapping[str, Any]) -> Rejected:
    """Returns the error of a launch that the runner has not started."""
    sentence = str(answer.get("failure") or "the process that keeps it was killed before its ranks could begin")
    return Rejected(sentence, reason="NodeUnfit" if answer.get("unfit") or "failure" not in answer else "StartFailed")
