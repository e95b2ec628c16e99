"""Labels of software environments: every form that `uenv` reads, and a refusal that shows where another one goes wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.software.labels import UenvLabel, parse_label

WORDS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
MAYBE = st.one_of(st.just(""), WORDS)
DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("prgenv-gnu", UenvLabel(name="prgenv-gnu")),
        ("prgenv-gnu/24.11", UenvLabel(name="prgenv-gnu", version="24.11")),
        ("prgenv-gnu/24.11:v1", UenvLabel(name="prgenv-gnu", version="24.11", tag="v1")),
        ("prgenv-gnu:v1", UenvLabel(name="prgenv-gnu", tag="v1")),
        ("prgenv-gnu/24.11:v1@daint%gh200", UenvLabel(name="prgenv-gnu", version="24.11", tag="v1", system="daint", uarch="gh200")),
        ("prgenv-gnu%gh200@daint", UenvLabel(name="prgenv-gnu", system="daint", uarch="gh200")),
        ("build::prgenv-gnu/24.11:1234567", UenvLabel("build", "prgenv-gnu", "24.11", "1234567")),
        ("prgenv-gnu@*", UenvLabel(name="prgenv-gnu", system="*")),
        ("@*", UenvLabel(system="*")),
        ("%gh200", UenvLabel(uarch="gh200")),
        (DIGEST[:16], UenvLabel(digest=DIGEST[:16])),
        (f"sha256:{DIGEST}", UenvLabel(digest=DIGEST)),
        (f" {DIGEST} ", UenvLabel(digest=DIGEST)),
    ],
)
def test_each_form_is_read(text: str, label: UenvLabel) -> None:
    assert parse_label(text) == label


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prgenv gnu", "unexpected ' ' at character 7"),
        ("-gnu", "unexpected '-' at character 1"),
        ("gnu/", "unexpected '/' at character 4"),
        ("gnu/a/b", "unexpected '/' at character 6"),
        ("gnu@a@b", "two systems"),
        ("gnu%a%b", "two architectures"),
        ("gnu:v1:/mnt", "unexpected ':' at character 7"),
        ("../../etc", "unexpected '.' at character 1"),
        ("gnu/24.11:v1%gh200@daint?n=1", "unexpected '?'"),
        ("x" * 300, "it has 300 characters (limit: 256)"),
    ],
)
def test_another_form_is_refused_at_its_place(text: str, said: str) -> None:
    with pytest.raises(Rejected, match="is no label") as refused:
        parse_label(text)
    assert said in refused.value.message
    assert refused.value.reason == "LabelInvalid"


@given(MAYBE, WORDS, MAYBE, MAYBE, MAYBE, MAYBE)
def test_what_is_written_is_read_back(namespace: str, name: str, version: str, tag: str, system: str, uarch: str) -> None:
    label = UenvLabel(namespace, name, version, tag, system, uarch)
    if len(name) == 16 and set(name) <= set("0123456789abcdef"):
        return
    assert parse_label(str(label)) == label
