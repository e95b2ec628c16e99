"""The only room that speaks to a Kubernetes API server: verbs, errors, informers, leases, transports, a fake.

What belongs here: how a request is built, sent, answered and repeated, and the machinery that follows a
kind (informer) or holds a Lease (elector). What does not: what an object means. Requests, answers and
errors are apart from the transports: `lattice.kube.aiohttp` for daemons, `lattice.kube.blocking` for one-shots.
"""
