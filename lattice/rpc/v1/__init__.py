"""What agents say to each other and to the gateway (`proto/lattice/rpc/v1/agent.proto`)."""
