"""What agents and gateways say to each other (`proto/lattice/rpc/v1`)."""
