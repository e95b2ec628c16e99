"""Takes decided work to its shim: the steps of the prologue, and the right to start, which is taken once."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from lattice.daemon import starts
from lattice.daemon.clock import Clock
from lattice.errors import NotFound, Rejected, Retry, Stale, UnknownOutcome
from lattice_agent.attempts import BroughtBytes, Key, NodeWork, Running
from lattice_agent.host import users
from lattice_agent.host.containers import Containers
from lattice_agent.host.controllers import Reserves
from lattice_agent.host.hooks import Hooks
from lattice_agent.host.host_files import HostFiles
from lattice_agent.host.images import Images
from lattice_agent.host.interface import MachineFacts
from lattice_agent.host.mounts import Mounts
from lattice_agent.host.prologue import Prologue, PrologueStep
from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.host.scopes import Scopes
from lattice_agent.host.scratch import STEP, Scratch
from lattice_agent.host.threads import Threads, whole
from lattice_agent.host.watch import ShimWatch
from lattice_agent.state.journal import Journal
from lattice_agent.state.step_journal import StepJournal
from lattice_agent.work import environment, launch
from lattice_agent.work.environment import Account
from lattice_agent.work.launch import RunContext, refuse, unfit

_P = ParamSpec("_P")
_R = TypeVar("_R")

LAUNCHES = 5
ANSWER_SECONDS = 60.0


class Launcher:
    """Starts the work of one node: checks account and directories, writes the journal, and asks the runner to fork a shim."""

    def __init__(
        self,
        journal: Journal,
        scopes: Scopes,
        clock: Clock,
        facts: MachineFacts,
        starter: RunnerClient,
        disk: Threads,
        watch: ShimWatch,
        reserves: Reserves,
        hooks: Hooks | None,
        mounts: Mounts,
        scratch: Scratch,
        containers: Containers,
        images: Images | None = None,
    ) -> None:
        """Runs the site's hooks through `hooks`; None: the machine has no cgroups to hold them. `images` None: it keeps no images."""
        self._containers = containers
        self._reserves = reserves
        self._journal, self.scopes, self._clock, self._facts = journal, scopes, clock, facts
        self._starter, self._disk, self._watch = starter, disk, watch
        self._preparing = Threads(f"its state directory {journal.state_dir}", count=2, within=ANSWER_SECONDS)
        self._hooks, self._mounts, self._scratch, self.images = hooks, mounts, scratch, images
        self.prologue = Prologue(self._steps(), StepJournal(journal), self._preparing, clock)
        self.programs = ""
        """The directory of `srun`, first on the PATH of all work; empty: the node serves no launches."""
        self.fabric_interface = ""
        """The network interface over which nodes reach each other, for MPI; empty: each MPI chooses."""
        self.gpus = 0
        """The GPUs of this node."""
        self._places: dict[Key, RunContext] = {}
        self._fresh: dict[Key, dict[str, Any]] = {}
        """Launch descriptions of attempts prepared here and not yet started, without the values of Secrets."""
        self._first: set[Key] = set()
        """Attempts of which nothing was known before this agent: nobody else has asked for their start."""

    def drop_context(self, key: Key) -> None:
        """Drops the launch data kept in memory for an attempt; called once nothing more of it is started."""
        self._places.pop(key, None)
        self._fresh.pop(key, None)
        self._first.discard(key)

    def _steps(self) -> tuple[PrologueStep, ...]:
        """Returns the steps of the prologue in order; the epilogue undoes them in reverse."""
        steps = [
            PrologueStep("probe", self._probe, again=True),
            PrologueStep("scope", self._make_scope, self._remove_scope, again=True),
            PrologueStep(STEP, self._make_scratch, self._scratch.wipe, lasting=True, wanted=_wants_scratch),
        ]
        if self._hooks is not None:
            steps.append(PrologueStep("hooks", self._run_prologue, self._run_epilogue, lasting=True, wanted=self._has_hooks))
        steps.append(PrologueStep("images", self._bring_images, wanted=_wants_images, brought=self._brought))
        steps.append(PrologueStep("mounts", self._mount, self._mounts.unmount, again=True, wanted=_wants_software))
        steps.append(PrologueStep("container", self._make_container, self._containers.end_container, again=True, wanted=_wants_container))
        return tuple(steps)

    async def prepare(self, work: NodeWork) -> None:
        """Writes the attempt's journal and carries out the steps of its prologue, of which those that are done are not repeated.

        Raises Stale where it was started or ended here already, Rejected where the work cannot run or this node cannot take it.
        """
        started, new = await self._prepared(work, self._earlier, work.key)
        if started:
            raise Stale(f"attempt {work.key.attempt} of {work.namespace}/{work.name} was started on {work.node} already")
        if work.tasks:
            await asyncio.to_thread(launch.check, work)
        if new:
            self._first.add(work.key)
        await self._prepared(work, self._journal.write_journal, work, self._facts.boot_id)
        try:
            exported = await self.prologue.carry_out(work)
            if place := self._places.get(work.key):
                self._places[work.key] = place = dataclasses.replace(place, exported=exported)
            if place:
                await self._prepared(work, self._keep_place, work, place)
            if place and work.tasks:
                describing = whole(self._preparing.call(self._describe, work, place))
                self._fresh[work.key] = await self._recorded(work, describing)  # views may not fit what the login sets
        except Retry as error:
            raise _state_unfit(work, error) from error
        starts.reached(self._clock, "prepare", work.key.uid, node=work.node)

    async def _prepared(self, work: NodeWork, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs a function on the disk to its end and returns its result; raises Rejected (NodeUnfit) where the disk fails or is silent."""
        try:
            return await whole(self._preparing.call(function, *args, **kwargs))
        except Retry as error:
            raise _state_unfit(work, error) from error

    def _earlier(self, key: Key) -> tuple[bool, bool]:
        """Tells by the disk whether the attempt was started, has ended, or is settled here, and whether no agent has journaled it yet."""
        journal = self._journal
        started = journal.claimed(key) is not None or journal.exit_record(key) is not None or journal.is_settled(key)
        return started, journal.entry(key) is None

    # the steps

    async def _probe(self, work: NodeWork) -> Mapping[str, str]:
        """Finds account and working directory where something is done as the user, opens his output files where tasks run, and keeps the
        answer in memory; returns no variables.
        """
        if work.needs_account:
            self._places[work.key] = await self._find_place(work)
            starts.reached(self._clock, "probe", work.key.uid, node=work.node)
        return {}

    async def _make_scope(self, work: NodeWork) -> Mapping[str, str]:
        """Makes the attempt's scope with its limits, and writes its script; returns no variables."""
        await self._prepared(work, self._lay_down, work)
        return {}

    async def _make_scratch(self, work: NodeWork) -> Mapping[str, str]:
        """Makes the scratch space of the work; returns TMPDIR. Raises Rejected where too little is free."""
        account = self._places[work.key].account if _is_root() else None
        return await self._recorded(work, self._scratch.make(work, account))

    async def _remove_scope(self, key: Key) -> None:
        """Removes the attempt's scope; raises Retry while a process is left in it."""
        if not await self._disk.call(self.scopes.remove_scope, key):
            raise Retry(f"the scope of attempt {key.attempt} of {key.uid} is not empty", reason="Populated")

    def _has_hooks(self, _: NodeWork) -> bool:
        """Tells whether the site has hooks, which apply to all work."""
        return self._hooks is not None and self._hooks.exist()

    async def _run_prologue(self, work: NodeWork) -> Mapping[str, str]:
        """Runs the site's prologue hooks; returns the variables that they export. Raises Rejected, recorded as the attempt's end."""
        return await self._recorded(work, self._hooks.prologue(work)) if self._hooks else {}

    async def _mount(self, work: NodeWork) -> Mapping[str, str]:
        """Mounts the software of the work, and keeps what is mounted in memory for the launch; returns no variables."""
        place = self._places[work.key]
        software, note = await self._recorded(work, self._mounts.mount(work, place.account, place.workdir))
        note = "; ".join(filter(None, (place.note, note)))
        self._places[work.key] = dataclasses.replace(place, software=software, note=note)
        starts.reached(self._clock, "mounts", work.key.uid, node=work.node)
        return {}

    async def _make_container(self, work: NodeWork) -> Mapping[str, str]:
        """Makes the container of the work, and keeps in memory for the launch what its tasks get of it; returns no variables."""
        place = self._places[work.key]
        space = self._scratch.space(work) if work.scratch_bytes else None
        made = await self._recorded(work, self._containers.make_container(work, place.account, place.workdir, space))
        relative = launch.relative_files(work) if made.workdir != place.workdir else []
        written = (
            f"{', '.join(relative)} for output is in {place.workdir} of the node, not in the image's {made.workdir}" if relative else ""
        )
        note = "; ".join(filter(None, (place.note, made.note, written)))
        self._places[work.key] = dataclasses.replace(place, container=made, note=note)
        starts.reached(self._clock, "container", work.key.uid, node=work.node)
        return {}

    async def _recorded(self, work: NodeWork, step: Awaitable[_R]) -> _R:
        """Awaits a step; records a refusal (Rejected) as the attempt's end before raising it, so that a restarted agent answers the
        same.
        """
        try:
            return await step
        except Rejected as error:
            await self._record_refusal(work, error.message, reason=error.reason)
            raise

    async def _bring_images(self, work: NodeWork) -> Mapping[str, str]:
        """Brings the images of the work into the node's cache; returns no variables.

        Raises Rejected, recorded as the attempt's end, also on a node without a cache.
        """
        try:
            if self.images is None:
                raise Rejected(f"node {work.node} keeps no images: it has no --cache-dir", reason="PrologueFailed")
            await self.images.bring(work)
        except Rejected as error:
            await self._record_refusal(work, error.message, reason=error.reason)
            raise
        return {}

    def _brought(self, key: Key) -> BroughtBytes:
        """Returns how far the pulls of an attempt's images are, and what keeps them; nothing on a node without a cache."""
        return self.images.progress(key) if self.images is not None else BroughtBytes()

    async def _run_epilogue(self, key: Key) -> None:
        """Ends what hooks left running, and runs the site's epilogue hooks; raises Retry where one fails."""
        entry = await self._disk.call(self._journal.entry, key)
        if self._hooks:
            await self._hooks.epilogue(key, entry.work if entry else None)

    async def _find_place(self, work: NodeWork) -> RunContext:
        """Returns the account, the working directory and a note on homes that were passed over, after it has opened the output files.

        Directories and files are tried with the user's rights, in a process of its own. Raises Rejected; a refusal on their account is
        recorded as the attempt's end.
        """
        account = await asyncio.to_thread(_account_of, work)
        relative = launch.relative_files(work)
        only_there = bool(work.workdir and work.tasks and (relative or not work.image))  # an image may have what the node lacks
        request = {
            "op": "probe",
            "directories": [work.workdir] if only_there else [*filter(None, (work.workdir,)), account.home, "/"],
            "files": [path for path in dict.fromkeys((work.stdout, work.stderr)) if path and work.tasks],
            "truncate": not work.append,
            "user": account.uid if _is_root() else None,
            "group": account.gid,
            "groups": account.groups,
        }
        answer = await self._ask(request, why_not="its directories and files do not answer")
        if "workdir" not in answer:
            if work.image and relative and "failure" in answer:
                answer["failure"] += f"; {relative[0]!r} for output is relative to it, and written on the node: name an absolute path"
            raise await self._refused(work, answer)
        passed = [] if work.workdir else answer["passed_over"]
        note = f"the home directory {'; '.join(passed)}; working in {answer['workdir']} instead" if passed else ""
        return RunContext(account, answer["workdir"], note)

    async def _refused(self, work: NodeWork, answer: dict[str, Any]) -> Rejected:
        """Records a refusal as the attempt's end, so that later calls and a restarted agent give the same answer; returns the error."""
        why, fault = _said(answer, "the process that looks at its files was killed")
        await self._record_refusal(work, why, unfit=fault)
        return _refusal(work, why, fault)

    async def _record_refusal(self, work: NodeWork, why: str, *, unfit: bool = False, reason: str = "") -> None:
        """Takes the right to start away and writes an end without tasks with the sentence `why`; `unfit`: the node is at fault, `reason`: a
        word of its own.

        A disk that fails is passed over.
        """
        with suppress(Retry):
            await self._preparing.call(self._journal.claim, work.key)
            await self.keep_empty_end(work.key, failure=why, unfit=unfit, reason=reason)

    async def keep_empty_end(self, key: Key, *, failure: str = "", unfit: bool = False, reason: str = "") -> None:
        """Writes the exit record, without tasks, of an attempt for which no shim writes one: in memory, and on disk where that takes it.

        It replaces a record that is there: the caller has made sure that no shim can start, and that none has written. A write that fails
        raises nothing.
        """
        with suppress(Retry):
            boot, now = self._facts.boot_id, self._clock.now()
            await self._disk.call(self._journal.write_empty_exit, key, boot, now, failure=failure, unfit=unfit, reason=reason)

    def _lay_down(self, work: NodeWork) -> None:
        """Writes the work's script and host files, and makes its scope; starts no process."""
        place = self._places.get(work.key)
        if work.script is not None and place:
            self._journal.write_script(work.key, work.script, place.account if _is_root() else None)
        HostFiles(self.programs).write_hosts(work)
        memory = self._facts.memory_bytes
        limits = self._reserves.limits(max_processes=work.max_processes, reserved_memory=work.reserved_memory, memory_bytes=memory)
        self.scopes.make(work.key, limits)

    # the start

    async def start(self, work: NodeWork, private: Mapping[str, str]) -> Running:
        """Starts a prepared attempt, at most once ever: a second call returns the first one's answer. `private`: the values of Secrets.

        Raises Rejected (StartFailed, NodeUnfit), also on a second call; Retry where the disk does not answer.
        """
        described = self._fresh.pop(work.key, None)
        if described is None and (running := await self._started(work)):
            return running  # of a fresh one `prepare` has looked, and the right to start is taken only once
        if work.tasks == 0:
            running = Running(0, 0, self._clock.now(), time.clock_gettime(time.CLOCK_BOOTTIME))
            await self.claim(work.key, running)
            return await self._started(work) or running
        if described is None:
            described = await self._described_again(work)
        place = self._places[work.key]
        values = environment.effective(private, work, workdir=place.tasks_begin_in, exported=place.exported, software=place.software)
        said = environment.of_node(work, workdir=place.tasks_begin_in)
        started = described | {
            "environment": described["environment"] | said, "private": values, "alone": work.key in self._first,
        }  # fmt: skip
        request = {"op": "start", "launch": started}
        answer: dict[str, Any] = {}
        self._first.discard(work.key)
        for _ in range(LAUNCHES):
            answer = await self._ask(request, why_not="the command does not begin")
            started["alone"] = False
            if "running" in answer:
                return self._watch.follow_shim(work.key, Running(*answer["running"]))
            if running := await self._started(work):  # taken, or its shim could not answer
                return running
            if "failure" in answer:
                break
        return await self._give_up(work, answer)

    async def _give_up(self, work: NodeWork, answer: dict[str, Any]) -> Running:
        """Takes the right to start away and raises the refusal; where somebody has started the work meanwhile, returns its process."""
        why, fault = _said(answer, f"the process that keeps it was killed {LAUNCHES} times before it could begin")
        try:
            await self.claim(work.key)
        except NotFound:
            raise _refusal(work, why, fault) from None
        running = await self._disk.call(self._journal.claimed, work.key)
        if running is not None and running.pid and (running := await self._started(work)):
            return running
        await self.keep_empty_end(work.key, failure=why, unfit=fault)
        raise _refusal(work, why, fault)

    async def claim(self, key: Key, running: Running | None = None) -> None:
        """Takes the right to start the attempt, so that no shim can; does nothing where it is taken already.

        `running` is the process that the claim names; None: none, and the attempt is over before its start. Raises NotFound where there is
        no directory of the attempt, Retry where the right cannot be taken.
        """
        if await self._disk.call(self._journal.claimed, key) is not None:
            return
        with suppress(Retry):
            await (self._disk.call(self._journal.claim, key, running) if running else self._disk.call(self._journal.claim, key))
        if await self._disk.call(self._journal.claimed, key) is None:
            raise Retry(f"the right to start attempt {key.attempt} of {key.uid} cannot be taken", reason="StateUnwritable")

    async def _started(self, work: NodeWork) -> Running | None:
        """Returns the process of an earlier start, which is followed from now on; None: there was no start.

        Raises Rejected where that start was refused, or the attempt was ended before it.
        """
        running = await self._disk.call(self._journal.claimed, work.key)
        if running is None:
            return None
        record = await self._disk.call(self._journal.exit_record, work.key)
        if record and record.failure:
            raise _refusal(work, record.failure, record.unfit)
        if running.started == 0:
            raise refuse(work, "it was ended before it was started")
        return self._watch.follow_shim(work.key, running) if running.pid else running

    async def _described_again(self, work: NodeWork) -> dict[str, Any]:
        """Returns the launch description of an attempt whose start is repeated; prepares one again that an earlier agent prepared."""
        if work.key not in self._places:
            await self.prepare(work)
            return self._fresh.pop(work.key)
        return await asyncio.to_thread(self._describe, work, self._places[work.key])

    def _describe(self, work: NodeWork, place: RunContext) -> dict[str, Any]:
        """Returns the launch description, the fields of `shim.Launch`, without the values of Secrets."""
        where = self.place_fields(work, place)
        described = launch.describe(
            work, place, where, environment_file=users.environment_file(), programs=self.programs,
            interface=self.fabric_interface, cpus=self.count_cpus(), gpus=self.gpus,
        )  # fmt: skip
        return described | dataclasses.asdict(self.scopes.entrances(work.key))

    def count_cpus(self) -> int:
        """Returns how many processors work has on this node."""
        return len(os.sched_getaffinity(0) - self._reserves.cpus)

    def _keep_place(self, work: NodeWork, place: RunContext) -> None:
        """Keeps in memory, beyond this agent's life, where the work runs on this node, so that its launches run there too."""
        self._journal.write_place(work.key, self.place_fields(work, place))

    def place_fields(self, work: NodeWork, place: RunContext) -> dict[str, Any]:
        """Returns the fields of `task_start.WorkPlace` of the work on this node, except for the scope's cgroup files."""
        fields = launch.place_of_work(
            work,
            place,
            directory=str(self._journal.directory(work.key)),
            run_directory=str(self._journal.run_directory(work.key)),
            boot=self._facts.boot_id,
            switch_user=_is_root(),
        )
        return fields | self._mounted(work, place)

    def _mounted(self, work: NodeWork, place: RunContext) -> dict[str, Any]:
        """Returns those fields of a launch description that name what is mounted for the work."""
        found: dict[str, Any] = {}
        if place.software.images:
            found["hold_procs"] = self.scopes.hold_procs(work.key)
        if work.scratch_bytes:
            space = self._scratch.space(work)
            found |= {"scratch": space.path, "scratch_bytes": space.memory_bytes if _is_root() else 0}
        return found

    async def _ask(self, request: dict[str, Any], *, why_not: str) -> dict[str, Any]:
        """Sends a request to the runner and returns its answer; starts a new runner and repeats the request where one dies.

        Both kinds of request may be repeated: a probe changes nothing, and a start succeeds only once. After 60 s without an answer it
        returns a failure of the node, whose sentence begins with `why_not`.
        """
        pause = 0.01
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    try:
                        return await self._starter.request(request)
                    except UnknownOutcome:
                        if "launch" in request:
                            request["launch"]["alone"] = False
                        await self._clock.sleep(pause)
                        pause = min(1.0, 2 * pause)
        except TimeoutError:
            return {"failure": f"{why_not}: no answer within {ANSWER_SECONDS:.0f} s", "unfit": True}


def _account_of(work: NodeWork) -> Account:
    """Returns the account that the work runs as; raises Rejected for one that is unknown or refused. May block (LDAP)."""
    return users.account(work.account or work.user, min_uid=work.min_uid, node=work.node)


def _said(answer: dict[str, Any], otherwise: str) -> tuple[str, bool]:
    """Returns the runner's reason for a failure, and whether the node is at fault, as it is when the answering process was killed."""
    if "failure" in answer:
        return str(answer["failure"]), bool(answer.get("unfit"))
    return otherwise, True


def _refusal(work: NodeWork, why: str, fault: bool) -> Rejected:
    """Returns the error of a start that failed: NodeUnfit where the node is at fault (`fault`), else StartFailed."""
    return unfit(work, why) if fault else refuse(work, why)


def _state_unfit(work: NodeWork, error: Retry) -> Rejected:
    """Returns the error NodeUnfit for work whose state the disk does not take."""
    return unfit(work, f"its state cannot be written: {error.message}")


def _wants_images(work: NodeWork) -> bool:
    """Tells whether images of the site's registry are pinned for the work."""
    return bool(work.software)


def _wants_scratch(work: NodeWork) -> bool:
    """Tells whether the work asks for scratch space."""
    return bool(work.scratch_bytes)


def _wants_software(work: NodeWork) -> bool:
    """Tells whether the work asks for images, of the registry or the user's own."""
    return work.wants_software


def _wants_container(work: NodeWork) -> bool:
    """Tells whether the work runs in a container: every node of it has one, since launches may begin where none of its own tasks does."""
    return bool(work.image)


def _is_root() -> bool:
    """Tells whether the agent runs as root, so that it can switch users."""
    return os.geteuid() == 0
