"""The benchmarks: what a running instance costs and how fast it is, each figure beside its aim and its baseline.

What belongs here: measures of the real programs on an instance of their own, and the pure rooms that make figures of
what was seen (`figures`, `auditlog`, `work`). What does not: tests of behaviour (`tests/`), and anything that the
measured programs would import.
"""
