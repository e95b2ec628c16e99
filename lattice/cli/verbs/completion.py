"""`lattice completion SHELL`: prints a completion script, whose candidates come from here, as do kubectl's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice.cli import exits
from lattice.cli.registry import VERBS, add_global_flags, split_verb, verb_module
from lattice.errors import LatticeError

if TYPE_CHECKING:
    from lattice.cli.console import Console, Outside

INTERMIXED = True
MOST = 200
"""Most candidates that are offered."""
_ASK = "kubectl_complete-lattice"
_SCRIPTS = {
    "bash": f"""_lattice() {{
    local out
    out=$({_ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null) || return
    mapfile -t COMPREPLY < <(printf '%s\\n' "$out" | grep -v '^:' | cut -f1)
    [[ ${{#COMPREPLY[@]}} -eq 0 ]] && compopt -o default
}}
complete -F _lattice lattice
""",
    "zsh": f"""#compdef lattice
_lattice() {{
    local -a found
    found=("${{(@f)$({_ASK} "${{(@)words[2,CURRENT]}}" 2>/dev/null | grep -v '^:' | cut -f1)}}")
    if (( ${{#found}} )) && [[ -n "${{found[1]}}" ]]; then compadd -- "${{found[@]}}"; else _files; fi
}}
compdef _lattice lattice
""",
    "fish": f"""function __lattice_complete
    set -l words (commandline -opc) (commandline -ct)
    {_ASK} $words[2..-1] 2>/dev/null | string match -v ':*'
end
complete -c lattice -a '(__lattice_complete)'
""",
}
_OF_ALLOCATIONS = frozenset({"status", "why", "logs", "wait", "cancel", "hold", "release", "update"})
_OF_NODES = frozenset({"nodes", "node"})


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names the shell."""
    parser.add_argument("shell", choices=sorted(_SCRIPTS), help="bash, zsh or fish")


def run(console: Console) -> int:
    """Prints the completion script of the shell; returns DONE."""
    console.outside.stdout.write(_SCRIPTS[console.args.shell])
    return exits.DONE


def candidates(words: Sequence[str], outside: Outside) -> list[str]:
    """Returns the words that may complete the last one, some with a description after a tab: verbs, flags, actions, names of objects.

    Of objects at most 200; none where the cluster cannot be asked, or the verb is unknown. Short flags are not offered.
    """
    *before, last = words or [""]
    verb, _ = split_verb(list(before))
    if verb is None:
        return [f"{name}\t{known.summary}" for name, known in VERBS.items() if name.startswith(last)]
    if verb not in VERBS:
        return []
    parser = argparse.ArgumentParser(add_help=False)
    verb_module(verb).arguments(parser)
    add_global_flags(parser)
    parser = _below(parser, list(before))
    if last.startswith("-"):
        flags = [
            (option, action.help) for action in parser._actions if action.help != argparse.SUPPRESS for option in action.option_strings
        ]
        return [f"{option}\t{text or ''}" for option, text in flags if option.startswith(last) and option.startswith("--")]
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if actions:
        return [name for name in actions[0].choices if name.startswith(last)]
    return _objects(verb, before, last, outside)[:MOST]


def _below(parser: argparse.ArgumentParser, words: list[str]) -> argparse.ArgumentParser:
    """Returns the parser of the subcommand that the words name."""
    for word in words:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
                break
    return parser


def _objects(verb: str, before: Sequence[str], last: str, outside: Outside) -> list[str]:
    """Returns names of objects from the cluster that may complete the word; empty where the cluster cannot be asked."""
    from lattice.cli.configuration import Configuration
    from lattice.cli.console import Console
    from lattice.cli.readable import list_readable
    from lattice.kube.resources import ALLOCATIONS, NODES, RESERVATIONS
    from lattice.views import Allocation, Node, Reservation

    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    add_global_flags(parser)
    try:
        args, _ = parser.parse_known_args(list(before))
        console = Console(args, outside, Configuration())
        if verb in _OF_NODES:
            return [node.metadata.name for node in console.cluster.list(NODES, type=Node).items if node.metadata.name.startswith(last)]
        if verb == "reservation" and {"show", "delete"} & set(before):
            reservations = list_readable(console, RESERVATIONS, console.namespace, type=Reservation)
            return [one.metadata.name for one in reservations if one.metadata.name.startswith(last)]
        if verb not in _OF_ALLOCATIONS:
            return []
        allocations = console.cluster.list(ALLOCATIONS, console.namespace, type=Allocation).items
    except (LatticeError, argparse.ArgumentError):
        return []
    newest = sorted(allocations, key=lambda one: one.metadata.creation_timestamp, reverse=True)
    names = [(str(one.status.number), one) for one in newest if one.status.number] + [(one.metadata.name, one) for one in newest]
    return [f"{name}\t{one.status.phase} {one.spec.tags.get('name', '')}".rstrip() for name, one in names if name.startswith(last)]
