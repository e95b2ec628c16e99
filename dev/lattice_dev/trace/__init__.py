"""Runs a workload log through the whole system: hollow nodes, compressed time, real allocations beside it, and a check of the order.

What belongs here: reading the first jobs of a log in the Standard Workload Format (`swf`), submitting them (`run`), and comparing what
happened with the rule (`order`, `verdict`). What does not: the simulator, which runs no daemon.
"""
