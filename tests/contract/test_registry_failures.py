"""A registry that fails amid a node's pull, for uenv and OCI images alike: what passes is waited for and told, what does not is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from lattice.clients.containers import find_container
from lattice.daemon.clock import SystemClock
from lattice.errors import Rejected, Retry
from lattice.software.containers import parse_container
from lattice.views.allocation import OCI, SoftwareImage
from lattice.views.cluster import ImageRegistry, SoftwareOptions
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host.images import Images
from lattice_agent.host.threads import Threads
from lattice_agent.state.image_cache import CacheLimits, ImageCache
from tests.build import uid
from tests.containers import files, image, push
from tests.faulty_registry import CUT, DOWN, MANIFESTS, PAGE, SILENT, STATUS, WRONG, Fault, FaultyRegistry, faulty_registry
from tests.registries import RegistryProgram, running_registry
from tests.squashfs import needs_mksquashfs

pytestmark = needs_mksquashfs()
PLACE = "deploy/daint/gh200/app/42"
CONTENT = b"squashfs" * 4096


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """The real registry, with a uenv and an OCI image."""
    folder = tmp_path_factory.mktemp("failing")
    with running_registry(folder) as program:
        yield program


@pytest.fixture
def front(program: RegistryProgram) -> Iterator[FaultyRegistry]:
    """What the nodes reach the registry by."""
    with faulty_registry(program.host) as front:
        yield front


@pytest.fixture
def images(tmp_path: Path) -> Images:
    cache = ImageCache(tmp_path / "cache", CacheLimits(free=0))
    cache.open()
    return Images(cache, "", "boot-1", SystemClock(), Threads("the image cache", count=2, within=30.0), frozenset)


def work(front: FaultyRegistry, found: SoftwareImage) -> NodeWork:
    return NodeWork(
        Key(uid(1), 1), 1, "physics", "job", "alice", "physics", "job", ("n1",), "n1", 0, "n1", 1, 0, 1, entrypoint="true",
        software=(found,), image=found.source if found.is_container else "", uenv="" if found.is_container else found.source,
        registry=f"http://{front.host}/uenv", registries=site(front).registries, largest_image=64 << 20,
    )  # fmt: skip


def site(front: FaultyRegistry) -> SoftwareOptions:
    return SoftwareOptions(registries=(ImageRegistry(name="r.example", url=f"http://{front.host}"),))


async def pushed(kind: str, program: RegistryProgram, front: FaultyRegistry, folder: Path) -> SoftwareImage:
    """An image of a kind as the operator pins it, by a registry that serves."""
    if kind == OCI:
        push(program.host, "team/app", "v1", image(files({"bin/app": "x" * 60_000})))
        found = await find_container(site(front), parse_container("r.example/team/app:v1"))
        return SoftwareImage(
            source="r.example/team/app:v1", digest=found.digest, size=found.size, repository=found.repository, kind=OCI,
            registry=found.registry,
        )  # fmt: skip
    digest = await asyncio.to_thread(program.push_uenv, folder, PLACE, "v1", CONTENT, None)
    layer = f"sha256:{sha256(CONTENT).hexdigest()}"
    return SoftwareImage(source="app/42:v1", digest=digest, size=len(CONTENT), repository=f"uenv/{PLACE}", layer=layer)


KINDS = pytest.mark.parametrize("kind", ["uenv", OCI])
PASSING = [
    pytest.param(Fault(DOWN, times=3), "cannot be asked|does not send", id="down"),
    pytest.param(Fault(DOWN, path=MANIFESTS, times=3), "cannot be asked", id="down for manifests"),
    pytest.param(Fault(CUT, times=2), "", id="cut off amid a blob"),
    pytest.param(Fault(STATUS, status=500, times=3), "answers 500 for /v2/", id="500"),
    pytest.param(Fault(STATUS, status=503, times=1, headers={"Retry-After": "2"}), "asks to be left alone for 2 s", id="503 for a time"),
    pytest.param(Fault(STATUS, status=429, times=1, headers={"Retry-After": "2"}), "answers 429 .*for 2 s", id="429"),
    pytest.param(Fault(PAGE, path=MANIFESTS, times=3), r"no JSON \(text/html\)", id="a page instead of a manifest"),
]


@KINDS
@pytest.mark.parametrize(("fault", "said"), PASSING)
async def test_what_passes_is_waited_for_and_told_and_the_image_comes_whole(
    program: RegistryProgram, front: FaultyRegistry, images: Images, tmp_path: Path, kind: str, fault: Fault, said: str
) -> None:
    found = await pushed(kind, program, front, tmp_path / "push")
    front.fault = Fault(fault.kind, fault.path, fault.times, fault.status, fault.headers)
    asked, began = work(front, found), time.time()
    async with asyncio.TaskGroup() as group:
        bringing = group.create_task(images.bring(asked))
        heard = await told(lambda: images.progress(asked.key).waits, bringing)
    assert any(front.host in one for one in heard) or not said, heard
    assert any(matches(said, one) for one in heard) or not said, heard
    assert front.failed == fault.times
    assert images.cache.find(found.digest) is not None
    assert images.progress(asked.key).waits == "", "nothing keeps what is there"
    if "Retry-After" in fault.headers:
        assert time.time() - began >= float(fault.headers["Retry-After"]), "the registry is left alone as long as it asks for"


async def test_a_registry_that_takes_a_question_and_says_nothing_is_named_after_twenty_seconds(
    program: RegistryProgram, front: FaultyRegistry, images: Images, tmp_path: Path
) -> None:
    found = await pushed("uenv", program, front, tmp_path / "push")
    front.fault = Fault(SILENT, path=MANIFESTS, times=1)
    asked = work(front, found)
    async with asyncio.TaskGroup() as group:
        bringing = group.create_task(images.bring(asked))
        heard = await told(lambda: images.progress(asked.key).waits, bringing)
    assert heard == [f"the registry {front.host} cannot be asked: no answer within 20 s"]
    assert images.cache.find(found.digest) is not None


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


async def told(look: Callable[[], str], bringing: asyncio.Task[None]) -> list[str]:
    """What a pull says that keeps it, each sentence once, until it is done."""
    heard: list[str] = []
    while not bringing.done():
        if (one := look()) and one not in heard:
            heard.append(one)
        await asyncio.sleep(0.02)
    return heard


@KINDS
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(Fault(STATUS, status=401), "answers 401", id="401"),
        pytest.param(Fault(STATUS, status=403), "answers 403", id="403"),
        pytest.param(Fault(WRONG), "other bytes", id="other bytes"),
    ],
)
async def test_what_does_not_pass_sends_the_work_to_another_node_with_the_registrys_word(
    program: RegistryProgram, front: FaultyRegistry, images: Images, tmp_path: Path, kind: str, fault: Fault, said: str
) -> None:
    found = await pushed(kind, program, front, tmp_path / "push")
    front.fault = Fault(fault.kind, fault.path, fault.times, fault.status, fault.headers)
    with pytest.raises(Rejected, match=said) as refused:
        await asyncio.wait_for(images.bring(work(front, found)), 60)
    assert refused.value.reason == "PrologueFailed"
    assert images.cache.listed() == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(Fault(DOWN, path=MANIFESTS), "cannot be asked", id="down"),
        pytest.param(Fault(STATUS, path=MANIFESTS, status=500), "answers 500", id="500"),
        pytest.param(Fault(STATUS, path=MANIFESTS, status=429, headers={"Retry-After": "7"}), "for 7 s", id="429"),
        pytest.param(Fault(PAGE, path=MANIFESTS), "no JSON", id="a page"),
    ],
)
async def test_a_name_is_not_refused_because_its_registry_fails(
    program: RegistryProgram, front: FaultyRegistry, tmp_path: Path, fault: Fault, said: str
) -> None:
    await pushed(OCI, program, front, tmp_path)
    front.fault = Fault(fault.kind, fault.path, fault.times, fault.status, fault.headers)
    with pytest.raises(Retry, match=said) as failed:
        await find_container(site(front), parse_container("r.example/team/app:v1"))
    assert failed.value.after_seconds == (7 if "Retry-After" in fault.headers else None)
    front.fault = None
    assert (await find_container(site(front), parse_container("r.example/team/app:v1"))).digest
