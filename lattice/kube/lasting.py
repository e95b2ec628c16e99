"""One object as it stood last: whoever deletes it changes nothing until it is made again."""

from __future__ import annotations

import logging
from typing import Generic

from lattice.kube.cluster import T
from lattice.kube.informer import Change

log = logging.getLogger(__name__)


class LastKnown(Generic[T]):
    """The newest version of the object of this name that an informer has told; `heard` is called from its `on_change`."""

    def __init__(self, name: str) -> None:
        self.object: T | None = None
        """None: it has never been seen."""
        self._name = name
        self._gone = False

    def heard(self, change: Change[T]) -> None:
        """Notes that the object appeared, changed or went; other objects do not matter."""
        if change.key != self._name:
            return
        if change.new is not None:
            self.object = change.new
        elif not self._gone:
            message = "what it said last stays in force until it is made again"
            log.warning('ObjectGone kind=%s name=%s message="%s"', type(change.old).__name__, self._name, message)
        self._gone = change.new is None
