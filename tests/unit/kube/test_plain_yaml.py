"""What is read without the YAML library means what the library says, and the usual kubeconfig is read so."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.kube import plain_yaml

USUAL = """\
apiVersion: v1
kind: Config
preferences: {}
current-context: alice@site
clusters:
- cluster:
    certificate-authority-data: LS0tLS1CRUdJTg==
    server: https://127.0.0.1:6443
    insecure-skip-tls-verify: false
  name: "site"
contexts:
  - name: alice@site
    context: {}
# comments stand on lines of their own
users:
- name: alice
  user:
    client-certificate: /etc/alice.crt
    token: 'a b: #c'
"""

TEXTS = st.one_of(
    st.text("abyn/:#-'\"{}[]&*!|>%@`,?~=. 019_", max_size=8),
    st.sampled_from(
        ["yes", "Off", "null", "~", "1e5", "12:30", "0x1f", "2026-01-01", "true", "a: b", "- a", "<<", "=", ".inf", "NULL", "y"]
    ),
)
DOCUMENTS = st.recursive(
    st.one_of(TEXTS, st.booleans(), st.none(), st.integers()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
LINES = st.lists(
    st.builds(
        lambda indent, dash, key, value: " " * indent + dash + key + value,
        st.integers(0, 4), st.sampled_from(["", "", "- ", "-  ", "- - "]), st.sampled_from(["a:", "b: ", "c:  ", "a :", "", "on: ", "d:e"]), TEXTS,
    ),
    max_size=6,
).map("\n".join)  # fmt: skip


def same_or_left(text: str) -> None:
    found = plain_yaml.read(text)
    if found is not None:
        assert found == yaml.safe_load(text)


@given(DOCUMENTS, st.booleans())
@example([], False)
def test_what_the_library_writes_is_read_as_the_library_reads_it(document: object, indented: bool) -> None:
    same_or_left(yaml.safe_dump(document, default_flow_style=False, indent=4 if indented else 2))


@given(LINES)
@example("a:\n  b\n  c")
@example("a: b\n  c")
@example("- a\nb: c")
@example("a:\nb:\n- a\n - b")
@example("a:\n  - b\n- c")
@example('a: "b"\n ')
def test_no_lines_are_read_otherwise_than_the_library_reads_them(text: str) -> None:
    same_or_left(text)


def test_a_usual_kubeconfig_is_read_without_the_library() -> None:
    assert plain_yaml.read(USUAL) == yaml.safe_load(USUAL)
    assert plain_yaml.read(yaml.safe_dump(yaml.safe_load(USUAL), default_flow_style=False).replace("a b: #c", "abc")) is not None


def test_what_is_more_than_plain_is_left_to_the_library() -> None:
    for text in (
        "a: |\n  b",
        "a: &x b",
        "a: *x",
        "a: !!str b",
        "{a: b}",
        "a: [b]",
        "a: 'it''s'",
        "a: b # c",
        "a: é",
        "---\na: b",
        "a: 1",
        "",
    ):
        assert plain_yaml.read(text) is None, text
