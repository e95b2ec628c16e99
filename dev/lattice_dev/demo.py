"""Shows a person the main use: applies the first examples with kubectl as alice, and follows them to their expected ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lattice.errors import NotFound, Rejected
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS
from lattice_dev.instance import Instance

USER = "alice"
WITHIN_SECONDS = 60.0
POLL_SECONDS = 0.1
FINAL = ("Completed", "Failed", "Cancelled")
SOURCES = (Path(__file__).parent / "share" / "examples", Path(__file__).resolve().parents[2] / "examples")


@dataclass(frozen=True)
class Example:
    """A file of `examples/`, the end that it must come to, and whether it is cancelled once it runs."""

    file: str
    what: str
    phase: str
    reason: str
    code: int | None
    cancel: bool = False


EXAMPLES = (
    Example("01-first-allocation.yaml", "one node", "Completed", "Completed", 0),
    Example("02-four-nodes.yaml", "four nodes", "Completed", "Completed", 0),
    Example("03-failing.yaml", "a failing one", "Failed", "TaskFailed", 3),
    Example("04-walltime.yaml", "longer than its walltime", "Failed", "WalltimeExceeded", None),
    Example("05-cancelled.yaml", "cancelled while it runs", "Cancelled", "Cancelled", None, cancel=True),
)


def run(instance: Instance, say: Callable[[str], None]) -> bool:
    """Applies the examples as alice, follows them to their ends, and prints each; returns True when each came to its expected end in 60 s.

    Removes first what an earlier run left. Raises Rejected where kubectl fails, NotFound where a file is missing.
    """
    with_cluster = instance.cluster(USER)
    try:
        return _follow(instance, with_cluster, say)
    finally:
        with_cluster.close()


def _follow(instance: Instance, cluster: BlockingCluster, say: Callable[[str], None]) -> bool:
    """Applies the examples and follows them; returns whether all came to their right ends. Raises Rejected where one is refused."""
    kubectl = instance.site().programs.path("kubectl")
    open_: dict[Example, tuple[str, str]] = {}
    for example in EXAMPLES:
        manifest = _manifest(example.file)
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        _remove(cluster, namespace, name)
        command = [kubectl, "--kubeconfig", str(instance.kubeconfig(USER)), "apply", "-f", str(_path(example.file))]
        applied = subprocess.run(command, capture_output=True, text=True, check=False)
        if applied.returncode:
            told = failing_open(instance.where.log("kube-apiserver")) if "did not answer" in applied.stderr else ""
            raise Rejected(f"kubectl apply -f examples/{example.file}: {applied.stderr.strip()}{told}", reason="ExampleRefused")
        say(f"$ kubectl apply -f examples/{example.file:<28} # {example.what}")
        open_[example] = (namespace, name)
    say(f"\n{'EXAMPLE':<24} {'PHASE':<10} {'REASON':<18} {'EXIT':>4}  {'SECONDS':>7}  NODES")
    return _ends(cluster, open_, say)


def failing_open(log: Path) -> str:
    """Returns the last line of the API server's log about a webhook that it went without, to be appended to an error; empty: none."""
    if not log.is_file():
        return ""  # another cluster's API server
    lines = [line for line in log.read_text(errors="replace").splitlines() if "failing open" in line]
    return f"\n  kube-apiserver logged last: {lines[-1].strip()}" if lines else ""


def _ends(cluster: BlockingCluster, open_: dict[Example, tuple[str, str]], say: Callable[[str], None]) -> bool:
    """Says the end of each example, cancels the one that is to be, takes ended ones out of `open_`, and returns whether all ended right and
    within 60 s.
    """
    began, right = time.monotonic(), True
    while open_ and time.monotonic() - began < WITHIN_SECONDS:
        for example, (namespace, name) in list(open_.items()):
            found = cluster.get(ALLOCATIONS, name, namespace)
            status = found.get("status", {})
            if example.cancel and status.get("phase") == "Running" and "cancel" not in found["spec"]:
                cluster.patch(ALLOCATIONS, name, {"spec": {"cancel": {"reason": "shown in the demo"}}}, namespace)
            if status.get("phase") in FINAL:
                del open_[example]
                right &= _show(example, name, status, time.monotonic() - began, say)
        time.sleep(POLL_SECONDS)
    for _, name in open_.values():
        say(f"{name:<24} has not ended within {WITHIN_SECONDS:.0f} s: `lattice why {name}` says more")
    return right and not open_


def _show(example: Example, name: str, status: dict[str, Any], seconds: float, say: Callable[[str], None]) -> bool:
    """Says how an example ended, and returns whether phase and reason, and the exit code if one is due, were right."""
    reason = next((entry["reason"] for entry in status["conditions"] if entry["type"] == "Finished"), "")
    code = status.get("exit", {}).get("code")
    right = (status["phase"], reason) == (example.phase, example.reason) and example.code in (None, code)
    shown = "-" if code is None else str(code)
    line = f"{name:<24} {status['phase']:<10} {reason:<18} {shown:>4}  {seconds:>7.1f}  {status.get('nodes', '')}"
    say(line if right else f"{line}   WRONG: {example.phase}, {example.reason}, exit {example.code} was due")
    return right


def _path(file: str) -> Path:
    """Returns the file of an example. Raises NotFound where it is not there."""
    for source in SOURCES:
        if (source / file).is_file():
            return source / file
    raise NotFound(f"examples/{file} is not there", reason="ExampleMissing")


def _manifest(file: str) -> dict[str, Any]:
    """Returns the manifest of an example."""
    manifest: dict[str, Any] = yaml.safe_load(_path(file).read_text(encoding="utf-8"))
    return manifest


def _remove(cluster: BlockingCluster, namespace: str, name: str) -> None:
    """Deletes the allocation that an earlier run left, and waits at most 60 s until it is gone; does nothing where there is none."""
    began = time.monotonic()
    try:
        cluster.delete(ALLOCATIONS, name, namespace)
        while time.monotonic() - began < WITHIN_SECONDS:
            cluster.get(ALLOCATIONS, name, namespace)
            time.sleep(POLL_SECONDS)
    except NotFound:
        pass  # nothing was left, or it is gone now
