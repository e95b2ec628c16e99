"""`srun` in work, through the running daemons: its tasks, their streams and exit codes, on one node and on all of the allocation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.people import Person
from tests.e2e.waiting import until
from tests.e2e.work import Gate, processes_of

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]


def ran(me: Person, control_plane: Instance, script: str, *words: str, code: int = 0) -> str:
    """Submits a script, waits for its end with this exit code, and returns what it has written."""
    home = control_plane.where.user_home("alice")
    file = home / f"launch-{os.urandom(4).hex()}"
    text = f"#!/bin/bash\nexec > {file}.out 2>&1\n{script}\n"
    done = me.lattice("submit", "--wait", "-q", *words, "-", stdin=text, ok=False)
    written = Path(f"{file}.out")
    said = written.read_text() if written.exists() else ""
    written.unlink(missing_ok=True)
    assert done.returncode == code, f"{done.returncode}: {done.stderr}\n{said}"
    return said


# one node


def test_srun_runs_a_program_with_its_output_and_exit_code(me: Person, control_plane: Instance) -> None:
    said = ran(me, control_plane, "srun hostname; srun true; echo $?; srun sh -c 'exit 7'; echo $?; srun sh -c 'kill -9 $$'; echo $?")
    lines = [line for line in said.splitlines() if not line.startswith("srun: ")]
    assert lines[0] in control_plane.site().nodes
    assert lines[1:] == ["0", "7", "137"], said
    assert "task 0: Exited with exit code 7" in said
    assert "task 0: Killed" in said


def test_every_rank_runs_once_with_its_numbers_and_labels(me: Person, control_plane: Instance) -> None:
    said = ran(me, control_plane, "srun -n 4 -O -l sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS in $LATTICE_LAUNCH_ID'")
    number = said.split()[-1].partition(".")[0]
    assert sorted(said.splitlines()) == [f"{rank}: {rank} of 4 in {number}.0" for rank in range(4)]


def test_input_files_and_redirections_work_as_with_slurm(me: Person, control_plane: Instance) -> None:
    home = control_plane.where.user_home("alice")
    script = f"""
cd {home}
seq 20000 > launch-in
srun cat < launch-in | cmp - launch-in && echo piped
cat launch-in | srun wc -l
srun -o launch-out-%s-%t sh -c 'echo own' && cat launch-out-*-0
srun -o launch-shared sh -c 'echo shared' && cat launch-shared
srun -i launch-in wc -l
srun -i none cat && echo nothing
rm -f launch-in launch-out-* launch-shared
"""
    assert ran(me, control_plane, script).split() == ["piped", "20000", "own", "shared", "20000", "nothing"]


def test_launches_beside_each_other_and_two_hundred_of_them_lose_nothing(me: Person, control_plane: Instance) -> None:
    script = """
srun sh -c 'sleep 1; echo first' & srun sh -c 'sleep 1; echo second' & wait
seq 200 | xargs -P 8 -I{} srun --overlap sh -c 'echo launch {}'
"""
    said = ran(me, control_plane, script).splitlines()
    assert sorted(said[:2]) == ["first", "second"]
    assert sorted(said[2:]) == sorted(f"launch {number}" for number in range(1, 201))


def test_what_cannot_run_is_refused_with_a_sentence(me: Person, control_plane: Instance) -> None:
    said = ran(
        me, control_plane, "srun -n 1000 true; echo $?; srun /nothing/there; echo $?; srun --pty bash; echo $?; srun -w other true; echo $?"
    )
    assert [line for line in said.splitlines() if line.isdigit() and line != "0"] != []
    assert "1000 tasks" in said
    assert "/nothing/there" in said
    assert "--nodelist=other" in said


def test_an_ended_script_takes_its_launches_along(me: Person, control_plane: Instance) -> None:
    begun = "begun=$HOME/launch-begun; rm -f $begun"
    ran(me, control_plane, f'{begun}; srun sh -c "touch $begun; exec sleep 4311" & until [ -e $begun ]; do sleep 0.1; done; rm $begun')
    until(lambda: not processes_of(control_plane, "sleep 4311"), within=20, what="the end of the rank")


ATTACK = """
import os, select, socket, struct, time
field = lambda tag, value: struct.pack(">BI", tag, len(value)) + value
frame = lambda kind, payload: struct.pack(">IB", len(payload), kind) + payload
def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["LATTICE_BIN"] + "/../socket")
    connection.settimeout(600)
    return connection
for garbage in (b"GET / HTTP/1.0", struct.pack(">IB", 1 << 31, 1), frame(1, b"x" * 50), frame(99, b""), os.urandom(4096)):
    connect().sendall(garbage)
