"""Chooses the variables that `sbatch` passes from the submitter's shell to the job (decision "environment of `sbatch`"); pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from lattice.admission.work import MAX_VARIABLES, SECRET_WORDS
from lattice.scripts.asked import Given

MOST_BYTES: Final = 65536
MOST_VALUE: Final = 32768
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_JOBS: Final = ("SLURM_", "SLURMD_", "SBATCH_", "LATTICE_", "PMI_", "PMIX_")
"""What begins so describes the job, or the step, in which `sbatch` itself runs; but for what names the cluster and the tenant."""
_KEPT: Final = frozenset({"LATTICE_TENANT", "LATTICE_GATEWAY", "LATTICE_VCLUSTER"})
_OF_SHELLS: Final = frozenset({"_", "SHLVL", "OLDPWD", "PWD"})


class Passed(NamedTuple):
    """The variables that a job is given, and a sentence on those that are not."""

    variables: dict[str, str]
    warnings: tuple[str, ...]


def split_export(given: Given | None) -> tuple[str, bool]:
    """Returns the names and values of `--export` without ALL and NONE, and whether all variables are passed: by default they are, and with
    ALL.
    """
    if given is None:
        return "", True
    parts = [part.strip() for part in (given.value or "").split(",") if part.strip()]
    return ",".join(part for part in parts if part.upper() not in ("ALL", "NONE", "NIL")), any(part.upper() == "ALL" for part in parts)


def passed_on(environ: Mapping[str, str], given: Mapping[str, str]) -> Passed:
    """Returns the variables of a shell that go with the job, and over them those that were `given`; secrets, names that no shell takes,
    and what is too large do not.

    What describes the job in which sbatch runs, or its shell, is left out in silence.
    """
    secrets, odd, large = list[str](), list[str](), list[str]()
    kept: dict[str, str] = {}
    for name, value in environ.items():
        if name in _OF_SHELLS or (name.startswith(_OF_JOBS) and name not in _KEPT) or name.startswith("BASH_FUNC_"):
            continue
        if not _NAME.fullmatch(name) or "\0" in value or not _is_text(value):
            odd.append(name)
        elif any(word in name.upper() for word in SECRET_WORDS):
            secrets.append(name)
        elif len(value.encode()) > MOST_VALUE:
            large.append(name)
        else:
            kept[name] = value
    found = kept | dict(given)
    while len(found) > MAX_VARIABLES or _size(found) > MOST_BYTES:
        rest = [name for name in found if name not in given]
        if not rest:
            break  # what was named is refused by the cluster, with the numbers
        largest = max(rest, key=lambda name: (len(found[name]), name))
        large.append(largest)
        del found[largest]
    return Passed(found, tuple(_warnings(secrets, odd, large)))


def _is_text(value: str) -> bool:
    """Tells whether a value can be sent as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _size(variables: Mapping[str, str]) -> int:
    """Returns the bytes of names and values together."""
    return sum(len(name) + len(value.encode()) for name, value in variables.items())


def _warnings(secrets: list[str], odd: list[str], large: list[str]) -> list[str]:
    """Returns a sentence for each kind of variable that is not passed."""
    found = []
    if secrets:
        found.append(
            f"not passed to the job, since they look like secrets and would be readable in the allocation: {', '.join(sorted(secrets))};"
            " keep them in a file, or in a Secret (#LATTICE --variables-from)"
        )
    if odd:
        found.append(f"not passed to the job, since a manifest cannot hold them: {', '.join(sorted(odd))}")
    if large:
        found.append(
            f"not passed to the job, since variables may have {MOST_BYTES} bytes together, each {MOST_VALUE}: {', '.join(sorted(large))}"
        )
    return found
