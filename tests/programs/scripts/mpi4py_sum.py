from mpi4py import MPI

world = MPI.COMM_WORLD
print("done", world.Get_rank(), "of", world.allreduce(1))
