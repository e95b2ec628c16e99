"""Every verb for people against the running system, as alice: what it does, what it prints, its exit code."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lattice_dev.instance import Instance
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import Seen, until
from tests.e2e.work import processes_with


def submitted(me: Person, *words: str, cwd: Path | None = None) -> str:
    """The number of what was submitted."""
    return me.lattice("submit", "--parsable", *words, cwd=cwd).stdout.strip()


def started(me: Person, *words: str) -> subprocess.Popen[str]:
    """lattice as a program that goes on, and hears SIGINT though this run may have been started with it ignored."""
    argv = ["env", "--default-signal=INT", str(Path(sys.executable).with_name("lattice")), *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=me.environment(), cwd=me.home)


def heard(running: subprocess.Popen[str], words: str) -> str:
    """What a program has written to its errors up to the line that has these words; all of it, where none has."""
    assert running.stderr is not None
    lines = []
    for line in running.stderr:
        lines.append(line)
        if words in line:
            break
    return "".join(lines)


def ended(running: subprocess.Popen[str]) -> tuple[str, str]:
    """What else a program writes until its end; little enough for its pipes."""
    assert running.stdout is not None
    assert running.stderr is not None
    out, err = running.stdout.read(), running.stderr.read()
    running.wait()
    return out, err


def held(me: Person, count: int, job: str) -> None:
    """So many held allocations with this job name, by one kubectl."""
    spec = {"entrypoint": "true", "hold": True, "lifecycle": {"walltime": "5m"}, "tags": {"name": job}}
    documents = [
        {
            "apiVersion": "lattice.dev/v1alpha1",
            "kind": "Allocation",
            "metadata": {"name": f"{job}-{at}", "namespace": me.namespace},
            "spec": spec,
        }
        for at in range(count)
    ]
    me.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(documents))


# submit


def test_submit_wait_exits_with_the_code_of_the_work(me: Person, tmp_path: Path) -> None:
    assert me.lattice("submit", "--wait", "--", "sh", "-c", "exit 3", ok=False).returncode == 3
    done = me.lattice("submit", "--watch", "--name=watched", "--", "true")
    assert done.stdout.startswith("Submitted allocation ")
    assert [line.split()[1] for line in done.stderr.splitlines() if line[:1].isdigit()][-1] == "Completed"
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#LATTICE --name=from-script\nkill -USR1 $$\n")
    assert me.lattice("submit", "--wait", "-q", str(script), ok=False).returncode == 128 + 10
    piped = me.lattice("submit", "--wait", "--parsable", "-", stdin="#!/bin/sh\nexit 4\n", ok=False)
    assert (piped.returncode, piped.stdout.strip().isdigit()) == (4, True)
    jobs = {item["spec"]["tags"]["name"] for item in json.loads(me.lattice("status", "-o", "json").stdout)["items"]}
    assert jobs == {"sh", "watched", "from-script", "stdin"}


def test_submit_takes_manifests_of_both_forms_and_shows_what_they_become(me: Person, tmp_path: Path) -> None:
    book = tmp_path / "book.yaml"
    book.write_text('allocation:\n  entrypoint: "true"\n  resources: {nodes: {min: 1, max: 2}}\n  lifecycle: {walltime: "00:05:00"}\n')
    shown = yaml.safe_load(me.lattice("submit", "-f", str(book), "--dry-run=client", "-o", "yaml").stdout)
    assert (shown["kind"], shown["spec"]["resources"]["nodes"], shown["spec"]["lifecycle"]["walltime"]) == ("Allocation", "1-2", "5m")
    served = yaml.safe_load(me.lattice("submit", "-f", str(book), "--dry-run=server", "-o", "yaml").stdout)
    assert (served["spec"]["user"], served["spec"]["tenant"], served["spec"]["vcluster"]) == ("alice", me.namespace, "hpc-batch")
    assert me.lattice("status", "--all", "-o", "name").stdout == ""
    ours = tmp_path / "ours.yaml"
    ours.write_text("apiVersion: lattice.dev/v1alpha1\nkind: Allocation\nmetadata: {name: mine}\nspec: {entrypoint: 'true'}\n")
    assert me.lattice("submit", "-f", str(ours), "--hold", "-o", "name").stdout == "allocation.lattice.dev/mine\n"
    assert me.get("mine")["spec"]["lifecycle"]["walltime"] == "1h"
    assert me.lattice("submit", "-f", str(ours), ok=False).returncode == 1


def test_a_dry_run_of_the_client_needs_no_cluster(me: Person, tmp_path: Path) -> None:
    me.environ["KUBECONFIG"] = str(tmp_path / "none")
    done = me.lattice("submit", "--dry-run=client", "--nodes=2", "--walltime=90", "--", "echo", "a b")
    spec = yaml.safe_load(done.stdout)["spec"]
    assert (spec["entrypoint"], spec["resources"]["nodes"], spec["lifecycle"]["walltime"]) == ("echo 'a b'", 2, "1h30m")
    assert me.lattice("status", ok=False).returncode == 2


def test_what_was_asked_for_reaches_the_work(me: Person, control_plane: Instance) -> None:
    home = control_plane.where.user_home("alice")
    words = "--export=COLOUR=blue", f"--chdir={home}", "--name=two words", "--tag=run=42", "--stdout=out-%j.txt", "--open-mode=append"
    number = submitted(me, "--wait", "-q", *words, "--", "sh", "-c", "echo $COLOUR $LATTICE_JOB_NAME; pwd")
    written = home / f"out-{number}.txt"
    assert written.read_text().splitlines() == ["blue two words", str(home)]
    written.unlink()
    tags = json.loads(me.lattice("status", number, "-o", "json").stdout)["spec"]["tags"]
    assert tags == {"name": "two words", "run": "42"}


# wait


def test_wait_has_the_documented_exit_codes(me: Person) -> None:
    seven, also, zero = (submitted(me, "--", "sh", "-c", f"exit {code}") for code in (7, 7, 0))
    assert me.lattice("wait", seven, ok=False).returncode == 7
    assert me.lattice("wait", seven, also, ok=False).returncode == 7
    assert me.lattice("wait", seven, zero, ok=False).returncode == 7, "some of several failed"
    assert me.lattice("wait", zero).returncode == 0
    long = submitted(me, "--", "sleep", "4244.1")
    assert me.lattice("wait", long, "--for=started").returncode == 0
    late = me.lattice("wait", long, "--timeout=1s", ok=False)
    assert (late.returncode, "has not finished within 1s" in late.stderr) == (3, True)
    me.lattice("cancel", long)
    ended = me.lattice("wait", long, ok=False)
    assert ended.returncode == 125
    assert "Cancelled" in ended.stderr
    assert me.lattice("wait", "nothing", ok=False).returncode == 4


def test_an_interrupted_wait_lets_the_work_go_on_and_a_watched_status_ends(me: Person) -> None:
    with started(me, "submit", "--watch", "--", "sleep", "4244.4") as waiting:
        err = heard(waiting, "Running")
        waiting.send_signal(signal.SIGINT)
        out, rest = ended(waiting)
        err += rest
    assert (waiting.returncode, "Detached: allocation" in err) == (130, True), err
    number = out.split()[-1]
    with started(me, "status", "--watch") as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline(), watching.stdout.readline()]
        watching.send_signal(signal.SIGINT)
        ended(watching)
    assert (watching.returncode, lines[1].split()[0], "Running" in lines[1]) == (0, number, True)
    assert me.lattice("status", "-A", ok=False).returncode == 5


# status, why


def test_status_shows_what_runs_where_and_why_the_rest_waits(me: Person, control_plane: Instance) -> None:
    runs = submitted(me, "--name=long", "--nodes=2", "--", "sleep", "4244.2")
    waits = submitted(me, "--nodes=400", "--", "true")
    done = submitted(me, "--wait", "-q", "--", "true")
    until(lambda: "NeverFits" in me.lattice("why", waits).stdout, within=10)
    me.lattice("wait", runs, "--for=started")
    lines = {line.split()[0]: line for line in me.lattice("status").stdout.splitlines()}
    assert "NODELIST(REASON)" in lines["ID"]
    assert "Running" in lines[runs]
    assert lines[runs].split()[-1].startswith("nid")
    assert lines[waits].endswith("(NeverFits)")
    assert "Completed" in lines[done]
    assert "USER" not in lines["ID"]
    wide = me.lattice("status", "-o", "wide").stdout
    assert all(word in wide for word in ("JOB", "TENANT", "ATTEMPT", "CLASS", "MESSAGE", "needs 400 nodes"))
    assert me.lattice("status", "--state=running,pending", "-o", "name").stdout.count("\n") == 2
    assert me.lattice("status", "--state=completed", "-o", "name").stdout.count("\n") == 1
    assert me.lattice("status", "--since=1s", "--state=failed", "-o", "name").stdout == ""
    assert me.lattice("status", "--vcluster=other", "-o", "name").stdout == ""
    assert json.loads(me.lattice("status", "-o", "json").stdout)["kind"] == "AllocationList"
    assert yaml.safe_load(me.lattice("status", runs, "-o", "yaml").stdout)["status"]["number"] == int(runs)
    bob = person(control_plane, "bob", me.namespace)
    assert bob.lattice("status", "-o", "name").stdout == ""
    assert "alice" in bob.lattice("status", "--all").stdout
    assert bob.lattice("status", "--user=alice", "-o", "name").stdout.count("\n") == 3
    details = me.lattice("status", runs).stdout
    assert all(word in details for word in ("Job name:", "long", "Running since", "nid", "Walltime:", "left"))


def test_an_allocation_is_named_by_name_number_uid_prefix_or_namespace_and_name(me: Person) -> None:
    number = submitted(me, "--hold", "--", "true")
    found = json.loads(me.lattice("status", number, "-o", "json").stdout)
    name, uid = found["metadata"]["name"], found["metadata"]["uid"]
    for reference in (name, uid, uid[:8], f"{me.namespace}/{name}"):
        assert me.lattice("status", reference, "-o", "name").stdout == f"allocation.lattice.dev/{name}\n"
    missing = me.lattice("status", "99999", name, ok=False)
    assert (missing.returncode, name in missing.stdout, "99999" in missing.stderr) == (7, True, True)
    assert me.lattice("status", "99999", ok=False).returncode == 4


def test_why_says_reason_since_when_and_the_next_step(me: Person) -> None:
    number = submitted(me, "--hold", "--", "true")
    until(lambda: "Held" in me.lattice("why", number).stdout, within=10)
    said = me.lattice("why", number).stdout
    assert all(word in said for word in (f"Allocation {number}", "is Pending since", f"Next: `lattice release {number}`"))
    answer = json.loads(me.lattice("why", number, "-o", "json").stdout)
    assert (answer["reason"], answer["allocation"]["number"]) == ("Held", int(number))


# cancel, hold, release, update


def test_cancel_takes_several_by_name_state_or_all_of_mine_and_asks_above_ten(me: Person, control_plane: Instance) -> None:
    held(me, 11, "many")
    refused = me.lattice("cancel", "--all-mine", ok=False)
    assert (refused.returncode, "Cancel 11 allocations?" in refused.stderr, "--yes" in refused.stderr) == (2, True, True)
    assert me.lattice("cancel", "many-0", "many-1").stdout.count("Cancelled allocation") == 2
    bob = person(control_plane, "bob", me.namespace)
    assert "Nothing to cancel" in bob.lattice("cancel", "--all-mine").stderr
    assert bob.lattice("cancel", "many-2", ok=False).returncode != 0
    until(lambda: me.lattice("status", "--state=cancelled", "-o", "name").stdout.count("\n") == 2, within=15)
    assert "Nothing to cancel" in me.lattice("cancel", "--name=other").stderr
    assert "Nothing to cancel" in me.lattice("cancel", "--state=running").stderr
    assert me.lattice("cancel", "--name=many", "--yes", "--reason=enough").stdout.count("Cancelled allocation") == 9
    until(lambda: me.lattice("status", "--state=pending", "-o", "name").stdout == "", within=20)
    shown = me.get("many-5")
    assert (shown["spec"]["cancel"]["reason"], reason(shown["status"])) == ("enough", "Cancelled")


def test_work_that_ignores_term_is_seen_to_end_and_when_kill_follows_deleted_or_past_its_walltime_until_it_has_ended(
    me: Person, control_plane: Instance
) -> None:
    """KILL would follow after a quarter of an hour: the test ends the work itself."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(4244.5)"
    for name in ("deleted", "outran"):
        me.apply(name, entrypoint=f'python3 -c "{stubborn}"', lifecycle={"gracePeriod": "15m"})
        until(lambda name=name: "up" in me.lattice("logs", name, ok=False).stdout, within=20)  # type: ignore[misc]
    me.lattice("update", "outran", "--walltime=1s")
    me.kubectl("delete", "alloc", "deleted", "-n", me.namespace, "--wait=false")
    assert "Requested" in (said := me.lattice("status", "deleted").stdout) or "Ending" in said, said
    for name in ("deleted", "outran"):
        assert ending(me, name) == ["Ending"]
    shown = me.kubectl("get", "alloc", "-n", me.namespace).stdout
    assert [line.split()[0] for line in shown.splitlines() if "Ending" in line] == ["deleted", "outran"], shown
    assert me.lattice("status").stdout.count("(Ending, KILL in ") == 2
    assert "Ending: deleted; TERM was sent at 20" in me.lattice("why", "deleted").stdout
    assert "Ending: its walltime of 1s is over; TERM was sent at 20" in me.lattice("why", "outran").stdout
    for pid in processes_with(control_plane, "time.sleep(4244.5)"):
        os.kill(pid, signal.SIGKILL)
    assert reason(me.ended("outran")) == "WalltimeExceeded"

    def clean(status: dict[str, Any]) -> bool:
        return "killTime" not in status and "Ending" not in {entry["type"] for entry in status["conditions"]}

    until(Seen(lambda: me.get("outran")["status"], clean), within=15, every=0.2, what="no time of KILL")
    until(lambda: me.kubectl("get", "alloc", "deleted", "-n", me.namespace, ok=False).returncode, within=30, what="its end")


