"""`lattice dev up --inventory`: the machines of a file as hollow nodes, refused before anything starts where the file is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.errors import Rejected
from lattice_dev.components import Component, components
from lattice_dev.install import home_vcluster
from lattice_dev.instance import Instance
from lattice_dev.state import Options
from tests.unit.dev.test_components import site

INVENTORY = "classes:\n  c: {cpus: 8, memory: 1Gi}\nnodes:\n  - {names: 'n[1-3]', class: c, group: g0}\n"


def hollow(options: Options) -> Component:
    return next(component for component in components(site(options)) if component.name == "hollow")


def test_the_nodes_of_an_inventory_are_one_process_together_with_the_counted_ones() -> None:
    both = hollow(Options(hollow=2, inventory="/x/site.yaml", listed=3)).argv
    assert both[both.index("--hollow") + 1] == "2"
    assert both[both.index("--hollow-inventory") + 1] == "/x/site.yaml"
    assert "--hollow-inventory" not in hollow(Options(hollow=2)).argv
    assert Options(hollow=2, inventory="/x/site.yaml", listed=3).waiting_nodes == 5


def test_an_inventory_alone_is_enough_for_the_process() -> None:
    assert "--hollow-inventory" in hollow(Options(inventory="/x/site.yaml", listed=3)).argv


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        pytest.param(INVENTORY.replace("class: c", "class: d"), Options(), "line 4: nodes[0].class: 'd' is not one of", id="unknown class"),
        pytest.param(INVENTORY.replace("n[1-3]", "nid[001-003]"), Options(), "nid001 is a real node of this instance already", id="name"),
        pytest.param(INVENTORY, Options(hollow=16384), "16384 fit together", id="too many"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path, text: str, options: Options, sentence: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text, encoding="utf-8")
    home = tmp_path / "home"
    chosen = Options(hollow=options.hollow, inventory=str(file))
    with pytest.raises(Rejected) as caught:
        Instance("x", chosen, environ={"LATTICE_DEV_HOME": str(home)}).up()
    assert sentence in caught.value.message
    assert not (home / "x").exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    chosen = Options(inventory=str(tmp_path / "none.yaml"))
    with pytest.raises(Rejected, match=r"--inventory .*none\.yaml cannot be read"):
        Instance("x", chosen, environ={"LATTICE_DEV_HOME": str(tmp_path)}).up()


def test_a_vcluster_of_the_inventory_is_at_home_in_its_groups() -> None:
    assert home_vcluster("lab", ("g0", "g1"))["spec"]["nodes"] == {"selector": {"group": ["g0", "g1"]}}
