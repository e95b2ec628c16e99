"""Formats logs as one key–value line a decision, the same for our loggers and for those of libraries; JSON by a flag."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

_FIELDS = "lattice_fields"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+,%[]#")
_NOISY = ("asyncio", "aiohttp.access", "kopf.objects", "urllib3", "kubernetes")


class TextFormatter(logging.Formatter):
    """Formats a record as `TIME LEVEL LOGGER Message key=value …`; values with blanks are quoted."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record, followed by the traceback where there is one."""
        fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in fields.items())
        line = f"{_stamp(record)} {record.levelname} {record.name} {record.getMessage()}{pairs}"
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object a line: time, level, logger, then `event` and its fields, or the `message` of a library."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record, with the traceback as a field where there is one."""
        entry: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, _FIELDS, None)
        if fields is not None:  # a field may be called message as well
            entry["event"] = entry.pop("message")
            entry.update(fields)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def setup(format: str = "text", level: str = "info", *, stream: TextIO | None = None) -> None:  # noqa: A002 - the flag's name
    """Sends every log line of the process to `stream` (None: stderr) in one format (`json`, else text) from this level on; a second call
    replaces the first.

    Loggers of some libraries stay silent below warnings.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def event(
    logger: logging.Logger, message: str, /, level: int = logging.INFO, *, error: BaseException | None = None, **fields: object
) -> None:
    """Logs one decision: a message and its key–values (allocation, tenant, vcluster, node, reason, cycle, …)."""
    if logger.isEnabledFor(level):
        logger.log(level, message, extra={_FIELDS: fields}, exc_info=error)


def _stamp(record: logging.LogRecord) -> str:
    """Returns the time of a record in UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    """Returns a value as text, as JSON where it is empty or has other than plain characters."""
    text = str(value)
    if text and _PLAIN.issuperset(text):
        return text
    return json.dumps(text, ensure_ascii=False)
