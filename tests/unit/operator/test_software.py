"""The operator resolves images: once, whatever the registry does meanwhile, and what no wait can mend is refused at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lattice.clients.containers import FoundContainer
from lattice.clients.registry import Descriptor
from lattice.clients.uenv_images import UenvImage
from lattice.daemon.clock import ManualClock
from lattice.errors import Corrupt, Denied, LatticeError, Rejected, Retry, TooMany
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Informer
from lattice.kube.resources import ALLOCATIONS, CONFIGS
from lattice.software.catalog import UenvRepository
from lattice.software.claims import SignedClaim
from lattice.software.containers import ContainerReference
from lattice.software.image_metadata import ImageMetadata, View
from lattice.software.labels import UenvLabel
from lattice.views import Allocation
from lattice.views.cluster import SoftwareOptions
from lattice_controllers.operator.software import SoftwareResolver

DIGEST, LAYER, ARCHIVE = "sha256:" + "a" * 64, "sha256:" + "b" * 64, "sha256:" + "d" * 64
AT = UenvRepository("uenv/deploy/daint/gh200/prgenv/24.11", "deploy", "daint", "gh200", "prgenv", "24.11")
IMAGE = UenvImage(AT, "v1", DIGEST, Descriptor(LAYER, 4096), "")
ATTACHED = ImageMetadata("prgenv", "", "/user-environment", (View("default", "", (), ()),))
PINNED = {
    "source": "prgenv/24.11:v1", "digest": DIGEST, "size": 4096, "mount": "/user-environment", "repository": AT.path, "layer": LAYER,
    "metadata": ARCHIVE,
}  # fmt: skip


class Site:
    """A cluster and a registry in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.images = [IMAGE]
        self.attached: ImageMetadata | None = ATTACHED
        self.failure: Exception | None = None
        self.unreadable: Exception | None = None
        """Of what is attached."""
        self.asked: list[str] = []
        self.seconds = 0.0
        """That an answer takes."""
        self.hangs = False
        self.signed: list[SignedClaim] = []
        self.lies: Rejected | None = None

    async def find(self, label: UenvLabel, most: int) -> tuple[list[UenvImage], int]:
        """What stands in the registry, whatever the label."""
        del most
        self.asked.append(str(label))
        if self.hangs:
            await asyncio.Event().wait()
        if self.seconds:
            await self.clock.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return self.images, 0

    async def check_size(self, image: UenvImage) -> None:
        """Refuses an image that lies."""
        del image
        if self.lies is not None:
            raise self.lies

    async def claims(self, image: UenvImage) -> list[SignedClaim]:
        """What has been signed of the image."""
        del image
        return self.signed

    async def metadata(self, image: UenvImage) -> tuple[str, ImageMetadata] | None:
        """What is attached."""
        del image
        if self.unreadable is not None:
            raise self.unreadable
        return (ARCHIVE, self.attached) if self.attached is not None else None

    async def find_container(self, options: SoftwareOptions, reference: ContainerReference, *, signed: bool) -> FoundContainer:
        """The image of this name."""
        del options
        self.asked.append(reference.text + " signed" * signed)
        if self.failure is not None:
            raise self.failure
        return FoundContainer(DIGEST, 512, f"p/{reference.repository}", reference.registry or "r.example")

    @contextlib.asynccontextmanager
    async def opened(self, options: SoftwareOptions) -> AsyncIterator[Site]:
        """The registry of these options."""
        del options
        yield self

    async def submit(self, name: str = "job", namespace: str = "physics", **environment: str | list[str]) -> None:
        """Work that asks for these."""
        body = {"metadata": {"name": name}, "spec": {"environment": environment or {"uenv": "prgenv/24.11:v1"}}}
        await self.cluster.create(ALLOCATIONS, body, namespace)

    def status(self, name: str = "job", namespace: str = "physics") -> dict[str, Any]:
        """Its status."""
        status: dict[str, Any] = self.cluster.snapshot(ALLOCATIONS)[f"{namespace}/{name}"].get("status", {})
        return status

    def said(self, name: str = "job") -> tuple[str, str, str]:
        """The condition."""
        found = next(one for one in self.status(name)["conditions"] if one["type"] == "SoftwareResolved")
        return found["status"], found["reason"], found["message"]

    @contextlib.asynccontextmanager
    async def running(self, ask_seconds: float = 60.0) -> AsyncIterator[None]:
        """The operator's part, until the end of the block."""
        informer: Informer[Allocation] = Informer(
            self.cluster, ALLOCATIONS, type=Allocation, clock=self.clock, on_change=lambda change: resolver.on_allocation(change)
        )
        resolver = SoftwareResolver(self.cluster, self.clock, informer.objects, self.opened, self.find_container, ask_seconds)
        tasks = [asyncio.ensure_future(work()) for work in (informer.run, resolver.queue.run)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)


