"""The host of a real machine: starts processes, follows them by pidfd, and finds them again after the agent's own restart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import NotFound, Rejected, Retry
from lattice_agent.attempts import EarlySignal, ExitRecord, KeptAttempt, Key, Known, NodeWork, Ordered, Running, Seen
from lattice_agent.host import facts, processes, scopes
from lattice_agent.host.containers import Containers, ContainerTools
from lattice_agent.host.controllers import NO_RESERVES, Reserves
from lattice_agent.host.hooks import HookCgroups, HookDirectories, Hooks
from lattice_agent.host.host_files import HostFiles
from lattice_agent.host.images import Images
from lattice_agent.host.interface import MachineFacts, OnExit
from lattice_agent.host.keepers import Keepers
from lattice_agent.host.launch_cgroups import LaunchCgroups
from lattice_agent.host.launcher import Launcher
from lattice_agent.host.mounts import Mounts
from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.host.scratch import Scratch, ScratchDirectory
from lattice_agent.host.threads import Threads
from lattice_agent.host.watch import ShimWatch
from lattice_agent.metrics import AgentMetrics
from lattice_agent.standalone import private_tmp
from lattice_agent.standalone.task_start import start_ticks
from lattice_agent.state import disk_pressure, task_notes
from lattice_agent.state.image_cache import ImageCache
from lattice_agent.state.journal import Journal
from lattice_agent.state.step_journal import StepJournal

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ANSWER_SECONDS = 60.0
_LOOK_SECONDS = 1.0
DISK_SECONDS = 10.0
"""How long a call waits for the disk of the state directory, whose silence is a flaw of the node then."""
_PRUNE_SECONDS = 3600.0
_CLAIM_SECONDS = 0.5
"""Time within which a live shim has taken the right to start; it needs less than a millisecond."""


class LinuxHost:
    """Carries out the effects on this machine; `open_host` makes it, and its TaskGroup holds its tasks."""

    def __init__(
        self,
        journal: Journal,
        scopes_: scopes.Scopes,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        reserves: Reserves,
        directories: HookDirectories,
        cache: ImageCache | None = None,
        registry_auth: str = "",
        scratch: ScratchDirectory | None = None,
        tools: ContainerTools | None = None,
        disk_seconds: float = DISK_SECONDS,
    ) -> None:
        """Runs work in OCI images with `tools`; None: those of their usual places."""
        self.journal, self.scopes = journal, scopes_
        self.runner_client = RunnerClient()
        self._clock, self._tasks = clock, tasks
        state = f"its state directory {journal.state_dir}"
        self._disk_seconds = disk_seconds
        self._disk = Threads(state, count=4, within=disk_seconds)
        self._looks = Threads(state, count=1, within=_ANSWER_SECONDS)
        self._kernel = Threads("the kernel", count=4, within=_ANSWER_SECONDS)
        self._facts = facts.gather()
        self._instance, self._seen = journal.instance(), journal.read_seen()
        self._callback: OnExit | None = None
        self._undelivered: deque[tuple[Key, ExitRecord | None]] = deque()
        self.watch = ShimWatch(
            clock, scopes_, self._kernel, self._find_record, self._close_launches, self._note_ends, self._deliver, self._spawn
        )
        self.reserves = reserves
        self.hooks: Hooks | None = None
        if isinstance(scopes_, scopes.CgroupScopes):
            self.hooks = Hooks(directories, HookCgroups(scopes_.root), self.runner_client, self._kernel, clock)
        self.images: Images | None = None
        if cache is not None:
            held = Threads(f"the image cache {cache.directory}", count=2, within=_ANSWER_SECONDS)
            self.images = Images(cache, registry_auth, self._facts.boot_id, clock, held, self._images_in_use)
        mounts = Mounts(scopes_, self.runner_client, self._kernel, clock, cache)
        space = Threads(f"the scratch directory {scratch.directory}" if scratch else "the run directory", count=2, within=_ANSWER_SECONDS)
        self.scratch = Scratch(scratch, journal, space, self._facts.memory_bytes, clock, self._spawn)
        self.containers = Containers(
            tools or ContainerTools(), scopes_, self.runner_client, self._kernel, clock, self._facts, journal, cache
        )
        self.launcher = Launcher(
            journal, scopes_, clock, self._facts, self.runner_client, self._disk, self.watch, reserves, self.hooks, mounts,
            self.scratch, self.containers, self.images,
        )  # fmt: skip
        self.keepers: Keepers | None = None
        """Of launches; None: the machine has no cgroups to hold them, and launches are refused."""
        if isinstance(scopes_, scopes.CgroupScopes):
            cgroups = LaunchCgroups(scopes_)
            self.keepers = Keepers(cgroups, journal, self.launcher, self.runner_client, self._kernel, clock)
        self._pruned = float("-inf")
        self._flaw, self._in_memory = "", 0
        self._looking: asyncio.Task[None] | None = None
        self._look_began = 0.0
        self._running: set[asyncio.Task[None]] = set()

    def _images_in_use(self) -> frozenset[str]:
        """Returns the digests of the images that attempts hold whose step `images` is not undone."""
        notes, found = StepJournal(self.journal), set[str]()
        for key in self.journal.known():
            entry = self.journal.entry(key) if "images" in notes.standing(key) else None
            found.update(image.digest for image in (entry.work.software if entry is not None else ()))
        return frozenset(found)

    def measure(self, metrics: AgentMetrics) -> None:
        """Has steps of prologues, the image cache and pulls counted from now on."""
        self.launcher.prologue.observer = metrics
        if self.images is not None:
            self.images.metrics = metrics
            self._spawn(self.images.measure_cache())

    # what the node knows

    def facts(self) -> MachineFacts:
        """Returns CPUs, memory, kernel, architecture and boot id of the machine, read once at the start."""
        return self._facts

    async def unenforced(self) -> str:
        """Returns which limits of work do not hold on this machine, as a clause; empty: all do, or the kernel does not answer."""
        try:
            return await self._kernel.call(self.scopes.unenforced)
        except Retry:
            return ""

    async def flaw(self) -> str:
        """Returns why this node should be given no work now, as a clause, by the newest check of the disk; empty: nothing is wrong.

        Begins such a check unless one is under way, and waits 1 s for its end; that the disk has not answered it for 10 s is a flaw, too
        (`disk_seconds`).
        """
        if self._looking is None or self._looking.done():
            self._looking, self._look_began = self._spawn(self._look_at_disk()), self._clock.monotonic()
        done, _ = await asyncio.wait((self._looking,), timeout=_LOOK_SECONDS)
        if not done and self._clock.monotonic() - self._look_began >= self._disk_seconds:
            self._flaw = f"its state directory {self.journal.state_dir} has not answered for {self._disk_seconds:g} s"
        return self._flaw

    async def _look_at_disk(self) -> None:
        """Frees disk space, copies exit records from memory to disk, and stores the disk's flaw for `flaw` (empty: none)."""
        try:
            found = await self._looks.call(
                disk_pressure.check_disk, self.journal, self._clock.now(), wanting=bool(self._flaw), busy=self.watch.busy
            )
        except Retry as error:
            self._flaw = error.message
            return
        self._flaw, self._in_memory = found.flaw, found.waiting
        for name in found.given_up:
            event(log, "OutputGivenUp", logging.WARNING, attempt=name, message="the disk of the state directory is short of room")
        for name in found.brought:
            event(log, "EndBroughtToDisk", attempt=name, message="its end stood in the run directory only")

    def ends_in_memory(self) -> int:
        """Returns how many exit records are in memory only, as of the last check of the disk."""
        return self._in_memory

    async def cache_full(self) -> tuple[str, tuple[str, ...]]:
        """Returns a sentence on why the image cache has no room for an image that work wanted, and digests of the images in it.

        Both are empty where there is room, or the node keeps no images.
        """
        return await self.images.fullness() if self.images is not None else ("", ())

    def pulling(self) -> Collection[Key]:
        """Returns the attempts whose images are being pulled or checked."""
        return self.images.waiting() if self.images is not None else ()

    def survivors(self) -> dict[Key, str]:
        """Returns the attempts with processes that survived KILL, each with a clause that names them."""
        return dict(self.watch.survivors)

    def instance(self) -> str:
        """Returns the random id of the state directory, which tells two agents under one node's name apart."""
        return self._instance

    def seen(self) -> Seen:
        """Returns the highest plan seq that this node has kept, with epoch and term of that plan; seq 0: none was kept."""
        return self._seen

    async def remember(self, seen: Seen) -> None:
        """Keeps `seen` durably where its seq is higher than the kept one; else changes nothing. Raises Retry where the disk refuses it."""
        if seen.seq > self._seen.seq:
            await self._disk.call(self.journal.remember, seen)
            self._seen = max(self._seen, seen, key=lambda one: one.seq)  # not before it is on the disk: a full one is tried again

    def on_exit(self, callback: OnExit) -> None:
        """Sets the function that is called with each end from now on; ends that came before are delivered to it at once, in order."""
        self._callback = callback
        while self._undelivered:
            callback(*self._undelivered.popleft())

    async def attempts(self) -> list[Known]:
        """Returns all attempts that journals and scopes show; follows those that live, and kills the processes of those without a shim.

        Waits until the disk answers, however long that takes.
        """
        await self._prune()
        keys = await self._patiently(self._known)
        found = [await self._patiently(self._look, key) for key in keys]
        for known in found:
            self._take_up(known)
        return found

    def _known(self) -> list[Key]:
        """Returns the attempts of which there is a journal or a scope, sorted."""
        return sorted({*self.journal.known(), *self.scopes.standing_scopes()})

    async def _patiently(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Calls a function on the disk again and again until it answers, however long that takes, and returns its result."""
        while True:
            try:
                return await self._disk.call(function, *args, **kwargs)
            except Retry as error:
                event(log, "StateWaits", logging.WARNING, reason=error.reason, message=error.message)
                await self._clock.sleep(1.0)

    async def recall(self, key: Key) -> Known | None:
        """Returns what the disk keeps of one attempt, and follows it from now on where it lives; None: the disk keeps nothing of it."""
        if not await self._disk.call(self.journal.directory(key).is_dir):
            return None
        known = await self._disk.call(self._look, key)
        self._take_up(known)
        return known

    def _take_up(self, known: Known) -> None:
        """Follows the shim of an attempt found alive; of one found without a shim, begins to kill the processes that are left."""
        if known.alive and known.running and known.running.pid:
            self.watch.follow_shim(known.key, known.running)
        elif known.running and known.populated and not known.alive:
            self.watch.settle(known.key)

    def _look(self, key: Key) -> Known:
        """Returns an attempt as disk and /proc show it now; reads first whether its shim lives, since a shim writes its record before it
        dies.
        """
        entry, running = self.journal.entry(key), self.journal.claimed(key)
        same_boot = entry is not None and entry.boot == self._facts.boot_id
        if running is None and entry is None:
            running = _of_pid(self.scopes.shim_pid(key))
        if running is None and self.scopes.shim_pid(key):
            running = self._claimed_late(key)
        alive = bool(running and (same_boot or entry is None) and processes.is_live(running.pid, running.start_ticks))
        populated = alive or self.scopes.populated(key)
        record, forgotten = self.journal.exit_record(key), self.journal.is_settled(key)
        if running is not None and running.pid == 0:
            if running.started == 0:
                running = None
            else:  # it has no tasks here, and lives until it is ended
                alive = same_boot and record is None and not forgotten
        if record is None and not forgotten and not populated and running is not None and running.pid:
            with suppress(OSError):
                record = self.journal.recover_exit(key, self._clock.now())
        work, order, unclean = entry.work if entry else None, self.journal.order(key), self.launcher.prologue.begun(key)
        return Known(key, work, running, alive, record, same_boot, populated, forgotten, order, unclean, self.journal.has_signalled(key))

    def _claimed_late(self, key: Key) -> Running | None:
        """Waits a moment for the claim of a shim that is already in its scope, and returns it; None: the shim made no claim in that
        time.
        """
        until = time.monotonic() + _CLAIM_SECONDS
        while (running := self.journal.claimed(key)) is None and self.scopes.shim_pid(key) and time.monotonic() < until:
            time.sleep(_CLAIM_SECONDS / 50)
        return running or self.journal.claimed(key)

    # the start

    async def prepare(self, work: NodeWork) -> None:
        """Writes the attempt's journal and carries out the steps of its prologue; raises as `Host.prepare` does."""
        await self.launcher.prepare(work)

    async def start(self, work: NodeWork, private: Mapping[str, str] | None = None) -> Running:
        """Starts a prepared attempt, at most once ever: a second call returns the first one's answer; raises as `Host.start` does."""
        return await self.launcher.start(work, private or {})

    # the end

    async def terminate(self, key: Key, order: Ordered) -> bool:
        """Sends TERM to every process of the work, and lets no launch begin; work that was never started ends at once, and so does work of
        which no process is on this node.

        Returns False where no process was left to end; never so without cgroups, where processes may hide.
        """
        with suppress(Retry):  # only the agent that follows this one wants to know
            await self._kernel.call(self.journal.note_order, key, order)
        await self._close_launches(key)
        if not self.watch.follows(key):
            with suppress(Retry):
                if await self._end_without_shim(key):
                    return True
        reached = await self._kernel.call(self.scopes.terminate, key)
        return reached > 0 or not self.scopes.complete

    async def _close_launches(self, key: Key) -> None:
        """Lets no launch begin in an attempt any more; passes over a kernel that does not answer."""
        with suppress(Retry):
            await self._kernel.call(self.journal.close_launches, key)

    async def send_signal(self, key: Key, early: EarlySignal) -> int:
        """Sends the signal before the end, once at most until the next boot: it is noted first. Returns how many processes had it.

        Raises Retry where kernel or disk do not answer.
        """
        if not await self._kernel.call(self.journal.note_signal, key):
            return 0
        shim = await self._kernel.call(self.journal.claimed, key)
        return await self._kernel.call(self.scopes.send_early, key, early, shim.pid if shim is not None else 0)

    async def kill(self, key: Key) -> None:
        """Sends KILL to every process of the work, and repeats that in the background until none is left.

        Work that was never started, or of which no process is here, ends at once. Raises Retry where kernel or disk do not answer.
        """
        if not self.watch.follows(key):
            populated = await self._kernel.call(self.scopes.populated, key)  # asked once: what is left of a launch may end at any moment
            if not populated and await self._end_without_shim(key):
                return
            if not self.watch.follows(key) and (populated or await self._kernel.call(self.scopes.populated, key)):
                await self._adopt(key)
        await self.watch.kill(key)

    async def _adopt(self, key: Key) -> None:
        """Follows the living shim of an attempt that is not followed yet; where disk and /proc show none, settles the attempt as ended."""
        with suppress(Retry):
            known = await self._disk.call(self._look, key)
            if known.alive and known.running:
                self.watch.follow_shim(key, known.running)
                return
        self.watch.settle(key)

    async def _end_without_shim(self, key: Key) -> bool:
        """Ends an attempt without a shim: one never started, whose right to start is taken, or one without tasks here, whose end is
        delivered once its launches have left no process.

        Returns False, and ends nothing, where it has a shim, which is followed from now on, or where processes but no files of it are left.
        """
        try:
            await self.launcher.claim(key)
        except NotFound:  # nothing was made for it: its preparation ended before it began
            if await self._kernel.call(self.scopes.populated, key):
                return False
            self._deliver(key, ExitRecord(key.uid, key.attempt, self._facts.boot_id, (), self._clock.now()))
            return True
        running = await self._disk.call(self.journal.claimed, key)
        if running is None:
            return False
        if running.pid:
            self.watch.follow_shim(key, running)
            return False
        if await self._kernel.call(self.scopes.populated, key):  # ranks of launches, or their keepers
            self.watch.settle_when_empty(key)
            return False
        if self.watch.is_settling(key):
            return True
        if await self._disk.call(self.journal.exit_record, key) is None:
            await self.launcher.keep_empty_end(key)
        self._deliver(key, await self._disk.call(self.journal.exit_record, key))
        return True

    async def clear(self, key: Key) -> None:
        """Undoes, in reverse order, what `prepare` has begun for an attempt of which no process is left.

        Raises Retry while a step cannot be undone; the next call begins with that step.
        """
        await self.launcher.prologue.undo(key)

    async def remaining(self, key: Key) -> int:
        """Returns how many processes of the work are left, the shim not counted."""
        return len(await self._kernel.call(self.scopes.work, key))

    async def history(self, since: int) -> list[KeptAttempt]:
        """Returns every attempt that is kept, except those that a plan of the seq `since` or of a lower one has settled."""
        keys = await self._disk.call(self.journal.known)
        return [kept for key in keys if (kept := await self._disk.call(self._kept, key, since)) is not None]

    def _kept(self, key: Key, since: int) -> KeptAttempt | None:
        """Returns what is kept of one attempt, with the time of its journal; None: a plan up to `since` has settled it."""
        settled = self.journal.settled_by(key)
        return None if 0 < settled <= since else KeptAttempt(self._look(key), self.journal.prepared_at(key))

    def made(self) -> float:
        """Returns when the state directory was made, seconds since the epoch."""
        return self.journal.made()

    async def forget(self, key: Key, *, seq: int = 0) -> None:
        """Drops an attempt that the plan of this seq (0: unknown) has settled: the scope at once, exit record and output after 7 days.

        Its prologue is undone first. Raises Retry where processes are left, or a step cannot be undone.
        """
        with suppress(NotFound):
            await self.launcher.claim(key)
        if not self.watch.follows(key):
            await self.clear(key)
        if self.watch.follows(key) or not await self._kernel.call(self.scopes.remove_scope, key):
            left = await self.remaining(key)
            raise Retry(f"attempt {key.attempt} of {key.uid} still has {left} processes on this node", reason="Populated")
        await self._disk.call(HostFiles(self.launcher.programs).remove_hosts, key)  # not in the epilogue: no end waits for the disk
        await self._disk.call(private_tmp.remove, private_tmp.path_of(str(self.journal.directory(key)), self._facts.boot_id))
        await self._disk.call(self.journal.mark_settled, key, self._clock.now(), seq)
        self.launcher.drop_context(key)
        await self._prune()

    async def _prune(self) -> None:
        """Deletes attempts that were settled more than 7 days ago, once an hour at most; a disk that fails is passed over."""
        if self._clock.monotonic() - self._pruned >= _PRUNE_SECONDS:
            self._pruned = self._clock.monotonic()
            with suppress(Retry):
                await self._disk.call(self.journal.prune, self._clock.now())

    # what comes of it

    async def _find_record(self, key: Key) -> ExitRecord | None:
        """Returns the exit record of an attempt whose shim has ended, which is written here where there are no tasks on this node, or a
        killed shim has noted their ends; None: there is none. Waits until the disk has answered.
        """
        record = await self._patiently(self.journal.exit_record, key)
        running = await self._patiently(self.journal.claimed, key) if record is None else None
        if running is None or not running.started:
            return record
        if running.pid:
            return await self._recovered(key)
        await self.launcher.keep_empty_end(key)
        return await self._patiently(self.journal.exit_record, key)

    async def _recovered(self, key: Key) -> ExitRecord | None:
        """Returns the exit record that follows from what a killed shim has noted, and writes it; None: that tells no end."""
        try:
            record = await self._patiently(self.journal.recover_exit, key, self._clock.now())
        except OSError as error:
            event(log, "EndNotNoted", logging.WARNING, allocation=key.uid, attempt=key.attempt, message=str(error))
            return None
        said = "the shim was killed before it wrote the exit record: " + ("its notes tell the end" if record else "the end is unknown")
        event(log, "ShimLost", logging.WARNING, allocation=key.uid, attempt=key.attempt, message=said)
        return record

    async def _note_ends(self, key: Key) -> None:
        """Notes the ends of tasks that a shim which hangs has not reaped; passes over a kernel that does not answer, or has no room."""
        with suppress(Retry, OSError):
            if running := await self._kernel.call(self.journal.claimed, key):
                directory = self.journal.run_directory(key)
                await self._kernel.call(task_notes.note_zombies, directory, running.pid, self._clock.now())

    def _spawn(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins a task of this host, which `close` cancels, and returns it."""
        task = self._tasks.create_task(what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _deliver(self, key: Key, record: ExitRecord | None) -> None:
        """Calls the function that `on_exit` has set with an attempt's end; keeps the end for it where none is set yet."""
        if self._callback:
            self._callback(key, record)
        else:
            self._undelivered.append((key, record))

    def close(self) -> None:
        """Stops following shims, cancels the host's own tasks and ends the runner; shims and work go on."""
        self.watch.close()
        for task in self._running:
            task.cancel()
        self.runner_client.close()
        self.scopes.close()


def _of_pid(pid: int) -> Running | None:
    """Returns a shim that only its scope names; None: there is none, or it has ended."""
    try:
        return Running(pid, start_ticks(pid), 0.0, 0.0) if pid else None
    except OSError:
        return None


@asynccontextmanager
async def open_host(
    state_dir: Path,
    run_dir: Path,
    *,
    node: str,
    clock: Clock,
    scope_root: Path | None = None,
    reserves: Reserves = NO_RESERVES,
    hooks: HookDirectories | None = None,
    cache: ImageCache | None = None,
    registry_auth: str = "",
    scratch_dir: Path | None = None,
    tools: ContainerTools | None = None,
    disk_seconds: float = DISK_SECONDS,
) -> AsyncIterator[LinuxHost]:
    """Opens state and run directory, and yields the host of this machine for one agent; leaving it ends the runner and nothing that runs.

    The default scopes stand below `lattice.slice/NODE` of cgroup v2. Raises Rejected for hooks or scratch space that
    are no directory, for hooks on a machine without cgroups, Corrupt for a state directory of another format, Retry where systemd gives no
    scope.
    """
    journal = Journal(await asyncio.to_thread(state_dir.resolve), await asyncio.to_thread(run_dir.resolve))
    await asyncio.to_thread(journal.open)
    found = await asyncio.to_thread(scopes.choose, node, scope_root)
    hooks = hooks or HookDirectories()
    await asyncio.to_thread(hooks.check)
    if hooks != HookDirectories() and not found.complete:
        raise Rejected("--prologue-dir and --epilogue-dir need an agent that may make cgroups", reason="SettingWrong")
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        await asyncio.to_thread(private_tmp.remove_older, str(journal.attempts_dir), facts.boot_id())
        if cache is not None:
            with suppress(OSError):  # told by the first allocation that needs an image
                await asyncio.to_thread(cache.open)
        scratch = ScratchDirectory(await asyncio.to_thread(scratch_dir.resolve), node) if scratch_dir is not None else None
        host = LinuxHost(journal, found, clock, tasks, reserves, hooks, cache, registry_auth, scratch, tools, disk_seconds)
        host.runner_client.open()
        try:
            await host.scratch.open()
            yield host
        except Exception as error:
            failure = error
        finally:
            host.close()
    if failure is not None:
        raise failure
