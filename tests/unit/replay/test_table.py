"""The CSV of a production replay: a line for every job, whatever became of it."""

from __future__ import annotations

import csv
from dataclasses import replace

from lattice.replay.measures import Ran, Replayed
from lattice.replay.plain import alike
from lattice.replay.table import COLUMNS, rows

from .worlds import job


def test_a_job_has_its_nodes_by_name_and_the_groups_it_was_spread_over() -> None:
    nodes = [replace(facts, name=f"nid{at:03d}", group=f"g{at // 2}") for at, facts in enumerate(alike(6))]
    ran = Ran(job("wrf", 0.5, 100.0, 3, user="alice", tenant="climate"), 60.5, 160.5, (5, 1, 2), backfilled=True, killed=True)
    header, line = csv.reader(rows(Replayed(nodes, [ran])))
    assert tuple(header) == COLUMNS
    assert dict(zip(header, line, strict=True)) == {
        "job": "wrf", "tenant": "climate", "user": "alice", "vcluster": "default", "class": "5", "submit": "0.5", "start": "60.5",
        "end": "160.5", "wait": "60", "nodes": "3", "groups": "3", "how": "backfilled, ended at walltime", "where": "nid[001-002,005]",
    }  # fmt: skip


def test_what_never_ran_has_a_line_that_says_why() -> None:
    done = Replayed(alike(2), withdrawn=[job("a", 0, 1)], stuck=[(job("b", 7, 1, 2), "NeverFits", "needs 2 nodes")])
    found = [(line["job"], line["submit"], line["start"], line["nodes"], line["how"], line["where"]) for line in csv.DictReader(rows(done))]
    assert found == [("a", "0", "", "1", "withdrawn", ""), ("b", "7", "", "2", "never: NeverFits", "")]
