"""Checks the software that an Allocation asks for: labels, files, images, mount points and views, as far as their form tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.admission.facts import Facts
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Finding, Refused
from lattice.errors import Rejected
from lattice.software.containers import parse_container
from lattice.software.references import UenvReference, parse_references, parse_views

FILE_ENDINGS: Final = (".squashfs", ".sqfs")
_HINTS: Final = {
    "LabelInvalid": "`lattice uenv list` shows the labels that there are; a file begins with / or ./",
    "MountInvalid": "write IMAGE:/PATH",
    "ViewInvalid": "write view, or name:view, several with commas",
    "TooManyImages": "put them into one image",
    "ImageInvalid": "a uenv goes into spec.environment.uenv",
}


def check_software(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless every image is a label or a file, no mount point is given twice, and views have an image; an image that does
    not parse ends the check.

    An OCI image may not stand beside software environments.
    """
    del facts
    environment = asked.spec.environment
    if environment.image:
        yield from _judge_container(environment.image, has_uenv=bool(environment.uenv or environment.tools_uenv))
    images: list[UenvReference] = []
    for field, text in (("uenv", environment.uenv), ("toolsUenv", environment.tools_uenv)):
        try:
            found = parse_references(text)
        except Rejected as error:
            yield _refused(error, f"spec.environment.{field}")
            return
        images += found
        yield from _judge_images(found, f"spec.environment.{field}", signed=environment.require.signature)
    yield from _judge_mounts(images)
    if environment.view and not images:
        sentence = f"spec.environment.view {environment.view[:60]!r} is a view of no image"
        yield Refused("ViewInvalid", sentence, "spec.environment.view", "give spec.environment.uenv too")
    try:
        parse_views(environment.view)
    except Rejected as error:
        yield _refused(error, "spec.environment.view")


def _judge_container(image: str, *, has_uenv: bool) -> Iterator[Finding]:
    """Yields a refusal where an OCI image does not parse, or software environments are given too."""
    field = "spec.environment.image"
    if has_uenv:
        sentence = f"{field} {image[:60]!r} and spec.environment.uenv are given: work runs in an image, or in software environments"
        yield Refused("ImageInvalid", sentence, field, "remove one of them")
    try:
        parse_container(image)
    except Rejected as error:
        yield _refused(error, field)


def _judge_images(images: tuple[UenvReference, ...], field: str, *, signed: bool) -> Iterator[Finding]:
    """Yields a refusal for each image that is written like the name of a file without a path, and so reads as a label, and with `signed`
    for each that is a file.
    """
    for image in images:
        if image.label is None and signed:
            sentence = f"{field}: {image.text[:60]!r} is a file, which nobody has signed (spec.environment.require.signature)"
            yield Refused("SignatureRequired", sentence, field, "name an image of the registry that the site's keys have signed")
        if image.label is None:
            continue
        if image.text.endswith(FILE_ENDINGS):
            sentence = f"{field}: {image.text[:60]!r} looks like a file, and is read as a label"
            yield Refused("LabelInvalid", sentence, field, f"write ./{image.text[:60]}, or the whole path from /")


def _judge_mounts(images: list[UenvReference]) -> Iterator[Finding]:
    """Yields a refusal for each image whose mount point an earlier one has, also where both leave it out."""
    seen: dict[str, str] = {}
    for image in images:
        if image.mount in seen:
            sentence = f"more than one image mounted at the mount point {image.mount!r}: {seen[image.mount]}, {image.text}"
            yield Refused("MountInvalid", sentence, "spec.environment.uenv", "give each a mount point of its own: IMAGE:/PATH")
        if image.mount:
            seen[image.mount] = image.text


def _refused(error: Rejected, field: str) -> Refused:
    """Returns the refusal of a field for an error, with the hint for its reason, empty where there is none."""
    return Refused(error.reason, f"{field}: {error.message}", field, _HINTS.get(error.reason, ""))