@pytest.fixture
async def site() -> Site:
    made = Site()
    await made.cluster.create(
        CONFIGS,
        {
            "metadata": {"name": "lattice"},
            "spec": {"software": {"registry": "https://r", "resolveTimeout": "10m", "containerDevices": ["d/e"]}},
        },
    )
    return made


async def test_a_label_becomes_digest_size_and_mount_and_work_without_one_is_left_alone(site: Site) -> None:
    async with site.running():
        await site.submit("plain", workdir="/home")
        await site.submit("own", uenv="./mine.squashfs:/data")
        await site.submit(uenv="prgenv/24.11:v1,/home/a/x.squashfs:/x", view="default")
        await site.clock.run_for(1)
    assert site.status()["software"] == [PINNED]
    assert "conditions" not in site.status()
    assert (site.status("plain"), site.status("own")) == ({}, {})


async def test_an_oci_image_is_pinned_by_its_digest_with_its_registry(site: Site) -> None:
    async with site.running():
        await site.submit(image="team/app:1")
        await site.submit("refused", image="Team/App")
        await site.submit("device", image="team/app:1", devices=["a/b=c"])
        await site.clock.run_for(1)
    pinned = {"source": "team/app:1", "digest": DIGEST, "size": 512, "repository": "p/team/app", "kind": "Oci", "registry": "r.example"}
    assert site.status()["software"] == [pinned]
    assert site.said("refused")[:2] == ("False", "ImageRefused")
    assert "is no repository" in site.said("refused")[2]
    assert site.said("device")[:2] == ("False", "ImageRefused")
    assert "software.containerDevices" in site.said("device")[2]


async def test_an_oci_image_waits_for_its_registry(site: Site) -> None:
    site.failure = Retry("the registry is away", reason="RegistryUnreachable")
    async with site.running():
        await site.submit(image="team/app:1")
        await site.clock.run_for(1)
        assert site.said() == ("Unknown", "RegistryAwaited", "the registry is away")
        site.failure = None
        await site.clock.run_for(3)
    assert site.status()["software"][0]["kind"] == "Oci"


async def test_what_is_empty_is_not_written_as_the_scheduler_would_not_write_it_either(site: Site) -> None:
    site.attached = None
    async with site.running():
        await site.submit()
        await site.clock.run_for(1)
    assert site.status()["software"] == [{name: value for name, value in PINNED.items() if name not in ("mount", "metadata")}]


async def test_an_image_at_two_mount_points_is_pinned_once(site: Site) -> None:
    async with site.running():
        await site.submit(uenv="prgenv/24.11:v1:/one,prgenv/24.11:v1:/two")
        await site.clock.run_for(1)
        await site.submit("half", uenv="prgenv/24.11:v1:/one,prgenv/24.11:v1")
        await site.clock.run_for(1)
    assert site.status()["software"] == [{**PINNED, "mount": "/one"}]
    assert site.status("half")["software"] == [PINNED], "the mount point of the reference that names none"


