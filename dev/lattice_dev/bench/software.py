"""Measures work with software beside bare work: starts in a uenv and in an OCI image, and a cold pull beside curl.

Kinds that are compared take turns, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from lattice.errors import Corrupt
from lattice.kube.resources import ALLOCATIONS, CONFIGS
from lattice_dev.bench import image_files, image_server, work
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile
from lattice_dev.bench.image_server import ImageServer
from lattice_dev.bench.observe import Watching

UENV_AIM, CONTAINER_AIM = Aim(15.0), Aim(150.0)
PULL_SHARE: Final = 0.8
"""Of the rate of curl with sha256sum, what a pull must reach."""
NODE: Final = "nid001"
MARK: Final = "bench-node-marks"
REST_SECONDS: Final = 0.3
"""Before each start: the node of the one before has been released, and nothing else goes on."""
LIFE_SECONDS: Final = 60.0
LABEL, LARGE = "bench/1:v1@bench%x86", "large/1:v{number}@bench%x86"
IMAGE: Final = "bench.example/bench/system:v1"
MOUNT: Final = "/user-environment"
MEBIBYTE: Final = 1 << 20
_PULLED: Final = re.compile(r" Pulled digest=\S+ bytes=(\d+) seconds=(\S+)")
Environment = dict[str, str]


@dataclass(frozen=True)
class Software:
    """The images of a measurement: a small squashfs file, a bundle for runc of the system that the OCI image has, and a large uenv."""

    place: Path
    file: Path
    bundle: Path
    layer: image_files.SystemLayer
    large: Path

    def kinds(self) -> dict[str, Environment]:
        """Returns what work asks for, by kind: nothing, a file of the user's, a label and an image of the registry."""
        return {
            "bare": {}, "file": {"uenv": f"{self.file}:{MOUNT}"}, "label": {"uenv": f"{LABEL}:{MOUNT}"}, "image": {"image": IMAGE},
        }  # fmt: skip

    def answers(self, pulls: int) -> image_server.Answers:
        """Returns the answers of a registry that has all of them; the large one so often, each time as another image."""
        large = {f"v{number}": self.large for number in range(pulls)}
        system = image_server.container("bench/system", "v1", self.layer.packed, self.layer.unpacked, image_files.ARCHITECTURE)
        return image_server.uenv("bench", "1", {"v1": self.file}) | image_server.uenv("large", "1", large) | system


def made(place: Path, large_bytes: int) -> Software:
    """Makes the images in a directory. Raises Rejected where a program is not installed, or this is not root."""
    layer = image_files.bash_system(place)
    return Software(
        place, image_files.small_squashfs(place), image_files.runc_bundle(place), layer, image_files.large_squashfs(place, large_bytes)
    )


@asynccontextmanager
async def registry(at: Driver, software: Software, pulls: int) -> AsyncIterator[ImageServer]:
    """Serves the images to operator and nodes within the block, and names the registry in the LatticeConfig, whose former options stand
    there again afterwards.
    """
    network = at.instance.site().network
    answers = await asyncio.to_thread(software.answers, pulls)
    with image_server.serving(answers, network.gateway if network is not None else "127.0.0.1") as server:
        named = {"registry": server.uenvs, "system": "bench", "registries": [{"name": "bench.example", "url": server.url}]}
        async with configured(at, named):
            yield server


@asynccontextmanager
async def configured(at: Driver, options: Mapping[str, Any]) -> AsyncIterator[None]:
    """Sets these options of `software` in the LatticeConfig for the block, and restores their former values at its end, however it ends."""
    spec = (await at.admin.get(CONFIGS, "lattice")).get("spec") or {}
    former = spec.get("software") or {}
    await at.admin.patch(CONFIGS, "lattice", {"spec": {"software": dict(options)}})
    try:
        await at.clock.sleep(1.0)  # operator and agents watch the LatticeConfig
        yield
    finally:
        await at.admin.patch(CONFIGS, "lattice", {"spec": {"software": {name: former.get(name) for name in options}}})


# Starts


async def starts(at: Driver, seen: Watching, software: Software, *, count: int) -> list[Figure]:
    """Returns by how many milliseconds work in a uenv of the user's, and work in an OCI image, starts later than bare work, `count` of
    each by turns; beside `unshare` with `mount`, and `runc run`.
    """
    kinds = {kind: environment for kind, environment in software.kinds().items() if kind != "label"}
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    by_hand: dict[str, list[float]] = {"file": [], "image": []}
    await start(at, seen, "node-image-first", kinds["image"])  # the node has the image from here on
    for number in range(count):
        for kind, environment in kinds.items():
            took[kind].append(await start(at, seen, f"node-{kind}-{number:03d}", environment))
        by_hand["file"].append(await asyncio.to_thread(_mount_by_hand, software.file))
        by_hand["image"].append(await asyncio.to_thread(_run_by_hand, software.bundle))
    beside = {kind: 1000 * median(seconds) for kind, seconds in by_hand.items()}
    return [
        _later("uenv", took["file"], took["bare"], UENV_AIM, Baseline("ms of unshare and mount", beside["file"])),
        _later("OCI image", took["image"], took["bare"], CONTAINER_AIM, Baseline("ms of runc run", beside["image"])),
    ]


