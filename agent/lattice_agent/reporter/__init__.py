"""Reports for an attempt: what its nodes say goes in; orders to them and the status that is persisted come out.

Belongs here: the view of one attempt (`head`) and the change of a status (`status`), both pure, and the object that collects and writes
(`reporter`). Does not belong here: how nodes reach the reporter (`peers`), and what one node decides (`lifecycle`).
"""
