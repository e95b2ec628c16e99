"""The client `srun`, built with the address and undefined behaviour sanitizers, against an agent that breaks every rule."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.srun.agent import (
    FINISHED,
    OPEN,
    PATIENCE,
    READ,
    REFUSED,
    SAY,
    TIMES,
    Agent,
    accepted,
    ended,
    finished,
    frame,
    output,
    room,
)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
SOURCE = Path(__file__).parents[3] / "srun/srun.c"
CLIENTS = int(os.environ.get("LATTICE_FUZZ_CLIENTS", "25"))
CAUGHT = 99
"""The exit code of a client in which a sanitizer has caught something."""
WATCHED = {
    "ASAN_OPTIONS": f"exitcode={CAUGHT}:detect_leaks=0:abort_on_error=0",
    "UBSAN_OPTIONS": f"exitcode={CAUGHT}:halt_on_error=1:print_stacktrace=1",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """srun with both sanitizers."""
    made = tmp_path_factory.mktemp("sanitized") / "srun"
    flags = ["-g", "-O1", "-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *TIMES]
    subprocess.run(["cc", *flags, "-o", str(made), str(SOURCE)], check=True)
    return made


@pytest.fixture
def agent(tmp_path: Path, program: Path) -> Iterator[Agent]:
    with Agent(tmp_path, program) as there:
        yield there


def sent(dice: random.Random, folder: Path) -> bytes:
    """Some frames, right or changed."""
    right = (
        accepted(dice.randrange(4)), accepted(2, flags=b"\2"), output(dice.randrange(4), b"x" * dice.choice((0, 1, 5000)), node=dice.randrange(3)),
        ended(dice.randrange(5), node=dice.randrange(3), code=dice.randrange(256), signal=dice.randrange(256)), room(dice.randrange(1 << 20)),
        room((1 << 64) - 1), frame(SAY, b"srun: a line\n"), frame(OPEN, bytes((dice.randrange(4), dice.randrange(3))) + os.fsencode(folder / "file")),
        frame(READ, b"/etc/hostname"), frame(READ, os.fsencode(folder)), frame(dice.randrange(256), dice.randbytes(dice.choice((0, 1, 8, 16, 300)))),
        frame(REFUSED, b"\1why"), finished(3), struct.pack(">IB", dice.choice((1 << 24, (1 << 24) + 1, (1 << 32) - 1)), dice.randrange(256)),
        frame(FINISHED),
    )  # fmt: skip
    data = bytearray(b"".join(dice.choice(right) for _ in range(dice.randrange(1, 12))))
    for _ in range(dice.choice((0, 0, 1, 3))):
        if data:
            data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


def test_a_hostile_agent_finds_no_flaw_in_its_memory(agent: Agent, tmp_path: Path) -> None:
    for seed in range(CLIENTS):
        dice = random.Random(seed)
        agent.listen_anew()
        client = agent.start("-n", "2", "x", stdin=subprocess.PIPE, environ=WATCHED)
        assert client.stdin is not None
        with contextlib.suppress(OSError):
            client.stdin.write(b"input\n" * dice.randrange(100))
            client.stdin.flush()
        for _ in range(5):
            if not agent.is_called(client):
                break
            call = agent.accept()
            data = sent(dice, tmp_path)
            cut = dice.randrange(len(data) + 1)
            with contextlib.suppress(OSError):
                call.send(data[:cut])
                call.send(data[cut:])
            call.close()
        if client.poll() is None:
            client.kill()
        _, said = client.communicate(timeout=PATIENCE)
        assert client.returncode != CAUGHT, f"seed {seed}:\n{said.decode(errors='replace')}"
        assert b"Sanitizer" not in said, f"seed {seed}:\n{said.decode(errors='replace')}"
        assert b"runtime error" not in said, f"seed {seed}:\n{said.decode(errors='replace')}"
