"""Reads the JSON of a request's body as a document of a type, with a limit of its size."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web

from lattice.errors import Rejected

_T = TypeVar("_T")


async def read_order(request: web.Request, kind: type[_T], what: str, *, most_bytes: int) -> _T:
    """Returns the order in a request's body, whose type is `kind`; `what` is what it should be, in words.

    Raises Rejected (ParameterInvalid) where it is larger than `most_bytes`, or does not read.
    """
    body = await request.content.read(most_bytes + 1)
    while len(body) <= most_bytes and (more := await request.content.read(most_bytes + 1)):
        body += more  # a body comes in several pieces
    if len(body) > most_bytes:
        raise Rejected(f"an order of more than {most_bytes} bytes is not read", reason="ParameterInvalid")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Rejected(f"the body is no {what}: {error}", reason="ParameterInvalid") from error
