"""Every command of `lattice` that a page shows is one that this program understands."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.cli.__main__ import parse
from lattice.cli.registry import VERBS, split_verb, verb_module

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_LINE = re.compile(r"^(?:    )?(?:\$ |# )?(?:[A-Z_]+=\S+ )*(lattice [a-z].*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(?:console|sh|bash)?\n(.*?)^```$|((?:^    .*\n)+)", re.MULTILINE | re.DOTALL)
_SYNOPSIS = re.compile(r"[…\[\]|]|\b[A-Z]{4,}\b")
"""What stands in a form to be filled in, not in a command."""


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command in the code blocks of a page, up to what the shell would take for itself."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        for line in _LINE.findall(block[1] or block[2] or ""):
            words = words_of(line)
            if words and not any(_SYNOPSIS.search(word) for word in words if not word.startswith(("nid[", "x1000"))):
                yield words


def words_of(line: str) -> list[str]:
    """The words of the first command of a line; none where it does not end on that line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|<>"):
                break
            words.append(word)
    except ValueError:
        return []
    return words[1:]


SHOWN = [(page, words) for page in PAGES if page.parent.name != "reference" for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), SHOWN, ids=[f"{page.stem}-{shlex.join(words)[:50]}" for page, words in SHOWN])
def test_a_command_that_a_page_shows_is_understood(page: Path, words: list[str]) -> None:
    verb, rest = split_verb(words)
    if verb == "dev":
        return  # another program; it has its own parser and its own tests
    assert verb in VERBS, page
    assert parse(verb, rest).verb == verb


def examples() -> Iterator[list[str]]:
    """The words of each example that a verb's help shows."""
    for verb in VERBS:
        parser = argparse.ArgumentParser()
        verb_module(verb).arguments(parser)
        for line in (parser.epilog or "").splitlines():
            if line.startswith("  lattice "):
                yield words_of(re.split(r"\s{2,}", line.strip())[0])


@pytest.mark.parametrize("words", list(examples()), ids=shlex.join)
def test_an_example_of_the_help_is_understood(words: list[str]) -> None:
    verb, rest = split_verb(words)
    assert verb is not None
    assert parse(verb, rest).verb == verb


def test_pages_show_commands_of_most_verbs() -> None:
    assert len(SHOWN) > 80
    assert {words[0] for _, words in SHOWN} >= {"submit", "status", "why", "plan", "logs", "wait", "cancel", "nodes", "node", "quota"}
