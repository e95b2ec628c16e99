"""Views are found by name, ambiguous ones are refused, and variables change as under `uenv`."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.software.chosen_views import PlacedImage, apply_views, choose_views, names_of, uenv_variables
from lattice.software.image_metadata import ImageMetadata, ListChange, ListOperation, ScalarChange, View
from lattice.software.references import parse_references, parse_views
from tests.operations import operations


def view(name: str, lists: tuple[ListChange, ...] = (), **scalars: str | None) -> View:
    return View(name, "", lists, tuple(ScalarChange(variable, value) for variable, value in scalars.items()))


def listed(variable: str, operation: str, *paths: str) -> ListChange:
    return ListChange(variable, ListOperation(operation), paths)


def image(name: str, *views: View, mount: str = "/user-environment", default: str = "") -> PlacedImage:
    return PlacedImage(f"/images/{name}", mount, (name,), ImageMetadata(name, "", mount, views, default))


def after(variables: dict[str, str], *views: View) -> dict[str, str]:
    one = image("one", *views)
    return apply_views(choose_views([one], parse_views(",".join(each.name for each in views)), defaults=False), variables)


@pytest.mark.parametrize(
    ("before", "views", "expected"),
    [
        ({"PATH": "/bin"}, [view("a", (listed("PATH", "prepend", "/x", "/y"),))], {"PATH": "/x:/y:/bin"}),
        ({"PATH": "/bin"}, [view("a", (listed("PATH", "append", "/x"),))], {"PATH": "/bin:/x"}),
        ({"PATH": "/bin"}, [view("a", (listed("PATH", "set", "/x"), listed("PATH", "prepend", "/y")))], {"PATH": "/y:/x"}),
        ({"PATH": "/bin"}, [view("a", (listed("PATH", "unset"),))], {}),
        ({"PATH": "/bin"}, [view("a", (listed("PATH", "unset"), listed("PATH", "append", "/x")))], {"PATH": "/x"}),
        ({"PATH": "/bin::/x:/bin"}, [view("a", (listed("PATH", "prepend", "/x"),))], {"PATH": "/x:/bin"}),
        ({}, [view("a", (listed("P", "prepend"),))], {"P": ""}),
        ({"A": "1", "B": "2"}, [view("a", A=None, B="3", C="4")], {"B": "3", "C": "4"}),
        ({"A": "1"}, [view("a", (listed("A", "set", "/x"),), A="2")], {"A": "2"}),
        ({"USER": "alice"}, [view("a", HOME="/h/${@USER@}/x", NONE="[${@ABSENT@}]")], {"USER": "alice", "HOME": "/h/alice/x", "NONE": "[]"}),
        ({"U": "v"}, [view("a", (listed("P", "set", "/x/${@U@}"),))], {"U": "v", "P": "/x/v"}),
        ({}, [view("a", X="text ${@OPEN", Y="${HOME}")], {"X": "text ", "Y": "${HOME}"}),
        ({}, [view("a", A="1"), view("b", A="2")], {"A": "2"}),
        ({}, [view("a", (listed("P", "prepend", "/a"),)), view("b", (listed("P", "prepend", "/b"),))], {"P": "/b:/a"}),
        ({}, [view("a", P="/s"), view("b", (listed("P", "append", "/b"),))], {"P": "/s:/b"}),
    ],
    ids=[
        "prepended", "appended", "set, then prepended", "unset", "unset, then appended", "empty parts and repetitions go",
        "an empty list", "scalars, and null", "a scalar replaces a list", "a variable is replaced", "in a list too",
        "what is not closed, and what is a shell's", "the later view's scalar", "lists of two views", "a list after another view's scalar",
    ],
)  # fmt: skip
def test_a_view_changes_variables_as_under_uenv(before: dict[str, str], views: list[View], expected: dict[str, str]) -> None:
    assert after(before, *views) == expected


def test_a_view_that_names_more_than_a_program_can_be_given_is_refused_before_it_is_made() -> None:
    large = "x" * 100_000
    many = View("a", "", (), (ScalarChange("A", large), *(ScalarChange(f"V{n}", "${@A@}") for n in range(60))))
    for hungry in (view("a", A=large, B="${@A@}" * 100_000), many):
        with pytest.raises(Rejected, match="more characters than a program can be given") as refused:
            after({}, hungry)
        assert refused.value.reason == "ImageRefused"


def test_names_that_an_image_gives_are_shortened_and_made_printable_in_sentences() -> None:
    wild = image("a\nb", *(view(f"v{number}" + "x" * 1000) for number in range(50)))
    with pytest.raises(Rejected) as refused:
        choose_views([wild], parse_views("none"), defaults=True)
    assert len(refused.value.message) < 2000
    assert "a?b:v0x" in refused.value.message
    assert "and 30 more" in refused.value.message


def test_changes_of_a_long_list_cost_no_more_than_their_own_paths() -> None:
    def seconds(length: int) -> float:
        first = listed("P", "set", *(f"/{number}" for number in range(length)))
        before = time.process_time()
        for operation in ("append", "prepend"):
            changes = (first, *(listed("P", operation, "/1") for _ in range(5_000)), listed("P", "set", "/x"))
            assert after({}, View("a", "", changes, ())) == {"P": "/x"}
        return time.process_time() - before

    # Copies are made inside C functions, where they cannot be counted.
    pairs = [(seconds(10), seconds(50_000)) for _ in range(3)]
    assert min(long for _, long in pairs) < 5 * max(short for short, _ in pairs), (
        "each of 10,000 changes copied the list: twenty times as long"
    )


def test_views_cost_no_more_than_their_number() -> None:
    images = [image(f"i{number}", *(view(f"{number}-{place}") for place in range(1_000))) for number in range(8)]

    def cost(wanted: int) -> int:
        views = parse_views(",".join(f"7-{place}" for place in range(1_000 - wanted, 1_000)))
        return operations(lambda: choose_views(images, views, defaults=True))

    assert cost(400) < 3 * cost(1), "every view was sought among all: 400 times as many"
    assert len(choose_views(images, parse_views("7-1,7-2"), defaults=True)) == 2


def test_a_view_that_is_asked_for_again_by_whatever_names_counts_once() -> None:
    images = [PlacedImage("/f", "/m", ("app", "app/1", "own"), ImageMetadata("own", "", "/m", (view("a"), view("b"))))]
    chosen = choose_views(images, parse_views("b,a,app:a,app/1:a,own:a,a,own:b"), defaults=True)
    assert [one.view.name for one in chosen] == ["b", "a"]


def test_names_that_no_program_could_be_given_are_refused_before_they_are_joined() -> None:
    long = image("n" * 100_000, view("a"), view("b"))
    chosen = choose_views([long], parse_views("a,b"), defaults=False)
    assert len(uenv_variables([long], chosen[:1])["UENV_VIEW"]) > 100_000
    with pytest.raises(Rejected, match="UENV_VIEW longer than a program can be given") as refused:
        uenv_variables([long], chosen)
    assert refused.value.reason == "ImageRefused"


PATHS = st.lists(st.sampled_from(["", "/a", "/b", "/c"]), max_size=5)
CHANGES = st.lists(st.builds(ListChange, st.just("P"), st.sampled_from(ListOperation), PATHS.map(tuple)), min_size=1, max_size=5).map(tuple)


@given(PATHS, CHANGES)
def test_a_list_has_no_empty_parts_no_repetitions_and_nothing_that_nobody_named(before: list[str], changes: tuple[ListChange, ...]) -> None:
    found = after({"P": ":".join(before)}, View("a", "", changes, ())).get("P")
    parts = found.split(":") if found else []
    assert len(parts) == len(set(parts))
    assert "" not in parts
    if found is not None:
        assert set(parts) <= {*before, *(path for change in changes for path in change.paths)}


def test_views_are_found_by_their_name_or_by_image_and_name_in_the_order_asked_for() -> None:
    images = [image("app", view("a"), view("both")), image("tool", view("t"), view("both"), mount="/user-tools")]
    chosen = choose_views(images, parse_views("t,app:both,tool:both"), defaults=False)
    assert [str(one) for one in chosen] == ["/user-tools:tool:t", "/user-environment:app:both", "/user-tools:tool:both"]
    variables = uenv_variables(images, chosen)
    assert variables["UENV_MOUNT_LIST"] == "/images/app:/user-environment,/images/tool:/user-tools"
    assert variables["UENV_VIEW"] == ",".join(str(one) for one in chosen)
    assert uenv_variables([], ()) == {}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("both", "more than one view named 'both': app:both, tool:both"),
        ("x", "the view 'x' does not exist; there are: app:a, app:both, tool:both"),
        ("app:x", "the view 'app:x' does not exist"),
        ("wombat:a", "the view 'wombat:a' does not exist"),
    ],
)
def test_a_view_that_none_has_or_two_have_is_refused_with_the_list(wanted: str, said: str) -> None:
    images = [image("app", view("a"), view("both")), image("tool", view("both"))]
    with pytest.raises(Rejected, match=said) as refused:
        choose_views(images, parse_views(wanted), defaults=True)
    assert refused.value.reason == "ViewUnknown"


def test_an_image_gives_the_view_that_it_declares_where_none_of_it_is_asked_for() -> None:
    images = [image("app", view("a"), view("b"), default="b"), image("tool", view("t"), default="t")]
    assert [one.view.name for one in choose_views(images, (), defaults=True)] == ["b", "t"]
    assert [one.view.name for one in choose_views(images, parse_views("a"), defaults=True)] == ["a", "t"]
    assert choose_views(images, (), defaults=False) == ()


def test_an_image_is_called_by_its_label_and_by_its_own_name() -> None:
    metadata = ImageMetadata("own", "", "/m", ())
    references = parse_references("prgenv/24.11:v1,/a.squashfs,/b.squashfs,/c.squashfs")
    assert names_of(references, [metadata, metadata, None, None]) == [
        ("prgenv", "prgenv/24.11", "own"), ("own",), ("anonymous",), ("anonymous0",),
    ]  # fmt: skip
