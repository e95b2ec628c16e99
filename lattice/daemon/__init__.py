"""The shell of every process: settings, logs, metrics and readiness, signals, the clock, the keyed queue.

What belongs here: the shell around the work of any daemon. What does not: any kind of Kubernetes object,
and any decision; `except Exception` stands here in two places (around one key, around the process) and nowhere else.
"""
