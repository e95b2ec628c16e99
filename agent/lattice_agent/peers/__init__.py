"""Carries what the agents of an attempt, and the gateway, say to each other: gRPC over mTLS, or in process between hollow nodes.

What belongs here: the wire, its certificates, and who may ask for what. What does not: any decision about work.
"""
