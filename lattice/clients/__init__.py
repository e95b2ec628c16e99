"""Clients of systems outside of the cluster, each of one system and no other.

| module | of what |
|---|---|
| `registry` | an OCI registry, read only |
| `uenv_images` | the software environments that one keeps |
"""
