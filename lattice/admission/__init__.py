"""The admission chain of the cluster: pure functions that fill in absent values and judge a request to make or change an object.

The webhook, `submit --dry-run=client` and `plan` ask the same chain, so that everybody gets the same sentence. Belongs here:
defaults, checks, their reasons, the strict reading of manifests. Does not belong here: gathering the facts (the webhook and the CLI
do), any decision on when or where work runs, charging a quota (the ledger alone does). `strict` alone loads pydantic.
"""

from lattice.admission.chain import Request, admit, fill, judge, wanted_rights
from lattice.admission.facts import Facts, Requester
from lattice.admission.verdicts import Accepted, Caution, Refused, Verdict

__all__ = ["Accepted", "Caution", "Facts", "Refused", "Request", "Requester", "Verdict", "admit", "fill", "judge", "wanted_rights"]
