"""The local control plane for people, tests and benchmarks: real programs on one machine, several instances side by side.

What belongs here: building etcd, kube-apiserver, kube-controller-manager and kubectl; certificates, ports, node
namespaces and processes of an instance; installing what the repository ships (CRDs, policies, roles); development's
generators. What does not: anything that a cluster in production needs.
"""
