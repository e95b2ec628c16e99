"""Measures what one admission costs by the size of the object: CPU time to read a review, judge and answer, in one process.

Of each size the slowest of several shapes counts: one long text, many small fields, many lists, text that is scanned for patterns. Sizes go
up to what the API server accepts in a request.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from lattice.admission import Facts, Request, Requester, fill, judge
from lattice.errors import Corrupt
from lattice.views import Tenant, VCluster
from lattice_dev.bench.core import calibration
from lattice_dev.bench.figures import Aim, Baseline, Figure
from lattice_webhooks.reviews import Review, filled, judged, read_review

KIB: Final = 1024
SIZES: Final = ((2, "2 KiB"), (64, "64 KiB"), (500, "500 KiB"), (1024, "1 MiB"), (3072, "3 MiB"))
"""The largest script, nearly the most that is read of a spec, the most that etcd stores, the most that the API server accepts."""
MOST_MILLISECONDS: Final = Aim(5.0)
REPEATS: Final = 7
NOW: Final = 1_800_000_000.0
FACTS: Final = Facts(
    Requester("ada"), NOW, "physics", {"physics": "physics"},
    {"physics": msgspec.convert({"metadata": {"name": "physics"}}, Tenant)},
    {"hpc": msgspec.convert({"metadata": {"name": "hpc"}}, VCluster)},
    nodes=1000, rights=frozenset(),
)  # fmt: skip

Object = dict[str, Any]


def measure(*, quick: bool, say: Callable[[float], None]) -> list[Figure]:
    """Returns the CPU milliseconds of a creation by the size of the object; a quick run measures the same.

    `say` is called with the part done, from 0 to 1.
    """
    del quick
    gc.collect()
    loop = Baseline("ms of the calibration loop", min(calibration() for _ in range(3)) * 1000)
    found: list[Figure] = []
    for number, (kib, label) in enumerate(SIZES):
        times = {what: _milliseconds(body) for what, body in _reviews(kib * KIB)}
        slowest = max(times, key=times.__getitem__)
        detail = f"the slowest of {len(times)} shapes: {slowest}"
        found.append(Figure(f"admission, {label}", times[slowest], "ms CPU", MOST_MILLISECONDS, loop, detail, times))
        say((number + 1) / len(SIZES))
    return found


def _milliseconds(body: bytes) -> float:
    """Returns the milliseconds of the slower of a creation's two reviews, filling in and judging; the quickest of some repeats."""
    return max(min(_once(body, decide) for _ in range(REPEATS)) for decide in (_fill, _judge))


def _once(body: bytes, decide: Callable[[Review, Request], bytes]) -> float:
    """Returns the milliseconds of processor time that a review takes from its bytes to the answer's.

    Raises Corrupt where there is no answer.
    """
    began = time.process_time()
    review = read_review(body)
    if review.too_large is not None:
        answer = judged(review, review.too_large)
    elif review.request is not None:
        answer = decide(review, review.request)
    else:
        answer = b""
    took = time.process_time() - began
    if b'"uid":"bench"' not in answer:
        raise Corrupt(f"no answer to the review: {answer[:100]!r}", reason="ReviewUnread")
    return took * 1000


def _fill(review: Review, request: Request) -> bytes:
    """Returns the answer with the defaults of a request's object."""
    return filled(review, fill(request, FACTS))


def _judge(review: Review, request: Request) -> bytes:
    """Returns the answer with the verdict on a request's object."""
    return judged(review, judge(request, FACTS))


def _reviews(size: int) -> Iterator[tuple[str, bytes]]:
    """Yields reviews of creations of about so many bytes, each with what fills it."""
    script = "#!/bin/sh\n"
    for what, meta, spec in (
        ("a script", {}, {"script": script + "srun hostname\n" * (size // 15)}),
        ("a quoted entrypoint", {}, {"entrypoint": "a 'b' " * (size // 6)}),
        ("variables", {}, {"script": script, "environment": {"variables": {f"V{n:06d}": "x" * 17 for n in range(size // 30)}}}),
        ("short fields", {}, {"script": script, "tags": {f"{n:x}": "" for n in range(size // 10)}}),
        ("lists", {}, {"script": script, "x": [[]] * (size // 3)}),
        ("texts in a list", {}, {"script": script, "resources": {"constraints": {"features": ["f"] * (size // 4)}}}),
        ("a node set", {}, {"script": script, "resources": {"constraints": {"nodeList": "n[" + "1-9," * (size // 4) + "1]"}}}),
        ("output patterns", {}, {"script": script, "environment": {"output": {"stdout": "%j" * (size // 2)}}}),
        ("annotations", {"annotations": {f"k{n}": "v" for n in range(size // 13)}}, {"script": script}),
        ("labels", {"labels": {f"k{n}": "v" for n in range(size // 13)}}, {"script": script}),
    ):
        lifecycle = {"type": "Bounded", "walltime": "1h"}
        whole = {"tenant": "physics", "user": "ada", "vcluster": "hpc", "resources": {"nodes": 1}, "lifecycle": lifecycle, **spec}
        yield what, _review({"metadata": {"name": "bench", "namespace": "physics", **meta}, "spec": whole})


def _review(obj: Object) -> bytes:
    """Returns the review of a new Allocation as JSON."""
    request = {
        "uid": "bench", "operation": "CREATE", "kind": {"group": "lattice.dev", "version": "v1alpha1", "kind": "Allocation"},
        "namespace": "physics", "userInfo": {"username": "ada"}, "object": obj, "oldObject": None,
    }  # fmt: skip
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
