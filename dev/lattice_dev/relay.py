"""Carries bytes from the bridge to the apiserver on loopback, so that nodes reach it and the network outside does not.

    relay.py --listen 10.213.0.1:21003 --to 127.0.0.1:21003

TLS passes through unread: the apiserver's certificate names both addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

CHUNK = 256 * 1024


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.close()  # the other side is gone: end this one too


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Connects one accepted connection to `host:port` and carries bytes both ways until both have ended.

    Resets the accepted connection where no other can be made in 5 s.
    """
    try:
        to_reader, to_writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout=5)
    except (OSError, TimeoutError):
        writer.transport.abort()
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(reader, to_writer))
            both.create_task(_pump(to_reader, writer))
    finally:
        for end in (writer, to_writer):
            end.close()
            with contextlib.suppress(OSError):
                await end.wait_closed()


async def serve(listen: tuple[str, int], to: tuple[str, int]) -> None:
    """Accepts connections on `listen` and carries each to `to`, until cancelled."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await carry(reader, writer, *to)

    server = await asyncio.start_server(accept, *listen, backlog=4096)
    async with server:
        await server.serve_forever()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(argv: list[str]) -> None:
    """Reads the two addresses from the arguments and serves until interrupted."""
    parser = argparse.ArgumentParser(prog="relay.py")
    parser.add_argument("--listen", type=_address, required=True)
    parser.add_argument("--to", type=_address, required=True)
    options = parser.parse_args(argv)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.listen, options.to))


if __name__ == "__main__":
    main(sys.argv[1:])