async def test_a_label_that_moves_changes_nothing_of_what_is_pinned(site: Site) -> None:
    async with site.running():
        await site.submit()
        await site.clock.run_for(1)
        asked = len(site.asked)
        site.images = [UenvImage(AT, "v1", "sha256:" + "c" * 64, Descriptor(LAYER, 1), "")]
        await site.cluster.patch(ALLOCATIONS, "job", {"metadata": {"labels": {"a": "b"}}}, "physics")
        await site.clock.run_for(600)
    assert (site.status()["software"], len(site.asked)) == ([PINNED], asked)


OTHER = UenvImage(AT, "v2", "sha256:" + "c" * 64, Descriptor(LAYER, 1), "")


@pytest.mark.parametrize(
    ("environment", "images", "reason", "said"),
    [
        ({"uenv": "nothing/1:v1"}, [], "ImageNotFound", "no uenv matches nothing/1:v1"),
        ({"uenv": "prgenv"}, [IMAGE, OTHER], "ImageRefused", "more than one uenv matches prgenv: deploy::prgenv"),
        ({"uenv": "pr genv"}, [IMAGE], "ImageRefused", "unexpected ' '"),
        ({"uenv": "prgenv/24.11:v1", "view": "nope"}, [IMAGE], "ViewUnknown", "there are: prgenv:default"),
        ({"uenv": "prgenv/24.11:v1", "toolsUenv": "prgenv/24.11:v1"}, [IMAGE], "MountInvalid", "more than one image mounted"),
    ],
)
async def test_what_would_fail_everywhere_is_refused_at_once(
    site: Site, environment: dict[str, str], images: list[UenvImage], reason: str, said: str
) -> None:
    site.images = images
    async with site.running():
        await site.submit(**environment)
        await site.clock.run_for(1)
        asked = len(site.asked)
        await site.clock.run_for(600)
    status, found, message = site.said()
    assert (status, found, said in message) == ("False", reason, True), message
    assert len(site.asked) == asked
    assert "software" not in site.status()


@pytest.mark.parametrize(
    "failure",
    [
        Retry("the registry r cannot be asked: connection refused", reason="RegistryUnreachable"),
        Retry("r answers 500", reason="RegistryBroken"),
        TooMany("r answers 429", reason="RegistryBusy", after_seconds=30),
        Denied("r refuses its login", reason="RegistryDenied"),
        Corrupt("r sent other bytes", reason="DigestMismatch"),
    ],
    ids=lambda failure: failure.reason,
)
async def test_a_registry_that_fails_is_asked_again_and_what_it_said_is_shown(site: Site, failure: LatticeError) -> None:
    site.failure = failure
    async with site.running():
        await site.submit()
        await site.clock.run_for(120)
        assert site.said() == ("Unknown", "RegistryAwaited", failure.message)
        assert 1 < len(site.asked) < 10
        site.failure = None
        await site.clock.run_for(61)
    assert site.status()["software"] == [PINNED]
    assert site.status()["conditions"] == []


async def test_after_the_time_of_the_site_it_is_refused_with_the_last_answer_but_not_before_it_was_asked(site: Site) -> None:
    site.failure = Retry("r is away", reason="RegistryUnreachable")
    async with site.running():
        await site.submit()
        await site.clock.run_for(590)
        assert site.said()[0] == "Unknown"
        await site.clock.run_for(15)
        assert site.said() == ("False", "ImagesUnresolved", "not resolved within 10m (software.resolveTimeout): r is away")
    site.failure = None
    await site.submit("late")
    site.clock.advance(3600)
    async with site.running():
        await site.clock.run_for(1)
    assert site.status("late")["software"] == [PINNED]


