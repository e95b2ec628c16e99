"""A fault before, in and after each step of prologue and epilogue: nothing is left, no exit code is lost, nothing starts twice.

    LATTICE_FAULTS_SEED=1 LATTICE_FAULTS_KILLS=1000 pytest tests/faults/test_steps.py

strikes at every moment; with fewer kills a tenth of them, which the seed draws. The agent is a real one without an API server
(`step_agent`); what scheduler, operator and gateway do with its faults is tried by `test_fault_run.py`.
"""

from __future__ import annotations

import hashlib
import os
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.containers import image as container_image
from tests.containers import layer, member, push
from tests.faults.step_agent import Fault
from tests.faults.trial import CODE, Software, Trial, small_disk
from tests.oci import APPLETS, BUSYBOX, needs_runc, stub
from tests.registries import running_registry
from tests.squashfs import described, make_image, needs_mksquashfs
from tests.unit.agent.machine import has_cgroups, needs_root, open_directory

SEED = int(os.environ.get("LATTICE_FAULTS_SEED", "1"))
LONG = int(os.environ.get("LATTICE_FAULTS_KILLS", "22")) >= 100
STATES = ("begun", "done", "undoing", "undone")
STEPS = {
    "bare": ("probe", "scope", "scratch", "hooks"),
    "uenv": ("probe", "scope", "scratch", "hooks", "images", "mounts"),
    "oci": ("probe", "scope", "scratch", "hooks", "images", "container"),
}
"""By kind of work, the steps that it has."""
LONGEST_STEP = {"probe": 0.02, "scope": 0.005, "scratch": 0.01, "hooks": 0.08, "images": 0.35, "mounts": 0.03, "container": 0.25}
"""Seconds within which a fault in the middle of a step comes."""
AFTERWARDS = ("exited", "told before", "told after", "forget")
"""Moments after the work, beside the undoing of steps."""
PLACE = "deploy/daint/gh200/app/42"
SCRATCH = {"scratchPerNode": "1Mi"}
IN_SCRATCH = "echo x > $TMPDIR/x && ln -s {place} $TMPDIR/out || exit 98"
"""Leaves a file there, and a link that leads out."""
UNWRITTEN = 98
"""The exit code of work that finds its scratch space full or read-only."""

pytestmark = [
    pytest.mark.faults,
    pytest.mark.root,
    needs_root(),
    pytest.mark.timeout(0 if LONG else 180),
    pytest.mark.skipif(not has_cgroups(), reason="steps need cgroups"),
]


@dataclass(frozen=True)
class Case:
    """Work of one kind, and the faults that it meets one after the other."""

    kind: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.kind}: " + ", then ".join(
            f"{fault.target} at {fault.moment}" + (f" + {fault.delay * 1000:.1f} ms" if fault.delay else "") for fault in self.faults
        )


def moments(kind: str) -> list[tuple[str, float]]:
    """Every moment of work of this kind: its name, and the longest delay of a fault in what follows (0: nothing takes time)."""
    found: list[tuple[str, float]] = []
    for step in STEPS[kind]:
        for state in STATES:
            found += [(f"{step} {state} before", 0.0), (f"{step} {state} after", 0.0)]
        found += [(f"{step} begun after", LONGEST_STEP[step]), (f"{step} undoing after", LONGEST_STEP[step])]
    return [
        *found,
        ("start", 0.0),
        ("start", 0.03),
        ("started", 0.0),
        ("started", 0.2),
        *((name, 0.0) for name in AFTERWARDS),
        ("forget", 0.02),
    ]


def targets(kind: str, moment: str) -> list[str]:
    """Everything that may be struck at a moment, where it may exist then."""
    found = ["agent", "runner", "reboot", "full", "read-only"]
    if moment in ("start", "started"):
        found.append("shim")
    if kind == "uenv" and moment.startswith(("mounts", "start", "exited")):
        found.append("hold")
    if kind == "oci" and moment.startswith(("container", "start", "exited")):
        found += ["container", "hold"]
    if moment.startswith("images begun after"):
        found.append("puller")
        found += ["full cache", "read-only cache"]
    if kind == "uenv" and moment.startswith("scratch"):
        found += ["full scratch", "read-only scratch"]
    return found


def single(kind: str, draw: random.Random) -> Iterator[Case]:
    """One fault at every moment at which its target may exist."""
    for moment, longest in moments(kind):
        for target in targets(kind, moment):
            yield Case(kind, (Fault(moment, target, round(draw.uniform(0.0005, longest), 4) if longest else 0.0),))


def twice(kind: str, draw: random.Random, count: int) -> Iterator[Case]:
    """A second fault, somewhere in what mends the first."""
    every = [name for name, _ in moments(kind)]
    for _ in range(count):
        first, second = (Fault(draw.choice(every), draw.choice(["agent", "runner", "reboot"])) for _ in range(2))
        yield Case(kind, (first, second))


def cases() -> list[ParameterSet]:
    """All of them, or the seed's tenth, or a share of that."""
    draw = random.Random(SEED)
    every = [case for kind in STEPS for case in (*single(kind, draw), *twice(kind, draw, 20))]
    share, shares = map(int, os.environ.get("LATTICE_FAULTS_SHARE", "0/1").split("/"))
    chosen = every if LONG else draw.sample(every, len(every) // 10)[share::shares]
    return [pytest.param(case, id=str(case), marks=needs_runc() if case.kind == "oci" else ()) for case in chosen]


@pytest.fixture(scope="session")
def software(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Software]]:
    """Gives what work of a kind asks for; the registry is begun with the first that needs one."""
    folder = tmp_path_factory.mktemp("steps")
    with ExitStack() as stack:
        made: dict[str, Software] = {"bare": Software(data=SCRATCH, check=IN_SCRATCH)}

        def give(kind: str) -> Software:
            if kind not in made:
                made[kind] = _uenv(folder, stack) if kind == "uenv" else _container(folder / "oci", stack)
            return made[kind]

        yield give