def ending(me: Person, name: str) -> list[str]:
    """The reason of Ready once the time of KILL is shown."""
    shown = Seen(lambda: me.get(name)["status"], lambda status: "killTime" in status)
    conditions = until(shown, within=20, every=0.2, what=f"the time of KILL of {name}")["conditions"]
    return [entry["reason"] for entry in conditions if entry["type"] == "Ready"]


def test_events_tell_how_it_ended_and_what_never_starts(me: Person) -> None:
    me.apply("fails", entrypoint="sh -c 'exit 3'")
    me.apply("never", nodes=400, entrypoint="true")

    def told() -> set[tuple[str, str]]:
        listed = json.loads(me.kubectl("get", "events.events.k8s.io", "-n", me.namespace, "-o", "json").stdout)["items"]
        return {(one["regarding"]["name"], one["reason"]) for one in listed}

    until(Seen(told, lambda found: {("fails", "TaskFailed"), ("never", "NeverFits")} <= found), within=20, every=0.5, what="the events")
    assert "NeverFits" in me.kubectl("describe", "alloc", "never", "-n", me.namespace).stdout.partition("Events:")[2]


def test_submit_wait_says_why_the_work_could_not_start(me: Person) -> None:
    done = me.lattice("submit", "--wait", "--walltime=1m", "--chdir=/nonexistent-dir", "--", "hostname", ok=False)
    assert done.returncode == 125
    assert "StartFailed: " in done.stderr, done.stderr
    assert "/nonexistent-dir" in done.stderr


