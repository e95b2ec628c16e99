"""Chooses views of mounted images and applies what they do to variables, as `uenv` 10 does; pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lattice.errors import Rejected
from lattice.software.image_metadata import ImageMetadata, ListChange, ListOperation, View
from lattice.software.references import UenvReference, ViewName

LARGEST_VALUE, LARGEST_ENVIRONMENT = 131072, 4 << 20
"""Characters of a variable that the kernel takes, and of all that views set together: a few bytes of an image could name far more."""
_EMBEDDED = re.compile(r"\$\{@(?:(?P<name>.*?)@\}|.*)", re.DOTALL)
"""`${@NAME@}`; what is not closed goes to the end of the text."""
_MOST_NAMED, _LONGEST_NAME = 20, 80
"""So many views are named in a sentence, and so many characters of each."""


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
        """Returns the views of the image, in the order of its metadata; empty: it has none."""
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
    """Returns the names by which views call each image: its label's, with and without version, then its metadata's (None: it has none).

    An image without either is called `anonymous`, or `anonymous0` and so on where the first name of another is that.
    """
    found: list[tuple[str, ...]] = []
    for reference, described in zip(references, metadata, strict=True):
        label = reference.label
        names = [label.name] if label is not None and label.name else []
        names += [f"{label.name}/{label.version}"] if label is not None and label.name and label.version else []
        names += [described.name] if described is not None else []
        found.append(tuple(dict.fromkeys(names)) or (_anonymous({names[0] for names in found}),))
    return found


def _anonymous(taken: set[str]) -> str:
    """Returns a name for an image without one that none of the names taken has: anonymous, anonymous0, anonymous1 …"""
    name, number = "anonymous", 0
    while name in taken:
        name, number = f"anonymous{number}", number + 1
    return name


def choose_views(images: Sequence[PlacedImage], wanted: Sequence[ViewName], *, defaults: bool) -> tuple[ChosenView, ...]:
    """Returns the views that are wanted, in that order, and then (`defaults`) those that images without a wanted one declare.

    A view that is wanted more than once, by whatever names, counts where it comes first. Raises Rejected (ViewUnknown) for a view that no
    image has, or more than one.
    """
    named: dict[str, list[ChosenView]] = {}
    for image in images if wanted else ():
        for view in image.views:
            named.setdefault(view.name, []).append(ChosenView(image, view))
    once: dict[tuple[int, str], ChosenView] = {}
    for one in (_choose_view(images, named, name) for name in wanted):
        once.setdefault((id(one.image), one.view.name), one)
    chosen = list(once.values())
    for image in images if defaults else ():
        if all(one.image is not image for one in chosen):
            chosen += [ChosenView(image, view) for view in image.views if image.metadata and view.name == image.metadata.default_view]
    return tuple(chosen)


def _choose_view(images: Sequence[PlacedImage], named: Mapping[str, Sequence[ChosenView]], wanted: ViewName) -> ChosenView:
    """Returns the view that a name means, of the images that it names or of any. Raises Rejected where there is none, or more than one."""
    found = [one for one in named.get(wanted.view, ()) if not wanted.image or wanted.image in one.image.names]
    if len(found) > 1:
        there = _listed(found)
        raise Rejected(f"there is more than one view named {str(wanted)!r}: {there}; write NAME:VIEW", reason="ViewUnknown")
    if not found:
        there = _listed([ChosenView(image, view) for image in images for view in image.views])
        raise Rejected(f"the view {str(wanted)!r} does not exist; there are: {there}", reason="ViewUnknown")
    return found[0]


def _listed(views: Sequence[ChosenView]) -> str:
    """Returns views as people ask for them; of names that an image gives, what can be printed."""
    names = [f"{one.image.names[0]}:{one.view.name}"[:_LONGEST_NAME] for one in views[:_MOST_NAMED]]
    more = f" and {len(views) - _MOST_NAMED} more" if len(views) > _MOST_NAMED else ""
    return "".join(letter if letter.isprintable() else "?" for letter in ", ".join(names) or "none") + more


def apply_views(chosen: Sequence[ChosenView], variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables after the views, the given ones unchanged: first all scalars, the later view's where two set one, then all
    lists in order.

    A list is split at `:`; empty parts and repetitions are dropped. A view's list of a variable that it also sets as a scalar is ignored.
    `${@NAME@}` becomes the value that the variable has by then, nothing where it is not set.

    Raises Rejected (ImageRefused) for values that no program could be given.
    """
    found = _Variables(variables)
    scalars = {change.variable: change.value for one in chosen for change in one.view.scalars}
    for variable, value in scalars.items():
        found.change(variable, value)
    lists: dict[str, list[ListChange]] = {}
    for one in chosen:
        own = {change.variable for change in one.view.scalars}
        for change in one.view.lists:
            if change.variable not in own:
                lists.setdefault(change.variable, []).append(change)
    for variable, changes in lists.items():
        found.change(variable, _changed(found.values.get(variable, ""), changes))
    return found.values


