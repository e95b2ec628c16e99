"""Makes the lines in which people read an error: `Error:`, the numbers, and what to do next (book, "CLI Design")."""

from __future__ import annotations

import re

from lattice.errors import Denied, LatticeError, NotFound, Retry, Stale, UnknownOutcome

_WEBHOOK = re.compile(r"^.*?denied (?:the )?request: ", re.DOTALL)
_NAMED = re.compile(r'^[A-Z][A-Za-z]+ "[^"]*": ')
"""The prefix of the webhook's sentences with kind and name of the object, for people who apply many."""
_VERB = re.compile(r"^(?:get|list|watch|create|replace|patch|delete) [a-z]+(?:\.[a-z0-9.]+)?(?:/[a-z]+)?(?: [^ :]+)?: ")
_NUMBERS = re.compile(r" ?\((current: [^()]*)\)", re.IGNORECASE)
_HINT = re.compile(r"[.;]? Hint: (.*)$", re.DOTALL)
_INVALID = re.compile(r'^[A-Z][A-Za-z]*\.[a-z.]+ "[^"]*" is invalid: ')
_UNCHECKED = re.compile(r"(?:, )?<nil>: Invalid value: null: some validation rules were not checked because [^,\]]*")
"""Text that the schema adds where its rules were not run, because a type or a length was wrong before."""
_SENTENCE = re.compile(
    r'(?:^|(?<=[\[,] ))spec(?:\.[A-Za-z.]+)?: Invalid value: (?:"[^"]*": |[a-z0-9]+: )?(?=spec\.|of spec\.|give )(?!spec\S* in body )'
)
"""The prefix of our own sentences, which name field and value themselves; the schema's own (`… in body …`) do not name the value."""
_PATTERN = re.compile(
    r"(\S+): Invalid value: (\"(?:[^\"\\]|\\.)*\"): \S+ in body (?:should match '([^']*)'|must be of type date-time: \"(?:[^\"\\]|\\.)*\")"
)
"""The schema's refusal of a text by its pattern or as a time, which helps nobody: the field, the value, the pattern (none of a time)."""
_OF_A_NAME = re.compile(
    r"metadata\.name: Invalid value: (\"[^\"]*\"): a lowercase RFC 1123 (?:subdomain|label) must.*? used for validation is '[^']*'\)"
)
_NOT_MINE = re.compile(r'cannot [a-z]+ resource "[a-z/]+" in API group "lattice\.dev" in the namespace "([^"]*)"')
_TENANT = re.compile(r'tenant "([0-9][0-9:-]*)" not found')
_SLIP = re.compile(r"([0-9][0-9:-]*)")
"""A tenant or namespace of such a name is likely a time or a number of tasks, passed as to `sbatch`."""
_HINTS: tuple[tuple[type[LatticeError], str, str], ...] = (
    (
        Retry,
        "NoConnection",
        "is the cluster up? `kubectl cluster-info` shows where it should be; --kubeconfig and --context choose another",
    ),
    (Retry, "StorageFull", "nothing happened: etcd is full until an administrator compacts it, or raises its quota, and clears its alarm"),
    (Retry, "", "nothing happened; try again in a moment"),
    (
        UnknownOutcome,
        "",
        "it may or may not have happened: look with `lattice status` before repeating it; --request-id makes repeating safe",
    ),
    (Denied, "Unauthorized", "your credentials are not accepted: renew them, or choose others with --context"),
    (
        Denied,
        "ServerNotTrusted",
        "the kubeconfig names the authority of another cluster, or the server's certificate has expired: fetch the kubeconfig anew",
    ),
    (Stale, "", "somebody else changed it at the same moment; try again"),
    (NotFound, "KubeconfigNotFound", "name the cluster with --kubeconfig FILE or the variable KUBECONFIG"),
)


def explain(error: LatticeError) -> list[str]:
    """Returns an error's lines for standard error: `Error:` and the sentence (the reason where it is empty), its numbers, and a hint where
    there is one; parts that are for programs are left out.
    """
    text, hint = _VERB.sub("", error.message, count=1), ""
    if _WEBHOOK.match(text):
        text = _NAMED.sub("", _WEBHOOK.sub("", text, count=1), count=1)
    invalid = _INVALID.match(text)
    text = _in_words(_readable(_INVALID.sub("", text)), invalid[0].partition(".")[0] if invalid else "")
    if error.reason == "ParameterInvalid":
        text = text.replace("the parameter ", "--", 1)
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
        lines.append(f"  Hint: {hint if hint.startswith('lattice ') else hint[:1].upper() + hint[1:]}")
    return lines


def _readable(text: str) -> str:
    """Returns the schema's findings without the parts that are for programs."""
    text = _SENTENCE.sub("", _UNCHECKED.sub("", text))
    text = _OF_A_NAME.sub(r"\1 cannot be a name: write lowercase letters, digits, '-' or '.', with a letter or digit at both ends", text)
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _in_words(text: str, kind: str) -> str:
    """Returns a text about an object of this kind, with each refusal by a pattern of one of our forms in the words of that form, and the
    first one's next step at the end; refusals by other patterns stay.
    """
    if " in body " not in text:
        return text
    from lattice.models.forms import FORMS, form_of

    hints: list[str] = []

    def say(found: re.Match[str]) -> str:
        """Returns the sentence for one refusal, and keeps its next step."""
        form = form_of(found[3]) if found[3] else FORMS["time"]
        if form is None:
            return found[0]
        hints.append(form.what_next(kind, found[1]))
        return form.refusal(found[1], _unquoted(found[2]))

    said = _PATTERN.sub(say, text)
    return f"{said}. Hint: {hints[0]}" if hints and _HINT.search(said) is None else said


def _unquoted(quoted: str) -> str:
    """Returns the text that the API server has put in quotes; the quoted text where it does not read."""
    import ast

    try:
        return str(ast.literal_eval(quoted))
    except (ValueError, SyntaxError):
        return quoted


def _hint(error: LatticeError) -> str:
    """Returns what to do about an error; empty where nothing is known. A namespace that reads like a mistyped flag is explained as that."""
    not_mine = _NOT_MINE.search(error.message)
    slip = _TENANT.search(error.message) or (not_mine and _SLIP.fullmatch(not_mine[1]))
    if slip:
        return f"-n is the namespace and -t the tenant: a number of tasks is --ntasks, a time --walltime (given: {slip[1]})"
    if not_mine is not None:
        return f'there is no tenant of namespace "{not_mine[1]}", or you are no member: leave -t and -n out for your own, or ask its admin'
    for kind, reason, hint in _HINTS:
        if isinstance(error, kind) and reason in ("", error.reason):
            return hint
    return ""