def test_hold_release_and_update_change_what_is_pending(me: Person) -> None:
    number = submitted(me, "--nodes=400", "--", "true")
    assert me.lattice("hold", number).stdout == f"Held allocation {number}\n"
    until(lambda: "(Held)" in me.lattice("status", number, "-o", "wide").stdout, within=10)
    assert me.lattice("release", number).stdout == f"Released allocation {number}\n"
    until(lambda: "(NeverFits)" in me.lattice("status", number, "-o", "wide").stdout, within=10)
    me.lattice("update", number, "--preemption-class=7", "--walltime=10m", "--name=renamed", "--tag=a=b")
    spec = json.loads(me.lattice("status", number, "-o", "json").stdout)["spec"]
    assert (spec["lifecycle"]["preemptionClass"], spec["lifecycle"]["walltime"]) == (7, "10m")
    assert spec["tags"] == {"name": "renamed", "a": "b"}
    assert me.lattice("update", number, ok=False).returncode == 2


def test_a_changed_walltime_reaches_running_work_and_a_longer_one_needs_the_right(me: Person, control_plane: Instance) -> None:
    short = submitted(me, "--walltime=5m", "--", "sleep", "4244.3")
    me.lattice("wait", short, "--for=started")
    refused = me.lattice("update", short, "--walltime=10m", ok=False)
    assert (refused.returncode, "extend" in refused.stderr) == (5, True), refused.stderr
    me.lattice("update", short, "--walltime=1s")
    assert me.lattice("wait", short, ok=False).returncode in (125, 128 + 15)
    assert "WalltimeExceeded" in me.lattice("why", short).stdout
    codes = []
    for seconds in (8, 60):  # a machine may be so slow that the change comes after the first end
        long = submitted(me, f"--walltime={seconds}s", "--", "sleep", str(seconds + 1))
        me.lattice("wait", long, "--for=started", ok=False)
        person(control_plane, "admin", me.namespace).lattice("update", long, "--walltime=10m", ok=False)
        codes.append(me.lattice("wait", long, ok=False).returncode)
        if codes[-1] == 0:
            break
    assert codes[-1] == 0, codes


