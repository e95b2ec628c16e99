"""An OCI registry, read only: repositories, tags, manifests, what is attached to an image, blobs.

It speaks the distribution specification 1.1 as registries really do: Basic and Bearer logins, paged lists, referrers by their API or by
the fallback tag, redirects to a store that must never see the login. Every manifest and blob is hashed; what has another digest is refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec

from lattice.errors import Corrupt, Denied, LatticeError, NotFound, Rejected, Retry, TooMany
from lattice.units import is_digits

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
ACCEPTED: Final = f"{OCI_MANIFEST}, {OCI_INDEX}"
LARGEST_DOCUMENT: Final = 4 * 1024 * 1024
"""Bytes of a manifest or of a page of a list, as the specification recommends."""
PAGE: Final = 1000
MOST_NAMES: Final = 100_000
"""Of a list, over all its pages."""
MOST_REDIRECTS: Final = 5
MOST_UNNAMED: Final = 16
EMPTY_CONFIG: Final = "application/vnd.oci.empty.v1+json"
REDIRECTS: Final = (301, 302, 303, 307, 308)
ANSWER_SECONDS: Final = 20.0
STREAM_BYTES: Final = 1 << 20
STREAM_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=60.0)
T = TypeVar("T")
_CHALLENGE: Final = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_NEXT: Final = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')
_RANGE: Final = re.compile(r"bytes (\d{1,18})-", re.ASCII)


class Descriptor(msgspec.Struct, rename="camel"):
    """A reference to a blob or to a manifest (media type, digest, size in bytes), as manifests and indices contain them."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$")]
    """It is a part of URLs, and pushed by users."""
    size: int = 0
    media_type: str = ""
    artifact_type: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class Manifest(msgspec.Struct, rename="camel"):
    """An OCI image manifest or index; absent fields are empty."""

    media_type: str = ""
    artifact_type: str = ""
    layers: list[Descriptor] = msgspec.field(default_factory=list)
    manifests: list[Descriptor] = msgspec.field(default_factory=list)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class Credentials:
    """A user name and a password for one registry; `repr` and `str` never show the password."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class RegistryAddress:
    """Holds scheme and host of a registry, and the path below which its repositories lie (empty: at the root)."""

    scheme: str
    host: str
    prefix: str


def parse_address(url: str) -> RegistryAddress:
    """Returns scheme, host (with its port) and prefix of a registry's URL such as `https://registry.example/uenv`; https where it has no
    scheme.

    Raises Rejected (RegistryInvalid) for another scheme, a login in the URL, a query.
    """
    parts = urlsplit(url if "://" in url else f"https://{url}")
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise Rejected(f"{url!r} is no registry: write https://HOST[:PORT][/PREFIX]", reason="RegistryInvalid")
    return RegistryAddress(parts.scheme, parts.netloc, parts.path.strip("/"))


def read_credentials(file: str, host: str) -> Credentials | None:
    """Returns the login for a host from a file in Docker's form (`auths`); None: `file` is empty, or it has no login for the host.

    Raises Corrupt (RegistryAuthInvalid) where the file is unreadable or of another form.
    """
    if not file:
        return None
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))["auths"].get(host)
        if found is None:
            return None
        user, colon, password = base64.b64decode(found["auth"], validate=True).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise Corrupt(f"the registry's login file {file} cannot be read: {type(error).__name__}", reason="RegistryAuthInvalid") from None
    if not colon:
        raise Corrupt(f"the registry's login file {file} has no user:password for {host}", reason="RegistryAuthInvalid")
    return Credentials(user, password)


@dataclass(frozen=True)
class BlobStream:
    """The bytes of a blob from `start` on, as they arrive."""

    start: int
    chunks: AsyncIterator[bytes]


class Registry:
    """Reads one OCI registry over an HTTP session that the caller closes; keeps bearer tokens until the registry refuses them."""

    def __init__(self, session: aiohttp.ClientSession, address: RegistryAddress, credentials: Credentials | None) -> None:
        self._session = session
        self._address = address
        self._credentials = credentials
        self._logins: dict[str, str] = {}
        """The header `Authorization` by repository; the key of the catalog is empty."""

    async def repositories(self) -> list[str]:
        """Returns the names of all repositories; raises Rejected (NoCatalog) where the registry gives no list.

        Raises Retry, as every question here, where the registry does not answer.
        """
        try:
            return await self._names("", f"/v2/_catalog?n={PAGE}", "repositories")
        except (NotFound, Denied) as error:
            said = f"{self._address.host} does not list its images ({error.message}): give a whole label, name/version:tag@system%uarch"
            raise Rejected(said, reason="NoCatalog") from error

    async def tags(self, repository: str) -> list[str]:
        """Returns the tags of a repository; raises NotFound where the registry has no such repository."""
        return await self._names(repository, f"/v2/{repository}/tags/list?n={PAGE}", "tags")

    async def manifest(self, repository: str, reference: str) -> tuple[str, Manifest]:
        """Returns (digest, manifest) of a tag or a digest, the digest computed from its bytes; raises NotFound where there is none.

        Raises Corrupt where its bytes have another digest than asked for, or are no manifest.
        """
        digest, body = await self.manifest_document(repository, reference)
        return digest, self._decoded(body, Manifest)

    async def manifest_document(self, repository: str, reference: str, accepted: str = ACCEPTED) -> tuple[str, bytes]:
        """Returns (digest, bytes) of the manifest or index that a tag or a digest names, of one of the `accepted` media types.

        Raises NotFound where there is none, Corrupt where its bytes have another digest than asked for, Retry where they are no JSON: no
        registry stores such a one, so that somebody else has answered in its place.
        """
        body, headers = await self._document(repository, f"/v2/{repository}/manifests/{reference}", accepted)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if digest != reference:
            self._check_json(body, headers, f"{repository}:{reference}")
        if reference.startswith("sha256:") and reference != digest:
            raise Corrupt(f"{self._address.host} sent other bytes than {reference} for {repository}", reason="DigestMismatch")
        return digest, body

    @asynccontextmanager
    async def stream(self, repository: str, digest: str, *, offset: int = 0) -> AsyncIterator[BlobStream]:
        """Opens a blob from `offset` on; a registry that serves no ranges begins at its start, which `BlobStream.start` tells.

        Its bytes are not hashed here. Raises NotFound or Denied as `blob` does, and Retry, also while it is read: a connection is cut, or
        silent for a minute.
        """
        url = f"{self._address.scheme}://{self._address.host}/v2/{repository}/blobs/{digest}"
        wanted = {"Accept": "*/*", **({"Range": f"bytes={offset}-"} if offset else {})}
        try:
            async with AsyncExitStack() as stack:
                for _ in range(2):
                    answer = await self._redirected(stack, repository, url, wanted)
                    if isinstance(answer, _Challenge):
                        self._logins[repository] = await self._login(answer.text)
                        continue
                    if answer.status == 206:
                        yield BlobStream(_first_byte(answer.headers.get("Content-Range", "")), answer.content.iter_chunked(STREAM_BYTES))
                    elif failure := self._failure(answer, url):
                        raise failure
                    else:
                        yield BlobStream(0, answer.content.iter_chunked(STREAM_BYTES))
                    return
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: what it sends makes no URL
            said = str(error) or "no bytes for a minute"
            raise Retry(f"the registry {self._address.host} does not send {digest}: {said}", reason="RegistryUnreachable") from error
        raise Denied(f"the registry {self._address.host} refuses its login for {repository}", reason="RegistryDenied")

    async def _redirected(
        self, stack: AsyncExitStack, repository: str, url: str, wanted: Mapping[str, str]
    ) -> aiohttp.ClientResponse | _Challenge:
        """Returns the answer after redirects, without the login to other hosts, or the challenge of a registry that asks for a login; the
        answer is closed with the stack.

        Raises Retry for more than MOST_REDIRECTS.
        """
        for _ in range(MOST_REDIRECTS):
            headers, ours = self._headers(repository, url, wanted)
            response = await stack.enter_async_context(
                self._session.get(url, headers=headers, allow_redirects=False, timeout=STREAM_TIMEOUT)
            )
            if response.status in REDIRECTS:
                url = _redirected(url, response.headers.get("Location", ""))
                continue
            if ours and response.status == 401 and (challenge := response.headers.get("WWW-Authenticate")):
                return _Challenge(challenge)
            return response
        raise Retry(f"the registry {self._address.host} redirects more than {MOST_REDIRECTS} times", reason="RegistryBroken")

    def _headers(self, repository: str, url: str, wanted: Mapping[str, str]) -> tuple[dict[str, str], bool]:
        """Returns the headers of a request, and whether it goes to the registry itself: nobody else gets the login."""
        ours = urlsplit(url)[:2] == (self._address.scheme, self._address.host)
        login = self._logins.get(repository) if ours else None
        return {**wanted, **({"Authorization": login} if login else {})}, ours

    async def referrers(self, repository: str, digest: str, artifact_type: str) -> list[Descriptor]:
        """Returns the artifacts of a type (empty: of any) that are attached to an image, found by the referrers API, else by the fallback
        tag; empty: none.
        """
        for path in (f"/v2/{repository}/referrers/{digest}", f"/v2/{repository}/manifests/{digest.replace(':', '-')}"):
            try:
                body, _ = await self._document(repository, path, OCI_INDEX)
            except NotFound:
                continue
            listed = self._decoded(body, Manifest).manifests
            found = [one for one in listed if artifact_type in ("", one.artifact_type)]
            return found or await self._unnamed(repository, listed, artifact_type)
        return []

    async def _unnamed(self, repository: str, listed: list[Descriptor], artifact_type: str) -> list[Descriptor]:
        """Returns those of an artifact type among listed ones, the first 16, whose list has no type of theirs but their configuration's,
        as go-containerregistry lists what has an empty one: their manifests are read.
        """
        found: list[Descriptor] = []
        for one in [one for one in listed if one.artifact_type in ("", EMPTY_CONFIG)][:MOST_UNNAMED]:
            with suppress(NotFound):
                _, manifest = await self.manifest(repository, one.digest)
                found += [one] if manifest.artifact_type == artifact_type else []
        return found

    async def blob(self, repository: str, digest: str, *, most: int) -> bytes:
        """Returns the bytes of a blob; raises NotFound where there is none, Rejected (BlobTooLarge) beyond `most` bytes, Corrupt where they
        have another digest.
        """
        body, _ = await self._read(repository, f"/v2/{repository}/blobs/{digest}", "*/*", most)
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            raise Corrupt(f"{self._address.host} sent other bytes than {digest} for {repository}", reason="DigestMismatch")
        return body

    async def blob_size(self, repository: str, digest: str) -> int | None:
        """Returns the bytes of a blob as the registry, or the store that it redirects to, tells them; None: it does not tell.

        Raises NotFound, Denied and Retry as `blob` does.
        """
        url = f"{self._address.scheme}://{self._address.host}/v2/{repository}/blobs/{digest}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for _ in range(MOST_REDIRECTS):
                    headers, ours = self._headers(repository, url, {"Accept": "*/*"})
                    async with self._session.head(url, headers=headers, allow_redirects=False) as response:
                        if response.status in REDIRECTS:
                            url = _redirected(url, response.headers.get("Location", ""))
                            continue
                        challenge = response.headers.get("WWW-Authenticate") if ours and response.status == 401 else None
                        if challenge:
                            self._logins[repository] = await self._login(challenge)
                            continue
                        if ours and response.status != 405 and (failure := self._failure(response, url)):
                            raise failure
                        length = response.headers.get("Content-Length", "") if response.status == 200 else ""
                        return int(length) if is_digits(length) else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            said = str(error) or f"no answer within {ANSWER_SECONDS:.0f} s"
            raise Retry(f"the registry {self._address.host} cannot be asked: {said}", reason="RegistryUnreachable") from error
        return None

    async def _names(self, repository: str, path: str, key: str) -> list[str]:
        """Returns the names under `key` of a list and all its further pages, up to an empty page; an empty path has none.

        Raises Rejected for more than MOST_NAMES.
        """
        found: list[str] = []
        while path:
            body, headers = await self._document(repository, path, "application/json")
            page = self._decoded(body, dict[str, Any]).get(key) or []
            found += [name for name in page if isinstance(name, str)]
            link = _NEXT.search(headers.get("Link", ""))
            path = _same_host(path, link[1]) if link and page else ""
            if len(found) > MOST_NAMES:
                raise Rejected(f"{self._address.host} lists more than {MOST_NAMES} {key}", reason="CatalogTooLarge")
        return found

    def _check_json(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        """Raises Retry where an answer about `what` is no JSON, such as the page of a proxy: its registry may answer later."""
        try:
            msgspec.json.decode(body, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as error:
            kind = "".join(letter if letter.isprintable() else "?" for letter in headers.get("Content-Type", "nothing")[:60])
            said = f"the registry {self._address.host} answers for {what} with what is no JSON ({kind}): is there a proxy before it?"
            raise Retry(said, reason="RegistryBroken") from error

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        """Returns a body of JSON as an instance of a type. Raises Corrupt where it does not decode, Retry where it is no JSON."""
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            self._check_json(body, {}, "a question")
            raise Corrupt(f"{self._address.host} sent what no registry sends: {error}", reason="RegistryBroken") from error

    async def _document(self, repository: str, path: str, accept: str) -> tuple[bytes, Mapping[str, str]]:
        """Returns body and headers of an answer of at most LARGEST_DOCUMENT bytes."""
        return await self._read(repository, path, accept, LARGEST_DOCUMENT)

    async def _read(self, repository: str, path: str, accept: str, most: int) -> tuple[bytes, Mapping[str, str]]:
        """Returns body and headers of an answer of at most `most` bytes, with the known login, and once more after a login challenge.

        Raises Retry where the registry cannot be asked, Denied where it refuses the login.
        """
        url = f"{self._address.scheme}://{self._address.host}{path}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for _ in range(2):
                    answer = await self._follow(repository, url, accept, most)
                    if isinstance(answer, _Challenge):
                        self._logins[repository] = await self._login(answer.text)
                        continue
                    return answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: what it sends makes no URL
            said = str(error) or f"no answer within {ANSWER_SECONDS:.0f} s"
            raise Retry(f"the registry {self._address.host} cannot be asked: {said}", reason="RegistryUnreachable") from error
        raise Denied(f"the registry {self._address.host} refuses its login for {repository or 'its catalog'}", reason="RegistryDenied")

    async def _follow(self, repository: str, url: str, accept: str, most: int) -> tuple[bytes, Mapping[str, str]] | _Challenge:
        """Returns body and headers of an answer of at most `most` bytes, after redirects, or the challenge of a registry that asks for a
        token.

        Raises Retry for more than MOST_REDIRECTS, and what `_body` raises.
        """
        for _ in range(MOST_REDIRECTS):
            headers, ours = self._headers(repository, url, {"Accept": accept})
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status in REDIRECTS:
                    url = _redirected(url, response.headers.get("Location", ""))
                    continue
                if ours and response.status == 401 and (challenge := response.headers.get("WWW-Authenticate")):
                    return _Challenge(challenge)
                return await self._body(response, url, most), dict(response.headers)
        raise Retry(f"the registry {self._address.host} redirects more than {MOST_REDIRECTS} times", reason="RegistryBroken")

    def _failure(self, response: aiohttp.ClientResponse, url: str) -> LatticeError | None:
        """Returns the error that an answer means; None: its status is 200. 408 and 5xx are Retry, 429 TooMany, which know how long the
        registry asks to be left alone; other statuses are Rejected.
        """
        status, what = response.status, f"the registry {self._address.host} answers {response.status} for {urlsplit(url).path}"
        pause = _seconds(response.headers.get("Retry-After", ""))
        later = f"{what}, and asks to be left alone for {pause:g} s" if pause else what
        if status == 404:
            return NotFound(what, reason="NotInRegistry")
        if status in (401, 403):
            return Denied(what, reason="RegistryDenied")
        if status == 429:
            return TooMany(later, reason="RegistryBusy", after_seconds=pause)
        if status >= 500 or status == 408:
            return Retry(later, reason="RegistryBroken", after_seconds=pause)
        return None if status == 200 else Rejected(what, reason="RegistryRefused")

    async def _body(self, response: aiohttp.ClientResponse, url: str, most: int) -> bytes:
        """Returns the body of an answer. Raises the error of a refusal, and Rejected for more than `most` bytes."""
        if failure := self._failure(response, url):
            raise failure
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > most:
                raise Rejected(f"{self._address.host} sends more than {most} bytes for {urlsplit(url).path}", reason="BlobTooLarge")
        return bytes(body)

    async def _login(self, challenge: str) -> str:
        """Returns the Authorization header for a challenge: for Basic the login itself, for Bearer a token requested with the login.

        Raises Denied where there is no login, or the challenge is of a kind that is not known.
        """
        scheme, _, text = challenge.partition(" ")
        basic = _basic(self._credentials)
        if scheme.lower() == "basic":
            if not basic:
                raise Denied(f"the registry {self._address.host} asks for a login, and the site gives none", reason="RegistryDenied")
            return basic
        asked = dict(_CHALLENGE.findall(text))
        realm = urlsplit(asked.get("realm", ""))
        if scheme.lower() != "bearer" or not realm.hostname or (realm.scheme != "https" and self._address.scheme == "https"):
            raise Denied(f"the registry {self._address.host} asks for a login of a kind that is not known", reason="RegistryDenied")
        return f"Bearer {await self._token(asked, basic)}"

    async def _token(self, asked: Mapping[str, str], basic: str) -> str:
        """Returns the token that the realm of a challenge (`asked`) gives, with `basic` as the Authorization header unless empty.

        Raises Denied where it gives none.
        """
        query = {key: asked[key] for key in ("service", "scope") if key in asked}
        headers = {"Authorization": basic} if basic else {}
        async with self._session.get(asked["realm"], params=query, headers=headers, allow_redirects=False) as response:
            body = await self._body(response, asked["realm"], LARGEST_DOCUMENT)
        found = self._decoded(body, dict[str, Any])
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str):
            raise Denied(f"{asked['realm']} gives no token for {self._address.host}", reason="RegistryDenied")
        return token


@dataclass(frozen=True)
class _Challenge:
    """The parsed header `WWW-Authenticate` of a response that asks for a login."""

    text: str


def _basic(credentials: Credentials | None) -> str:
    """Returns the Authorization header of user and password; empty without credentials."""
    if credentials is None:
        return ""
    return "Basic " + base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()


def _redirected(url: str, location: str) -> str:
    """Returns the absolute URL of a redirect; raises Retry where it leads from https to http, or names no location."""
    target = urljoin(url, location)
    if not location or (urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https"):
        raise Retry(f"{urlsplit(url).netloc} redirects to {location!r}, which is not followed", reason="RegistryBroken")
    return target


def _same_host(path: str, link: str) -> str:
    """Returns path and query of the link to a list's next page, without the link's host: the list's own host serves all pages.

    Raises Corrupt for a link without an absolute path, which would change the host.
    """
    try:
        parts = urlsplit(urljoin(path, link))
    except ValueError as error:
        raise Corrupt(f"the registry's link to the next page, {link!r}, is no URL: {error}", reason="RegistryBroken") from error
    if not parts.path.startswith("/"):
        raise Corrupt(f"the registry's link to the next page, {link!r}, has no absolute path", reason="RegistryBroken")
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _first_byte(content_range: str) -> int:
    """Returns where a part begins, by the header `Content-Range: bytes 7-9/10`; raises Retry for what is none."""
    found = _RANGE.match(content_range)
    if found is None:
        raise Retry(f"a part of a blob says that it is {content_range!r}", reason="RegistryBroken")
    return int(found[1])


def _seconds(text: str) -> float | None:
    """Returns a header's whole number of seconds, of at most six digits; None where it is no such number."""
    return float(text) if is_digits(text, 6) else None


@cache
def _system_trust() -> ssl.SSLContext:
    """Returns a context that trusts the system's authorities, which aiohttp's own need not (`lattice.lean_aiohttp`); takes 25 ms."""
    return ssl.create_default_context()


@asynccontextmanager
async def opened_registry(url: str, registry_auth: str) -> AsyncIterator[Registry]:
    """Opens a registry with the login for its host in the file `registry_auth` (empty: none), which is read again each time.

    Raises Rejected (RegistryInvalid), Corrupt (RegistryAuthInvalid).
    """
    address = parse_address(url)
    credentials = read_credentials(registry_auth, address.host)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
    connector = aiohttp.TCPConnector(ssl=await asyncio.to_thread(_system_trust))
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        yield Registry(session, address, credentials)
