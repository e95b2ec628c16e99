"""Tells whether the images of an allocation are resolved, so that it may be placed: asked at every step of every allocation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from lattice.errors import Rejected
from lattice.lifecycle.conditions import FALSE, condition
from lattice.models.conditions import SOFTWARE_RESOLVED
from lattice.software.references import UenvReference, parse_references
from lattice.views.allocation import Allocation, SoftwareReferences

WAITING_FOR_IMAGES: Final = "WaitingForImages"


@dataclass(frozen=True, slots=True)
class ImagesAwaited:
    """The images of an allocation are not resolved yet; `message` names them, and what keeps them."""

    message: str


@dataclass(frozen=True, slots=True)
class ImagesRefused:
    """No node could ever have the images of an allocation: it ends with this reason and sentence."""

    reason: str
    message: str


def judge_images(allocation: Allocation) -> ImagesAwaited | ImagesRefused | None:
    """Returns what keeps an allocation from nodes as far as its images go; None: it asks for none of a registry, or its status has them
    resolved.
    """
    asked, status = allocation.spec.environment, allocation.status
    if status.software or not names_registry(asked):
        return None
    said = condition(status.conditions, SOFTWARE_RESOLVED)
    if said is None:
        return ImagesAwaited(f"waits until the operator has resolved {_named(asked)}")
    return ImagesRefused(said.reason, said.message) if said.status == FALSE else ImagesAwaited(said.message)


def names_registry(asked: SoftwareReferences) -> bool:
    """Tells whether an image of one of the site's registries is asked for; users' own files are opened on the nodes.

    True also for what does not read: the operator refuses it with the sentence.
    """
    return bool(asked.image) or (bool(asked.uenv or asked.tools_uenv) and _names_registry(asked.uenv, asked.tools_uenv))


@lru_cache(maxsize=4096)
def _names_registry(uenv: str, tools: str) -> bool:
    """Tells whether any image asked for is named by a label, which a registry must resolve; True also where the text does not parse."""
    try:
        return any(reference.label is not None for reference in asked_images(uenv, tools))
    except Rejected:
        return True


def asked_images(uenv: str, tools: str) -> tuple[UenvReference, ...]:
    """Returns what `environment.uenv` and `environment.toolsUenv` ask for, in this order; raises Rejected as `parse_references` does."""
    return parse_references(uenv) + parse_references(tools)


def _named(asked: SoftwareReferences) -> str:
    """Returns the texts of the images asked for, with commas between them."""
    return ", ".join(text for text in (asked.uenv, asked.tools_uenv, asked.image) if text)
