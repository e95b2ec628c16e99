"""The images of a registry that has more of them than are read at once, and some that are none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lattice.clients.registry import Descriptor, Registry, parse_address
from lattice.clients.uenv_images import MOST_READ, UenvImage, UenvImages, closest
from lattice.errors import NotFound, Rejected
from lattice.software.catalog import SoftwareDefaults, UenvRepository
from lattice.software.labels import UenvLabel, parse_label

PLACE = "deploy/daint/gh200/many/1"
AT = UenvRepository(f"uenv/{PLACE}", "deploy", "daint", "gh200", "many", "1")
LAYER = "sha256:" + "b" * 64


class Site:
    """A registry with one repository of `count` tags, each an image of its own."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0
        app = web.Application()
        app.router.add_get("/v2/_catalog", self._catalog)
        app.router.add_get(f"/v2/uenv/{PLACE}/tags/list", self._tags)
        app.router.add_get(f"/v2/uenv/{PLACE}/manifests/{{tag}}", self._manifest)
        self.server = TestServer(app)
        self.images: UenvImages

    async def _catalog(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"repositories": [f"uenv/{PLACE}"]})

    async def _tags(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"tags": [f"t{number:05}" for number in range(self.count)]})

    async def _manifest(self, request: web.Request) -> web.Response:
        self.read += 1
        return web.Response(body=manifest(request.match_info["tag"]))


def manifest(tag: str) -> bytes:
    """The manifest of a tag."""
    return json.dumps({"layers": [{"digest": LAYER, "size": 1}], "annotations": {"tag": tag}}).encode()


def digest(tag: str) -> str:
    """The digest of its image."""
    return hashlib.sha256(manifest(tag)).hexdigest()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site(120)
    await made.server.start_server()
    async with aiohttp.ClientSession() as session:
        address = parse_address(f"http://127.0.0.1:{made.server.port}/uenv")
        made.images = UenvImages(Registry(session, address, None), address.prefix, SoftwareDefaults(system="daint"))
        yield made
    await made.server.close()


@pytest.mark.parametrize("tag", ["t00000", "t00049", "t00050", "t00119"])
async def test_an_image_is_found_by_its_id_and_by_its_digest_wherever_it_stands(site: Site, tag: str) -> None:
    for text in (digest(tag), digest(tag)[:16]):
        label = parse_label(text)
        found, left_out = await site.images.find(label, 50)
        assert closest(label, found, left_out).tag == tag


async def test_an_id_that_no_image_has_is_not_found_after_all_were_read_and_too_many_are_not_read(site: Site) -> None:
    label = parse_label("0" * 16)
    with pytest.raises(NotFound):
        closest(label, *await site.images.find(label, 50))
    assert site.read == site.count
    before = site.count
    site.count, site.read = MOST_READ + 100, 0
    with pytest.raises(Rejected, match=f"not among the first {MOST_READ} of {site.count} images") as refused:
        await site.images.find(label, 500)
    assert (refused.value.reason, site.read) == ("LabelTooWide", before + MOST_READ), "first those of the list that was kept"


def image(tag: str, **changed: object) -> UenvImage:
    """An image of this tag."""
    fields = {"repository": AT, "tag": tag, "digest": f"sha256:{digest(tag)}", "layer": Descriptor(LAYER, 1), "created": ""} | changed
    return UenvImage(**fields)  # type: ignore[arg-type]


def test_of_images_that_were_not_read_nobody_says_that_they_are_none_or_equal() -> None:
    label = UenvLabel(name="many")
    for read in ([], [image("a")]):
        with pytest.raises(Rejected, match="names too many images, 70 of which were not read") as refused:
            closest(label, read, 70)
        assert refused.value.reason == "LabelTooWide"
    with pytest.raises(Rejected, match="more than one uenv matches"):
        closest(label, [image("a"), image("b")], 70)


@pytest.mark.parametrize(
    "changed",
    [
        {"layer": Descriptor("sha512:" + "b" * 128, 1)},
        {"layer": Descriptor("sha256:../../x", 1)},
        {"layer": Descriptor(LAYER, -1)},
        {"repository": UenvRepository("uenv/" + "x" * 600, "", "", "", "", "")},
    ],
    ids=("other hash", "path", "negative", "long"),
)
def test_what_no_node_could_pull_is_no_image(changed: dict[str, object]) -> None:
    with pytest.raises(Rejected, match="no image that can be pulled") as refused:
        closest(UenvLabel(name="many"), [image("a", **changed)])
    assert refused.value.reason == "ImageRefused"


async def test_an_image_that_was_pushed_a_moment_ago_is_found_though_the_list_is_kept(site: Site) -> None:
    site.count = 3
    assert len((await site.images.find(parse_label(AT.name), 50))[0]) == 3
    site.count = 4
    found, _ = await site.images.find(parse_label(digest("t00003")), 50)
    assert [one.tag for one in found] == ["t00003"]
