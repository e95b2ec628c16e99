"""Hours used, pure: what each attempt of an allocation is charged, the records that keep it, sums over periods, budgets.

What belongs here: the charge of an attempt (`charges`), the rows of UsageRecords and which attempts they hold (`records`), what is
written next (`settlement`), each attempt counted once (`tally`), hours in a period (`meter`), budgets and their marks (`budgets`,
`notices`), the answers that people read (`answers`, `reports`).
What does not: requests to the API server, clocks, the score. Amounts are whole node-seconds and GPU-seconds.
"""
