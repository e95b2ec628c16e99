"""Generated protobuf and gRPC stubs; the source is `proto/`, the generator `lattice_dev.generate.stubs`."""