def _later(what: str, took: Sequence[float], bare: Sequence[float], aim: Aim, beside: Baseline) -> Figure:
    """Returns the figure of by how much work of a kind starts later than bare work, both in seconds, by their medians."""
    own, other = 1000 * percentile(took, 0.5), 1000 * percentile(bare, 0.5)
    parts = {"bare p50": other, f"{what} p50": own}
    return Figure(f"{what} starts later than bare work, p50", own - other, "ms", aim, beside, f"{len(took)} of each by turns", parts)


async def start(at: Driver, seen: Watching, name: str, environment: Environment) -> float:
    """Returns the seconds from the POST of an allocation on the first node to its first process, after a short rest and once it has ended;
    raises Corrupt where it left no mark.
    """
    mark = at.instance.where.user_home(USER) / f"{MARK}.{name}"
    manifest = work.real(NAMESPACE, name, f'echo $EPOCHREALTIME > "$HOME/{mark.name}"', only=NODE)
    if environment:
        manifest["spec"]["environment"] = dict(environment)
    await at.clock.sleep(REST_SECONDS)
    seen.expect(name)
    began = at.clock.now()
    await at.user.create(ALLOCATIONS, manifest, NAMESPACE)
    await seen.end_of(name, within=LIFE_SECONDS)
    try:
        return float(mark.read_text()) - began
    except (OSError, ValueError) as error:
        raise Corrupt(f"{name} ended without the mark of its process: {error}", reason="MarkMissing") from error
    finally:
        mark.unlink(missing_ok=True)


def _mount_by_hand(file: Path) -> float:
    """Returns the seconds that `unshare` and `mount` take for the image, in a namespace that goes with them."""
    with tempfile.TemporaryDirectory() as target:
        argv = ["unshare", "--mount", "--propagation", "slave", "mount", "-t", "squashfs", "-o", "loop,ro,nosuid,nodev", str(file), target]
        return _timed(argv)


def _run_by_hand(bundle: Path) -> float:
    """Returns the seconds that `runc run` takes for a process that does nothing, its container's end included."""
    return _timed([image_files.needed("runc", "runc"), "run", "--bundle", str(bundle), f"lattice-bench-{time.monotonic_ns()}"])


def _timed(argv: Sequence[str]) -> float:
    """Returns the seconds that a command takes; raises Corrupt, with what it says, where it fails."""
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Corrupt(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-500:]}", reason="CommandFailed")
    return time.monotonic() - began


# Pulls


async def pulls(at: Driver, seen: Watching, software: Software, server: ImageServer, *, count: int) -> Figure:
    """Returns the rate at which a node pulls the large image that it has not, by turns with curl, sha256sum and sync of the same bytes.

    curl runs in the node's network.
    """
    size = software.large.stat().st_size
    blob = next(path for path, answer in software.answers(1).items() if answer.content == software.large)
    pulled, curled = [], []
    for number in range(count):
        curled.append(await asyncio.to_thread(_curl, at.instance.pid(f"agent-{NODE}"), f"{server.url}{blob}", software.place / "curled"))
        pulled.append(await _pull(at, seen, f"{LARGE.format(number=number)}:{MOUNT}", number, size))
    rate, other = (size / MEBIBYTE / median(seconds) for seconds in (pulled, curled))
    aim, beside = Aim(PULL_SHARE * other, at_least=True), Baseline("MiB/s of curl, sha256sum and sync", other)
    return Figure(f"cold pull of {size / MEBIBYTE:.0f} MiB", rate, "MiB/s", aim, beside, f"{count} of each by turns")


def _curl(agent: int, url: str, file: Path) -> float:
    """Returns the seconds in which curl, in the network of this process, fetches a file, sha256sum hashes it and sync writes it out."""
    curl = image_files.needed("curl", "curl")
    script = '"$0" --silent --fail --output "$2" "$1" && sha256sum "$2" && sync "$2"'
    try:
        return _timed([shutil.which("nsenter") or "nsenter", f"--net=/proc/{agent}/ns/net", "sh", "-c", script, curl, url, str(file)])
    finally:
        file.unlink(missing_ok=True)


async def _pull(at: Driver, seen: Watching, label: str, number: int, size: int) -> float:
    """Returns the seconds of a node's pull for work in an image that the node has not, as its agent logs them; raises Corrupt where it
    says nothing.
    """
    log = at.instance.log_files(f"agent-{NODE}")[-1]
    offset = log.stat().st_size
    await start(at, seen, f"node-pull-{number}", {"uenv": label})
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(offset)
        found = [float(match[2]) for match in map(_PULLED.search, file) if match is not None and int(match[1]) == size]
    if not found:
        raise Corrupt(f"the agent of {NODE} logs no pull of {size} bytes", reason="NoPull")
    return found[-1]
