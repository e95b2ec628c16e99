"""Chooses views of mounted images and applies what they do to variables, as `uenv` 10 does; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lattice.errors import Rejected
from lattice.software.image_metadata import ImageMetadata, ListChange, ListOperation, View
from lattice.software.references import UenvReference, ViewName

_EMBEDDED = re.compile(r"\$\{@(?:(?P<name>.*?)@\}|.*)", re.DOTALL)
"""`${@NAME@}`; what is not closed goes to the end of the text."""


@dataclass(frozen=True)
class PlacedImage:
    """An image where it is mounted; `file` is its squashfs file on the node.

    `names` are those by which views call it, its own first; `metadata` None: it has none.
    """

    file: str
    mount: str
    names: tuple[str, ...]
    metadata: ImageMetadata | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """Returns its views."""
        return self.metadata.views if self.metadata is not None else ()


@dataclass(frozen=True)
class ChosenView:
    """A view that the work gets, and the image that has it."""

    image: PlacedImage
    view: View

    def __str__(self) -> str:
        """Returns the view as UENV_VIEW lists it."""
        return f"{self.image.mount}:{self.image.names[0]}:{self.view.name}"


def names_of(references: Sequence[UenvReference], metadata: Sequence[ImageMetadata | None]) -> list[tuple[str, ...]]:
    """Returns the names of each image: its label's, with and without version, then its metadata's; a file without either is `anonymous`."""
    found: list[tuple[str, ...]] = []
    for reference, described in zip(references, metadata, strict=True):
        label = reference.label
        names = [label.name] if label is not None and label.name else []
        names += [f"{label.name}/{label.version}"] if label is not None and label.name and label.version else []
        names += [described.name] if described is not None else []
        found.append(tuple(dict.fromkeys(names)) or (_anonymous({names[0] for names in found}),))
    return found


def _anonymous(taken: set[str]) -> str:
    name, number = "anonymous", 0
    while name in taken:
        name, number = f"anonymous{number}", number + 1
    return name


def choose_views(images: Sequence[PlacedImage], wanted: Sequence[ViewName], *, defaults: bool) -> tuple[ChosenView, ...]:
    """Returns the views that are wanted, in that order, and then (`defaults`) those that images without a wanted one declare.

    Raises Rejected (ViewUnknown) for a view that no image has, or more than one.
    """
    chosen = [_choose_view(images, one) for one in wanted]
    for image in images if defaults else ():
        if all(one.image is not image for one in chosen):
            chosen += [ChosenView(image, view) for view in image.views if image.metadata and view.name == image.metadata.default_view]
    return tuple(chosen)


def _choose_view(images: Sequence[PlacedImage], wanted: ViewName) -> ChosenView:
    meant = [image for image in images if not wanted.image or wanted.image in image.names]
    found = [ChosenView(image, view) for image in meant for view in image.views if view.name == wanted.view]
    if len(found) > 1:
        there = ", ".join(f"{one.image.names[0]}:{one.view.name}" for one in found)
        raise Rejected(f"there is more than one view named {str(wanted)!r}: {there}; write NAME:VIEW", reason="ViewUnknown")
    if not found:
        there = ", ".join(f"{image.names[0]}:{view.name}" for image in images for view in image.views) or "none"
        raise Rejected(f"the view {str(wanted)!r} does not exist; there are: {there}", reason="ViewUnknown")
    return found[0]


def apply_views(chosen: Sequence[ChosenView], variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables after the views: first all scalars, the later view's where two set one, then all lists in order.

    A list is split at `:`; empty parts and repetitions are dropped. `${@NAME@}` becomes the value that the variable has by then.
    """
    found = dict(variables)
    scalars = {change.variable: change.value for one in chosen for change in one.view.scalars}
    for variable, value in scalars.items():
        _set(found, variable, value)
    lists: dict[str, list[ListChange]] = {}
    for one in chosen:
        own = {change.variable for change in one.view.scalars}
        for change in one.view.lists:
            if change.variable not in own:
                lists.setdefault(change.variable, []).append(change)
    for variable, changes in lists.items():
        _set(found, variable, _changed(found.get(variable, ""), changes))
    return found


def _set(variables: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        variables.pop(name, None)
    else:
        variables[name] = _EMBEDDED.sub(lambda match: variables.get(match["name"] or "", ""), value)


def _changed(value: str, changes: Sequence[ListChange]) -> str | None:
    """Returns the list after the changes; None: the last word is that it is unset."""
    paths, is_set = value.split(":"), True
    for change in changes:
        is_set = change.operation is not ListOperation.UNSET
        match change.operation:
            case ListOperation.SET:
                paths = list(change.paths)
            case ListOperation.PREPEND:
                paths = [*change.paths, *paths]
            case ListOperation.APPEND:
                paths = [*paths, *change.paths]
            case ListOperation.UNSET:
                paths = []
    return ":".join(dict.fromkeys(filter(None, paths))) if is_set else None


def uenv_variables(images: Sequence[PlacedImage], chosen: Sequence[ChosenView]) -> dict[str, str]:
    """Returns the variables by which `uenv` and squashfs-mount tell what is mounted, and which views are set."""
    if not images:
        return {}
    return {
        "UENV_MOUNT_LIST": ",".join(f"{image.file}:{image.mount}" for image in images),
        "UENV_VIEW": ",".join(map(str, chosen)),
    }


@dataclass(frozen=True)
class MountedSoftware:
    """The software of work on one node: what is mounted where, and the views that it gets."""

    images: tuple[PlacedImage, ...] = ()
    views: tuple[ChosenView, ...] = ()

    def applied_to(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables of a login after the views."""
        return apply_views(self.views, variables)

    @property
    def variables(self) -> dict[str, str]:
        """Returns the variables that tell of it, which nobody may set otherwise."""
        return uenv_variables(self.images, self.views)
