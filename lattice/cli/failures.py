"""An error as people read it: `Error:`, the numbers, and what to do next (book, "CLI Design")."""

from __future__ import annotations

import re

from lattice.errors import Denied, LatticeError, NotFound, Retry, Stale, UnknownOutcome

_WEBHOOK = re.compile(r"^.*?denied (?:the )?request: ", re.DOTALL)
_VERB = re.compile(r"^(?:get|list|watch|create|replace|patch|delete) [a-z]+(?:\.[a-z0-9.]+)?(?:/[a-z]+)?(?: [^ :]+)?: ")
_NUMBERS = re.compile(r" ?\((current: [^()]*)\)", re.IGNORECASE)
_HINT = re.compile(r"[.;]? Hint: (.*)$", re.DOTALL)
_INVALID = re.compile(r'^[A-Z][A-Za-z]*\.[a-z.]+ "[^"]*" is invalid: ')
_HINTS: tuple[tuple[type[LatticeError], str, str], ...] = (
    (
        Retry,
        "NoConnection",
        "is the cluster up? `kubectl cluster-info` shows where it should be; --kubeconfig and --context choose another",
    ),
    (Retry, "", "nothing happened; try again in a moment"),
    (
        UnknownOutcome,
        "",
        "it may or may not have happened: look with `lattice status` before repeating it; --request-id makes repeating safe",
    ),
    (Denied, "Unauthorized", "your credentials are not accepted: renew them, or choose others with --context"),
    (Stale, "", "somebody else changed it at the same moment; try again"),
    (NotFound, "KubeconfigNotFound", "name the cluster with --kubeconfig FILE or the variable KUBECONFIG"),
)


def explain(error: LatticeError) -> list[str]:
    """The lines for standard error."""
    text, hint = _VERB.sub("", error.message, count=1), ""
    text = _INVALID.sub("", _WEBHOOK.sub("", text, count=1))
    found = _HINT.search(text)
    if found is not None:
        text, hint = text[: found.start()], found[1]
    numbers = _NUMBERS.search(text)
    if numbers is not None:
        text = text[: numbers.start()] + text[numbers.end() :]
    lines = [f"Error: {text.strip() or error.reason}"]
    if numbers is not None:
        lines += [f"  {part.strip()[:1].upper()}{part.strip()[1:]}" for part in numbers[1].split(",")]
    hint = hint or _hint(error)
    if hint:
        lines.append(f"  Hint: {hint[:1].upper()}{hint[1:]}")
    return lines


def _hint(error: LatticeError) -> str:
    for kind, reason, hint in _HINTS:
        if isinstance(error, kind) and reason in ("", error.reason):
            return hint
    return ""
