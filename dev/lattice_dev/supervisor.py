"""Starts, finds again, stops and kills the components of one instance, and saves each step before the next."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from lattice import errors
from lattice_dev import processes, state
from lattice_dev.components import Component
from lattice_dev.processes import Launcher, ProcessId
from lattice_dev.state import Layout, Process, State
from lattice_dev.waiting import Clock, wait_until

GRACE_SECONDS = 3.0
LOG_LINES = 15
PROGRAM_PART = 3  # `python -m MODULE`: what tells a component from the processes that it started itself


class Supervisor:
    """The processes of one instance; `state.processes` is saved before each next step."""

    def __init__(self, where: Layout, clock: Clock) -> None:
        self._where = where
        self._clock = clock
        self._launcher = Launcher(clock)

    def running(self, recorded: State) -> set[str]:
        """Returns the names of the components whose recorded process lives."""
        return {name for name, process in recorded.processes.items() if processes.alive(process.id)}

    def adopt(self, recorded: State, components: Sequence[Component]) -> list[str]:
        """Records processes that an interrupted command started and did not record; returns the names of their components.

        One of the same program that was started with other arguments than now is ended. Records of dead processes are removed, and the
        state is saved.
        """
        running = self.running(recorded)
        missing = {component.name: component for component in components if component.name not in running}
        adopted = []
        for found in processes.marked(self._where.mark) if missing else []:
            component = missing.get(found.component)
            if component and found.argv in (component.argv, component.program):
                recorded.processes[component.name] = Process(found.id.pid, found.id.start, component.digest)
                adopted.append(component.name)
            elif component and found.argv[:PROGRAM_PART] == component.program[:PROGRAM_PART]:
                self._launcher.stop([found.id], GRACE_SECONDS)
        self._forget_dead(recorded)
        return adopted

    def ensure(self, recorded: State, component: Component) -> bool:
        """Starts the component and records its process, unless it runs with the same arguments; one with others is stopped first.

        Returns whether it was started; whether it is ready is not asked.
        """
        process = recorded.processes.get(component.name)
        if process and processes.alive(process.id):
            if process.digest == component.digest:
                return False
            self._launcher.stop([process.id], GRACE_SECONDS)
        self._start(recorded, component)
        return True

    def stop(self, recorded: State, name: str) -> None:
        """Ends a component by TERM, and by KILL after 3 s, and removes its record; returns when the process has ended, at once where none
        is recorded.
        """
        if process := recorded.processes.get(name):
            self._launcher.stop([process.id], GRACE_SECONDS)
        self._drop(recorded, [name])

    def stop_all(self, recorded: State, names: Sequence[str]) -> None:
        """Ends these components together by TERM, and by KILL after 3 s, and removes their records; returns when all have ended."""
        self._launcher.stop([recorded.processes[name].id for name in names if name in recorded.processes], GRACE_SECONDS)
        self._drop(recorded, names)

    def send(self, recorded: State, name: str, number: int) -> None:
        """Sends the signal `number` to a component and keeps its record; after SIGKILL it returns when the process is gone.

        Raises NotFound when the component does not run.
        """
        process = recorded.processes.get(name)
        if process is None or not processes.send(process.id, number):
            raise errors.NotFound(f"{name} does not run", reason="NotRunning")
        if number == signal.SIGKILL:
            self._launcher.kill([process.id])

    def wait(self, recorded: State, components: Sequence[Component], within: float) -> None:
        """Waits until each component's probe is satisfied, one after the other, `within` seconds for each.

        Raises Retry after that time, and at once for a process that ended, with the end of its log.
        """
        for component in components:
            wait_until(self._missing(recorded, component), within=within, clock=self._clock, what=component.name)

    def missing(self, recorded: State, component: Component) -> str:
        """Returns what keeps a component from being ready, as its probe says, or that it does not run; empty: it is ready."""
        process = recorded.processes.get(component.name)
        if process is None or not processes.alive(process.id):
            return "it does not run"
        return component.probe.missing()

    def kill_everything(self, namespaces: Sequence[int]) -> None:
        """Sends KILL to every process with the instance's mark or in one of its network namespaces, until none is left but the caller.

        `namespaces`: their inode numbers. Raises Retry when new ones still appear after 20 rounds.
        """
        for _ in range(20):
            left = [found.id for found in processes.marked(self._where.mark)]
            left += [process for inode in namespaces for process in processes.in_network_namespace(inode)]
            left = [process for process in left if process.pid != os.getpid()]
            if not left:
                return
            self._launcher.kill(left)
        raise errors.Retry(f"processes of {self._where.name} appear faster than they are killed", reason="NotKilled")

    def _missing(self, recorded: State, component: Component) -> Callable[[], str]:
        """Returns a function that returns what a component lacks, and raises Retry, with the end of its log, where it has ended."""

        def look() -> str:
            """Returns what the component lacks; empty: nothing. Raises Retry where it has ended."""
            answer = self.missing(recorded, component)
            if answer == "it does not run":
                raise errors.Retry(f"{component.name} ended; the end of its log:\n{self.tail(component.name)}", reason="Ended")
            return answer

        return look

    def tail(self, component: str) -> str:
        """Returns the last 15 lines of a component's log; `(no log)` where it has none."""
        path = self._where.log(component)
        if not path.exists():
            return "(no log)"
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])

    def _start(self, recorded: State, component: Component) -> None:
        """Starts a component and records its process."""
        environment = processes.environment_for(os.environ, self._where.mark, component.name)
        log, directory = self._where.log(component.name), self._where.directory
        started: ProcessId = self._launcher.start(component.argv, log=log, directory=directory, environment=environment)
        recorded.processes[component.name] = Process(started.pid, started.start, component.digest)
        state.save(self._where, recorded)

    def _drop(self, recorded: State, names: Sequence[str]) -> None:
        """Drops processes from the record."""
        for name in names:
            recorded.processes.pop(name, None)
        state.save(self._where, recorded)

    def _forget_dead(self, recorded: State) -> None:
        """Drops the processes that have ended from the record."""
        alive = self.running(recorded)
        recorded.processes = {name: process for name, process in recorded.processes.items() if name in alive}
        state.save(self._where, recorded)
