"""The admission webhooks: an HTTPS server that gathers facts, asks `lattice.admission` and answers.

What belongs here: reading and writing AdmissionReview, the caches that the facts come from, the server.
What does not: any default or check (they are in `lattice.admission`), any write to the cluster: a review
has no side effect and charges nothing, so that a dry run is answered exactly as a real request.
"""
