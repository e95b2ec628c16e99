"""Gives hints for words that Lattice does not know: programs and options of Slurm, verbs of the book, misspelt flags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

_LATER: Final = "not served by this release"
PROGRAMS: Final = {
    "sbatch": "`lattice submit SCRIPT` reads its #SBATCH lines",
    "squeue": "`lattice status --all` lists work, `lattice queue` the order of what waits",
    "scancel": "`lattice cancel ALLOCATION`",
    "sinfo": "`lattice nodes`",
    "sacct": "`lattice history`, and `lattice usage` sums it up",
    "scontrol": "`lattice status`, `hold`, `release` or `update`; for nodes `lattice node`, for reservations `lattice reservation`",
    "sprio": "`lattice why ALLOCATION` shows the score of one, `lattice queue` of all that wait",
    "sshare": "`lattice usage`",
    "sreport": "`lattice usage --all`",
    "sacctmgr": "`lattice admin tenant`",
    "srun": "it starts tasks inside an allocation, in its script; `lattice submit --ntasks=N --wait -- COMMAND` runs one by itself",
    "salloc": f"sessions are {_LATER}; `lattice submit -- COMMAND` takes nodes for a command",
    "sattach": "`lattice logs -f ALLOCATION`",
    "sbcast": f"staging of files is {_LATER}",
    "sdiag": "`lattice admin status`",
    "sstat": f"metrics of running work are {_LATER}",
}
"""Slurm's programs, each with the verb that does the like."""
BOOK: Final = {
    "session": f"sessions are {_LATER}",
    "attach": f"terminals in running work are {_LATER}; `lattice logs -f ALLOCATION` follows what it prints",
    "launch": "`srun` starts tasks in running work, from its script",
    "top": f"metrics of running work are {_LATER}",
    "metrics": f"metrics of running work are {_LATER}",
    "watch": f"metrics of running work are {_LATER}; `lattice status --watch` shows states",
    "compare": f"metrics of running work are {_LATER}",
    "telemetry": f"metrics of running work are {_LATER}",
    "login": "there is nothing to log in to: who you are stands in the kubeconfig (KUBECONFIG, --kubeconfig, --context)",
    "logout": "there is nothing to log out of: who you are stands in the kubeconfig (KUBECONFIG, --kubeconfig, --context)",
}
"""Verbs of the book that this release lacks, each with the reason (book, "CLI Design")."""
_SHORT: Final = re.compile(r"(?:^|\s)-([A-Za-z])")
_EXTRA: Final = re.compile(r"unrecognized arguments: ((?:[^-\s]\S*\s?)+)")
_OUTPUT: Final = re.compile(r"argument -o/--output: invalid choice: '([^']*)'")


_FLAG: Final = re.compile(r"(?:^|\s)(--?[A-Za-z][A-Za-z-]*)")
_ACTION: Final = re.compile(r"argument ACTION: invalid choice: '([^']*)'")
_NAMED: Final = "name them: {prog} 12,14 or 12-17"
_FIXED: Final = "what it asks for is fixed: cancel it, and submit it anew"
FLAGS: Final = {
    **dict.fromkeys(("-j", "--job", "--jobs", "--jobid"), _NAMED),
    "-p": "write --vcluster, or the partition as `submit --partition` takes it",
}
"""Flags of squeue, scancel and sacct, each with what does the like here."""
FIXED: Final = frozenset({"--nodes", "--vcluster", "--partition", "--nodelist", "--constraint", "--gres", "--gpus", "--account"})
"""Flags of `scontrol update` that `lattice update` does not offer, since these parts of an allocation never change."""
ACTIONS: Final = {
    "lattice admin tenant": {"delete": "kubectl delete tenant NAME", "remove": "kubectl delete tenant NAME"},
    "lattice admin vcluster": {"delete": "kubectl delete vcluster NAME", "remove": "kubectl delete vcluster NAME"},
    "lattice node": {
        "show": "lattice nodes NODE",
        "get": "lattice nodes NODE",
        "list": "lattice nodes",
        "delete": "lattice node forget NODE",
    },
    "lattice admin ledger": {"status": "lattice admin status, or lattice admin ledger show"},
}
"""By verb, actions that have another name here, or are done by kubectl."""


def meant_by_flag(prog: str, message: str, known: Sequence[str]) -> str:
    """Returns what the first unknown flag in the parser's message that is known or near likely means; empty where none is.

    `known` are the parser's flags.
    """
    if not message.startswith("unrecognized arguments: "):
        return ""
    for flag in _FLAG.findall(message):
        if prog == "lattice update" and flag in FIXED:
            return f"{flag}: {_FIXED}"
        if flag in FLAGS and not prog.startswith(("lattice submit", "lattice plan", "lattice admin", "lattice replay")):
            return f"{flag}: {FLAGS[flag].format(prog=prog)}"
        ending = [name for name in known if flag.startswith("--") and name.endswith(f"-{flag.removeprefix('--')}")]
        near = ending or difflib.get_close_matches(flag, [name for name in known if name.startswith("--")], n=1)
        if flag.startswith("--") and near:
            return f"did you mean {near[0]}? {prog} --help"
    return ""


def meant_by_action(prog: str, message: str) -> str:
    """Returns the name here, or the command, of an action that the verb does not have; empty where it is no known one."""
    wrong = _ACTION.search(message)
    return ACTIONS.get(prog, {}).get(wrong[1], "") if wrong is not None else ""


def meant_by(verb: str) -> tuple[str, str]:
    """Returns a sentence on a word that is no verb here, and the verb that does the like; two empty texts for unknown words."""
    if verb in PROGRAMS:
        return f"{verb!r} is a program of Slurm's, not a verb of lattice", PROGRAMS[verb]
    if verb in BOOK:
        return f"{verb!r} is not a verb of this release", BOOK[verb]
    return "", ""


def meant_by_option(message: str) -> str:
    """Returns the name here of an option of `sbatch` that the parser's message calls unknown; empty for others."""
    from lattice.scripts.options import SLURM_SHORT

    wrong = _OUTPUT.search(message)
    if wrong is not None:
        return f"-o says how the answer is printed; the file that the work writes to is --stdout {wrong[1]}"
    extra = _EXTRA.fullmatch(message)
    if extra is not None:
        return (
            "a script gets no arguments here: write them into it, pass variables with --export=NAME=VALUE, "
            f"or run it as a command: --tasks-on=head-node -- ./SCRIPT {extra[1]}"
        )
    known = [(letter, SLURM_SHORT[letter]) for letter in dict.fromkeys(_SHORT.findall(message)) if letter in SLURM_SHORT]
    return "; ".join(f"-{letter}: {option.refused or f'write --{option.name}'}" for letter, option in known)
