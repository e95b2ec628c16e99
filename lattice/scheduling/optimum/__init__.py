"""Optimal plans by OR-Tools, against which cycles are measured.

What belongs here: the models that the solver is given, and how a cycle's input becomes one. What does not: anything that a
cycle needs to decide; only `solver` imports ortools.
"""
