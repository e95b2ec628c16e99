"""What a person does in an end-to-end test: kubectl and lattice as programs, with that person's kubeconfig.

Looking again and again is no program: it asks the API server with the same kubeconfig, as a start of kubectl costs a hundred answers.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from lattice.kube import kubeconfig
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS
from lattice_dev.instance import Instance
from tests.e2e.waiting import Seen, patient, until

FINAL = ("Completed", "Failed", "Cancelled")


@dataclass
class Person:
    """Someone with a kubeconfig and a namespace."""

    kubeconfig: Path
    kubectl_path: str
    namespace: str
    environ: dict[str, str] = field(default_factory=dict)
    home: Path = Path("/")
    """Where the programs run unless a test says where: a checkout may be closed to the user as whom the work runs, on the nodes too."""

    def kubectl(self, *words: str, stdin: str = "", ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl; fails the test on another exit code than 0 unless `ok` is False."""
        return self._run([self.kubectl_path, *words], stdin, ok, cwd=None)

    def lattice(self, *words: str, stdin: str = "", ok: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run lattice, likewise."""
        return self._run([str(Path(sys.executable).with_name("lattice")), *words], stdin, ok, cwd)

    def terminal(self, columns: int, *words: str) -> str:
        """What lattice writes on a terminal of this width; fails the test on another exit code than 0."""
        ours, theirs = pty.openpty()
        program, environ = str(Path(sys.executable).with_name("lattice")), {**self.environment(), "COLUMNS": str(columns)}
        streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.PIPE}
        with subprocess.Popen([program, *words], **streams, text=True, env=environ, cwd=self._folder()) as running:
            os.close(theirs)
            written = b""
            with suppress(OSError):  # a terminal that nobody writes to any more is an error on Linux
                while more := os.read(ours, 65536):
                    written += more
            os.close(ours)
            errors = running.stderr.read() if running.stderr is not None else ""
        assert running.returncode == 0, f"{words}: {running.returncode}\n{written.decode()}\n{errors}"
        return written.decode().replace("\r\n", "\n")

    def _folder(self) -> Path:
        """The home directory, or the root where somebody has taken it away."""
        return self.home if self.home.is_dir() else Path("/")

    def environment(self) -> dict[str, str]:
        """The environment of the programs; what they keep for themselves goes with the kubeconfig."""
        own = self.kubeconfig.parent / "people" / self.kubeconfig.stem
        folders = {"XDG_STATE_HOME": own / "state", "XDG_CACHE_HOME": own / "cache", "KUBECACHEDIR": own / "kube"}
        known = {"KUBECONFIG": self.kubeconfig, "LATTICE_TENANT": self.namespace, "NO_COLOR": "1", **folders}
        return {**os.environ, **{name: str(value) for name, value in known.items()}, **self.environ}

    def _run(self, argv: list[str], stdin: str, ok: bool, cwd: Path | None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(60),
            env=self.environment(),
            cwd=cwd or self._folder(),
        )
        assert not ok or done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def apply(
        self, name: str, *, nodes: int | str = 1, walltime: str = "5m", ok: bool = True, dry_run: bool = False, **spec: Any
    ) -> subprocess.CompletedProcess[str]:
        """kubectl apply of an Allocation of this namespace; a dry run is judged, and leaves nothing."""
        lifecycle = {"walltime": walltime, "gracePeriod": "2s", **spec.pop("lifecycle", {})}
        resources = {"nodes": nodes, **spec.pop("resources", {})}
        body = {
            "apiVersion": "lattice.dev/v1alpha1",
            "kind": "Allocation",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"resources": resources, "lifecycle": lifecycle, **spec},
        }
        how = ("--dry-run=server",) if dry_run else ()
        return self.kubectl("apply", *how, "-f", "-", stdin=yaml.safe_dump(body), ok=ok)

    def judged(self, words: str, **spec: Any) -> str:
        """What the API server says of this work, once that has these words: the webhook reads a moment later what others have read."""
        said = Seen(lambda: self.apply("judged", ok=False, dry_run=True, **spec).stderr, lambda text: words in text)
        return str(until(said, within=15, every=0.2, what=words))

    def get(self, name: str) -> dict[str, Any]:
        """The object."""
        with self.cluster() as cluster:
            return cluster.get(ALLOCATIONS, name, self.namespace)

    def cluster(self) -> BlockingCluster:
        """The API with this kubeconfig; who asks closes it."""
        return BlockingCluster(kubeconfig.load(str(self.kubeconfig), None))

    def ended(self, name: str, *, within: float = 30) -> dict[str, Any]:
        """Its status once it is final."""
        return self._status(name, lambda status: status.get("phase") in FINAL, within, f"the end of {name}")

    def phase(self, name: str, phase: str, *, within: float = 30) -> dict[str, Any]:
        """Its status once it shows this phase."""
        return self._status(name, lambda status: status.get("phase") == phase, within, f"{name} {phase}")

    def _status(self, name: str, test: Callable[[dict[str, Any]], bool], within: float, what: str) -> dict[str, Any]:
        with self.cluster() as cluster:
            seen = Seen(lambda: cluster.get(ALLOCATIONS, name, self.namespace).get("status", {}), test)
            status: dict[str, Any] = until(seen, within=within, what=what)
        return status


def person(instance: Instance, user: str, namespace: str) -> Person:
    """A user of the instance, at work in this namespace."""
    home = instance.where.user_home(user)
    made = Person(instance.kubeconfig(user), instance.site().programs.path("kubectl"), namespace)
    return replace(made, home=home) if home.is_dir() else made


def reason(status: dict[str, Any], kind: str = "Finished") -> str:
    """The reason of a condition."""
    return next((str(entry["reason"]) for entry in status.get("conditions", []) if entry["type"] == kind), "")


def scheduled(who: Person, name: str) -> dict[str, Any]:
    """The condition Scheduled of an allocation."""
    conditions = who.get(name).get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == "Scheduled"), {})
