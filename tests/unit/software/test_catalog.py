"""An image's place in a registry, and which images a label names."""

from __future__ import annotations

from lattice.software.catalog import SoftwareDefaults, UenvRepository, filled_in, names, read_repository, repository_of
from lattice.software.labels import UenvLabel, parse_label

PATH = "site/uenv/deploy/daint/gh200/prgenv-gnu/24.11"
REPOSITORY = UenvRepository(PATH, "deploy", "daint", "gh200", "prgenv-gnu", "24.11")
SITE = SoftwareDefaults(system="daint")


def test_a_path_is_read_below_the_prefix_alone() -> None:
    assert read_repository(PATH, "site/uenv") == REPOSITORY
    assert read_repository(PATH, "site") is None  # six parts
    assert read_repository(PATH.removeprefix("site/"), "site/uenv") is None
    assert read_repository("site/uenvX/deploy/daint/gh200/prgenv-gnu/24.11", "site/uenv") is None
    assert read_repository("deploy/daint/gh200/prgenv-gnu/24.11", "") is not None


def test_a_whole_label_names_its_repository_without_the_catalog() -> None:
    assert repository_of(filled_in(parse_label("prgenv-gnu/24.11:v1%gh200"), SITE), "site/uenv") == REPOSITORY
    for partial in ("prgenv-gnu/24.11:v1", "prgenv-gnu%gh200", "prgenv-gnu/24.11:v1@*%gh200"):
        assert repository_of(filled_in(parse_label(partial), SITE), "site/uenv") is None


def test_a_label_names_what_agrees_in_every_part_that_it_gives() -> None:
    for text in ("", "prgenv-gnu", "prgenv-gnu/24.11:any", "%gh200", "@*", "deploy::prgenv-gnu@daint"):
        assert names(filled_in(parse_label(text) if text else UenvLabel(), SITE), REPOSITORY), text
    for text in ("prgenv", "prgenv-gnu/24", "%zen2", "@eiger", "build::prgenv-gnu"):
        assert not names(filled_in(parse_label(text), SITE), REPOSITORY), text


def test_a_site_without_a_name_means_every_system() -> None:
    assert filled_in(UenvLabel(name="x"), SoftwareDefaults()).system == ""
    assert filled_in(UenvLabel(name="x", system="eiger"), SITE).system == "eiger"
