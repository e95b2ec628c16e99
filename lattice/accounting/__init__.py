"""Hours used, pure: the charge of each attempt of an allocation, the records that keep it, sums over periods, budgets.

Belongs here: the charge of an attempt (`charges`), the rows of UsageRecords and which attempts they hold (`records`), the next write
(`settlement`), each attempt counted once (`tally`), hours in a period (`meter`), budgets and their marks (`budgets`, `notices`), the
answers that people read (`answers`, `reports`). Does not belong here: requests to the API server, clocks, the score. Amounts are whole
node-seconds and GPU-seconds.
"""
