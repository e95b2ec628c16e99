"""Mount points are compared as they are written, covered nowhere where root looks, and mounted from the outside in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_agent.standalone.mount_targets import RESERVED, SHARED, TargetFlaw, in_order, is_within, read_target


@pytest.mark.parametrize(("text", "read"), [("/user-environment", "/user-environment"), ("/a/b//", "/a/b"), ("/tmp/mine", "/tmp/mine")])
def test_a_mount_point_is_read_without_a_slash_at_its_end(text: str, read: str) -> None:
    assert read_target(text) == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no absolute path"),
        ("user-environment", "no absolute path"),
        ("/a\0b", "no absolute path"),
        ("/a/../etc", "an empty part, . or .."),
        ("/a/./b", "an empty part, . or .."),
        ("//etc", "an empty part"),
        ("/a//b", "an empty part"),
        ("/" + "x" * 2000, "characters, 1024 are possible"),
        ("/", "nothing is mounted at /: name a directory below it"),
        ("/tmp/", "nothing is mounted at /tmp"),
        ("/proc/self", "it belongs to the system"),
        ("/sys/fs/cgroup", "it belongs to the system"),
        ("/dev/shm", "it belongs to the system"),
        ("/usr/lib/python3.11", "it belongs to the system"),
        ("/run", "it belongs to the system"),
        ("/tmp/.lattice-tmp-0badcafe-0badcafe-x/tmp", "it belongs to the node's agent"),
        ("/var/tmp/.lattice-removed-0badcafe", "it belongs to the node's agent"),
    ],
)
def test_what_can_be_no_mount_point_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(TargetFlaw, match=said):
        read_target(text)


PARTS = st.lists(st.sampled_from(["a", "a-b", "b", "meta", "..", ".", "", "proc", "tmp", "usr", ".lattice-tmp-1"]), min_size=1, max_size=4)
TARGETS = PARTS.map(lambda parts: "/" + "/".join(parts))


@given(TARGETS)
def test_no_mount_point_that_is_taken_covers_a_directory_of_the_system(text: str) -> None:
    try:
        read = read_target(text)
    except TargetFlaw:
        return
    assert read not in SHARED
    assert not read.startswith("/tmp/.lattice-tmp-")
    assert not any(is_within(read, reserved) or is_within(reserved, read) for reserved in RESERVED)


PLAIN = st.lists(st.sampled_from(["a", "a-b", "b", "meta"]), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(PLAIN, max_size=8))
def test_what_lies_in_another_comes_after_it_and_none_comes_twice(targets: list[str]) -> None:
    if len(set(targets)) < len(targets):
        with pytest.raises(TargetFlaw, match="more than one image mounted"):
            in_order(targets)
        return
    order = in_order(targets)
    assert sorted(order) == list(range(len(targets)))
    for later, place in enumerate(order):
        assert not any(is_within(targets[other], targets[place]) for other in order[:later])
