"""The registry's client against a server that does what registries do: logins, pages, redirects, limits, and lies."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lattice.clients.registry import Credentials, Registry, parse_address, read_credentials
from lattice.clients.signatures import LARGEST_PAYLOAD, MOST_BYTES, read_claims
from lattice.errors import Corrupt, Denied, LatticeError, NotFound, Rejected, Retry, TooMany
from lattice.software.signatures import SIGNATURE_ANNOTATION, SIMPLE_SIGNING

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOGIN = Credentials("robot", "open sesame")
BASIC = "Basic " + base64.b64encode(b"robot:open sesame").decode()
MANIFEST = json.dumps({"artifactType": "application/x-squashfs", "layers": [{"digest": "sha256:" + "1" * 64, "size": 7}]}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class Site:
    """A registry whose every answer is `answer`'s, and the client of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer: Handler = self.nothing
        app = web.Application()
        app.router.add_get("/{path:.*}", self._handle)
        self.server = TestServer(app)
        self.session: aiohttp.ClientSession

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path_qs, request.headers.get("Authorization", "")))
        return await self.answer(request)

    async def nothing(self, request: web.Request) -> web.StreamResponse:
        """Has nothing."""
        del request
        return web.Response(status=404)

    def registry(self, credentials: Credentials | None = None) -> Registry:
        """A client with this login."""
        return Registry(self.session, parse_address(f"http://{self.host}/uenv"), credentials)

    @property
    def host(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.server.port}"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A site that is up."""
    made = Site()
    await made.server.start_server()
    async with aiohttp.ClientSession() as made.session:
        yield made
    await made.server.close()


