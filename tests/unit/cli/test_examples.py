"""The examples: each of them is accepted offline by the chain that the webhook asks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lattice.admission.quotas import KOORDINATORS, OURS, read_quota
from lattice.quota.checks import Around, check_group
from lattice.quota.declared import Declared
from lattice.quota.gathering import gather

from .conftest import Bench

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


QUOTAS = ("08-quota-tree.yaml", "09-koordinator.yaml")
"""For administrators: they declare groups, and submit nothing."""
GRAPHS = ("14-dag.yaml",)
"""Of the kind DAG, which `lattice dag submit` takes."""


@pytest.mark.parametrize("file", sorted(path.name for path in EXAMPLES.glob("*.yaml") if path.name not in (*QUOTAS, *GRAPHS)))
def test_an_example_is_accepted_without_a_cluster(bench: Bench, file: str) -> None:
    result = bench.run("submit", "--dry-run=client", "-f", str(EXAMPLES / file))
    assert (result.code, result.err) == (0, "")
    document = yaml.safe_load(result.out)
    assert document["metadata"]["namespace"] == "physics"
    assert document["spec"]["vcluster"] == "hpc-batch"


@pytest.mark.parametrize("file", GRAPHS)
def test_a_graph_is_accepted_without_a_cluster(bench: Bench, file: str) -> None:
    result = bench.run("dag", "submit", "--dry-run=client", "-f", str(EXAMPLES / file))
    assert (result.code, result.err) == (0, "")
    assert yaml.safe_load(result.out)["kind"] == "DAG"


def test_the_batch_script_becomes_what_slurm_would_run(bench: Bench) -> None:
    result = bench.run("submit", "--dry-run=client", str(EXAMPLES / "06-batch-script.sh"))
    assert result.code == 0
    spec = yaml.safe_load(result.out)["spec"]
    assert (spec["tenant"], spec["vcluster"], spec["resources"]["nodes"]) == ("physics", "hpc-batch", 2)
    assert (spec["tasks"], spec["lifecycle"]) == ({"total": 8, "perNode": 4}, {"walltime": "5m"})
    assert spec["environment"]["output"] == {"stdout": "batch-%j.out"}


def test_there_is_an_example_of_each_end() -> None:
    assert [path.name[:2] for path in sorted(EXAMPLES.iterdir())] == [f"{number:02}" for number in range(1, 15)]


def test_the_quota_trees_of_the_examples_are_sound_together() -> None:
    declared = []
    for file in QUOTAS:
        for document in yaml.safe_load_all((EXAMPLES / file).read_text()):
            read = read_quota(OURS if document["apiVersion"].startswith("lattice.dev/") else KOORDINATORS, document)
            assert isinstance(read, Declared), read
            declared.append(read)
    gathered = gather(declared)
    assert (gathered.left_out, len(gathered.groups)) == ((), 8)
    others = {each.name: each for each in declared}
    for each in declared:
        around = Around({name: other for name, other in others.items() if name != each.name})
        assert list(check_group(each, None, around)) == []