class _Variables:
    """The variables while views change them; what is set is bounded, each value and all together."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.values = dict(variables)
        self._left = LARGEST_ENVIRONMENT

    def change(self, name: str, value: str | None) -> None:
        """Sets a variable, what is embedded in its value replaced; None: unsets it.

        Raises Rejected where it, or all together, grow too large.
        """
        if value is None:
            self.values.pop(name, None)
            return
        self.values[name] = expanded = self._expanded(name, value)
        self._left -= len(expanded)

    def _expanded(self, name: str, value: str) -> str:
        """Returns a value with the variables embedded in it replaced by their values, a variable that is not set by nothing.

        Raises Rejected where it grows too large.
        """
        parts, size, at = list[str](), 0, 0
        for match in _EMBEDDED.finditer(value):
            parts += (value[at : match.start()], self.values.get(match["name"] or "", ""))
            size, at = size + len(parts[-1]) + len(parts[-2]), match.end()
            self._check(name, size)
        self._check(name, size + len(value) - at)
        return "".join((*parts, value[at:]))

    def _check(self, name: str, size: int) -> None:
        """Raises Rejected where a variable's value of this size is larger than a program can be given."""
        if size > min(LARGEST_VALUE, self._left):
            said = f"a view sets {name} to more characters than a program can be given ({LARGEST_VALUE}, {LARGEST_ENVIRONMENT} in all)"
            raise Rejected(said, reason="ImageRefused")


def _changed(value: str, changes: Sequence[ListChange]) -> str | None:
    """Returns the list after the changes; None: the last word is that it is unset. No change costs more than its own paths."""
    paths, is_set = deque(value.split(":")), True
    for change in changes:
        is_set = change.operation is not ListOperation.UNSET
        match change.operation:
            case ListOperation.SET:
                paths = deque(change.paths)
            case ListOperation.PREPEND:
                paths.extendleft(reversed(change.paths))
            case ListOperation.APPEND:
                paths.extend(change.paths)
            case ListOperation.UNSET:
                paths = deque()
    return ":".join(dict.fromkeys(filter(None, paths))) if is_set else None


def uenv_variables(images: Sequence[PlacedImage], chosen: Sequence[ChosenView]) -> dict[str, str]:
    """Returns the variables by which `uenv` and squashfs-mount tell what is mounted, and which views are set; empty without images.

    Raises Rejected (ImageRefused) where images have names that no program could be given.
    """
    if not images:
        return {}
    if sum(len(one.image.mount) + len(one.image.names[0]) + len(one.view.name) + 3 for one in chosen) > LARGEST_VALUE:
        said = f"the names of the images and views make UENV_VIEW longer than a program can be given ({LARGEST_VALUE} characters)"
        raise Rejected(said, reason="ImageRefused")
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
        """Returns the variables of a login as the chosen views change them; raises Rejected as `apply_views` does."""
        return apply_views(self.views, variables)

    @property
    def variables(self) -> dict[str, str]:
        """Returns the variables that tell which images are mounted and which views are set, which nobody may set otherwise."""
        return uenv_variables(self.images, self.views)
