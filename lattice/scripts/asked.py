"""The options that a request was given: their values, where they were written, and which source wins; the facts for translating them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lattice.errors import Rejected
from lattice.units import is_digits

SOURCES = ("configuration", "SBATCH", "LATTICE", "environment", "command line")
"""The sources of options; a later one overrides an earlier one."""


@dataclass(frozen=True)
class Given:
    """One option as it was written: its name, its value (None for a switch), its source, and the place for messages."""

    option: str
    value: str | None
    source: str
    place: str

    def rejected(self, why: str, reason: str = "BadOption") -> Rejected:
        """Returns the refusal of this option, to be raised: `why` behind the place where the option was written."""
        return Rejected(f"{self.place}: {why}", reason=reason, fields=(self.option,))


def one_of(given: Given, value: str, words: Mapping[str, str]) -> str:
    """Returns the word that a value means, whatever its case. Raises Rejected for any other."""
    if value.lower() not in words:
        raise given.rejected(f"{value!r} is none of {', '.join(dict.fromkeys(words.values()))}")
    return words[value.lower()]


def read_number(given: Given) -> int:
    """Returns a whole number from 1 to 16,777,216. Raises Rejected for anything else."""
    text = (given.value or "").strip()
    if not is_digits(text, 12) or not 1 <= int(text) <= 16_777_216:
        raise given.rejected(f"{text!r} is not a number from 1 on")
    return int(text)


Asked = Mapping[str, Given]
"""The winning option of each slot."""


def merge(given: Iterable[tuple[str, Given]]) -> dict[str, Given]:
    """Returns the winning option of each slot: of the strongest source, and within a source the one written last."""
    asked: dict[str, Given] = {}
    for slot, one in given:
        old = asked.get(slot)
        if old is None or SOURCES.index(one.source) >= SOURCES.index(old.source):
            asked[slot] = one
    return asked


@dataclass(frozen=True)
class VClusterFacts:
    """The facts of a vcluster that a submission needs: its partitions, its longest walltime, the CPUs of its smallest node."""

    partitions: tuple[str, ...] = ()
    max_walltime: str | None = None
    smallest_cpus: int | None = None


@dataclass(frozen=True)
class SiteFacts:
    """The facts of the cluster that a translation needs; `vclusters` None: no cluster was asked (`--dry-run=client`)."""

    vclusters: Mapping[str, VClusterFacts] | None = None
    default_vcluster: str = ""
    qos: Mapping[str, int] | None = None
    accounts: Mapping[str, str] | None = None
    """Tenants by Slurm account, their own names among them; None: nobody asked, or the person may not read tenants."""
    slurm_env: bool | None = None
    """True where the site sets Slurm's variables for work; None: nobody asked."""
    slurm_env_of_scripts: bool = False
    """True where the site leaves it open: scripts with `#SBATCH` lines have Slurm's variables, other work has not."""


@dataclass(frozen=True)
class Submitter:
    """The facts of the submitter's shell: directory, variables, and local time."""

    directory: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0
    local: Callable[[datetime], float] = datetime.timestamp
    """Returns the seconds since the epoch of a local time without zone."""
    host: str = ""
    """The name of the submitter's machine; empty: it is not known."""


def needs(asked: Asked, *, reads_slurm_variables: bool = False) -> frozenset[str]:
    """Returns the parts of the cluster that translating these options needs: `vclusters`, `tenants`, `config`, `nodes`; empty: none, so
    that no cluster need be asked.

    `reads_slurm_variables`: the script reads variables that only the site's configuration sets.
    """
    wanted: set[str] = {"config"} if reads_slurm_variables else set()
    where, tasks, time = asked.get("vcluster"), asked.get("ntasks"), asked.get("walltime")
    if where is not None and where.option == "partition":
        wanted.add("vclusters")
    if "tenant" in asked and asked["tenant"].option == "account":
        wanted.add("tenants")
    if "class" in asked and asked["class"].option == "qos":
        wanted.add("config")
    if tasks is not None and tasks.value != "1" and not {"nodes", "ntasks-per-node"} & set(asked):
        wanted |= {"vclusters", "nodes"}
    if time is not None and time.option == "time":
        wanted.add("vclusters")
    return frozenset(wanted)
