"""What `lattice submit` refuses by itself: exit code 2 and a sentence with the value, before the cluster is asked to make anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.kube.resources import ALLOCATIONS
from tests.unit.cli.conftest import Bench

SCRIPTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "a script without #!": (b"echo hi\n", ("#!", "for example #!/bin/bash")),
    "a script with CRLF": (b"#!/bin/sh\r\ntrue\r\n", ("DOS line ends", "dos2unix")),
    "a binary": (b"\x7fELF\x02\x01\x00\x00\x00", ("binary", "lattice submit -- PROGRAM")),
    "Latin-1": ("#!/bin/sh\necho größer\n".encode("latin-1"), ("not UTF-8", "line 2", "iconv")),
    "an empty script": (b"", ("is empty",)),
    "a script that is too large": (b"#!/bin/sh\n" + b"#" * 1_100_000, ("1100010 bytes", "1048576")),
}
WORK = b"kind: Allocation\nspec: {entrypoint: date, resources: {NODES}, lifecycle: {walltime: 5m}}\n"
MANIFESTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "YAML that is none": (b"a: [", ("no YAML", "line 1")),
    "another kind": (b"kind: Pod\n", ("holds a Pod", "kubectl apply")),
    "a misspelt field": (WORK.replace(b"NODES", b"nodez: 3"), ("spec.resources.nodez", 'did you mean "nodes"?')),
    "nodes that are no number": (
        WORK.replace(b"NODES", b"nodes: many"),
        ("spec.resources.nodes", "'many' is not a number of nodes", "32-128"),
    ),
}
WORDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no nodes": (("--nodes=0", "--", "true"), ("--nodes=0", "32-128")),
    "a range that runs backwards": (("--nodes=4-2", "--", "true"), ("minimum 4 is above its maximum 2",)),
    "a walltime of zero": (("--walltime=0", "--", "true"), ("--walltime=0", "30m")),
    "class 11": (("--preemption-class=11", "--", "true"), ("'11' is not a preemption class from 0 to 10",)),
    "a device that is none": (
        ("--image=app", "--device=foo", "--", "true"),
        ("--device=foo: 'foo' is no CDI name", "nvidia.com/gpu=all", "Hint:"),
    ),
    "scratch below nothing": (("--scratch=-1Gi", "--", "true"), ("--scratch=-1Gi", "500Gi")),
    "a blank job name": (("--name= ", "--", "true"), ("--name= ", "not empty")),
    "no command": (("--",), ("no command after --",)),
    "a secret": (("--export=MY_TOKEN", "--", "true"), ("MY_TOKEN looks like a secret",)),
    "what is not served": (("--array=0-9", "--", "true"), ("--array=0-9", "not served")),
}


def refused(bench: Bench, argv: tuple[str, ...], says: tuple[str, ...]) -> None:
    result = bench.run("submit", *argv)
    assert (result.code, result.out) == (2, ""), result.err
    assert result.err.startswith("Error: ")
    assert [word for word in says if word not in result.err] == [], result.err
    assert bench.cluster.list(ALLOCATIONS).items == []


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_file_that_is_no_script_is_refused_with_its_name(bench: Bench, tmp_path: Path, case: str) -> None:
    data, says = SCRIPTS[case]
    file = tmp_path / "a.sh"
    file.write_bytes(data)
    refused(bench, (str(file),), ("a.sh", *says))


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_file_that_holds_no_allocation_is_refused_with_the_place(bench: Bench, tmp_path: Path, case: str) -> None:
    data, says = MANIFESTS[case]
    file = tmp_path / "a.yaml"
    file.write_bytes(data)
    refused(bench, ("-f", str(file)), says)


@pytest.mark.parametrize("case", WORDS)
def test_words_that_make_no_work_are_refused_with_the_word(bench: Bench, case: str) -> None:
    refused(bench, *WORDS[case])