def _uenv(folder: Path, stack: ExitStack) -> Software:
    """An image of a registry and one of a file of the user's, mounted side by side, and scratch space on a disk."""
    folder.chmod(0o755)
    content = make_image(
        folder / "app", {"app": "x\n", "blob": os.urandom(1 << 19).hex()}, described("app", "/user-environment")
    ).read_bytes()
    own = Path(stack.enter_context(open_directory()), "own.squashfs")
    make_image(own, {"own": "y\n"})
    registry = stack.enter_context(running_registry(folder))
    digest = registry.push_uenv(folder / "push", PLACE, "v1", content, metadata=None)
    layer = f"sha256:{hashlib.sha256(content).hexdigest()}"
    image = {
        "source": "app/42:v1", "digest": digest, "size": len(content), "mount": "/user-environment", "repository": f"uenv/{PLACE}",
        "layer": layer,
    }  # fmt: skip
    environment = {"uenv": f"app/42:v1:{{place}}/mounted,{own}:{{place}}/also"}
    check = "[ -e {place}/mounted/app ] && [ -e {place}/also/own ] || exit 99\n" + IN_SCRATCH
    return Software(environment, SCRATCH, images=(image,), registry=registry.url, check=check, disk=True)


def _container(folder: Path, stack: ExitStack) -> Software:
    """An OCI image of a registry, and scratch space in memory."""
    folder.mkdir(mode=0o755)
    registry = stack.enter_context(running_registry(folder))
    members = [member(name) for name in ("bin", "etc", "tmp")]
    members += [member("bin/busybox", Path(BUSYBOX).read_bytes(), mode=0o755), member("etc/app", "x\n")]
    members += [member(f"bin/{applet}", kind=tarfile.SYMTYPE, target="busybox") for applet in APPLETS]
    built = container_image(layer(*members))
    pinned = {
        "source": "images.example/app:1", "digest": push(registry.host, "app", "1", built), "size": built.size, "kind": "Oci",
        "registry": "images.example", "repository": "app",
    }  # fmt: skip
    os.environ["LATTICE_STUB"] = str(stub())
    registries = ({"name": "images.example", "url": f"http://{registry.host}"},)
    check = "[ -e /etc/app ] || exit 99\n" + IN_SCRATCH
    return Software({"image": "images.example/app:1"}, SCRATCH, images=(pinned,), registries=registries, check=check)


STRUCK: Counter[str] = Counter()


@pytest.fixture(scope="session", autouse=True)
def _table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints what was struck, at the end."""
    yield
    reporter: Any = request.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and STRUCK:
        reporter.write_line(
            f"\nfaults at steps, seed {SEED}: {STRUCK.total()}: " + ", ".join(f"{n} {what}" for what, n in sorted(STRUCK.items()))
        )


@needs_mksquashfs()
@pytest.mark.parametrize("case", cases())
def test_a_fault_at_a_step_leaves_nothing_loses_no_exit_code_and_starts_nothing_twice(
    case: Case, software: Callable[[str], Software]
) -> None:
    with open_directory() as place, ExitStack() as stack:
        for disk in {disk_of(fault.target) for fault in case.faults} - {""}:
            stack.enter_context(small_disk(place / disk))
        trial = Trial(place, case.faults, software(case.kind))
        trial.prepare()
        try:
            trial.run()
            STRUCK.update(target if count or disk_of(target) else f"{target} that was not there" for target, count in trial.struck)
            assert [*wrong(trial, case)] == []
            assert trial.left() == []
        finally:
            trial.sweep()


def disk_of(target: str) -> str:
    """The directory whose disk is struck; empty: none is."""
    how, _, disk = target.partition(" ")
    return disk or "state" if how in ("full", "read-only") else ""


def wrong(trial: Trial, case: Case) -> Iterator[str]:
    """Everything about the end that the faults do not excuse."""
    result, starts, hooks = trial.result(), trial.starts(), trial.hooks()
    reason, code = result["reason"], result["code"]
    if starts > 1:
        yield f"it was started {starts} times"
    own = {CODE} | ({UNWRITTEN} if any(disk_of(fault.target) == "scratch" for fault in case.faults) else set())
    if reason == "TaskFailed" and code in own:
        if starts != 1:
            yield f"its exit code was invented: it was started {starts} times"
    elif reason not in excuses(case):
        yield f"it ended with {result} after {trial.struck}"
    elif code not in (None, 137):
        yield f"its code {code} is invented: {result}"
    if hooks and hooks[-1] != "epilogue":
        yield f"the epilogue was not the last: {hooks}"
    if hooks.count("prologue") == 0 and starts:
        yield f"the work began without its prologue: {hooks}"


def excuses(case: Case) -> frozenset[str]:
    """The other ends that the faults of a case may bring about: none once the work has ended."""
    found: set[str] = set()
    for fault in case.faults:
        if "undo" in fault.moment or fault.moment in AFTERWARDS:
            continue
        match fault.target:
            case "reboot":
                found.add("Lost")
            case "shim":
                found |= {"ExitUnknown", "NodeUnfit"}
            case "hold":
                found |= {"NodeUnfit", "PrologueFailed"}
            case "container":
                found |= {"NodeUnfit", "PrologueFailed", "TaskFailed"}
            case "puller":
                found.add("PrologueFailed")
            case target if disk_of(target):
                found |= {"NodeUnfit", "PrologueFailed"}
    return frozenset(found)
