"""The forms of the texts that people write into specs: the pattern that the schema checks, beside it words, an example and the next step.

The schema's own refusal holds a regular expression and nothing else. Command line and webhook say the same with `Form.refusal`. Free of
pydantic, so that every process can load it.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

from lattice.units import ADDRESS_PATTERN, shown

MOST_CHARACTERS: Final = 65_536
"""Longest text that is judged; a longer one is left to the schema's limits of length."""


class Form:
    """A form of text: the `pattern` of the schema, what a text is that does not match (`fault`), what is `allowed`, and an `example`."""

    def __init__(self, pattern: str, fault: str, allowed: str, example: str, next_step: str = "") -> None:
        self.pattern = pattern
        self.example = example
        self.next_step = next_step
        """What to do where neither words nor example help; empty: nothing of its own."""
        self._words = f"{fault}: {allowed}, such as {example}"

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        """Returns the pattern as the API server means it, where `$` is the very end of a text."""
        return re.compile(self.pattern[:-1] + r"\Z" if self.pattern.endswith("$") else self.pattern)

    def matches(self, text: str) -> bool:
        """Tells whether a text has the form; True for a text too long to be judged."""
        return len(text) > MOST_CHARACTERS or self._compiled.search(text) is not None

    def words(self, value: object) -> str:
        """Returns what is wrong with a value, what is allowed, and an example."""
        return f"{shown(value)} {self._words}"

    def refusal(self, field: str, value: object) -> str:
        """Returns the sentence that refuses a value of a field."""
        return f"{field}: {self.words(value)}"

    def what_next(self, kind: str, field: str) -> str:
        """Returns the next step after a refusal: the form's own, else the command that describes the field of a kind."""
        path = re.sub(r"\[[^]]*\]", "", field)
        return self.next_step or f"`kubectl explain {kind.lower()}.{path}` says what belongs there"