@pytest.mark.parametrize("failure", [ValueError("a,b"), KeyError("x"), RecursionError(), Corrupt("\ud800"), Rejected("\ud800")])
@pytest.mark.parametrize("place", ["failure", "unreadable"])
async def test_whatever_an_image_of_the_registry_is_nobody_waits_for_it_for_ever(site: Site, failure: Exception, place: str) -> None:
    setattr(site, place, failure)
    async with site.running():
        await site.submit()
        await site.clock.run_for(700)
        status, reason, message = site.said()
        assert (status, reason in ("ImagesUnresolved", "ImageRefused")) == ("False", True)
        assert message.encode()
        site.failure = site.unreadable = None
        await site.submit("next")
        await site.clock.run_for(1)
    assert site.status("next")["software"] == [PINNED]


async def test_what_the_cluster_does_not_take_ends_the_wait_as_well(site: Site) -> None:
    refused = "status.software[0].layer: Invalid value"
    site.cluster.fail(Rejected(refused), verb="patch", resource=ALLOCATIONS)
    async with site.running():
        await site.submit()
        await site.clock.run_for(1)
        assert site.said() == ("Unknown", "RegistryAwaited", refused)
        await site.clock.run_for(10)
    assert site.status()["software"] == [PINNED]


async def test_an_image_that_was_pushed_before_a_submission_is_the_one_it_gets(site: Site) -> None:
    async with site.running():
        await site.submit("before")
        await site.clock.run_for(0.5)
        site.images = [UenvImage(AT, "v1", "sha256:" + "c" * 64, Descriptor(LAYER, 1), "")]
        await site.submit("after")
        await site.clock.run_for(0.5)
    assert [site.status(name)["software"][0]["digest"] for name in ("before", "after")] == [DIGEST, "sha256:" + "c" * 64]


async def test_a_thousand_of_one_label_ask_the_registry_a_few_times(site: Site) -> None:
    async with site.running():
        for number in range(1000):
            await site.submit(f"job-{number}")
        await site.clock.run_for(30)
    stored = site.cluster.snapshot(ALLOCATIONS)
    assert len(stored) == 1000
    assert all(one["status"]["software"] == [PINNED] for one in stored.values())
    assert len(site.asked) < 20


async def test_a_tenant_who_asks_for_very_many_images_keeps_no_other_one_waiting(site: Site) -> None:
    site.seconds = 5.0
    async with site.running():
        for number in range(300):
            await site.submit(f"job-{number}", uenv=f"prgenv/24.11:v{number}")
        await site.clock.run_for(1)
        await site.submit("one", "chemistry", uenv="tools/1:v1")
        await site.clock.run_for(6)
    assert len(site.status("one", "chemistry")["software"]) == 1


async def test_a_registry_that_never_answers_is_told_to_the_user(site: Site) -> None:
    site.hangs = True
    async with site.running(0.05):
        await site.submit()
        async with asyncio.timeout(60):  # the limit on a registry is real time
            while "RegistryAwaited" not in str(site.status()):
                await asyncio.sleep(0.01)
                await site.clock.run_for(1)
        status, reason, message = site.said()
        assert (status, reason) == ("Unknown", "RegistryAwaited")
        assert "has not answered all questions about prgenv/24.11:v1 within 0.05 s" in message
        site.hangs = False
        await site.clock.run_for(70)
    assert site.status()["software"] == [PINNED]


async def test_who_is_cancelled_or_gone_is_not_asked_for(site: Site) -> None:
    site.failure = Retry("r is away", reason="RegistryUnreachable")
    async with site.running():
        await site.submit()
        await site.submit("gone")
        await site.clock.run_for(10)
        await site.cluster.patch(ALLOCATIONS, "job", {"spec": {"cancel": {"reason": "no"}}}, "physics")
        await site.cluster.delete(ALLOCATIONS, "gone", "physics")
        await site.clock.run_for(3)
        asked = len(site.asked)
        await site.clock.run_for(700)
    assert len(site.asked) == asked
    assert site.said()[0] == "Unknown"


async def test_a_write_that_came_between_is_no_error(site: Site) -> None:
    site.cluster.lose_answer("patch", ALLOCATIONS)
    async with site.running():
        await site.submit()
        await site.clock.run_for(5)
    assert site.status()["software"] == [PINNED]
