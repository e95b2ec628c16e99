"""Reads what work asks for: images by label or file, each with a mount point where one is given, and views of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final

from lattice.errors import Rejected
from lattice.software.image_metadata import LONGEST_MOUNT, ImageMetadata
from lattice.software.labels import UenvLabel, parse_label

MOST_IMAGES: Final = 8
"""Images of `uenv`, and of `toolsUenv`."""
MOST_NAMED: Final = 20
"""Views that a refusal names."""
_PATH_BEGINS: Final = (".", "/", "~")
_VIEW: Final = re.compile(r"(?:(?P<image>[A-Za-z0-9_][A-Za-z0-9_./-]*):)?(?P<view>[A-Za-z0-9_][A-Za-z0-9_.-]*)", re.ASCII)


@dataclass(frozen=True)
class UenvReference:
    """One image that work asks for: `text` is the label or the file as it was written, `mount` empty where none was given.

    `label` None: `text` is a file of the user's own, which no registry resolves.
    """

    text: str
    label: UenvLabel | None
    mount: str = ""


@dataclass(frozen=True)
class ViewName:
    """A view that work asks for; `image` empty: of whichever image has it."""

    image: str
    view: str

    def __str__(self) -> str:
        """Returns the view as people write it."""
        return f"{self.image}:{self.view}" if self.image else self.view


def parse_references(text: str) -> tuple[UenvReference, ...]:
    """Returns the images that a text such as `prgenv-gnu/24.11:v1,tools/1.0:v2:/user-tools,./mine.squashfs:/opt` asks for.

    Raises Rejected (LabelInvalid, MountInvalid, TooManyImages). An empty text asks for none.
    """
    if not text.strip():
        return ()
    parts = text.split(",")
    if len(parts) > MOST_IMAGES:
        raise Rejected(f"{len(parts)} images are named (limit: {MOST_IMAGES})", reason="TooManyImages")
    return tuple(_reference(part.strip()) for part in parts)


def _reference(text: str) -> UenvReference:
    """Returns an image asked for, by label or file, with its mount point, empty where none is given.

    Raises Rejected for a malformed label or mount point.
    """
    name, colon, path = text.partition(":/")
    mount = "/" + path if colon else ""
    if colon and (not path or any(part in ("", ".", "..") for part in path.rstrip("/").split("/"))):
        raise Rejected(f"{text!r}: the mount point {mount!r} is no absolute path without . and ..", reason="MountInvalid")
    if len(mount) > LONGEST_MOUNT:
        raise Rejected(f"the mount point {mount[:40]}… has {len(mount)} characters (limit: {LONGEST_MOUNT})", reason="MountInvalid")
    if name.startswith(_PATH_BEGINS):
        return UenvReference(name, None, mount.rstrip("/"))
    return UenvReference(name, _whole(name), mount.rstrip("/"))


def _whole(text: str) -> UenvLabel:
    """Returns the label; raises Rejected (LabelInvalid) for one that names no environment, such as `@daint`: it would mean all."""
    label = parse_label(text)
    if not label.name and not label.digest:
        raise Rejected(f"{text!r} names no environment: write name/version:tag, or an id", reason="LabelInvalid")
    return label


def parse_views(text: str) -> tuple[ViewName, ...]:
    """Returns the views that a text such as `default,tools:modules` asks for; empty text asks for none. Raises Rejected (ViewInvalid)."""
    found: list[ViewName] = []
    for part in (part.strip() for part in text.split(",") if text.strip()):
        view = _VIEW.fullmatch(part)
        if view is None:
            raise Rejected(f"{part!r} is no view: write view, or name:view", reason="ViewInvalid")
        found.append(ViewName(view["image"] or "", view["view"]))
    return tuple(found)


@dataclass(frozen=True)
class MountedImage:
    """An image of the work: the reference, and the metadata that is attached to it; None: nothing is, or it is a user's own file."""

    reference: UenvReference
    metadata: ImageMetadata | None

    @property
    def mount(self) -> str:
        """Returns the mount point of the image: the given one, else that of its metadata; empty where only the metadata inside it says."""
        return self.reference.mount or (self.metadata.mount if self.metadata is not None else "")

    @cached_property
    def view_names(self) -> frozenset[str]:
        """Returns the names of its views, as far as they are known."""
        return frozenset(view.name for view in self.metadata.views) if self.metadata is not None else frozenset()

    def is_called(self, name: str) -> bool:
        """Tells whether a view means this image by `name`: the name in its metadata, or its label's with or without the version; never for
        a file without metadata.
        """
        label = self.reference.label
        names = {self.metadata.name} if self.metadata is not None else set()
        if label is not None and label.name:
            names |= {label.name, f"{label.name}/{label.version}"}
        return name in names


def check_images(images: Sequence[MountedImage], views: Sequence[ViewName]) -> None:
    """Raises Rejected for what no node could set up: two images at one mount point (MountInvalid), a view that none has (ViewUnknown).

    Of an image without attached metadata nothing is known before it is mounted: a view that it may have passes.
    """
    seen: dict[str, str] = {}
    for image in images:
        if image.mount in seen:
            said = f"more than one image mounted at the mount point {image.mount}: {seen[image.mount]}, {image.reference.text}"
            raise Rejected(said, reason="MountInvalid")
        if image.mount:
            seen[image.mount] = image.reference.text
    for view in dict.fromkeys(views):
        _check_view(images, view)


def _check_view(images: Sequence[MountedImage], wanted: ViewName) -> None:
    """Raises Rejected where none of the images that a view can mean has it; nothing where one of them, or, where none is called so, one of
    all, has no known metadata.
    """
    meant = [image for image in images if not wanted.image or image.is_called(wanted.image)]
    known = [image.metadata for image in meant if image.metadata is not None]
    if any(image.metadata is None for image in (meant or images)):
        return
    if not meant:
        called = ", ".join(image.reference.text for image in images)
        raise Rejected(f"the view {str(wanted)!r} is of none of the images {called}", reason="ViewUnknown")
    if not any(wanted.view in image.view_names for image in meant):
        names = (f"{metadata.name}:{view.name}" for metadata in known for view in metadata.views)
        there = ", ".join(islice(names, MOST_NAMED)) or "none"
        raise Rejected(f"the view {str(wanted)!r} does not exist; there are: {there}", reason="ViewUnknown")
