"""Replays of workload logs, pure: a trace in; the start of each job and a report of it out.

What belongs here: the reading of traces, the filter of what can be replayed, the counts-only engine for plain logs, the numbers of
a report. What does not: files, compression, progress and printing (`lattice.cli`), and the production cycle itself
(`lattice.scheduling`).
"""
