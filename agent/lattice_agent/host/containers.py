"""Makes and removes the containers of a node's attempts, which run work in OCI images, by an OCI runtime such as runc.

A container is found by its cgroup in the attempt's scope and by its bundle in the attempt's run directory. Removing it asks nobody: its
processes are killed by their cgroup, which ends its mounts, and its cgroups and files are removed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lattice.daemon.clock import Clock
from lattice.errors import Corrupt, Rejected, Retry, UnknownOutcome
from lattice.software.container_documents import ContainerConfig, read_config
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host import users
from lattice_agent.host.call_filters import CallFilter, CallFilters
from lattice_agent.host.interface import MachineFacts
from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.host.scopes import Scopes
from lattice_agent.host.scratch import ScratchSpace
from lattice_agent.host.threads import Threads
from lattice_agent.standalone import private_tmp
from lattice_agent.state.image_cache import ImageCache
from lattice_agent.state.journal import Journal
from lattice_agent.work import container
from lattice_agent.work.container import StartedContainer
from lattice_agent.work.devices import DeviceEdits, DeviceNode, choose_devices
from lattice_agent.work.environment import Account

ANSWER_SECONDS = 120.0
TRIES = 5
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.005
BUNDLE: Final = "container"
"""The directory of a container's files, in the attempt's run directory."""
FILTER: Final = "filter"
"""The file in it of the filter of system calls, where the stub sets that."""
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CDI: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where CDI specifications stand, the stronger last."""


@dataclass(frozen=True)
class ContainerTools:
    """Names the programs and files of the node that containers are made with."""

    runtime: str = "runc"
    """The OCI runtime: a path, or a name that is looked up in PATH and the system's directories."""
    stub: Path = Path("/usr/libexec/lattice/stub")
    """Lattice's own program in every container (`standalone/stub.c`)."""
    seccomp: Path = Path("/usr/share/containers/seccomp.json")
    """The profile of system calls, as podman and Docker have it."""
    cdi: tuple[Path, ...] = _CDI

    def program(self) -> str:
        """Returns the path of the runtime; empty: it is not installed."""
        return shutil.which(self.runtime, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}") or ""

    def flaw(self, scopes: Scopes) -> str:
        """Returns a clause on why this node runs no containers; empty: it does."""
        program = self.program()
        if os.geteuid() != 0 or not scopes.complete:
            return "its agent is not root, or may not make cgroups"
        if not program:
            return f"the OCI runtime {self.runtime} is not installed (--oci-runtime)"
        if Path(program).name == "crun" and scopes.kind == "hybrid":
            return "crun makes no containers on hybrid cgroups: use runc (--oci-runtime)"
        if not os.access(self.stub, os.X_OK):
            return f"{self.stub} is not there: it is made of lattice_agent/standalone/stub.c (--oci-stub)"
        if not os.access(self.seccomp, os.R_OK):
            return f"the seccomp profile {self.seccomp} is not there: install containers-common (--oci-seccomp)"
        return ""


