"""The node's cache of images: what goes when room is short, what never goes, and what a killed pull leaves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected, Retry
from lattice_agent.state.image_cache import MOST_METADATA, CachedImage, CacheLimits, ImageCache, ImageRecord, Room, file_stem, to_evict

LIMITS = CacheLimits(percent=80, high=90, low=70, free=0)


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def image(number: int, size: int, used: float, *, sticky: bool = False) -> CachedImage:
    return CachedImage(digest(number), ImageRecord(digest(1000 + number), size), used, sticky)


def numbers(images: list[CachedImage] | None) -> list[int] | None:
    return None if images is None else [int(one.digest[7:], 16) for one in images]


ROOM = Room(total=1250, free=2000)
"""The cache may hold 1000 bytes: crowded beyond 900, evicted down to 700."""


@pytest.mark.parametrize(
    ("images", "need", "in_use", "gone"),
    [
        ([image(1, 400, 1), image(2, 400, 2)], 100, set(), []),
        ([image(1, 400, 1), image(2, 400, 2)], 101, set(), [1]),
        ([image(1, 300, 2), image(2, 300, 1), image(3, 300, 1.5)], 100, set(), [2]),
        ([image(1, 300, 5.2), image(2, 500, 5.9), image(3, 100, 7)], 100, set(), [2]),
        ([image(1, 400, 1), image(2, 400, 2)], 200, {digest(1)}, [2]),
        ([image(1, 400, 1, sticky=True), image(2, 400, 2)], 200, set(), [2]),
        ([image(1, 400, 1, sticky=True), image(2, 400, 2)], 200, {digest(2)}, []),
        ([image(1, 400, 1, sticky=True), image(2, 400, 2)], 300, {digest(2)}, None),
        ([], 1001, set(), None),
        ([], 1000, set(), []),
    ],
    ids=("fits", "crowded", "least recently used", "larger of equally old", "in use", "sticky", "above the mark, all held", "full", "too large", "whole"),
)  # fmt: skip
def test_the_least_recently_used_go_down_to_the_low_mark_and_what_is_held_stays(
    images: list[CachedImage], need: int, in_use: set[str], gone: list[int] | None
) -> None:
    assert numbers(to_evict(images, need, ROOM, LIMITS, in_use)) == gone


def test_bytes_that_stay_free_are_stronger_than_the_marks() -> None:
    images = [image(1, 100, 1), image(2, 100, 2)]
    assert numbers(to_evict(images, 50, Room(10_000, 120), CacheLimits(free=100), set())) == [1]
    assert to_evict(images, 50, Room(10_000, 120), CacheLimits(free=1000), set()) is None


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 5), st.booleans(), st.booleans()), max_size=8), st.integers(0, 1500),
    st.integers(0, 1500), st.integers(0, 300),
)  # fmt: skip
def test_what_fits_fits_and_nothing_held_goes(held: list[tuple[int, int, bool, bool]], need: int, free: int, kept_free: int) -> None:
    images = [image(number, size, used, sticky=sticky) for number, (size, used, sticky, _) in enumerate(held)]
    in_use = {digest(number) for number, one in enumerate(held) if one[3]}
    limits = CacheLimits(free=kept_free)
    gone = to_evict(images, need, Room(1250, free), limits, in_use)
    may_go = [one for one in images if not one.sticky and one.digest not in in_use]
    if gone is None:
        left = sum(one.record.size for one in images) - sum(one.record.size for one in may_go)
        assert left + need > 1000 or free + sum(one.record.size for one in may_go) - need < kept_free
        return
    assert all(one in may_go for one in gone)
    assert sum(one.record.size for one in images if one not in gone) + need <= 1000
    assert free + sum(one.record.size for one in gone) - need >= kept_free


@pytest.mark.parametrize("limits", [{"percent": 0}, {"percent": 101}, {"high": 60, "low": 70}, {"low": 0}, {"free": -1}])
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(Rejected):
        CacheLimits(**limits)


def put(cache: ImageCache, content: bytes) -> str:
    """An image in the cache, as a puller leaves it."""
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    cache.squashfs_file(found).write_bytes(content)
    (cache.images / f"{file_stem(found)}.json").write_bytes(msgspec.json.encode(ImageRecord(found, len(content))))
    return found


def test_what_a_killed_pull_has_left_is_gone_after_a_restart_and_whole_images_stay(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache", CacheLimits())
    cache.open()
    whole, torn, half = put(cache, b"whole"), put(cache, b"torn"), digest(7)
    cache.squashfs_file(torn).write_bytes(b"to")
    cache.squashfs_file(half).write_bytes(b"no record")
    cache.draft(digest(8)).write_bytes(b"draft")
    cache.open()
    assert [one.digest for one in cache.listed()] == [whole]
    assert sorted(path.name for path in cache.images.iterdir()) == [f"{file_stem(whole)}.json", f"{file_stem(whole)}.squashfs"]
    assert list(cache.drafts.iterdir()) == []
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_a_sticky_image_stays_until_it_is_none_and_a_use_makes_it_young(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache", CacheLimits(free=0))
    cache.open()
    old, young = put(cache, b"old"), put(cache, b"young")
    cache.touch(old, 5.0)
    cache.touch(young, 6.0)
    cache.set_sticky(old, sticky=True)
    assert {one.digest: (one.used, one.sticky) for one in cache.listed()} == {old: (5.0, True), young: (6.0, False)}
    with pytest.raises(Retry) as full:
        cache.make_room(1 << 62, ())
    assert full.value.reason == "CacheFull"
    assert len(cache.listed()) == 2
    cache.set_sticky(old, sticky=False)
    cache.delete_image(old)
    cache.delete_image(old)
    assert [one.digest for one in cache.listed()] == [young]


def test_of_an_images_many_documents_the_youngest_stay_and_those_of_no_image_go(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache", CacheLimits())
    cache.open()
    whole = put(cache, b"whole")
    for number in range(MOST_METADATA + 2):
        cache.keep_metadata(whole, digest(number), b"%d" % number)
        assert cache.has_metadata(whole, digest(1)) or number < 1
    kept = [number for number in range(MOST_METADATA + 2) if cache.metadata(whole, digest(number)) is not None]
    assert (len(kept), 0 in kept, 1 in kept) == (MOST_METADATA, False, True)
    cache.keep_metadata(digest(7), digest(8), b"of no image")
    cache.open()
    assert (cache.metadata(digest(7), digest(8)), cache.metadata(whole, digest(1))) == (None, b"1")
    with pytest.raises(Rejected):
        cache.metadata(whole, "sha256:../../etc/passwd")


@pytest.mark.parametrize("text", ["sha256:../../etc/passwd", "sha256:" + "A" * 64, "sha512:" + "a" * 64, ""])
def test_what_is_no_digest_names_no_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(Rejected):
        ImageCache(tmp_path, CacheLimits()).squashfs_file(text)