async def test_a_bearer_token_is_bought_once_with_the_login_and_the_scope(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            return web.json_response({"token": "t1"})
        if request.headers.get("Authorization") != "Bearer t1":
            challenge = f'Bearer realm="http://{site.host}/token",service="reg",scope="repository:uenv/a:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        return web.Response(body=MANIFEST)

    site.answer = answer
    registry = site.registry(LOGIN)
    for _ in range(2):
        digest, manifest = await registry.manifest("uenv/a", "v1")
        assert (digest, manifest.layers[0].size) == (DIGEST, 7)
    path = "/v2/uenv/a/manifests/v1"
    bought = "/token?service=reg&scope=repository:uenv/a:pull"
    assert site.asked == [(path, ""), (bought, BASIC), (path, "Bearer t1"), (path, "Bearer t1")]


async def test_a_login_that_is_refused_is_denied_and_not_asked_for_ever(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    site.answer = answer
    with pytest.raises(Denied, match="refuses its login for uenv/a"):
        await site.registry(LOGIN).manifest("uenv/a", "v1")
    assert [login for _, login in site.asked] == ["", BASIC]
    with pytest.raises(Denied, match="asks for a login, and the site gives none"):
        await site.registry().manifest("uenv/a", "v1")


async def test_the_login_never_follows_a_redirect_to_another_host(site: Site) -> None:
    stranger: list[str] = []

    async def blob(request: web.Request) -> web.StreamResponse:
        stranger.append(request.headers.get("Authorization", ""))
        return web.Response(body=MANIFEST)

    app = web.Application()
    app.router.add_get("/store", blob)
    store = TestServer(app)
    await store.start_server()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != BASIC:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{store.port}/store"})

    site.answer = answer
    try:
        assert await site.registry(LOGIN).blob("uenv/a", DIGEST, most=1000) == MANIFEST
    finally:
        await store.close()
    assert stranger == [""]


async def test_lists_are_read_page_by_page(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "last" in request.query:
            return web.json_response({"repositories": ["b"]})
        return web.json_response({"repositories": ["a"]}, headers={"Link": '</v2/_catalog?n=1000&last=a>; rel="next"'})

    site.answer = answer
    assert await site.registry().repositories() == ["a", "b"]


async def test_a_page_that_leads_to_itself_ends(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.json_response({"tags": ["x"] * 50_000}, headers={"Link": '<https://elsewhere.example/v2/t>; rel="next"'})

    site.answer = answer
    with pytest.raises(Rejected, match="lists more than 100000 tags"):
        await site.registry().tags("uenv/a")
    assert {path.split("?")[0] for path, _ in site.asked} == {"/v2/uenv/a/tags/list", "/v2/t"}  # of this host


@pytest.mark.parametrize("link", ["<x:@evil/>", "<x:evil>", "<http://[>", "<//[>"])
async def test_a_link_to_a_next_page_leads_to_no_other_host(site: Site, link: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.json_response({"tags": ["x"]}, headers={"Link": f'{link}; rel="next"'})

    site.answer = answer
    with pytest.raises(Corrupt, match="link to the next page"):
        await site.registry().tags("uenv/a")


async def test_a_redirect_that_is_no_url_is_a_failure_of_the_registry(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=307, headers={"Location": "http://["})

    site.answer = answer
    with pytest.raises(Retry, match="cannot be asked"):
        await site.registry().blob("uenv/a", DIGEST, most=10)
    with pytest.raises(Retry, match="does not send"):
        async with site.registry().stream("uenv/a", DIGEST):
            pass


async def test_without_a_catalog_a_whole_label_is_asked_for(site: Site) -> None:
    with pytest.raises(Rejected, match="give a whole label") as refused:
        await site.registry().repositories()
    assert refused.value.reason == "NoCatalog"


@pytest.mark.parametrize("with_api", [True, False])
async def test_referrers_come_from_the_api_or_from_the_fallback_tag(site: Site, with_api: bool) -> None:
    two, three = ("sha256:" + digit * 64 for digit in "23")
    attached = {"manifests": [{"digest": two, "artifactType": "uenv/meta"}, {"digest": three, "artifactType": "other"}]}
    served = f"/v2/uenv/a/referrers/{DIGEST}" if with_api else f"/v2/uenv/a/manifests/{DIGEST.replace(':', '-')}"

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(attached) if request.path == served else web.Response(status=404)

    site.answer = answer
    assert [one.digest for one in await site.registry().referrers("uenv/a", DIGEST, "uenv/meta")] == [two]


async def test_an_index_whose_digests_are_paths_is_refused(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.json_response({"manifests": [{"digest": "../../../v2/secret/manifests/latest"}]})

    site.answer = answer
    with pytest.raises(Corrupt, match="digest"):
        await site.registry().referrers("uenv/a", DIGEST, "")


@pytest.mark.parametrize("again", [True, False], ids=["one document named again and again", "documents beyond number"])
async def test_signatures_are_read_within_limits_whatever_is_attached(site: Site, again: bool) -> None:
    payload = bytes(LARGEST_PAYLOAD)

    def layer(number: int) -> dict[str, object]:
        body = payload if again else payload[:-8] + number.to_bytes(8, "big")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        bodies[digest] = body
        return {"digest": digest, "mediaType": SIMPLE_SIGNING, "size": len(body), "annotations": {SIGNATURE_ANNOTATION: f"{number}"}}

    bodies: dict[str, bytes] = {}
    manifest = json.dumps({"layers": [layer(0 if again else number) for number in range(64)]}).encode()
    attached = {"manifests": [{"digest": f"sha256:{hashlib.sha256(manifest).hexdigest()}"}] * 64}

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/blobs/" in request.path:
            return web.Response(body=bodies[request.path.rpartition("/")[2]])
        return web.json_response(attached) if "/referrers/" in request.path else web.Response(body=manifest)

    site.answer = answer
    await read_claims(site.registry(), "uenv/a", DIGEST)
    asked = [path for path, _ in site.asked if "/blobs/" in path]
    assert len(asked) == (1 if again else MOST_BYTES // LARGEST_PAYLOAD)
    assert len(site.asked) < 10


async def test_bytes_of_another_digest_are_refused(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(body=b'{"layers": []}')

    site.answer = answer
    for asked in (site.registry().blob("uenv/a", DIGEST, most=100), site.registry().manifest("uenv/a", DIGEST)):
        with pytest.raises(Corrupt, match="other bytes"):
            await asked


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (404, {}, NotFound),
        (403, {}, Denied),
        (429, {"Retry-After": "7"}, TooMany),
        (500, {}, Retry),
        (503, {}, Retry),
        (400, {}, Rejected),
        (302, {"Location": ""}, Retry),
        (302, {"Location": "/v2/again"}, Retry),
    ],
)
async def test_each_refusal_says_what_to_do(site: Site, status: int, headers: dict[str, str], kind: type[LatticeError]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=status, headers=headers)

    site.answer = answer
    with pytest.raises(kind) as refused:
        await site.registry().manifest("uenv/a", "v1")
    assert type(refused.value) is kind
    if isinstance(refused.value, TooMany):
        assert refused.value.after_seconds == 7


async def test_what_is_too_large_is_not_read_to_its_end(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(body=b"x" * 5000)

    site.answer = answer
    with pytest.raises(Rejected, match="sends more than 1000 bytes"):
        await site.registry().blob("uenv/a", DIGEST, most=1000)


async def test_a_registry_that_is_gone_or_sends_nonsense_is_told(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(body=b"<html>")

    site.answer = answer
    with pytest.raises(Retry, match=r"with what is no JSON \(application/octet-stream\): is there a proxy before it\?"):
        await site.registry().manifest("uenv/a", "v1")
    await site.server.close()
    with pytest.raises(Retry, match="cannot be asked"):
        await site.registry().manifest("uenv/a", "v1")


def test_addresses(tmp_path: Path) -> None:
    del tmp_path
    address = parse_address("https://registry.example:5000/site/uenv/")
    assert (address.scheme, address.host, address.prefix) == ("https", "registry.example:5000", "site/uenv")
    assert parse_address("registry.example").scheme == "https"
    for wrong in ("ftp://x", "https://user:pw@x", "https://", "https://x?y"):
        with pytest.raises(Rejected, match="is no registry"):
            parse_address(wrong)


def test_logins_are_read_for_their_host_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"auths": {"a": {"auth": BASIC.split()[1]}, "b": {"auth": base64.b64encode(b"x").decode()}, "c": {}}}))
    assert read_credentials(str(file), "a") == LOGIN
    assert "sesame" not in repr(LOGIN)
    assert read_credentials(str(file), "elsewhere") is None
    assert read_credentials("", "a") is None
    for host, name in (("b", file), ("c", file), ("a", tmp_path / "missing")):
        with pytest.raises(Corrupt) as refused:
            read_credentials(str(name), host)
        assert refused.value.reason == "RegistryAuthInvalid"