class Containers:
    """Makes and removes the containers of the attempts of one node."""

    def __init__(
        self,
        tools: ContainerTools,
        scopes: Scopes,
        runner: RunnerClient,
        kernel: Threads,
        clock: Clock,
        facts: MachineFacts,
        journal: Journal,
        cache: ImageCache | None,
    ) -> None:
        """Takes images from `cache`; None: this node keeps none."""
        self._tools, self._scopes, self._runner, self._kernel = tools, scopes, runner, kernel
        self._clock, self._facts, self._journal, self._cache = clock, facts, journal, cache
        self._filters = CallFilters(tools.seccomp, tools.stub, facts)
        self.launches = ""
        """The directory of `srun` and its socket, which every container shows at the same path; empty: the node serves no launches."""

    def program(self) -> str:
        """Returns the path of the OCI runtime; empty: it is not installed."""
        return self._tools.program()

    def flaw(self) -> str:
        """Returns a clause on why this node runs no work in OCI images; empty: it does."""
        return self._tools.flaw(self._scopes) or ("" if self._cache is not None else "it keeps no images (--cache-dir)")

    async def make_container(self, work: NodeWork, account: Account, workdir: str, space: ScratchSpace | None) -> StartedContainer:
        """Makes and starts the container of an attempt anew; `workdir` is the directory of the node in which it was let.

        `space` is its scratch space, which the container shows at the same path; None: it has none.
        Raises Rejected: ImageRefused or StartFailed for what would fail on every node, PrologueFailed for what this node cannot do.
        """
        await self.end_container(work.key)
        try:
            if flaw := await self._kernel.call(self.flaw):
                raise Rejected(f"it runs no work in images: {flaw}", reason="PrologueFailed")
            image, devices, calls = await self._kernel.call(self._gather, work)
            groups = await asyncio.to_thread(users.group_names, account)
            request = await self._kernel.call(self._request, work, account, workdir, image, devices, calls, groups)
            _show_scratch(request, account, space)
        except (Rejected, Corrupt) as error:
            raise _refused(work, error.message, error.reason) from error
        answer = await self._ask(work, request, calls)
        if "workdir" not in answer:
            raise _refused(work, str(answer["failure"]), str(answer.get("reason") or "PrologueFailed"))
        return StartedContainer(
            image, devices.variables, answer["workdir"], _note(work, answer),
            self._fields(work, account, answer["workdir"], devices, calls),
        )  # fmt: skip

    async def _ask(self, work: NodeWork, request: Mapping[str, Any], calls: CallFilter) -> dict[str, Any]:
        """Has a fresh process make the container, and returns its answer; starts another where it or the runner is killed."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for _ in range(TRIES):
                    procs = await self._kernel.call(self._scopes.make_hold, work.key)
                    await self._kernel.call(_make_bundle, Path(request["bundle"]), calls.compiled)
                    with suppress(UnknownOutcome):
                        answer = await self._runner.request({**request, "op": "container", "procs": procs})
                        if "lost" not in answer:
                            return answer
                    await self._clock.sleep(LOOK_SECONDS)
                    await self.end_container(work.key)
                return {"failure": f"the process that makes its container was killed {TRIES} times"}
        except TimeoutError:
            return {"failure": f"its container is not made after {ANSWER_SECONDS:.0f} s: a file system does not answer"}

    async def end_container(self, key: Key) -> None:
        """Ends the container of an attempt and whoever makes it, and removes its cgroups and files; does nothing where there is none.

        Raises Retry where a process of it survives KILL for 10 s.
        """
        until = self._clock.monotonic() + KILL_SECONDS
        while not await self._kernel.call(self._remove_cgroups, key):
            if self._clock.monotonic() > until:
                raise Retry("a process of the container has survived KILL", reason="EpilogueFailed")
            await self._clock.sleep(LOOK_SECONDS)
        await self._kernel.call(shutil.rmtree, self._bundle(key), ignore_errors=True)
        await self._kernel.call(private_tmp.remove, self._tmp(key))

    def _remove_cgroups(self, key: Key) -> bool:
        """Removes the cgroups of an attempt's container and of the process that made it; returns whether both are gone."""
        return self._scopes.remove_hold(key) and self._scopes.remove_container(key)

    def _bundle(self, key: Key) -> Path:
        """Returns the directory of an attempt's container."""
        return self._journal.run_directory(key) / BUNDLE

    def _tmp(self, key: Key) -> str:
        """Returns the directory that an attempt sees as /tmp."""
        return private_tmp.path_of(str(self._journal.directory(key)), self._facts.boot_id)

    def _gather(self, work: NodeWork) -> tuple[ContainerConfig, DeviceEdits, CallFilter]:
        """Returns the configuration of the work's image, what its devices want, and the filter of its system calls.

        Raises Rejected, Corrupt.
        """
        document = self._cache.image_config(_digest(work)) if self._cache is not None else None
        if document is None:
            raise Rejected(f"the configuration of {work.image} is not in the image cache", reason="PrologueFailed")
        devices = _on_this_node(choose_devices(work.devices, list(_specifications(self._tools.cdi))))
        return read_config(document), devices, self._filters.current_filter()

    def _request(
        self, work: NodeWork, account: Account, workdir: str, image: ContainerConfig, devices: DeviceEdits, calls: CallFilter,
        groups: Mapping[int, str],
    ) -> dict[str, Any]:  # fmt: skip
        """Returns the request to `standalone.container`, but for the cgroup that it joins; raises Rejected."""
        config = container.runtime_config(
            work, account, cgroup=self._scopes.container_path(work.key), devices=devices,
            filter_=calls.rules if calls.compiled is None else None,
        )  # fmt: skip
        script = f"{self._journal.directory(work.key)}/script" if work.script is not None else ""
        of_node = bool(work.workdir) and workdir == work.workdir
        needed = work.workdir if work.tasks or of_node else ""  # without tasks only launches run here, each in a directory of its own
        binds = container.node_binds(
            account, workdir if of_node else "", stub=str(self._tools.stub), script=script, private_tmp=work.private_tmp,
            shared=work.container_mounts, devices=devices, launches=self.launches,
            call_filter=f"{self._bundle(work.key)}/{FILTER}" if calls.compiled is not None else "",
        )  # fmt: skip
        assert self._cache is not None  # noqa: S101 - `_gather` has asked
        return {
            "file_systems": [], "source": work.image, "image": str(self._cache.squashfs_file(_digest(work))), "config": config,
            "binds": binds,
            "user": account.uid, "group": account.gid, "groups": list(account.groups), "writable": work.writable,
            "tables": container.user_tables(account, groups), "home": account.home, "workdir": needed, "workdir_of_node": of_node,
            "rules": self._scopes.ruled_cgroups(work.key),
            "image_workdir": image.workdir, "tmp": self._tmp(work.key) if work.private_tmp else "", "keep": list(work.private_tmp_keep),
            **self._names(work.key),
        }  # fmt: skip

    def _names(self, key: Key) -> dict[str, str]:
        """Returns the runtime's program and the names that it knows the container by."""
        bundle = str(self._bundle(key))
        return {"runtime": self._tools.program(), "bundle": bundle, "state": f"{bundle}/state", "container": f"{key.uid}-{key.attempt}"}

    def _fields(self, work: NodeWork, account: Account, workdir: str, devices: DeviceEdits, calls: CallFilter) -> dict[str, Any]:
        """Returns the fields of `container_tasks.Container`, by which a shim starts tasks."""
        names = self._names(work.key)
        return {
            "runtime": names["runtime"], "state": names["state"], "identifier": names["container"], "bundle": names["bundle"],
            "stub": container.STUB, "workdir": workdir, "procs": self._scopes.container_procs(work.key),
            "process": container.task_process(account, devices), "filter": container.FILTER if calls.compiled is not None else "",
        }  # fmt: skip


