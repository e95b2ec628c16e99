"""As ring.c, by mpi4py."""

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
token = 0
if size > 1:
    if rank:
        token = world.recv(source=rank - 1)
    token += 1
    world.send(token, dest=(rank + 1) % size)
    if not rank:
        token = world.recv(source=size - 1)
total = world.allreduce(rank)
everyone = world.bcast({"answer": 4711} if not rank else None)
print(f"rank {rank} of {size}: ring {token}, sum {total}, all {everyone['answer']}", flush=True)
