"""The book's two forms of a workflow become one DAG; what does not read is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lattice.errors import Rejected
from lattice.scripts.book_dags import dag_from_book

GUIDE = """
name: training-pipeline
allocations:
  - name: preprocess
    entrypoint: "python preprocess.py"
    nodes: 2
    walltime: "2h"
  - name: train
    entrypoint: "torchrun train.py"
    nodes: 64
    walltime: "72h"
    uenv: "prgenv-gnu/24.11:v1"
    depends_on:
      - preprocess: success
  - name: notify-failure
    entrypoint: "python notify.py --status=failed"
    nodes: 1
    walltime: "10m"
    depends_on:
      - train: failure
"""
DESIGN = """
dag:
  allocations:
    - id: "stage-data"
      entrypoint: "python stage.py"
      resources: { nodes: 1 }
      lifecycle: { type: "bounded", walltime: "2h" }
    - id: "train"
      entrypoint: "torchrun train.py"
      resources: { nodes: 64, constraints: { topology: "tight" } }
      lifecycle: { type: "bounded", walltime: "72h" }
      depends_on: [{ ref: "stage-data", condition: "success" }]
    - id: "evaluate"
      entrypoint: "python eval.py"
      resources: { nodes: 4 }
      depends_on: [{ ref: "train", condition: "any" }]
"""


def test_the_form_of_the_users_guide_is_read() -> None:
    made = dag_from_book(yaml.safe_load(GUIDE))
    assert made["metadata"] == {"name": "training-pipeline"}
    prep, train, notify = made["spec"]["members"]
    assert prep == {
        "name": "preprocess",
        "spec": {"entrypoint": "python preprocess.py", "resources": {"nodes": 2}, "lifecycle": {"walltime": "2h"}},
    }
    assert (train["dependsOn"], train["spec"]["environment"]) == (
        [{"ref": "preprocess", "condition": "Success"}],
        {"uenv": "prgenv-gnu/24.11:v1"},
    )
    assert notify["dependsOn"] == [{"ref": "train", "condition": "Failure"}]


def test_the_form_of_the_api_is_read() -> None:
    made = dag_from_book(yaml.safe_load(DESIGN))
    assert made["metadata"] == {}
    assert [one["name"] for one in made["spec"]["members"]] == ["stage-data", "train", "evaluate"]
    assert made["spec"]["members"][1]["spec"]["resources"] == {"nodes": 64, "constraints": {"topology": "Tight"}}
    assert made["spec"]["members"][2]["dependsOn"] == [{"ref": "train", "condition": "Any"}]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"allocations": {}}, "a list of allocations"),
    "no name": ({"allocations": [{"entrypoint": "true"}]}, "allocations[0]: it has no name"),
    "no map": ({"allocations": ["true"]}, "allocations[0]"),
    "a condition that is none": ({"allocations": [{"name": "a", "entrypoint": "true", "depends_on": [{"b": "soon"}]}]}, "depends_on[0]"),
    "two in one entry": ({"allocations": [{"name": "a", "entrypoint": "true", "depends_on": [{"b": "any", "c": "any"}]}]}, "each entry"),
    "a task group": ({"allocations": [{"name": "a", "type": "task_group", "template": {}}]}, "task groups are not served"),
    "a field of none": ({"allocations": [], "schedule": "daily"}, "schedule"),
    "a bad walltime": ({"allocations": [{"name": "a", "entrypoint": "true", "walltime": "soon"}]}, 'allocations[0] ("a")'),
}


@pytest.mark.parametrize(("document", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_read_is_refused_with_its_place(document: dict[str, Any], said: str) -> None:
    with pytest.raises(Rejected) as refused:
        dag_from_book(document)
    assert said in refused.value.message, refused.value.message