def _refused(work: NodeWork, why: str, reason: str) -> Rejected:
    """Returns the error that says why this node cannot make a container; a profile that cannot be read counts as a failed prologue."""
    return Rejected(f"node {work.node}: {why}", reason=reason if reason != "ProfileUnreadable" else "PrologueFailed")


def _note(work: NodeWork, answer: Mapping[str, Any]) -> str:
    """Returns what the user of a container should know of it, by the answer of who made it; empty: nothing."""
    absent, hiding = ", ".join(answer.get("absent", ())), ", ".join(answer.get("hiding", ()))
    said = (
        "the kernel shows the files of the image as root's alone" if work.writable and not answer["mapped"] else "",
        f"node {work.node} has no {absent}, which the site lists for containers (software.containerMounts)" if absent else "",
        f"the node's {hiding} hides what the image has there" if hiding else "",
    )
    return "; ".join(filter(None, said))


def _show_scratch(request: dict[str, Any], account: Account, space: ScratchSpace | None) -> None:
    """Adds the scratch space of the work to what its container shows; a file system in memory is the container's own."""
    if space is not None and space.memory_bytes:
        request["file_systems"].append(container.memory_mount(space.path, space.memory_bytes, account))
    elif space is not None:
        request["binds"].append(container.bind(space.path))


def _digest(work: NodeWork) -> str:
    """Returns the digest by which the operator has pinned the work's image; raises Rejected where it has not."""
    found = next((image.digest for image in work.software if image.is_container), "")
    if not found:
        raise Rejected(f"{work.image} is not resolved to an image", reason="PrologueFailed")
    return found


def _make_bundle(bundle: Path, compiled: bytes | None) -> None:
    """Makes a directory for a container, in place of one that is there, empty but for the compiled filter of its system calls (None: the
    runtime sets one).
    """
    shutil.rmtree(bundle, ignore_errors=True)
    bundle.mkdir(mode=0o700)
    if compiled is not None:
        (bundle / FILTER).write_bytes(compiled)
        (bundle / FILTER).chmod(0o444)


def _specifications(directories: tuple[Path, ...]) -> Iterator[tuple[str, Any]]:
    """Yields the parsed CDI specifications of the node, with their paths; passes over files that are none."""
    import yaml  # where there is no specification nobody pays for it

    for directory in directories:
        if not directory.is_dir():
            continue
        for path in sorted(directory.iterdir()):
            with suppress(OSError, ValueError, yaml.YAMLError):
                if path.suffix == ".json":
                    yield str(path), json.loads(path.read_bytes())
                elif path.suffix in (".yaml", ".yml"):
                    yield str(path), yaml.safe_load(path.read_bytes())


def _on_this_node(edits: DeviceEdits) -> DeviceEdits:
    """Returns the edits with type and numbers of every device file, as the node has them; raises Rejected for one that it lacks."""
    return dataclasses.replace(edits, nodes=tuple(_numbered(node) for node in edits.nodes))


def _numbered(node: DeviceNode) -> DeviceNode:
    """Returns a device with type, numbers and mode, read from its file where these are left open.

    Raises Rejected where there is no such file, or it is no device.
    """
    if node.kind and node.major >= 0:
        return node
    try:
        found = Path(node.host_path).stat()
    except OSError as error:
        raise Rejected(f"the device file {node.host_path} is not there: {error.strerror}", reason="PrologueFailed") from error
    kind = "b" if stat.S_ISBLK(found.st_mode) else "c" if stat.S_ISCHR(found.st_mode) else ""
    if not kind:
        raise Rejected(f"{node.host_path} is no device file", reason="PrologueFailed")
    mode = stat.S_IMODE(found.st_mode) if node.mode is None else node.mode
    return dataclasses.replace(node, kind=kind, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev), mode=mode)
