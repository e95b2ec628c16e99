"""The pages of `lattice node status` and `lattice diag` as people read them: whole without a terminal, as wide as one where there is."""

from __future__ import annotations

import pytest

from lattice.cli.render.diagnosis import allocation_page
from lattice.cli.render.node_reports import node_page
from lattice.lifecycle.node_report import AttemptRow, Diagnosis, MountRow, NodeReport, OutputEnd
from lattice.lifecycle.preparation import StepRow
from lattice.views import Allocation, Node, NodeStatus
from lattice.views.allocation import SoftwareImage
from lattice.views.meta import Metadata
from tests import build

DIGEST = "sha256:" + "0123456789abcdef" * 4
SCRATCH = "/var/lib/lattice/agent/nid001/scratch/01234567-89ab-cdef-0123-456789abcdef.1/scratch"
SENTENCE = "the registry registry.example has no image team/app of 9.9, and none of its mirrors has it either; push it, or correct the tag"
MOUNTS = [
    MountRow(SCRATCH, "ext4", "/dev/disk/by-id/nvme-SAMSUNG_MZ7LH960HAJR-00005_S45NNA0N123456-part1"),
    MountRow("/tmp", "tmpfs", "tmpfs"),
]
ATTEMPT = AttemptRow(
    "u", 1, "Running", "physics", "training-of-a-large-model-that-somebody-gave-a-rather-long-name-gv99r", 12345, started=1_790_000_000.0, mounts=MOUNTS,
    steps=[StepRow("images", "Done", begun=1_790_000_000.0, done=1_790_000_003.0, bytes=1 << 30, size=1 << 30)],
    limits={"cpu": "400000 100000", "cpuset": "0-3,64-67", "memory": str(30 << 30), "pids": "65536"}, processes=17, peak_memory=12 << 30,
    cpu_seconds=123456.78, oom_kills=3, message=SENTENCE,
)  # fmt: skip
REPORT = NodeReport("nid001", "Ready", heartbeat=1_790_000_000.0, flaw=SENTENCE, scratch=SCRATCH, attempts=[ATTEMPT])
NODE = Node(
    metadata=Metadata(name="nid001"),
    status=NodeStatus(
        state="Ready", conditions=(build.condition("Ready", "False", "EpilogueFailed", SENTENCE),), fingerprint="6.1/0.1",
        components={"gpu-driver": "550.127.08", "libfabric": "1.22.0-cray", "kernel": "6.1.0-28-cray_shasta_c_64k", "os": "sles-15.6"},
    ),
)  # fmt: skip


def diag(width: int) -> list[str]:
    image = SoftwareImage(f"registry.example/team/app@{DIGEST}", DIGEST, 1 << 30, "/user-environment")
    one: Allocation = build.allocation(1, build.condition("Scheduled", "False", "ImageNotFound", SENTENCE), status_software=(image,))
    found = Diagnosis(1, [REPORT], output=[OutputEnd("nid001", ["last words"])], output_message=SENTENCE)
    spec = {"resources": {"nodes": 4, "constraints": {"features": ["nvme", "hbm", "liquid"], "nodeList": "x1000c0s[0-7],x1001c0s[0-7]"}}}
    return allocation_page(one, spec, found, ["  Next: nothing"], ["Events: none"], now=1_790_000_100.0, width=width)


@pytest.mark.parametrize("width", [80, 100])
def test_both_pages_fit_a_terminal_and_keep_both_ends_of_paths(width: int) -> None:
    pages = (node_page(NODE, REPORT, {}, 1_790_000_100.0, width), diag(width))
    assert [line for page in pages for line in page if len(line) > width] == []
    for page in pages:
        (mount,) = (line.split() for line in page if line.strip().startswith("/var/lib"))
        assert mount[0].endswith("/scratch")
        assert mount[-1].endswith("-part1")


def test_without_a_terminal_nothing_is_cut_or_folded() -> None:
    pages = ("\n".join(node_page(NODE, REPORT, {}, 1_790_000_100.0, 0)), "\n".join(diag(0)))
    assert all("…" not in page and SENTENCE in page and MOUNTS[0].source in page and SCRATCH in page for page in pages)
    assert pages[1].count(DIGEST) == 2


def test_long_lines_about_one_thing_go_on_under_its_value() -> None:
    lines = node_page(NODE, REPORT, {}, 1_790_000_100.0, 80)
    at = next(number for number, line in enumerate(lines) if line.startswith("Problem:"))
    value = lines[at].index("the registry")
    assert lines[at + 1][:value].isspace()
    assert " ".join(line[value:] for line in lines[at : at + 3]).startswith(SENTENCE[:100])