# logs


def test_logs_of_several_nodes_can_be_chosen_from(me: Person) -> None:
    work = "echo out-$LATTICE_NODE_RANK-1; echo err-$LATTICE_NODE_RANK >&2; sleep 2; echo out-$LATTICE_NODE_RANK-2"
    number = submitted(me, "--wait", "-q", "--nodes=2", "--", "sh", "-c", work)
    nodes = json.loads(me.lattice("status", number, "-o", "json").stdout)["status"]["nodes"]
    first = f"nid{nodes[4:7]}" if "[" in nodes else nodes[:6]

    def logs(*words: str) -> list[str]:
        return sorted(me.lattice("logs", number, *words).stdout.splitlines())

    assert len(logs()) == 6
    assert all(line.startswith("nid0") and ": " in line for line in logs())
    assert [line.partition(": ")[2] for line in logs("--stderr")] == ["err-0", "err-1"]
    assert [line.partition(": ")[2] for line in logs("--stdout", "--tail=1")] == ["out-0-2", "out-1-2"]
    assert logs("--node", first, "--stdout") == ["out-0-1", "out-0-2"]
    assert all(line.startswith("20") and "T" in line.split()[0] for line in logs("--timestamps"))
    assert logs("--since=2001-01-01T00:00:00Z", "--stdout", "--node", first) == ["out-0-1", "out-0-2"]
    assert logs("--since=1s") == [] or len(logs("--since=1s")) < 6
    assert me.lattice("logs", number, "--tail=x", ok=False).returncode == 2


