"""Text for people: tables, details, bars, lines of logs, YAML; one module for each subject that is shown. Pure.

What belongs here: objects and answers in, lines out, with the width and the time given. What does not: fetching, printing,
asking a clock, or the choice between formats (`lattice.cli.console`).
"""
