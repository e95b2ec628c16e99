"""What an image says of itself: env.json is read as it is really written, and what is broken or hostile is refused with its place."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
from typing import Any

import pytest

from lattice.errors import Rejected
from lattice.software.image_metadata import (
    LARGEST_ARCHIVE,
    MOST_ENTRIES,
    ListChange,
    ListOperation,
    ScalarChange,
    View,
    read_metadata,
    unpack_metadata,
)

ENV: dict[str, Any] = {
    "name": "prgenv",
    "description": None,
    "mount": "/user-environment",
    "views": {
        "default": {
            "description": "all",
            "env": {
                "values": {
                    "list": {"PATH": [{"op": "prepend", "value": ["/a", "/b"]}, {"op": "odd", "value": []}]},
                    "scalar": {"HOME2": "/x", "GONE": None},
                }
            },
        },
        "script-only": {"activate": "/x/activate.sh"},
    },
}


def archive(files: dict[str, bytes], *, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A gzipped tar of these files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type = (len(content) if kind == tarfile.REGTYPE else 0), kind
            member.linkname = "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def test_views_and_what_they_do_to_variables() -> None:
    found = read_metadata(json.dumps(ENV).encode())
    assert (found.name, found.description, found.mount) == ("prgenv", "", "/user-environment")
    changes = (ListChange("PATH", ListOperation.PREPEND, ("/a", "/b")), ListChange("PATH", ListOperation.UNSET, ()))
    scalars = (ScalarChange("HOME2", "/x"), ScalarChange("GONE", None))
    assert found.views == (View("default", "all", changes, scalars), View("script-only", "", (), ()))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"mount": "relative"}, "mount is no absolute path"),
        ({"mount": None}, "mount is no absolute path"),
        ({"mount": "/" + "x" * 1024}, "mount has more than 1024 characters"),
        ({"mount": "/\ud800"}, "one that cannot be printed"),
        ({"mount": "/a\n"}, "one that cannot be printed"),
        ({"views": []}, None),
        ({"views": {"v": 1}}, "views.v is no object"),
        ({"views": {"v": {"env": {"values": {"list": {"PATH": "x"}}}}}}, "views.v.env.values.list.PATH is no list"),
        ({"views": {"v": {"env": {"values": {"list": {"PATH": [{"op": "set", "value": [1]}]}}}}}}, "value is no list of texts"),
        ({"views": {"v": {"env": {"values": {"scalar": {"X": 1}}}}}}, "scalar.X is neither a text nor null"),
        ({"views": {"v": {"env": {"values": {"scalar": {"A=B": "x"}}}}}}, "'A=B' is no name of a variable"),
    ],
)
def test_what_is_broken_is_refused_at_its_place(broken: dict[str, Any], said: str | None) -> None:
    document = json.dumps({**ENV, **broken}).encode()
    if said is None:  # an empty list of views, as some builders write it
        assert read_metadata(document).views == ()
        return
    with pytest.raises(Rejected) as refused:
        read_metadata(document)
    assert said in refused.value.message


def values(**found: Any) -> dict[str, Any]:
    """A document with one view of these values."""
    return {"v": {"env": {"values": found}}}


@pytest.mark.parametrize(
    "views",
    [
        {f"v{number}": {} for number in range(MOST_ENTRIES)},
        values(scalar={f"V{number}": "" for number in range(MOST_ENTRIES - 1)}),
        values(list={"P": [{"op": "append", "value": []}] * (MOST_ENTRIES - 1)}),
        values(list={"P": [{"op": "append", "value": ["/x"] * (MOST_ENTRIES - 2)}]}),
        values(list={"P": [{"op": "set", "value": ["/x"]}] * 1000}, scalar={f"V{number}": None for number in range(MOST_ENTRIES - 2001)}),
    ],
    ids=["views", "scalars", "operations", "paths", "all of them"],
)
def test_views_operations_and_paths_are_limited_in_all(views: dict[str, Any]) -> None:
    assert read_metadata(json.dumps({**ENV, "views": views}).encode()).views
    with pytest.raises(Rejected, match=f"the views have more than {MOST_ENTRIES} changes") as refused:
        read_metadata(json.dumps({**ENV, "views": {**views, "more": {}}}).encode())
    assert refused.value.reason == "MetadataInvalid"


@pytest.mark.parametrize("document", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_refused(document: bytes) -> None:
    with pytest.raises(Rejected, match="metadata cannot be read"):
        read_metadata(document)


def test_an_unknown_view_is_refused_with_those_that_there_are() -> None:
    found = read_metadata(json.dumps(ENV).encode())
    assert found.view("default").name == "default"
    with pytest.raises(Rejected, match="'x' does not exist in prgenv; there are: default, script-only"):
        found.view("x")


def test_the_archive_gives_env_json_and_nothing_else() -> None:
    assert unpack_metadata(archive({"meta/other": b"no", "./meta/env.json": b"{}"})) == b"{}"
    assert unpack_metadata(archive({"meta/other": b"no"})) is None
    assert unpack_metadata(archive({"meta/env.json": b"{}"}, kind=tarfile.SYMTYPE)) is None  # a link leads nowhere
    assert unpack_metadata(archive({"../meta/env.json": b"{}"})) is None


@pytest.mark.parametrize("header", [{"GNU.sparse.map": "a,b"}, {"GNU.sparse.size": "x", "GNU.sparse.name": "y"}, {"size": "1e"}])
def test_numbers_that_are_none_in_an_archive_are_refused(header: dict[str, str]) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={}) as tar:
        member = tarfile.TarInfo("meta/env.json")
        member.pax_headers = header
        tar.addfile(member)
    with contextlib.suppress(Rejected):  # the only error
        unpack_metadata(raw.getvalue())


def test_hostile_archives_are_refused_without_being_unpacked_whole() -> None:
    bomb = gzip.compress(b"\0" * (LARGEST_ARCHIVE + 4096))
    whole = archive({"meta/env.json": b"{}" * 100_000})
    for data in (b"no gzip", bomb, whole[: len(whole) // 2]):
        with pytest.raises(Rejected, match="metadata cannot be read"):
            unpack_metadata(data)
