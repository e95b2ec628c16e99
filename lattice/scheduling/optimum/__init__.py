"""Optimal plans by OR-Tools, as a measure for cycles.

Belongs here: the models for the solver (`solver`), and the conversion of a cycle's input into one (`formulation`). Does not belong
here: anything that a cycle needs to decide; only `solver` imports ortools.
"""