held, refused = [], 0
for number in range(12):
    words = b"".join(field(2, word) for word in (b"srun", b"--exact", b"-n1", b"true"))
    request = field(1, os.urandom(16)) + words + field(3, b"X=" + bytes(7 << 20).replace(b"\\0", b"y"))
    connection = connect()
    connection.sendall(frame(1, request))
    held.append(connection)
hang = time.monotonic() + 600
while refused < 3 and time.monotonic() < hang:
    for connection in select.select(held, [], [], 1)[0]:
        refused += b"MiB of arguments" in connection.recv(4096)
        held.remove(connection)
print("refused", refused)
"""


def test_a_script_that_attacks_the_socket_takes_little_of_its_node(me: Person, control_plane: Instance, gate: Gate) -> None:
    """Its first launch has every CPU until the attack is over, so that those of the attack wait."""
    busy = f"srun --exact -n $(nproc) sh -c 'touch {gate.path}.busy; {gate.wait}' &\nuntil [ -e {gate.path}.busy ]; do sleep 0.1; done"
    script = f"{busy}\npython3 - <<'PY'\n{ATTACK}\nPY\ntouch {gate.path}\nwait\nrm {gate.path}.busy\nsrun echo served"
    said = ran(me, control_plane, script).splitlines()
    assert said[-1] == "served", said
    assert next(int(line.split()[1]) for line in said if line.startswith("refused")) >= 3, said


# several nodes


def test_ranks_stand_on_all_nodes_of_the_allocation(me: Person, control_plane: Instance) -> None:
    script = "srun hostname | sort; srun -N 1 -n 1 hostname; srun -n 4 -O -l -m cyclic sh -c 'echo $SLURM_NODEID'"
    said = ran(me, control_plane, script, "--nodes=2").splitlines()
    assert len(set(said[:2])) == 2
    assert said[2] == said[0] or said[2] in said[:2]
    assert sorted(said[3:]) == ["0: 0", "1: 1", "2: 0", "3: 1"]


def test_exit_codes_and_kills_cross_nodes(me: Person, control_plane: Instance) -> None:
    script = """
srun -N 2 -n 2 sh -c 'exit $((SLURM_PROCID * 3))'; echo $?
srun -N 2 -n 2 -K sh -c 'test $SLURM_PROCID = 0 && exit 5; sleep 4312'; echo $?
timeout -s TERM 3 srun -N 2 -n 2 sleep 4313; echo $?
"""
    said = ran(me, control_plane, script, "--nodes=2")
    codes = [line for line in said.splitlines() if line.isdigit()]
    assert codes[0] == "3", said
    assert codes[1] in ("5", "143", "137"), said
    until(lambda: not processes_of(control_plane, "sleep 431"), within=20, what="the end of the ranks")


def test_srun_within_a_task_is_served_on_every_node_by_the_one_that_heads_the_allocation(me: Person, control_plane: Instance) -> None:
    said = ran(me, control_plane, "srun -N 2 -n 2 sh -c 'srun --overlap -N 1 -n 1 sh -c \"exit 9\"; echo got $?'", "--nodes=2")
    assert [line for line in said.splitlines() if line.startswith("got")] == ["got 9", "got 9"], said


def test_a_killed_agent_loses_and_doubles_no_byte(me: Person, control_plane: Instance) -> None:
    counting = "for i in $(seq 300); do echo $SLURM_PROCID $i; sleep 0.02; done"
    script = f"""
srun -N 2 -n 2 sh -c '{counting}' > $HOME/launch-count; echo code $?
"""
    home = control_plane.where.user_home("alice")
    number = me.lattice("submit", "--parsable", "--nodes=2", "-", stdin=f"#!/bin/bash\n{script}").stdout.strip()
    file = home / "launch-count"
    until(lambda: file.exists() and file.stat().st_size > 200, within=60, what="output of the launch")
    for node in control_plane.site().nodes:
        control_plane.kill(f"agent-{node}")
        control_plane.start(f"agent-{node}", wait=False)
    assert me.lattice("wait", number, ok=False).returncode == 0
    lines = file.read_text().splitlines()
    file.unlink()
    assert sorted(lines) == sorted(f"{rank} {count}" for rank in range(2) for count in range(1, 301))


def test_names_of_nodes_are_listed_and_resolve_as_scripts_ask_for_them(me: Person, control_plane: Instance) -> None:
    script = """
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun -N 2 -n 2 -l sh -c 'getent hosts $MASTER_ADDR > /dev/null && echo $MASTER_ADDR $(scontrol show hostnames | wc -l)'
srun -n 1 --cpu-bind=verbose,cores true
"""
    said = ran(me, control_plane, script, "--nodes=2").splitlines()
    head = said[0].split()[1]
    assert head in control_plane.site().nodes
    assert sorted(said[:2]) == [f"0: {head} 2", f"1: {head} 2"]
    assert said[2].startswith(f"cpu-bind_cores=MASK - {head}, task  0  0: mask 0x"), said
