"""What work asks for: lists of labels and files with mount points, and views of them."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.software.image_metadata import ImageMetadata, View
from lattice.software.labels import UenvLabel
from lattice.software.references import MountedImage, UenvReference, ViewName, check_images, parse_references, parse_views


def metadata(name: str, mount: str, *views: str) -> ImageMetadata:
    return ImageMetadata(name, "", mount, tuple(View(view, "", (), ()) for view in views))


def image(text: str, attached: ImageMetadata | None) -> MountedImage:
    return MountedImage(parse_references(text)[0], attached)


def test_labels_and_files_are_read_with_the_mount_points_that_they_give() -> None:
    assert parse_references("") == ()
    assert parse_references("build::prgenv/24.11:v1@daint%gh200:/opt/env/, ./mine.squashfs:/data,/a/b.sqfs") == (
        UenvReference("build::prgenv/24.11:v1@daint%gh200", UenvLabel("build", "prgenv", "24.11", "v1", "daint", "gh200"), "/opt/env"),
        UenvReference("./mine.squashfs", None, "/data"),
        UenvReference("/a/b.sqfs", None),
    )
    assert parse_views("default, tools:modules,prgenv/24.11:x") == (
        ViewName("", "default"), ViewName("tools", "modules"), ViewName("prgenv/24.11", "x"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,,b", "LabelInvalid"),
        ("@daint", "LabelInvalid"),
        ("a b", "LabelInvalid"),
        ("a:/x/../etc", "MountInvalid"),
        ("a:/", "MountInvalid"),
        (",".join("abcdefghi"), "TooManyImages"),
    ],
)
def test_what_names_no_image_or_no_place_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        parse_references(text)
    assert refused.value.reason == reason


@pytest.mark.parametrize("text", ["default,", "a:b:c", "../x", "a:"])
def test_what_names_no_view_is_refused(text: str) -> None:
    with pytest.raises(Rejected) as refused:
        parse_views(text)
    assert refused.value.reason == "ViewInvalid"


def test_views_are_sought_in_the_image_that_they_name_else_in_all() -> None:
    images = [image("prgenv/24.11:v1", metadata("prgenv", "/user-environment", "default")), image("t/1:v1", metadata("tools", "/t", "dbg"))]
    check_images(images, parse_views("default,dbg,prgenv:default,t:dbg,tools:dbg,prgenv/24.11:default"))
    for wrong, said in (("debug", "prgenv:default, tools:dbg"), ("tools:default", "tools:dbg"), ("x:default", "none of the images")):
        with pytest.raises(Rejected, match=said) as refused:
            check_images(images, parse_views(wrong))
        assert refused.value.reason == "ViewUnknown"


def test_what_an_image_without_attached_metadata_may_have_is_left_to_the_node() -> None:
    check_images([image("a/1:v1", None), image("b/1:v1", metadata("b", "/b"))], parse_views("anything,a:more"))
    with pytest.raises(Rejected):
        check_images([image("a/1:v1", None), image("b/1:v1", metadata("b", "/b"))], parse_views("b:anything"))


def test_a_refusal_of_a_view_names_few_of_very_many() -> None:
    many = image("a/1:v1", metadata("a", "/a", *(f"view-{number}" for number in range(100_000))))
    check_images([many], parse_views(",".join(f"view-{number}" for number in range(99_000, 99_040))))
    with pytest.raises(Rejected) as refused:
        check_images([many], parse_views("none"))
    assert len(refused.value.message) < 500


def test_two_images_at_one_mount_point_are_refused() -> None:
    with pytest.raises(Rejected, match="more than one image mounted at the mount point /e: a/1:v1, b/1:v1") as refused:
        check_images([image("a/1:v1", metadata("a", "/e")), image("b/1:v1:/e", metadata("b", "/other"))], ())
    assert refused.value.reason == "MountInvalid"