FORMS: Final[dict[str, Form]] = {
    "address": Form(
        f"^({ADDRESS_PATTERN})?$", "is no address", "write HOST:PORT, an IPv6 address in brackets", "nid001.example:7443"
    ),
    "device": Form(
        r"^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*=[A-Za-z0-9][A-Za-z0-9_.:-]*$",
        "is no CDI name of a device", "write VENDOR/CLASS=DEVICE", "nvidia.com/gpu=all",
        "ask the operators which devices the nodes' CDI specifications name",
    ),
    "deviceKind": Form(
        r"^(\*|[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)$",
        "is no kind of CDI devices", "write VENDOR/CLASS, or * for all", "nvidia.com/gpu",
    ),
    "digest": Form(r"^sha256:[0-9a-f]{64}$", "is no digest", "write sha256: and 64 hexadecimal digits", "sha256:" + 64 * "0"),
    "directory": Form(r"^/[^/].*$", "is no directory below /", "write an absolute path", "/scratch"),
    "duration": Form(
        r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
        "is no duration", "write whole numbers with units, the larger first", "45s, 30m, 1h30m, 72h or 7d",
        "a clock such as 01:30:00 is for the flags of `lattice` alone: here it is 1h30m",
    ),
    "host": Form(
        r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$",
        "is no name of a machine", "write letters, digits, '.', '_' or '-', with a letter or digit at both ends", "login1.example.org",
    ),
    "key": Form(
        r"^-----BEGIN PUBLIC KEY-----\n",
        "is no public key", "write the PEM text that begins with -----BEGIN PUBLIC KEY----- and a new line", "the text in cosign.pub",
        "`cosign generate-key-pair` leaves it in cosign.pub; in YAML it is a block: `key: |`",
    ),
    "keyName": Form(
        r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        "is no name", "write letters, digits, '.', '_' or '-', with a letter or digit at both ends", "site-2026",
    ),
    "layout": Form(
        r"^(Block|Cyclic|Plane=[1-9][0-9]{0,5})(:(Block|Cyclic|Fcyclic))?$",
        "is no layout", "write Block, Cyclic or Plane=SIZE, and behind a colon Block, Cyclic or Fcyclic for sockets",
        "Cyclic or Block:Cyclic",
    ),
    "line": Form(
        r"^[^\x00-\x1f\x7f-\x9f]*$",
        "holds a control character (a new line, a tab, an escape)", "write one line of plain text", "'training run 3'",
        "look for a pasted tab, line break or colour code in it",
    ),
    "member": Form(
        r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        "is no name of a member", "write at most 63 lower-case letters, digits or '-', no dots, with a letter or digit at both ends",
        "preprocess", "a member's Allocation is called DAG.MEMBER",
    ),
    "moment": Form(
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})?$",
        "is no time", "write date and time with a zone, or without one for local time of spec.timeZone",
        "2026-12-01T08:00:00Z or 2026-12-01T08:00",
    ),
    "month": Form(r"^[0-9]{4}-(0[1-9]|1[0-2])$", "is no month", "write year and month", "2026-11"),
    "name": Form(
        r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        "is no name of a tenant or vcluster", "write at most 63 lower-case letters, digits or '-', with a letter or digit at both ends",
        "ml-team",
    ),
    "nodeCount": Form(
        r"^[1-9][0-9]{0,5}(-[1-9][0-9]{0,5})?$", "is no number of nodes", "write a number, or a range in quotes", "4 or 32-128"
    ),
    "prefix": Form(r"^[!-~]+$", "is no prefix of user names", "write characters of ASCII without blanks", "oidc:"),
    "quantity": Form(
        r"^[+]?[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
        "is no quantity", "write a number that is not below 0, with a unit where it needs one", "24, 1.5Ti, 500Gi or 150m",
        "units are m, k, M, G, T, P, E, and Ki, Mi, Gi, Ti, Pi, Ei",
    ),
    "reason": Form(r"^[A-Z][A-Za-z0-9]*$", "is no reason", "write a word in CamelCase", "TaskFailed"),
    "registry": Form(
        r"^([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?$", "is no registry's name", "write HOST or HOST:PORT in lower case, without https://",
        "registry.example:5000", "where it is asked at another address, that is `url` beside it",
    ),
    "registryUrl": Form(
        r"^(https?://[A-Za-z0-9.:\[\]-]+(/[a-z0-9._/-]*)?)?$", "is no URL of a registry",
        "write http:// or https://, the host, and a path in lower case", "https://registry.example/uenv",
    ),
    "reference": Form(
        r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9._-]*[a-z0-9])?$",
        "names no work", "write a number, a name, or NAMESPACE/NAME", "12345",
    ),
    "secretName": Form(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "is no name of a Secret or ConfigMap", "write lower-case letters, digits, '-' or '.', with a letter or digit at both ends", "wandb",
        "`kubectl get secrets,configmaps` lists those of the namespace",
    ),
    "softwareName": Form(
        r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", "is no namespace of images", "write letters, digits, '_', '.' or '-'", "deploy"
    ),
    "system": Form(
        r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$", "is no name of a system", "write letters, digits, '_', '.' or '-'", "daint"
    ),
    "time": Form(
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$",
        "is no time", "write date and time with seconds and a zone (RFC 3339)", "2026-12-01T08:00:00Z",
    ),
    "timeZone": Form(
        r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,3}$", "is no time zone", "write its IANA name", "Europe/Zurich",
        "`timedatectl list-timezones` lists them",
    ),
    "tmpPattern": Form(
        r"^/(tmp|dev/shm)/[^/]+$", "is no pattern of names in /tmp or /dev/shm", "write /tmp/NAME or /dev/shm/NAME, * for any text",
        "/tmp/krb5cc_*",  # noqa: S108 - a pattern
    ),
    "variablePrefix": Form(
        r"^([A-Za-z_][A-Za-z0-9_]*)?$", "begins no name of a variable", "write letters, digits or '_', with no digit first", "WANDB_"
    ),
}  # fmt: skip
"""Every form by its name."""
_BY_PATTERN: Final = {form.pattern: form for form in FORMS.values()}


def form_of(pattern: str) -> Form | None:
    """Returns the form with a pattern; None: no field of ours has it."""
    return _BY_PATTERN.get(pattern)


def pattern_of(name: str) -> str:
    """Returns the pattern of the form of this name."""
    return FORMS[name].pattern
