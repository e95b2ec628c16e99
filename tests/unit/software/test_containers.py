"""Names of OCI images mean what Docker means by them, and never a registry that the site has not listed."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.software.containers import ContainerPlace, ContainerReference, parse_container, place_of
from lattice.views.cluster import ImageRegistry

HEX = "a" * 64
SITE = (
    ImageRegistry(name="registry.example"), ImageRegistry(name="docker.io"), ImageRegistry(name="mirror.example:5000", url="http://10.1.2.3/mirror"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("app", ("", "app", "latest", "")),
        ("team/app:1.0", ("", "team/app", "1.0", "")),
        ("registry.example/team/app", ("registry.example", "team/app", "latest", "")),
        ("Registry.Example:5000/app:v1", ("registry.example:5000", "app", "v1", "")),
        ("localhost/app", ("localhost", "app", "latest", "")),
        ("[::1]:5000/app", ("[::1]:5000", "app", "latest", "")),
        (f"app@sha256:{HEX}", ("", "app", "", f"sha256:{HEX}")),
        (f"r.example/a/b:t@sha256:{HEX}", ("r.example", "a/b", "t", f"sha256:{HEX}")),
    ],
)
def test_names_are_read_as_docker_reads_them(text: str, expected: tuple[str, str, str, str]) -> None:
    assert parse_container(text) == ContainerReference(text, *expected)


@pytest.mark.parametrize(
    "text",
    [
        "", "App", "app:", "app@", "app@sha256:abc", "app@sha512:" + "a" * 128, "a//b", "/app", "app/", "../app", "a/../b", "app:tag:tag", "a b",
        "http://169.254.169.254/app", "user:password@r.example/app", "r.example:99999999/app", "a" * 600, "app\n", "r.example/app?x=1", "é",
        "r.example/" + "a/" * 200 + "a",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(Rejected, match="An image is") as refused:
        parse_container(text)
    assert refused.value.reason == "ImageInvalid"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("team/app", ("registry.example", "https://registry.example", "team/app")),
        ("docker.io/ubuntu", ("docker.io", "https://registry-1.docker.io", "library/ubuntu")),
        ("docker.io/a/b", ("docker.io", "https://registry-1.docker.io", "a/b")),
        ("mirror.example:5000/app", ("mirror.example:5000", "http://10.1.2.3/mirror", "app")),
    ],
)
def test_a_name_means_a_registry_of_the_site(text: str, expected: tuple[str, str, str]) -> None:
    assert place_of(parse_container(text), SITE) == ContainerPlace(*expected)


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "10.1.2.3", "registry.example:80", "localhost:6443", "registry.example.evil.org", "[::1]"]
)
def test_no_name_reaches_a_host_that_the_site_has_not_listed(host: str) -> None:
    with pytest.raises(Rejected, match=r"software\.registries: registry\.example, docker\.io") as refused:
        place_of(parse_container(f"{host}/app"), SITE)
    assert refused.value.reason == "ImageRefused"


def test_a_site_without_registries_runs_no_images() -> None:
    with pytest.raises(Rejected, match=r"an administrator sets software\.registries"):
        place_of(parse_container("app"), ())
