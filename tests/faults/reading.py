"""People who read logs during a fault run: the gateway's load, and the proof that nothing printed was lost."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing

from lattice.cli.stream import open_stream
from lattice.errors import LatticeError
from lattice.kube import kubeconfig
from lattice_dev.instance import Instance
from tests.faults.transitions import Transitions

PAUSE_SECONDS = 0.25


class Reader:
    """alice, who reads the logs of her work one after the other; errors are no surprise while things are killed."""

    def __init__(self, instance: Instance, namespace: str, transitions: Transitions, names: Callable[[], list[str]], seed: int) -> None:
        self.read = 0
        self.broken: Counter[str] = Counter()
        """By the error's reason."""
        self._config = kubeconfig.load(str(instance.kubeconfig("alice")), None)
        self._url, self._ca = instance.site().gateway, instance.site().authority("ca").read_text()
        self._namespace = namespace
        self._transitions = transitions
        self._names = names
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def stop(self) -> None:
        """Reads no more."""
        self._ended.set()
        self._thread.join(timeout=30)

    def lines(self, name: str) -> list[tuple[str, str]]:
        """(node, line) of all that an allocation printed; raises LatticeError."""
        found = []
        with closing(open_stream(self._config, self._url, self._ca, f"/v1/namespaces/{self._namespace}/allocations/{name}/logs")) as stream:
            for line in stream.lines():
                record = json.loads(line)
                if "text" in record:
                    found.append((record.get("node", ""), record["text"]))
        return found

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            names = self._names()
            if not names:
                continue
            self._transitions.note("log")
            try:
                self.lines(self._rng.choice(names))
            except LatticeError as error:
                self.broken[error.reason] += 1
            else:
                self.read += 1
            self._transitions.note("log")