def test_logs_followed_wait_for_a_pending_one_and_end_with_the_work(me: Person) -> None:
    number = submitted(me, "--hold", "--", "sh", "-c", "for i in 1 2 3; do echo line $i; sleep 0.5; done")
    early = me.lattice("logs", number, ok=False)
    assert (early.returncode, "has not started: Pending" in early.stderr, "-f waits" in early.stderr) == (3, True, True)
    with started(me, "logs", "-f", number) as following:
        err = heard(following, "to start")
        me.lattice("release", number)
        out, rest = ended(following)
        err += rest
    assert (following.returncode, out) == (0, "line 1\nline 2\nline 3\n"), err
    assert f"waiting for allocation {number} to start" in err


# nodes, version, completion, kubectl


def test_nodes_shows_the_machines_and_everything_about_one(me: Person) -> None:
    lines = me.lattice("nodes").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [[f"nid00{at}", "Ready"] for at in range(1, 5)]
    assert me.lattice("nodes", "nid[001-002]", "-o", "name").stdout.count("\n") == 2
    assert me.lattice("nodes", "--state=down", "-o", "name").stdout == ""
    one = me.lattice("nodes", "nid002").stdout
    assert all(word in one for word in ("State:", "Ready since", "CPUs:", "Kernel:", "Agent:", "Boot:"))
    assert me.lattice("nodes", "nid999", ok=False).returncode == 4


def test_version_completion_help_and_exit_codes(me: Person, tmp_path: Path) -> None:
    shown = me.lattice("version").stdout
    assert all(word in shown for word in ("Lattice CLI:", "Lattice:", "Kubernetes:   v1."))
    assert "complete" in me.lattice("completion", "bash").stdout
    assert me.lattice("completions", "zsh").returncode == 0
    assert me.lattice("--help").stdout.startswith("Usage: lattice VERB")
    assert me.lattice("statsu", ok=False).returncode == 2
    assert me.lattice("status", "--stat", ok=False).returncode == 2
    away = tmp_path / "away"
    config = yaml.safe_load(me.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away.write_text(yaml.safe_dump(config))
    done = me.lattice("status", "--kubeconfig", str(away), ok=False)
    assert (done.returncode, "Hint: Is the cluster up?" in done.stderr) == (6, True), done.stderr


def test_kubectl_lattice_is_the_same_program_and_kubectl_completes_it(me: Person) -> None:
    bin_ = str(Path(sys.executable).parent)
    me.environ["PATH"] = f"{bin_}:{os.environ['PATH']}"
    number = me.kubectl("lattice", "submit", "--hold", "--parsable", "--", "true").stdout.strip()
    assert me.kubectl("lattice", "status").stdout == me.lattice("status").stdout or number in me.kubectl("lattice", "status").stdout
    assert "cancel" in me.kubectl("__complete", "lattice", "can").stdout
    tables = {kind: me.kubectl("get", kind, "-n", me.namespace).stdout.splitlines()[0] for kind in ("alloc", "vc", "ln")}
    assert all(word in tables["alloc"] for word in ("NUMBER", "PHASE", "REASON", "EXIT"))
    assert "Open" in me.kubectl("get", "vc", "hpc-batch").stdout
    assert shlex.split(tables["ln"])[0] == "NAME"
