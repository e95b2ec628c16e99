"""Keeps the last version of one object: deleting the object changes nothing until it is made again."""

from __future__ import annotations

import logging
from typing import Generic

from lattice.kube.cluster import T
from lattice.kube.informer import Change

log = logging.getLogger(__name__)


class LastKnown(Generic[T]):
    """The newest version of the object of this name that an informer has reported; the informer's `on_change` calls `heard`."""

    def __init__(self, name: str) -> None:
        self.object: T | None = None
        """None: the object has never been seen."""
        self._name = name
        self._gone = False

    def heard(self, change: Change[T]) -> None:
        """Notes a change, if it is of this object; a deletion is logged and keeps the last version."""
        if change.key != self._name:
            return
        if change.new is not None:
            self.object = change.new
        elif not self._gone:
            message = "what it said last stays in force until it is made again"
            log.warning('ObjectGone kind=%s name=%s message="%s"', type(change.old).__name__, self._name, message)
        self._gone = change.new is None
