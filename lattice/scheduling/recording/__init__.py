"""Recorded cycles: the input of a cycle, its decision, and the same decision made again from the record.

Belongs here: snapshots of a cycle's input (`record`), their encoding (`codec`, `record_rows`, `cycle_log`), their comparison byte by
byte (`reproduction`). Does not belong here: files and folders (`lattice.cycle_files`).
"""
